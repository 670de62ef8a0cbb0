//! Which plays of a batch count, as plain data: no table, no waiting.

use std::{collections::HashMap, time::Duration};

use chrono::NaiveDate;
use chrono_tz::Tz;

use crate::{
    clock::Timestamp,
    ids::{VideoId, ViewerId},
    plays::Play,
};

/// A play and when it came in.
#[derive(Clone, Debug)]
pub(super) struct TimedPlay {
    pub(super) play: Play,
    pub(super) at: Timestamp,
}

/// What must not have been seen within the dedupe window for a play to count: the viewer, and the
/// playback, each of this video.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) video: VideoId,
    pub(super) text: String,
}

/// The keys of all `plays`, in order; one or two each.
pub(super) fn keys(plays: &[TimedPlay]) -> Vec<Key> {
    let mut keys = Vec::with_capacity(plays.len() * 2);
    for TimedPlay { play, .. } in plays {
        let viewer = play.viewer.as_ref().map(|viewer| format!("u:{viewer}"));
        let play_id = play.play_id.as_ref().map(|id| format!("p:{id}"));
        let texts = viewer.into_iter().chain(play_id);
        keys.extend(texts.map(|text| Key { video: play.video.clone(), text }));
    }
    keys
}

/// Whether something seen at `seen` still bars a play at `at`. Seen far in the future, it was
/// written under a clock that was wrong.
pub(super) fn is_within(window: Duration, seen: Timestamp, at: Timestamp) -> bool {
    at.since(seen) < window && seen.since(at) < window
}

/// What a batch adds.
#[derive(Debug, Default)]
pub(super) struct Decided<'a> {
    /// For each play, in order, whether it counts: `false` is a duplicate.
    pub(super) counts: Vec<bool>,
    pub(super) videos: HashMap<VideoId, Played>,
    pub(super) days: HashMap<(VideoId, NaiveDate), i64>,
    /// The keys of those that count.
    pub(super) seen: Vec<(&'a Key, Timestamp)>,
}

/// What a batch adds to one video.
#[derive(Debug, Default)]
pub(super) struct Played {
    pub(super) plays: i64,
    pub(super) last: Timestamp,
    /// In the order they came, for a sketch that comes out the same each time.
    pub(super) viewers: Vec<ViewerId>,
}

/// Decides for each play. `keys` are theirs, and `seen` says since when each of those is in the
/// table.
pub(super) fn decide<'a>(
    plays: &[TimedPlay],
    keys: &'a [Key],
    seen: &[Option<Timestamp>],
    window: Duration,
    timezone: Tz,
) -> Decided<'a> {
    let mut decided = Decided::default();
    let mut in_batch: HashMap<&Key, Timestamp> = HashMap::new();
    let mut keys = keys.iter().zip(seen);
    for TimedPlay { play, at } in plays {
        let count = usize::from(play.viewer.is_some()) + usize::from(play.play_id.is_some());
        let own: Vec<_> = keys.by_ref().take(count).collect();
        let is_seen = |seen: Option<&Timestamp>| seen.is_some_and(|seen| is_within(window, *seen, *at));
        let counts = !own.iter().any(|(key, stored)| is_seen(stored.as_ref()) || is_seen(in_batch.get(key)));
        decided.counts.push(counts);
        if !counts {
            continue;
        }
        for (key, _) in own {
            in_batch.insert(key, *at);
            decided.seen.push((key, *at));
        }
        let played = decided.videos.entry(play.video.clone()).or_default();
        played.plays += 1;
        played.last = played.last.max(*at);
        played.viewers.extend(play.viewer.clone());
        let day = at.to_utc().with_timezone(&timezone).date_naive();
        *decided.days.entry((play.video.clone(), day)).or_default() += 1;
    }
    decided
}
