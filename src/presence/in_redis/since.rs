//! Telling "few are watching" from "the data is gone".
//!
//! Each partition has a stamp in Redis: since when its presence data has been there without a gap,
//! and in which run of Redis. While a gap is younger than two of the longest beat intervals, viewers
//! who are still watching may be missing, and a low number is not believed.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use redis::Cmd;

use super::walk::Listpacks;
use crate::{
    clock::Timestamp,
    error::StoreError,
    ids::{PARTITIONS, Partition},
    presence::rhythm::Rhythm,
    store::{
        keys::Keys,
        redis::{Connection, Greeter, Redis, reply},
        script::LuaScript,
    },
};

/// Reads and, where it must, writes a partition's stamp.
pub(crate) static SINCE: LuaScript = LuaScript::new("since", include_str!("../lua/since.lua"));

/// How long a start waits to be told whether this deployment is new; nobody is served meanwhile.
const LONGEST_QUESTION: Duration = Duration::from_secs(2);

/// A partition's stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since {
    pub(super) at: Timestamp,
    /// There was data before, or may have been.
    pub(super) again: bool,
}

impl Since {
    pub(super) fn parse(stored: &str) -> Option<Self> {
        let mut parts = stored.split(' ');
        let at = Timestamp::from_secs(parts.next()?.parse().ok()?);
        let again = parts.nth(1)? == "again";
        Some(Self { at, again })
    }
}

/// Why a partition's stamp is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// Nobody was here before.
    New,
    /// Somebody was.
    Again,
    /// Nobody swept for so long that the data can't be vouched for.
    Reset,
}

/// The stamps this process has seen, so that a newer one tells it of a loss that a newcomer, who knows
/// none, took for a beginning. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Known {
    stamps: Arc<Mutex<[Option<Timestamp>; PARTITIONS as usize]>>,
}

impl Known {
    /// The call that reads a partition's stamp, and writes it where it is missing, of another run, or
    /// `new` though this process knows an older one.
    pub(crate) fn call(
        &self,
        redis: &Redis,
        connection: &Connection,
        partition: Partition,
        cause: Cause,
    ) -> Cmd {
        let cause = match cause {
            Cause::New => "new",
            Cause::Again => "again",
            Cause::Reset => "reset",
        };
        let known = self.stamps.lock()[partition.index()];
        let known = known.map_or_else(String::new, |at| at.secs().to_string());
        let args = [connection.run_id(), cause, &redis.clock().for_script(), &known];
        SINCE.call(&[Keys::since(redis.keys(), partition)], &args)
    }

    /// Whether `stamp` calls itself new, and this process knows an older one.
    pub(crate) fn knows_better(&self, partition: Partition, stamp: &str) -> bool {
        let known = self.stamps.lock()[partition.index()];
        Since::parse(stamp).is_some_and(|stamp| !stamp.again && known.is_some_and(|known| known < stamp.at))
    }

    /// Takes note that there was data before what the stamp of `partition` says.
    fn doubt(&self, partition: Partition, stamp: Since) {
        self.stamps.lock()[partition.index()] = Some(stamp.at - Duration::from_secs(1));
    }

    /// Takes note of what such a call answered.
    pub(crate) fn note(&self, partition: Partition, stamp: &str) {
        if let Some(stamp) = Since::parse(stamp) {
            self.stamps.lock()[partition.index()] = Some(stamp.at);
        }
    }
}

/// Knows of this deployment what Redis may have forgotten.
#[async_trait]
pub trait History: Send + Sync {
    /// Whether it was at work before `at`.
    async fn reaches_before(&self, at: Timestamp) -> Result<bool, StoreError>;
}

/// Stamps every partition first thing on a connection.
pub(super) struct Stamper {
    pub(super) redis: Redis,
    pub(super) listpacks: Listpacks,
    pub(super) known: Known,
    pub(super) history: Arc<dyn History>,
    /// Tells for how long a stamp is doubted that says `new` and isn't.
    pub(super) rhythm: Arc<Rhythm>,
    /// Whether beats have been waiting for a connection for over two seconds.
    pub(super) beats_waited: Box<dyn Fn() -> bool + Send + Sync>,
}

#[async_trait]
impl Greeter for Stamper {
    async fn greet(&self, connection: &Connection) -> Result<(), StoreError> {
        let cause = if connection.epoch() > 1 || (self.beats_waited)() { Cause::Again } else { Cause::New };
        let beginnings = self.stamp(connection, cause).await?;
        if connection.epoch() == 1 && self.are_mistaken(&beginnings).await {
            tracing::warn!(
                "redis is empty, and this deployment isn't new: low numbers are doubted for a while"
            );
            for (partition, stamp) in beginnings {
                self.known.doubt(partition, stamp);
            }
            self.stamp(connection, Cause::Again).await?;
        }
        self.listpacks.ask(connection).await
    }
}

