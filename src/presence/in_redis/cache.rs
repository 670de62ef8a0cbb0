//! The counts this instance has at hand: answered at once, refreshed behind the answer.

use std::{sync::Arc, time::Duration};

use moka::sync::Cache;
use parking_lot::Mutex;

use crate::{clock::Timestamp, ids::VideoId, presence::OnlineCount};

/// A number is refreshed once it is so old.
const FRESH: Duration = Duration::from_secs(1);

/// And served for so long while it is; a zero isn't, somebody may just have come.
const SERVED: Duration = Duration::from_secs(5);

/// For so long after a beat a read that began before it doesn't undo it.
const BEAT_FLOOR: Duration = Duration::from_secs(5);

/// The counts at hand, bounded.
pub(super) struct Counts {
    entries: Cache<VideoId, Arc<Entry>>,
    /// For how long the last good number may stand in when the store is gone.
    keep: Duration,
}

/// One video's.
#[derive(Default)]
pub(super) struct Entry {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shown: Option<(OnlineCount, Duration)>,
    good: Option<Good>,
    beat: Option<Duration>,
    refreshing: bool,
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
    pub(super) fn new(most: u64, keep: Duration) -> Self {
        Self { entries: Cache::builder().max_capacity(most).time_to_idle(keep).build(), keep }
    }

    pub(super) fn entry(&self, video: &VideoId) -> Arc<Entry> {
        if let Some(entry) = self.entries.get(video) {
            return entry;
        }
        self.entries.get_with(video.clone(), Arc::default)
    }

    /// What is at hand for a video, without making room for one that isn't.
    pub(super) fn at_hand(&self, video: &VideoId, now: Duration) -> AtHand {
        self.entries.get(video).map_or(AtHand::Nothing, |entry| entry.at_hand(now))
    }

    /// Takes what was read and answers what may be shown of it.
    pub(super) fn take(&self, video: &VideoId, loaded: Loaded, now: Duration) -> OnlineCount {
        self.entry(video).take(loaded, now, self.keep)
    }

    /// A viewer left: what is at hand for the video is no longer right.
    pub(super) fn left(&self, video: &VideoId) {
        if let Some(entry) = self.entries.get(video) {
            entry.left();
        }
    }

    /// The best that can be said of a video while the store is gone.
    pub(super) fn last_good(&self, video: &VideoId, now: Duration) -> OnlineCount {
        let Some(entry) = self.entries.get(video) else { return OnlineCount::UNKNOWN };
        entry.state.lock().last_good(now, self.keep)
    }
}

impl Entry {
    fn at_hand(&self, now: Duration) -> AtHand {
        let mut state = self.state.lock();
        let Some((shown, since)) = state.shown else { return AtHand::Nothing };
        let age = now.saturating_sub(since);
        if age <= FRESH {
            AtHand::Fresh(shown)
        } else if age <= SERVED && shown.online.is_some_and(|online| online > 0) {
            if std::mem::replace(&mut state.refreshing, true) {
                AtHand::Fresh(shown)
            } else {
                AtHand::Refresh(shown)
            }
        } else {
            AtHand::Nothing
        }
    }

    /// Whether the number at hand was read after `asked`, so that it needn't be read again.
    pub(super) fn read_since(&self, asked: Duration) -> Option<OnlineCount> {
        self.state.lock().shown.filter(|(_, since)| *since >= asked).map(|(shown, _)| shown)
    }

    /// A viewer beat: the number is at least 1 from now on.
    pub(super) fn beat(&self, now: Duration) {
        let mut state = self.state.lock();
        state.beat = Some(now);
        if let Some((shown, _)) = &mut state.shown
            && shown.online == Some(0)
        {
            shown.online = Some(1);
        }
    }

    fn left(&self) {
        let mut state = self.state.lock();
        state.beat = None;
        state.shown = None;
    }

    /// A refresh that was asked for will not come.
    pub(super) fn not_refreshed(&self) {
        self.state.lock().refreshing = false;
    }

    fn take(&self, loaded: Loaded, now: Duration, keep: Duration) -> OnlineCount {
        let mut state = self.state.lock();
        state.refreshing = false;
        let floor = u64::from(state.beat.is_some_and(|beat| now.saturating_sub(beat) <= BEAT_FLOOR));
        let shown = match loaded {
            Loaded::Fresh(online, as_of) => {
                let online = online.max(floor);
                state.good = Some(Good { online, as_of, noted: now });
                OnlineCount { online: Some(online), as_of: Some(as_of), stale: false }
            }
            Loaded::Unswept(online, as_of) => stale(online.max(floor), as_of),
            Loaded::Doubtful(online, as_of) => match state.good(now, keep) {
                // People don't all leave in the moment in which data is lost.
                Some(good) if good.online > online => stale(good.online, good.as_of),
                Some(_) => stale(online.max(floor), as_of),
                None => OnlineCount::UNKNOWN,
            },
            Loaded::Gone => return state.last_good(now, keep),
        };
        state.shown = Some((shown, now));
        shown
    }
}

impl State {
    fn good(&self, now: Duration, keep: Duration) -> Option<Good> {
        self.good.filter(|good| now.saturating_sub(good.noted) <= keep)
    }

    fn last_good(&self, now: Duration, keep: Duration) -> OnlineCount {
        self.good(now, keep).map_or(OnlineCount::UNKNOWN, |good| stale(good.online, good.as_of))
    }
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
        assert_eq!(counts.at_hand(&film, secs(0)), AtHand::Nothing);
        counts.take(&film, Loaded::Fresh(7, at(0)), secs(0));
        assert_eq!(counts.at_hand(&film, secs(1)), AtHand::Fresh(fresh(7, 0)));
        assert_eq!(counts.at_hand(&film, secs(2)), AtHand::Refresh(fresh(7, 0)));
        assert_eq!(counts.at_hand(&film, secs(2)), AtHand::Fresh(fresh(7, 0)));
        assert_eq!(counts.at_hand(&film, secs(5)), AtHand::Fresh(fresh(7, 0)));
        assert_eq!(counts.at_hand(&film, secs(6)), AtHand::Nothing);
    }

    #[test]
    fn a_zero_lives_a_second_and_is_never_served_stale() {
        let (counts, film) = counts();
        counts.take(&film, Loaded::Fresh(0, at(0)), secs(0));
        assert_eq!(counts.at_hand(&film, secs(1)), AtHand::Fresh(fresh(0, 0)));
        assert_eq!(counts.at_hand(&film, secs(2)), AtHand::Nothing);
    }

    #[test]
    fn a_beat_raises_the_number_at_once_and_a_read_from_before_it_does_not_lower_it() {
        let (counts, film) = counts();
        counts.take(&film, Loaded::Fresh(0, at(0)), secs(0));
        counts.entry(&film).beat(secs(0));
        assert_eq!(counts.at_hand(&film, secs(0)), AtHand::Fresh(fresh(1, 0)));
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
