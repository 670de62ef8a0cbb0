//! Records of one part of the topic, counted together: which of them count is decided here.
//!
//! The records' own times decide, never a clock: read again, tomorrow or in a rebuild, they are decided
//! as they were the first time. A play counts if neither its viewer nor its playId was counted for the
//! video less than the dedupe window before *or after*: instances that take plays have clocks of their
//! own, so times go back a little from one record to the next, and what is sent again may well be older
//! than what was counted. What is remembered is the time of the play that counted last.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use chrono::{DateTime, NaiveDate, Utc};
use chrono_tz::Tz;

use super::record::Received;
use crate::{
    clock::Timestamp,
    ids::{Partition, PlayId, VideoId, ViewerId},
};

/// The readable records of one part of the topic between two offsets, in the order of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The offset it begins with: that of the next record when it was begun.
    pub began: i64,
    /// The offset behind its last record.
    pub next: i64,
    /// Its plays.
    pub plays: Vec<Received>,
}

/// By what a play is known again, as it stands in `play_seen`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::plays) struct Key {
    pub(in crate::plays) video: VideoId,
    pub(in crate::plays) viewer: String,
}

/// When what was seen was counted.
pub(in crate::plays) type Seen = HashMap<Key, DateTime<Utc>>;

/// What a window comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::plays) struct Decided {
    /// Plays that count, by where and when.
    pub(in crate::plays) counted: BTreeMap<(Partition, NaiveDate), BTreeMap<VideoId, i64>>,
    /// Who they were by.
    pub(in crate::plays) viewers: BTreeMap<VideoId, Vec<ViewerId>>,
    /// What is now known to be counted, and since when.
    pub(in crate::plays) seen: BTreeMap<Key, DateTime<Utc>>,
    /// How many plays count nothing.
    pub(in crate::plays) duplicates: u64,
    /// The earliest play that counts.
    pub(in crate::plays) since: Option<Timestamp>,
}

impl Window {
    /// Everything by which its plays may be known, each once and in order.
    pub(in crate::plays) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.plays.iter().flat_map(keys_of).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The time up to which everything before this window came, about: the earliest of its records.
    pub(in crate::plays) fn reached(&self) -> Option<Timestamp> {
        self.plays.iter().map(|received| received.at).min()
    }

    /// Decides each of its plays, in order. `seen` is what is known of [`Window::keys`].
    pub(in crate::plays) fn decide(&self, mut seen: Seen, window: Duration, timezone: Tz) -> Decided {
        let mut decided = Decided::default();
        for received in &self.plays {
            let at = received.at.to_utc();
            let is_new = |key: &Key| {
                seen.get(key)
                    .is_none_or(|counted| (at - *counted).abs().to_std().is_ok_and(|gap| gap >= window))
            };
            let keys: Vec<Key> = keys_of(received).collect();
            if !keys.iter().all(is_new) {
                decided.duplicates += 1;
                continue;
            }
            for key in keys {
                decided.seen.insert(key.clone(), at);
                seen.insert(key, at);
            }
            let video = &received.play.video;
            let day = at.with_timezone(&timezone).date_naive();
            *decided
                .counted
                .entry((video.partition(), day))
                .or_default()
                .entry(video.clone())
                .or_default() += 1;
            if let Some(viewer) = &received.play.viewer {
                decided.viewers.entry(video.clone()).or_default().push(viewer.clone());
            }
            decided.since = decided.since.map_or(Some(received.at), |since| Some(since.min(received.at)));
        }
        decided
    }
}

impl Decided {
    /// How many plays count, by partition.
    pub(in crate::plays) fn by_partition(&self) -> BTreeMap<Partition, i64> {
        let mut sums = BTreeMap::new();
        for ((partition, _), plays) in &self.counted {
            *sums.entry(*partition).or_default() += plays.values().sum::<i64>();
        }
        sums
    }
}

fn keys_of(received: &Received) -> impl Iterator<Item = Key> {
    let play = &received.play;
    let key = |viewer| Key { video: play.video.clone(), viewer };
    let viewer = play.viewer.as_ref().map(|viewer: &ViewerId| key(format!("u:{viewer}")));
    let play_id = play.play_id.as_ref().map(|id: &PlayId| key(format!("p:{id}")));
    viewer.into_iter().chain(play_id)
}

