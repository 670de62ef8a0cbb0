//! The ids that players send, parsed once into types that can't be wrong.
//!
//! Past these constructors nobody checks length or characters again, and two ids can't be swapped.

use std::{fmt, sync::Arc};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The longest id that is taken, and the longest viewer that is stored as it is, in bytes.
pub const MAX_ID_BYTES: usize = 64;

/// In how many parts the videos are split; registry, dirty set, locks and batches exist once a part.
pub const PARTITIONS: u16 = 16;

/// Why an id was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Empty.
    #[error("must not be empty")]
    Empty,
    /// Over [`MAX_ID_BYTES`].
    #[error("must be at most {MAX_ID_BYTES} bytes long, not {0}")]
    TooLong(usize),
    /// A byte outside the set a video id is made of.
    #[error("may hold only A-Z a-z 0-9 . _ -")]
    VideoCharacter,
    /// A byte outside visible ASCII.
    #[error("may hold only visible ASCII, without spaces")]
    Invisible,
}

fn of_length(raw: &str) -> Result<&str, InvalidId> {
    match raw.len() {
        0 => Err(InvalidId::Empty),
        length if length > MAX_ID_BYTES => Err(InvalidId::TooLong(length)),
        _ => Ok(raw),
    }
}

fn visible(raw: &str) -> Result<&str, InvalidId> {
    of_length(raw)?;
    if raw.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(raw) } else { Err(InvalidId::Invisible) }
}

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $parse:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Reads an id that a client or a store gave.
            pub fn parse(raw: &str) -> Result<Self, InvalidId> {
                let parse: fn(&str) -> Result<&str, InvalidId> = $parse;
                parse(raw).map(|id| Self(id.into()))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }
    };
}

id_type!(
    /// Names one video: 1 to 64 bytes of `A-Z a-z 0-9 . _ -`, so that it can stand in a URL path
    /// and inside a Redis hash tag as it is.
    VideoId,
    |raw| {
        of_length(raw)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if raw.bytes().all(plain) { Ok(raw) } else { Err(InvalidId::VideoCharacter) }
    }
);

id_type!(
    /// Names a user of the site: 1 to 64 bytes of visible ASCII.
    UserId,
    visible
);

id_type!(
    /// Names one of a user's devices: 1 to 64 bytes of visible ASCII.
    DeviceId,
    visible
);

id_type!(
    /// Names one playback, so that sending it again counts nothing: 1 to 64 bytes of visible ASCII.
    PlayId,
    visible
);

impl VideoId {
    /// The partition this video belongs to, the same in every process.
    #[must_use]
    pub fn partition(&self) -> Partition {
        Partition::of(&self.0)
    }
}

/// Who watches, as it is stored: a user, or a user's device.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewerId(Arc<str>);

impl ViewerId {
    /// A viewer is a user, on however many devices.
    #[must_use]
    pub fn of_user(user: &UserId) -> Self {
        Self(user.0.clone())
    }

    /// Each device of a user is a viewer of its own.
    #[must_use]
    pub fn of_device(device: &DeviceId, user: &UserId) -> Self {
        Self::from_stored(&format!("{device}:{user}"))
    }

    /// A viewer read back from a store. One longer than [`MAX_ID_BYTES`] becomes its hash: a single
    /// longer field turns a whole Redis listpack into a hashtable.
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        if text.len() <= MAX_ID_BYTES {
            Self(text.into())
        } else {
            Self(format!("{:032x}", xxh3_128(text.as_bytes())).into())
        }
    }

    /// The viewer as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash that places a viewer in a shard.
    #[must_use]
    pub fn hash64(&self) -> u64 {
        xxh3_64(self.0.as_bytes())
    }
}

impl fmt::Display for ViewerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ViewerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

/// One of the [`PARTITIONS`] parts of the videos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition(u16);

impl Partition {
    /// Every partition, in order.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..PARTITIONS).map(Self)
    }

    /// The one that a text belongs to, whether it is a video's id or not.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let index = xxh3_64(text.as_bytes()) % u64::from(PARTITIONS);
        Self(u16::try_from(index).expect("a remainder of PARTITIONS fits its type"))
    }

    /// The position in an array of [`PARTITIONS`] elements.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// As it stands in the column `partition` of tables.
    #[must_use]
    pub fn number(self) -> i16 {
        i16::try_from(self.0).expect("there are 16 partitions")
    }

    /// Read back from a column `partition`; `None` where it is none of ours.
    #[must_use]
    pub fn from_number(number: i64) -> Option<Self> {
        u16::try_from(number).ok().filter(|index| *index < PARTITIONS).map(Self)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_video_id_is_1_to_64_bytes_that_need_no_escaping() {
        for good in ["1", "BV1xx411c7mD", "a.b_c-d", &"x".repeat(64)] {
            assert_eq!(VideoId::parse(good).unwrap().as_str(), good);
        }
        assert_eq!(VideoId::parse(""), Err(InvalidId::Empty));
        assert_eq!(VideoId::parse(&"x".repeat(65)), Err(InvalidId::TooLong(65)));
        for bad in ["}", "a}b", "{}", "a/b", "a b", "a\0b", "é", "a%2Fb", "a:b"] {
            assert_eq!(VideoId::parse(bad), Err(InvalidId::VideoCharacter), "{bad:?}");
        }
    }

    #[test]
    fn a_user_id_is_visible_ascii() {
        assert!(UserId::parse("!~:{}\"'").is_ok());
        for bad in ["a b", "\u{7f}", "\n", "名"] {
            assert_eq!(UserId::parse(bad), Err(InvalidId::Invisible), "{bad:?}");
        }
    }

    #[test]
    fn a_viewer_over_64_bytes_is_stored_as_its_hash() {
        let device = DeviceId::parse(&"d".repeat(40)).unwrap();
        let user = UserId::parse(&"u".repeat(40)).unwrap();
        let viewer = ViewerId::of_device(&device, &user);
        assert_eq!(viewer.as_str().len(), 32);
        assert!(viewer.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));

        let short = ViewerId::of_device(&DeviceId::parse("tv").unwrap(), &UserId::parse("ann").unwrap());
        assert_eq!(short.as_str(), "tv:ann");
    }

    #[test]
    fn every_partition_is_used() {
        let mut seen = [false; PARTITIONS as usize];
        for number in 0..1_000 {
            seen[VideoId::parse(&number.to_string()).unwrap().partition().index()] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
