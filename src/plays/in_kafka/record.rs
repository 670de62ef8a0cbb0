//! A play as it stands in Kafka's log: the key is the video, the value a small JSON object, the time is
//! the record's own.
//!
//! Whatever is in the topic was written by somebody, maybe by another program: what can't be read is told
//! with the reason, and never taken for a play.

use serde::{Deserialize, Serialize};

use crate::{
    clock::Timestamp,
    ids::{InvalidId, MAX_ID_BYTES, PlayId, VideoId, ViewerId},
    plays::Play,
};

/// What this build writes, and all that it reads. A later one is to be read by consumers before the first
/// producer writes it.
const VERSION: u32 = 1;

/// The value of a record: `{"v":1,"viewer":"ann","playId":"p-1"}`. What isn't there is left out.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Value<'a> {
    v: u32,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    viewer: Option<std::borrow::Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow, default)]
    play_id: Option<std::borrow::Cow<'a, str>>,
}

/// A play that was read from the log, and when it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What was played, and by whom.
    pub play: Play,
    /// When the instance that took it had it: the same however often the record is read.
    pub at: Timestamp,
}

/// Why a record is no play. Its text goes to the dead-letter topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It has no key, and so no video.
    #[error("it has no key")]
    NoKey,
    /// Its key is no id of a video.
    #[error("its key is no videoId: {0}")]
    Key(InvalidId),
    /// Its key isn't text.
    #[error("its key is not UTF-8")]
    KeyBytes,
    /// It has no value.
    #[error("it has no value")]
    NoValue,
    /// Its value is no object of ours.
    #[error("its value can't be read at line {line}, column {column}: {kind}")]
    Value {
        /// Where.
        line: usize,
        /// Where.
        column: usize,
        /// What the reader makes of it; never the text, which may be long or private.
        kind: &'static str,
    },
    /// It is of another version.
    #[error("it is of version {0}, and this build reads version {VERSION}")]
    Version(u32),
    /// The viewer can't be one.
    #[error("its viewer is no viewer: {0}")]
    Viewer(InvalidId),
    /// The playId can't be one.
    #[error("its playId is none: {0}")]
    PlayId(InvalidId),
    /// Neither viewer nor playId: nothing tells it from another.
    #[error("it has neither viewer nor playId")]
    Nobody,
    /// It carries no time.
    #[error("it has no timestamp")]
    NoTime,
    /// Its time is before 1970.
    #[error("its timestamp, {0} ms, is no time")]
    Time(i64),
}

/// The value of the record for a play. Its key is the video.
#[must_use]
pub fn value(play: &Play) -> Vec<u8> {
    let value = Value {
        v: VERSION,
        viewer: play.viewer.as_ref().map(|viewer| viewer.as_str().into()),
        play_id: play.play_id.as_ref().map(|id| id.as_str().into()),
    };
    serde_json::to_vec(&value).expect("numbers and texts are always JSON")
}

/// Reads a record. `millis` is its timestamp.
///
/// # Errors
/// It is no play, and this is why.
pub fn read(key: Option<&[u8]>, value: Option<&[u8]>, millis: Option<i64>) -> Result<Received, Unreadable> {
    let key = std::str::from_utf8(key.ok_or(Unreadable::NoKey)?).map_err(|_| Unreadable::KeyBytes)?;
    let video = VideoId::parse(key).map_err(Unreadable::Key)?;
    let value: Value<'_> = serde_json::from_slice(value.ok_or(Unreadable::NoValue)?).map_err(|error| {
        use serde_json::error::Category;
        let kind = match error.classify() {
            Category::Data => "a field is missing or of another type",
            Category::Eof => "it ends too early",
            Category::Syntax | Category::Io => "it is no JSON",
        };
        Unreadable::Value { line: error.line(), column: error.column(), kind }
    })?;
    if value.v != VERSION {
        return Err(Unreadable::Version(value.v));
    }
    let viewer = value.viewer.map(|text| viewer(&text)).transpose().map_err(Unreadable::Viewer)?;
    let play_id = value.play_id.map(|id| PlayId::parse(&id)).transpose().map_err(Unreadable::PlayId)?;
    if viewer.is_none() && play_id.is_none() {
        return Err(Unreadable::Nobody);
    }
    let at = match millis.ok_or(Unreadable::NoTime)? {
        millis @ 0.. => Timestamp::from_millis(millis),
        millis => return Err(Unreadable::Time(millis)),
    };
    Ok(Received { play: Play { video, viewer, play_id }, at })
}