#[cfg(test)]
pub(in crate::plays) mod tests {
    use super::*;
    use crate::{ids::UserId, plays::Play};

    pub(in crate::plays) const NOON: i64 = 1_700_049_600;
    const WINDOW: Duration = Duration::from_secs(1_800);

    /// A play of "film", so many seconds after noon; "" for no viewer, or no playId.
    pub(in crate::plays) fn received(video: &str, viewer: &str, play_id: &str, at: i64) -> Received {
        let play = Play {
            video: VideoId::parse(video).unwrap(),
            viewer: UserId::parse(viewer).ok().map(|user| ViewerId::of_user(&user)),
            play_id: PlayId::parse(play_id).ok(),
        };
        Received { play, at: Timestamp::from_secs(NOON + at) }
    }

    fn count(plays: &[(&str, &str, i64)]) -> (i64, u64) {
        let plays =
            plays.iter().map(|(viewer, play_id, at)| received("film", viewer, play_id, *at)).collect();
        let decided = Window { began: 0, next: 0, plays }.decide(Seen::new(), WINDOW, Tz::UTC);
        (decided.by_partition().values().sum(), decided.duplicates)
    }

    #[test]
    fn viewer_and_play_id_must_both_be_new() {
        assert_eq!(count(&[("ann", "p1", 0), ("ann", "p1", 0)]), (1, 1));
        assert_eq!(count(&[("ann", "p1", 0), ("bob", "p1", 1), ("ann", "p2", 2)]), (1, 2));
        // What counted nothing leaves no trace: bob and p2 are free.
        assert_eq!(count(&[("ann", "p1", 0), ("bob", "p1", 1), ("bob", "p2", 2)]), (2, 1));
        assert_eq!(count(&[("", "p1", 0), ("", "p1", 1), ("", "p2", 2), ("p2", "", 3)]), (3, 1));
    }

    #[test]
    fn a_play_counts_again_once_the_window_is_over() {
        assert_eq!(count(&[("ann", "", 0), ("ann", "", 1_799)]), (1, 1));
        assert_eq!(count(&[("ann", "", 0), ("ann", "", 1_800)]), (2, 0));
        // The window begins with the play that counted, not with the last one seen.
        assert_eq!(count(&[("ann", "", 0), ("ann", "", 1_000), ("ann", "", 1_800)]), (2, 1));
    }

    #[test]
    fn times_that_go_back_a_little_make_no_play_new() {
        assert_eq!(count(&[("ann", "", 0), ("ann", "", -2)]), (1, 1));
        assert_eq!(count(&[("ann", "", 0), ("ann", "", -1_799)]), (1, 1));
        // A clock that was a day ahead bars nobody for a day, nor lets what is sent again count twice.
        assert_eq!(count(&[("ann", "", 86_400), ("ann", "", 0), ("ann", "", 1)]), (2, 1));
    }

    #[test]
    fn it_makes_no_difference_where_a_window_ends() {
        let plays: Vec<Received> = (0..300)
            .map(|n| received("film", &format!("viewer-{}", n % 7), &format!("p{}", n % 50), n * 97 % 4_000))
            .collect();
        let whole = Window { began: 0, next: 300, plays: plays.clone() };
        let whole = whole.decide(Seen::new(), WINDOW, Tz::UTC).by_partition();
        for size in [1, 7, 100] {
            let (mut seen, mut sums) = (Seen::new(), BTreeMap::new());
            for plays in plays.chunks(size) {
                let window = Window { began: 0, next: 0, plays: plays.to_vec() };
                let decided = window.decide(seen.clone(), WINDOW, Tz::UTC);
                for (partition, plays) in decided.by_partition() {
                    *sums.entry(partition).or_insert(0) += plays;
                }
                seen.extend(decided.seen);
            }
            assert_eq!(sums, whole, "{size} at a time");
        }
    }

    #[test]
    fn a_play_counts_on_the_day_of_its_record_where_the_site_is() {
        let plays = vec![received("film", "ann", "", 0), received("film", "bob", "", 11 * 3_600)];
        let window = Window { began: 0, next: 2, plays };
        let days = |timezone| {
            let decided = window.decide(Seen::new(), WINDOW, timezone);
            decided.counted.keys().map(|(_, day)| day.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(days(Tz::UTC), ["2023-11-15"]);
        assert_eq!(days(Tz::Asia__Shanghai), ["2023-11-15", "2023-11-16"]);
    }
}
