//! What was shown last of each video: answers repeats for a second, stands in while the store is away,
//! and keeps totals from going backward.
//!
//! A number the store vouched for is *good* for the window. Within it a smaller total is not believed
//! (Redis may have come back older): the good one is answered, as stale. After it the store is right.

use std::{convert::Infallible, sync::Arc, time::Duration};

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::watch;

use crate::{clock::Timestamp, ids::VideoId, plays::PlayCount, store::time::StoreClock};

/// How long an answer is given again without asking.
const FRESH: Duration = Duration::from_secs(1);

/// How long what the database said about unique viewers is relied on; shorter where Redis has no
/// sketch, and so nothing that could show that one came and went.
const NOTED: Duration = Duration::from_secs(3_600);
const NOTED_ALONE: Duration = Duration::from_secs(300);

/// What was shown, by video.
pub(super) struct Shown {
    clock: Arc<StoreClock>,
    entries: Cache<VideoId, Arc<Mutex<Entry>>>,
    window: Duration,
}

#[derive(Default)]
struct Entry {
    /// Goes up when a play of the video was counted here: what was asked before may lack it.
    generation: u64,
    /// The last answer and when it was asked for.
    answer: Option<(PlayCount, Duration)>,
    /// The largest number the store vouched for lately, and when it was last heard.
    good: Option<(PlayCount, Duration)>,
    /// A refresh under way, of this generation.
    refresh: Option<watch::Receiver<Option<PlayCount>>>,
    note: Option<Note>,
}

/// What the database said about a video's unique viewers.
struct Note {
    viewers: u64,
    /// The connection to Redis at that time.
    epoch: u64,
    /// When it was asked.
    at: Duration,
    /// The most that Redis's sketch is known to have counted since.
    sketch: u64,
}

/// How a read of one video goes on.
pub(super) enum Look {
    /// Answered.
    Known(PlayCount),
    /// Another is asking; its answer comes here. It closes without one where that read was given up.
    Join(watch::Receiver<Option<PlayCount>>),
    /// The caller is to ask, and say what it found.
    Ask(Refresh),
}

/// A read under way.
pub(super) struct Refresh {
    entry: Arc<Mutex<Entry>>,
    generation: u64,
    /// When it began, on the monotonic clock and in the store's time.
    began: Duration,
    as_of: Timestamp,
    answer: watch::Sender<Option<PlayCount>>,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The total, delta included.
    pub(super) plays: u64,
    /// Unique viewers, if they are known.
    pub(super) unique_viewers: Option<u64>,
}

impl Shown {
    pub(super) fn new(clock: Arc<StoreClock>, videos: usize, window: Duration) -> Self {
        Self { clock, entries: Cache::new(videos), window }
    }

    /// The time to look at: the same for all of a request.
    pub(super) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Looks a video up.
    pub(super) fn look(&self, video: &VideoId, now: Duration) -> Look {
        let entry = self.entries.get(video).unwrap_or_else(|| {
            let Ok(entry) = self.entries.get_or_insert_with(video, || Ok::<_, Infallible>(Arc::default()));
            entry
        });
        let mut inner = entry.lock();
        if let Some((answer, _)) = inner.answer.filter(|(_, at)| now.saturating_sub(*at) < FRESH) {
            return Look::Known(answer);
        }
        // A refresh whose sender is gone was given up.
        if let Some(refresh) = inner.refresh.as_ref().filter(|refresh| refresh.has_changed().is_ok()) {
            return Look::Join(refresh.clone());
        }
        let (answer, joining) = watch::channel(None);
        inner.refresh = Some(joining);
        let generation = inner.generation;
        drop(inner);
        Look::Ask(Refresh { entry, generation, began: now, as_of: self.clock.now(), answer })
    }

