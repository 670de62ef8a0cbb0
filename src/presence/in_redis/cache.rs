//! The counts this instance has at hand: answered at once, refreshed behind the answer.
//!
//! Beats and reads of a hot video come from every core at once, so what they look at is read without a
//! lock and written only where it changes.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::{
    clock::{Timestamp, millis},
    ids::VideoId,
    presence::OnlineCount,
};

/// A number is refreshed once it is so old.
const FRESH: Duration = Duration::from_secs(1);

/// And served for so long while it is; a zero isn't, somebody may just have come.
const SERVED: Duration = Duration::from_secs(5);

/// For so long after a beat a read that began before it doesn't undo it.
const BEAT_FLOOR: Duration = Duration::from_secs(5);

/// A beat so short after the one that is noted isn't noted: it would change nothing for long.
const BEAT_NOTED: Duration = Duration::from_secs(1);

/// The counts at hand, bounded.
pub(super) struct Counts {
    entries: Cache<VideoId, Arc<Entry>>,
    /// For how long the last good number may stand in when the store is gone.
    keep: Duration,
}

/// One video's.
#[derive(Default)]
pub(super) struct Entry {
    shown: ArcSwapOption<Shown>,
    /// Monotonic milliseconds plus one of a beat; 0 for none.
    beat: AtomicU64,
    refreshing: AtomicBool,
    /// Held by who changes what is shown.
    good: Mutex<Option<Good>>,
}

#[derive(Clone, Copy)]
struct Shown {
    count: OnlineCount,
    since: Duration,
}

#[derive(Clone, Copy)]
struct Good {
    online: u64,
    as_of: Timestamp,
    noted: Duration,
}

/// What is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtHand {
    /// A number that needs nothing more.
    Fresh(OnlineCount),
    /// A number to answer with; this caller is the one to have it refreshed.
    Refresh(OnlineCount),
    /// None that may be shown.
    Nothing,
}

/// What was read from the store about one video.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loaded {
    /// A number, right at that time.
    Fresh(u64, Timestamp),
    /// A number of a set that wasn't swept lately, but was pruned while counting.
    Unswept(u64, Timestamp),
    /// A number of a set that may have lost viewers.
    Doubtful(u64, Timestamp),
    /// The store didn't answer.
    Gone,
}

impl Counts {
    pub(super) fn new(most: usize, keep: Duration) -> Self {
        Self { entries: Cache::new(most), keep }
    }

    pub(super) fn entry(&self, video: &VideoId) -> Arc<Entry> {
        self.find(video).unwrap_or_else(|| {
            let Ok(entry) = self.entries.get_or_insert_with(video, || Ok::<_, Infallible>(Arc::default()));
            entry
        })
    }

    /// What is at hand for a video, without making room for one that isn't.
    pub(super) fn find(&self, video: &VideoId) -> Option<Arc<Entry>> {
        self.entries.get(video)
    }

    /// Takes what was read and answers what may be shown of it.
    pub(super) fn take(&self, video: &VideoId, loaded: Loaded, now: Duration) -> OnlineCount {
        self.entry(video).take(loaded, now, self.keep)
    }

    /// A viewer left: what is at hand for the video is no longer right.
    pub(super) fn left(&self, video: &VideoId) {
        if let Some(entry) = self.find(video) {
            entry.left();
        }
    }

    /// The best that can be said of a video while the store is gone.
    pub(super) fn last_good(&self, video: &VideoId, now: Duration) -> OnlineCount {
        self.find(video).map_or(OnlineCount::UNKNOWN, |entry| last_good(*entry.good.lock(), now, self.keep))
    }
}

impl Entry {
    pub(super) fn at_hand(&self, now: Duration) -> AtHand {
        let Some(Shown { count, since }) = self.shown() else { return AtHand::Nothing };
        let age = now.saturating_sub(since);
        if age <= FRESH {
            AtHand::Fresh(count)
        } else if age <= SERVED && count.online.is_some_and(|online| online > 0) {
            // Looked at before it is written: most who come find that somebody refreshes it already.
            if self.refreshing.load(Ordering::Relaxed) || self.refreshing.swap(true, Ordering::Relaxed) {
                AtHand::Fresh(count)
            } else {
                AtHand::Refresh(count)
            }
        } else {
            AtHand::Nothing
        }
    }