impl Stamper {
    /// Stamps every partition and answers those that nobody was in before, and that lately.
    async fn stamp(
        &self,
        connection: &Connection,
        cause: Cause,
    ) -> Result<Vec<(Partition, Since)>, StoreError> {
        let calls =
            Partition::all().map(|partition| self.known.call(&self.redis, connection, partition, cause));
        if !connection.is_whole() {
            // Who doesn't see all of a cluster doesn't know whether it is another by now.
            return Ok(Vec::new());
        }
        let now = self.redis.clock().now();
        let mut beginnings = Vec::new();
        for (partition, value) in Partition::all().zip(connection.pipe(calls.collect()).await?) {
            let stamp: String = reply(value)?;
            self.known.note(partition, &stamp);
            let stamp = Since::parse(&stamp);
            let begins = stamp.filter(|stamp| !stamp.again && now.since(stamp.at) < self.rhythm.doubt());
            beginnings.extend(begins.map(|stamp| (partition, stamp)));
        }
        Ok(beginnings)
    }

    /// Whether these are no beginnings: Redis lost its data while no instance was there to know better.
    /// Where that can't be found out they are not believed, which costs a while of doubt.
    async fn are_mistaken(&self, beginnings: &[(Partition, Since)]) -> bool {
        match beginnings.iter().map(|(_, stamp)| stamp.at).min() {
            Some(oldest) => {
                let asked = self.history.reaches_before(oldest);
                let told = tokio::time::timeout(LONGEST_QUESTION, asked).await;
                !matches!(told, Ok(Ok(false)))
            }
            None => false,
        }
    }
}

/// What this instance remembers of the stamps it has read.
pub(super) struct Memory {
    stamps: Mutex<[Option<Since>; PARTITIONS as usize]>,
    /// Tells how long after a gap a low number isn't believed.
    rhythm: Arc<Rhythm>,
}

impl Memory {
    pub(super) fn new(rhythm: Arc<Rhythm>) -> Self {
        Self { stamps: Mutex::default(), rhythm }
    }

    /// Whether data of `partition` was lost lately or may have been, going by its stamp as just
    /// read. Remembers the stamp once the gap it tells of is old, and until then the first one that was
    /// read: a later one that calls itself new is another's mistake.
    pub(super) fn is_doubtful(&self, partition: Partition, read: Option<Since>, now: Timestamp) -> bool {
        let mut stamps = self.stamps.lock();
        let remembered = &mut stamps[partition.index()];
        let Some(read) = read else { return remembered.is_some() };
        let young = now.since(read.at) < self.rhythm.doubt();
        let another = remembered.is_some_and(|known| known.at < read.at);
        if young && (read.again || another) {
            remembered.get_or_insert(read);
            return true;
        }
        *remembered = Some(read);
        false
    }

    /// From when on a count of this partition saw everybody who was watching then.
    pub(super) fn complete_from(&self, read: Since) -> Option<Timestamp> {
        read.again.then(|| read.at + self.rhythm.doubt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn partition() -> Partition {
        Partition::all().next().unwrap()
    }

    fn since(secs: i64, again: bool) -> Since {
        Since { at: Timestamp::from_secs(secs), again }
    }

    #[test]
    fn a_stamp_is_read_as_it_is_written() {
        assert_eq!(Since::parse("5 abc again"), Some(since(5, true)));
        assert_eq!(Since::parse("5 abc new"), Some(since(5, false)));
        assert_eq!(Since::parse("gibberish"), None);
    }

    #[test]
    fn who_knows_only_of_a_gap_believes_no_newcomer_that_there_was_nobody_before() {
        let (usual, window) = (Duration::from_secs(30), Duration::from_secs(600));
        let rhythm = Arc::new(Rhythm::new(usual, window, ManualClock::at(Timestamp::from_secs(1_000))));
        let memory = Memory::new(rhythm);
        let doubts = |read, now| memory.is_doubtful(partition(), read, Timestamp::from_secs(now));
        assert!(doubts(Some(since(1_000, true)), 1_001));
        assert!(doubts(None, 1_010), "all is gone once more");
        assert!(doubts(Some(since(1_011, false)), 1_012), "one who has just come stamped it");
        assert!(doubts(Some(since(1_011, false)), 1_130));
        assert!(!doubts(Some(since(1_011, false)), 1_131));
    }

    #[test]
    fn numbers_are_doubted_for_two_of_the_longest_beat_intervals_after_a_gap() {
        let (usual, window) = (Duration::from_secs(30), Duration::from_secs(600));
        let rhythm = Arc::new(Rhythm::new(usual, window, ManualClock::at(Timestamp::from_secs(1_000))));
        let memory = Memory::new(rhythm.clone());
        let doubts = |read, now| memory.is_doubtful(partition(), read, Timestamp::from_secs(now));
        assert!(!doubts(Some(since(1_000, false)), 1_001), "nobody was here before");
        assert!(doubts(None, 1_100), "the stamp is gone, and the data with it");
        assert!(doubts(Some(since(1_100, true)), 1_101));
        assert!(doubts(Some(since(1_100, true)), 1_219));
        assert!(!doubts(Some(since(1_100, true)), 1_220));
        assert!(doubts(Some(since(1_300, false)), 1_301), "an older stamp is remembered");
        assert!(!doubts(Some(since(1_300, false)), 1_420));
        assert!(doubts(Some(since(1_500, true)), 1_501));
        rhythm.press(1.0);
        assert!(doubts(Some(since(1_500, true)), 1_899), "some were asked to beat every 200 s only");
        assert!(!doubts(Some(since(1_500, true)), 1_900));
    }
}