    /// A play of the video was counted: what is shown, or being read, lacks it.
    pub(super) fn changed(&self, video: &VideoId) {
        if let Some(entry) = self.entries.get(video) {
            let mut entry = entry.lock();
            entry.generation += 1;
            entry.answer = None;
            entry.refresh = None;
            if let Some(note) = &mut entry.note {
                note.sketch = note.sketch.max(1);
            }
        }
    }

    /// Ends a read: `None` where it failed. Answers what is to be shown, to those who joined as well.
    pub(super) fn finish(&self, refresh: Refresh, found: Option<Found>) -> PlayCount {
        let now = self.clock.monotonic();
        let Refresh { entry, generation, began, as_of, answer: others } = refresh;
        let mut entry = entry.lock();
        let good = entry.good.filter(|(_, at)| now.saturating_sub(*at) <= self.window);
        let answer = match (found, good) {
            (Some(found), Some((good, at))) if Some(found.plays) < good.plays => {
                // What was heard after this read began has overtaken it; else the store has gone back.
                let stale = at < began;
                PlayCount { stale, ..good }
            }
            (Some(found), good) => {
                // A read that began earlier and took longer may know more than one that is over already:
                // totals only grow, so the larger number is the later one.
                let good = good.map(|(good, _)| good);
                let answer = PlayCount {
                    plays: Some(found.plays),
                    unique_viewers: found.unique_viewers.max(good.and_then(|good| good.unique_viewers)),
                    as_of: Some(as_of).max(good.and_then(|good| good.as_of)),
                    stale: false,
                };
                entry.good = Some((answer, now));
                if entry.answer.is_some_and(|(kept, _)| kept.plays < answer.plays) {
                    entry.answer = None;
                }
                answer
            }
            (None, Some((good, _))) => PlayCount { stale: true, ..good },
            (None, None) => PlayCount::UNKNOWN,
        };
        if entry.generation == generation {
            // A failure is not kept: the next read may do better.
            entry.answer = found.map(|_| (answer, began));
            entry.refresh = None;
        }
        drop(entry);
        others.send_replace(Some(answer));
        answer
    }
}

impl Refresh {
    /// Unique viewers, where Redis's `sketch` counts so many on the connection `epoch`: `None` where
    /// the database has to be asked first.
    pub(super) fn viewers(&self, sketch: u64, epoch: u64) -> Option<u64> {
        let mut entry = self.entry.lock();
        let note = entry.note.as_mut()?;
        // On another connection, and where the sketch counts less than before, it may have lost what
        // the database knows, and the database may know more than it did.
        let holds = note.epoch == epoch && sketch >= note.sketch;
        let life = if sketch == 0 { NOTED_ALONE } else { NOTED };
        if !holds || self.began.saturating_sub(note.at) > life {
            return None;
        }
        note.sketch = sketch;
        Some(sketch.max(note.viewers))
    }

    /// Notes that the database says `viewers`, and answers what both say together.
    pub(super) fn take_note(&self, viewers: u64, sketch: u64, epoch: u64) -> u64 {
        self.entry.lock().note = Some(Note { viewers, epoch, at: self.began, sketch });
        sketch.max(viewers)
    }