    fn shown(&self) -> Option<Shown> {
        self.shown.load().as_deref().copied()
    }

    /// Whether the number at hand was read after `asked`, so that it needn't be read again.
    pub(super) fn read_since(&self, asked: Duration) -> Option<OnlineCount> {
        self.shown().filter(|shown| shown.since >= asked).map(|shown| shown.count)
    }

    /// A viewer beat: the number is at least 1 from now on.
    pub(super) fn beat(&self, now: Duration) {
        let noted = self.noted_beat().is_some_and(|noted| now.saturating_sub(noted) < BEAT_NOTED);
        let is_zero = |shown: &Shown| shown.count.online == Some(0);
        if noted && !self.shown().as_ref().is_some_and(is_zero) {
            return;
        }
        // Noted and raised under the lock: a read that ends meanwhile sees the note, or is raised here.
        let _held = self.good.lock();
        self.beat.store(millis(now) + 1, Ordering::Release);
        if let Some(mut shown) = self.shown().filter(is_zero) {
            shown.count.online = Some(1);
            self.shown.store(Some(Arc::new(shown)));
        }
    }

    fn noted_beat(&self) -> Option<Duration> {
        self.beat.load(Ordering::Acquire).checked_sub(1).map(Duration::from_millis)
    }

    fn left(&self) {
        let _held = self.good.lock();
        self.beat.store(0, Ordering::Release);
        self.shown.store(None);
    }

    /// A refresh that was asked for will not come.
    pub(super) fn not_refreshed(&self) {
        self.refreshing.store(false, Ordering::Relaxed);
    }

    fn take(&self, loaded: Loaded, now: Duration, keep: Duration) -> OnlineCount {
        let mut good = self.good.lock();
        self.not_refreshed();
        let floor = u64::from(self.noted_beat().is_some_and(|beat| now.saturating_sub(beat) <= BEAT_FLOOR));
        let count = match loaded {
            Loaded::Fresh(online, as_of) => {
                let online = online.max(floor);
                *good = Some(Good { online, as_of, noted: now });
                OnlineCount { online: Some(online), as_of: Some(as_of), stale: false }
            }
            Loaded::Unswept(online, as_of) => stale(online.max(floor), as_of),
            Loaded::Doubtful(online, as_of) => match still_good(*good, now, keep) {
                // People don't all leave in the moment in which data is lost.
                Some(good) if good.online > online => stale(good.online, good.as_of),
                Some(_) => stale(online.max(floor), as_of),
                None => OnlineCount::UNKNOWN,
            },
            Loaded::Gone => return last_good(*good, now, keep),
        };
        self.shown.store(Some(Arc::new(Shown { count, since: now })));
        count
    }
}

fn still_good(good: Option<Good>, now: Duration, keep: Duration) -> Option<Good> {
    good.filter(|good| now.saturating_sub(good.noted) <= keep)
}

fn last_good(good: Option<Good>, now: Duration, keep: Duration) -> OnlineCount {
    still_good(good, now, keep).map_or(OnlineCount::UNKNOWN, |good| stale(good.online, good.as_of))
}