/// A viewer as it is stored: never longer than an id, as longer ones are stored as their hash.
fn viewer(text: &str) -> Result<ViewerId, InvalidId> {
    match text.len() {
        0 => Err(InvalidId::Empty),
        length if length > MAX_ID_BYTES => Err(InvalidId::TooLong(length)),
        _ if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(ViewerId::from_stored(text)),
        _ => Err(InvalidId::Invisible),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(viewer: Option<&str>, play_id: Option<&str>) -> Play {
        Play {
            video: VideoId::parse("film").unwrap(),
            viewer: viewer.map(ViewerId::from_stored),
            play_id: play_id.map(|id| PlayId::parse(id).unwrap()),
        }
    }

    fn unreadable(key: &[u8], value: &[u8]) -> Unreadable {
        read(Some(key), Some(value), Some(1)).unwrap_err()
    }

    #[test]
    fn a_play_is_read_as_it_was_written() {
        let long = "x".repeat(200);
        for play in [
            play(Some("ann"), Some("p-1")),
            play(Some("tv:ann"), None),
            play(None, Some("\"}{\\")),
            play(Some(&long), None),
        ] {
            let written = value(&play);
            let read = read(Some(play.video.as_str().as_bytes()), Some(&written), Some(1_800_000_000_123));
            assert_eq!(read, Ok(Received { play, at: Timestamp::from_millis(1_800_000_000_123) }));
        }
    }

    /// Consumers of before and after read this: it can't change without a new version.
    #[test]
    fn the_first_version_is_written_like_this() {
        let written = value(&play(Some("ann"), Some("p-1")));
        assert_eq!(written, br#"{"v":1,"viewer":"ann","playId":"p-1"}"#);
        assert_eq!(value(&play(None, Some("p-1"))), br#"{"v":1,"playId":"p-1"}"#);
    }

    #[test]
    fn fields_that_a_later_build_adds_are_passed_over() {
        let read = read(Some(b"film"), Some(br#"{"v":1,"playId":"p-1","app":"tv"}"#), Some(1));
        assert_eq!(read.unwrap().play, play(None, Some("p-1")));
    }

    #[test]
    fn what_is_no_play_is_told_with_the_reason() {
        let good = br#"{"v":1,"playId":"p-1"}"#;
        assert_eq!(read(None, Some(good), Some(1)), Err(Unreadable::NoKey));
        assert_eq!(read(Some(b"film"), None, Some(1)), Err(Unreadable::NoValue));
        assert_eq!(read(Some(b"film"), Some(good), None), Err(Unreadable::NoTime));
        assert_eq!(read(Some(b"film"), Some(good), Some(-1)), Err(Unreadable::Time(-1)));
        assert_eq!(unreadable(b"\xff", good), Unreadable::KeyBytes);
        assert_eq!(unreadable(b"a/b", good), Unreadable::Key(InvalidId::VideoCharacter));
        assert_eq!(unreadable(b"", good), Unreadable::Key(InvalidId::Empty));
        let other = unreadable(b"film", br#"{"v":1,"playId":7}"#);
        assert!(other.to_string().contains("another type"), "{other}");
        assert_eq!(unreadable(b"film", br#"{"v":2,"playId":"p"}"#), Unreadable::Version(2));
        assert_eq!(unreadable(b"film", br#"{"v":1}"#), Unreadable::Nobody);
        assert_eq!(unreadable(b"film", br#"{"v":1,"viewer":""}"#), Unreadable::Viewer(InvalidId::Empty));
        let spaced = br#"{"v":1,"playId":"p 1"}"#;
        assert_eq!(unreadable(b"film", spaced), Unreadable::PlayId(InvalidId::Invisible));
        let long = format!(r#"{{"v":1,"viewer":"{}"}}"#, "x".repeat(65));
        assert_eq!(unreadable(b"film", long.as_bytes()), Unreadable::Viewer(InvalidId::TooLong(65)));
    }

    #[test]
    fn a_reason_never_holds_what_could_not_be_read() {
        for value in ["secret", "{\"v\":1,\"viewer\":secret}", "\"secret\"", "{\"v\":\"secret\"}", "{", ""] {
            let reason = unreadable(b"film", value.as_bytes()).to_string();
            assert!(reason.starts_with("its value can't be read") && !reason.contains("secret"), "{reason}");
        }
    }
}
