//! Which node of a cluster has which of its 16,384 slots, and in which slot a command's keys are.

use redis::{Arg, Cmd, Value};

use super::reply;
use crate::error::{Part, StoreError};

/// Slots of a cluster, by the specification of Redis Cluster.
const SLOTS: usize = 16_384;

/// Where primaries are, and which slots each has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotMap {
    /// `host:port` of every primary that has slots, in order.
    pub(super) primaries: Vec<String>,
    /// Of each slot the place of its primary in that list.
    owners: Box<[Option<u16>]>,
}

impl SlotMap {
    /// Reads the answer to `CLUSTER SLOTS`. A node that doesn't know its own address stands for the one
    /// that was `asked`.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn read(answer: Value, asked: &str) -> Result<Self, StoreError> {
        let ranges: Vec<(usize, usize, Value)> = reply::<Vec<Vec<Value>>>(answer)?
            .into_iter()
            .map(|range| {
                let mut range = range.into_iter();
                let mut next = || range.next().unwrap_or(Value::Nil);
                Ok((reply(next())?, reply(next())?, next()))
            })
            .collect::<Result<_, StoreError>>()?;
        let asked_host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
        let mut owned = Vec::with_capacity(ranges.len());
        for (first, last, primary) in ranges {
            let mut primary = reply::<Vec<Value>>(primary)?.into_iter();
            let mut next = || primary.next().unwrap_or(Value::Nil);
            let (host, port): (Option<String>, u16) = (reply(next())?, reply(next())?);
            let host = host.filter(|host| !host.is_empty() && host != "?");
            let (host, last) = (host.unwrap_or_else(|| asked_host.to_owned()), last.min(SLOTS - 1));
            owned.push((first.min(last)..=last, format!("{host}:{port}")));
        }
        let mut primaries: Vec<String> = owned.iter().map(|(_, address)| address.clone()).collect();
        primaries.sort_unstable();
        primaries.dedup();
        let mut owners = vec![None; SLOTS].into_boxed_slice();
        for (range, address) in owned {
            let place = primaries.binary_search(&address).ok().and_then(|place| u16::try_from(place).ok());
            owners[range].fill(place);
        }
        if primaries.is_empty() {
            return Err(StoreError::unavailable(Part::Redis, "no node of the cluster has any slots"));
        }
        Ok(Self { primaries, owners })
    }

    /// Slots that nobody has.
    pub(super) fn uncovered(&self) -> usize {
        self.owners.iter().filter(|owner| owner.is_none()).count()
    }

    /// The place of the primary that has this slot.
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        self.owners[usize::from(slot) % SLOTS].map(usize::from)
    }
}

/// The slot of a key: of what stands between its first braces, or else of all of it.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open + 1..open + 1 + length])
    });
    let hash = crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key));
    hash % u16::try_from(SLOTS).expect("16,384 fits")
}

/// The slot of a command's first key; all of its keys are in the same. `None` where it has none.
pub(super) fn slot_of_command(command: &Cmd) -> Option<u16> {
    let mut arguments = command.args_iter().map(|argument| match argument {
        Arg::Simple(bytes) => bytes,
        Arg::Cursor => b"0",
        _ => b"",
    });
    let key = match arguments.next()? {
        b"EVALSHA" => {
            let keys = arguments.nth(1)?;
            if keys == b"0" { None } else { arguments.next() }
        }
        b"INFO" | b"CONFIG" | b"TIME" | b"PING" | b"SCRIPT" | b"WAIT" => None,
        _ => arguments.next(),
    };
    key.map(slot_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The first two are examples of the specification and of CLUSTER KEYSLOT's page.
        for (key, slot) in [("123456789", 0x31C3), ("somekey", 11_058), ("foo{hash_tag}", 2_515)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
        assert_ne!(slot_of(b"foo{}{bar}"), slot_of(b"bar"), "empty braces are no tag");
    }

    #[test]
    fn a_command_goes_by_its_first_key() {
        let slot = |words: &[&str]| {
            let mut command = redis::cmd(words[0]);
            command.arg(&words[1..]);
            slot_of_command(&command)
        };
        assert_eq!(slot(&["GET", "foo"]), Some(slot_of(b"foo")));
        assert_eq!(slot(&["MGET", "{a}1", "{a}2"]), Some(slot_of(b"a")));
        assert_eq!(slot(&["EVALSHA", "hash", "1", "foo", "bar"]), Some(slot_of(b"foo")));
        assert_eq!(slot(&["EVALSHA", "hash", "0", "foo"]), None);
        assert_eq!(slot(&["INFO", "server"]), None);
    }

    fn node(host: &str, port: i64) -> Value {
        Value::Array(vec![Value::BulkString(host.into()), Value::Int(port), Value::BulkString("id".into())])
    }

    #[test]
    fn an_answer_to_cluster_slots_is_read_with_its_holes() {
        let range = |first, last, primary| {
            Value::Array(vec![Value::Int(first), Value::Int(last), primary, node("10.0.0.9", 6379)])
        };
        let answer = Value::Array(vec![
            range(0, 99, node("10.0.0.2", 6379)),
            range(200, 16_383, node("10.0.0.1", 6379)),
            range(100, 149, node("", 7000)),
        ]);
        let map = SlotMap::read(answer, "seed:6379").unwrap();
        assert_eq!(map.primaries, ["10.0.0.1:6379", "10.0.0.2:6379", "seed:7000"]);
        assert_eq!([0, 120, 199, 200].map(|slot| map.owner(slot)), [Some(1), Some(2), None, Some(0)]);
        assert_eq!(map.uncovered(), 50);
        assert!(SlotMap::read(Value::Array(Vec::new()), "seed:6379").is_err());
        assert!(SlotMap::read(Value::Int(1), "seed:6379").is_err());
    }
}