/// A number that can't be vouched for: a zero isn't shown.
fn stale(online: u64, as_of: Timestamp) -> OnlineCount {
    if online == 0 {
        return OnlineCount::UNKNOWN;
    }
    OnlineCount { online: Some(online), as_of: Some(as_of), stale: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(600);

    fn counts() -> (Counts, VideoId) {
        (Counts::new(100, KEEP), VideoId::parse("film").unwrap())
    }

    fn at_hand(counts: &Counts, film: &VideoId, now: Duration) -> AtHand {
        counts.find(film).map_or(AtHand::Nothing, |entry| entry.at_hand(now))
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn fresh(online: u64, as_of: i64) -> OnlineCount {
        OnlineCount { online: Some(online), as_of: Some(at(as_of)), stale: false }
    }

    #[test]
    fn a_number_is_served_for_five_seconds_and_one_caller_refreshes_it() {
        let (counts, film) = counts();
        assert_eq!(at_hand(&counts, &film, secs(0)), AtHand::Nothing);
        counts.take(&film, Loaded::Fresh(7, at(0)), secs(0));
        assert_eq!(at_hand(&counts, &film, secs(1)), AtHand::Fresh(fresh(7, 0)));
        assert_eq!(at_hand(&counts, &film, secs(2)), AtHand::Refresh(fresh(7, 0)));
        assert_eq!(at_hand(&counts, &film, secs(2)), AtHand::Fresh(fresh(7, 0)));
        assert_eq!(at_hand(&counts, &film, secs(5)), AtHand::Fresh(fresh(7, 0)));
        assert_eq!(at_hand(&counts, &film, secs(6)), AtHand::Nothing);
    }

    #[test]
    fn a_zero_lives_a_second_and_is_never_served_stale() {
        let (counts, film) = counts();
        counts.take(&film, Loaded::Fresh(0, at(0)), secs(0));
        assert_eq!(at_hand(&counts, &film, secs(1)), AtHand::Fresh(fresh(0, 0)));
        assert_eq!(at_hand(&counts, &film, secs(2)), AtHand::Nothing);
    }

    #[test]
    fn a_beat_raises_the_number_at_once_and_a_read_from_before_it_does_not_lower_it() {
        let (counts, film) = counts();
        counts.take(&film, Loaded::Fresh(0, at(0)), secs(0));
        counts.entry(&film).beat(secs(0));
        assert_eq!(at_hand(&counts, &film, secs(0)), AtHand::Fresh(fresh(1, 0)));
        assert_eq!(counts.take(&film, Loaded::Fresh(0, at(1)), secs(1)), fresh(1, 1));
    }

    #[test]
    fn while_viewers_may_be_missing_the_greater_of_last_good_and_live_is_shown_as_stale() {
        let (counts, film) = counts();
        assert_eq!(counts.take(&film, Loaded::Doubtful(3, at(0)), secs(0)), OnlineCount::UNKNOWN);
        counts.take(&film, Loaded::Fresh(1_000, at(1)), secs(1));
        let stale = |online, as_of| OnlineCount { online: Some(online), as_of: Some(at(as_of)), stale: true };
        assert_eq!(counts.take(&film, Loaded::Doubtful(3, at(2)), secs(2)), stale(1_000, 1));
        assert_eq!(counts.take(&film, Loaded::Doubtful(1_001, at(3)), secs(3)), stale(1_001, 3));
        assert_eq!(counts.take(&film, Loaded::Doubtful(3, at(602)), secs(602)), OnlineCount::UNKNOWN);
    }

    #[test]
    fn with_the_store_gone_the_last_good_number_is_stale_for_a_window_and_then_unknown() {
        let (counts, film) = counts();
        counts.take(&film, Loaded::Fresh(7, at(0)), secs(0));
        let last = OnlineCount { online: Some(7), as_of: Some(at(0)), stale: true };
        assert_eq!(counts.take(&film, Loaded::Gone, secs(600)), last);
        assert_eq!(counts.take(&film, Loaded::Gone, secs(601)), OnlineCount::UNKNOWN);
    }

    #[test]
    fn a_zero_that_is_not_fresh_is_unknown() {
        let (counts, film) = counts();
        assert_eq!(counts.take(&film, Loaded::Unswept(0, at(0)), secs(0)), OnlineCount::UNKNOWN);
        counts.take(&film, Loaded::Fresh(0, at(1)), secs(1));
        assert_eq!(counts.take(&film, Loaded::Gone, secs(2)), OnlineCount::UNKNOWN);
    }
}