    /// Unique viewers while the database can't be asked: at least what it said once.
    pub(super) fn viewers_at_least(&self, sketch: u64) -> Option<u64> {
        self.entry.lock().note.as_ref().map(|note| sketch.max(note.viewers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn shown() -> (Arc<ManualClock>, Shown, VideoId) {
        let clock = ManualClock::at(NOW);
        let store = Arc::new(StoreClock::new(clock.clone(), Duration::from_secs(60)));
        (clock, Shown::new(store, 1_000, Duration::from_secs(600)), VideoId::parse("1").unwrap())
    }

    fn asked(shown: &Shown, video: &VideoId) -> Refresh {
        match shown.look(video, shown.now()) {
            Look::Ask(refresh) => refresh,
            Look::Known(count) => panic!("known: {count:?}"),
            Look::Join(_) => panic!("somebody else asks"),
        }
    }

    fn known(shown: &Shown, video: &VideoId) -> Option<u64> {
        match shown.look(video, shown.now()) {
            Look::Known(count) => count.plays,
            _ => None,
        }
    }

    fn found(plays: u64) -> Found {
        Found { plays, unique_viewers: None }
    }

    #[tokio::test]
    async fn one_asks_and_the_others_get_its_answer() {
        let (_, shown, video) = shown();
        let refresh = asked(&shown, &video);
        let Look::Join(mut answer) = shown.look(&video, shown.now()) else { panic!("one asks already") };
        let told = shown.finish(refresh, Some(found(5)));
        assert_eq!(*answer.wait_for(Option::is_some).await.unwrap(), Some(told));
        assert_eq!(known(&shown, &video), Some(5));
    }

    #[test]
    fn a_read_that_is_given_up_leaves_the_way_to_the_next() {
        let (_, shown, video) = shown();
        drop(asked(&shown, &video));
        shown.finish(asked(&shown, &video), Some(found(5)));
    }

    #[test]
    fn a_read_that_a_play_has_overtaken_is_neither_kept_nor_joined() {
        let (_, shown, video) = shown();
        let before = asked(&shown, &video);
        shown.changed(&video);
        let after = asked(&shown, &video);
        assert_eq!(
            shown.finish(before, Some(found(5))).plays,
            Some(5),
            "its own caller asked before the play"
        );
        assert_eq!(known(&shown, &video), None);
        shown.finish(after, Some(found(6)));
        assert_eq!(known(&shown, &video), Some(6));
    }

    #[test]
    fn an_overtaken_read_that_ends_last_takes_nothing_back() {
        let (clock, shown, video) = shown();
        let before = asked(&shown, &video);
        clock.advance(Duration::from_millis(5));
        shown.changed(&video);
        shown.finish(asked(&shown, &video), Some(found(6)));
        let told = shown.finish(before, Some(found(5)));
        assert_eq!((told.plays, told.stale), (Some(6), false));
        assert_eq!(known(&shown, &video), Some(6));
    }

    #[test]
    fn an_overtaken_read_that_ends_last_and_knows_more_isnt_taken_back() {
        let (clock, shown, video) = shown();
        let slow = asked(&shown, &video);
        clock.advance(Duration::from_millis(5));
        shown.changed(&video);
        shown.finish(asked(&shown, &video), Some(found(5)));
        assert_eq!(known(&shown, &video), Some(5));
        // Plays came in, and the slow read saw them.
        assert_eq!(shown.finish(slow, Some(found(8))).plays, Some(8));
        assert_eq!(known(&shown, &video), None, "5 is over");
        let told = shown.finish(asked(&shown, &video), None);
        assert_eq!((told.plays, told.stale), (Some(8), true));
    }

    #[test]
    fn a_failure_is_not_kept() {
        let (_, shown, video) = shown();
        assert_eq!(shown.finish(asked(&shown, &video), None), PlayCount::UNKNOWN);
        shown.finish(asked(&shown, &video), Some(found(5)));
        assert_eq!(known(&shown, &video), Some(5));
    }

    #[test]
    fn the_database_is_asked_again_where_its_word_may_be_old() {
        let (clock, shown, video) = shown();
        let refresh = asked(&shown, &video);
        assert_eq!(refresh.viewers(3, 1), None, "it never was");
        assert_eq!(refresh.take_note(100, 3, 1), 100);
        assert_eq!(refresh.viewers(104, 1), Some(104));
        assert_eq!(refresh.viewers(103, 1), None, "the sketch has lost some");
        assert_eq!(refresh.viewers(104, 2), None, "another connection");
        assert_eq!(refresh.viewers_at_least(3), Some(100));
        shown.finish(refresh, None);
        clock.advance(NOTED + Duration::from_secs(1));
        assert_eq!(asked(&shown, &video).viewers(104, 1), None, "too long ago");
    }
}
