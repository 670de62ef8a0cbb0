//! The viewers of some videos, as plain data: one shard of the map, behind one lock.
//!
//! What takes long is done in steps of bounded work, so that no beat waits long for the lock. A
//! walk goes from the last entry to the first: an entry that is removed has its place taken by the
//! last one, which the walk has seen by then, and what is added meanwhile is newer than the walk.

use std::collections::hash_map::RandomState;

use indexmap::IndexMap;

use crate::{
    clock::Timestamp,
    ids::{VideoId, ViewerId},
    presence::Beat,
};

/// Viewers looked at under one hold of the lock, some 20 µs.
pub(super) const STEP: usize = 1_000;

/// A map that has room for so many times what is in it gives memory back.
const ROOMY: usize = 4;

/// Videos and their viewers.
#[derive(Debug, Default)]
pub(super) struct Shard {
    videos: IndexMap<VideoId, Viewers, RandomState>,
    /// Whether a snapshot would differ from the one before.
    changed: bool,
}

/// The viewers of one video, each with the time of the last beat: what its hashes are in Redis.
#[derive(Debug, Default)]
struct Viewers {
    last_beats: IndexMap<ViewerId, Timestamp, RandomState>,
}

/// Which viewers a pass removes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// Those whose last beat is before this; nobody while the clock can't be trusted.
    pub(super) removed_before: Option<Timestamp>,
    /// A beat later than this was dated by a clock that was ahead.
    pub(super) now: Timestamp,
}

/// How far a walk over a shard has come.
#[derive(Debug)]
pub(super) struct Walk {
    /// Videos before this place are to be seen.
    videos: usize,
    /// The video that a step ended in, and how many of its viewers are to be seen.
    within: Option<(VideoId, usize)>,
}

impl Walk {
    pub(super) fn whole() -> Self {
        Self { videos: usize::MAX, within: None }
    }
}

/// What a step of a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) seen: usize,
    pub(super) removed: usize,
    /// Whether the walk is complete.
    pub(super) done: bool,
}

impl Shard {
    /// Takes a beat and answers how many watch the video. A viewer who is new here needs `admit`;
    /// without it the answer is `None`.
    pub(super) fn beat(&mut self, beat: Beat, at: Timestamp, admit: impl FnOnce() -> bool) -> Option<u64> {
        if let Some(viewers) = self.videos.get_mut(&beat.video)
            && let Some(last) = viewers.last_beats.get_mut(&beat.viewer)
        {
            if at > *last {
                *last = at;
                self.changed = true;
            }
            return Some(viewers.count());
        }
        if !admit() {
            return None;
        }
        let viewers = self.videos.entry(beat.video).or_default();
        viewers.last_beats.insert(beat.viewer, at);
        self.changed = true;
        Some(viewers.count())
    }

    /// Removes a viewer who has not beaten after `at`; tells whether that was so.
    pub(super) fn leave(&mut self, beat: &Beat, at: Timestamp) -> bool {
        let Some(place) = self.videos.get_index_of(&beat.video) else { return false };
        let viewers = &mut self.videos[place];
        if viewers.last_beats.get(&beat.viewer).is_none_or(|last| *last > at) {
            return false;
        }
        viewers.last_beats.swap_remove(&beat.viewer);
        self.changed = true;
        if viewers.last_beats.is_empty() {
            self.videos.swap_remove_index(place);
        }
        true
    }

    /// How many watch a video.
    pub(super) fn count(&self, video: &VideoId) -> u64 {
        self.videos.get(video).map_or(0, Viewers::count)
    }

    pub(super) fn videos(&self) -> usize {
        self.videos.len()
    }

    /// One step of a pass over the whole shard. Each video that is left is told to `finished` with
    /// its count once its viewers were all looked at; twice, where others went meanwhile.
    pub(super) fn prune(
        &mut self,
        walk: &mut Walk,
        rule: Rule,
        mut finished: impl FnMut(&VideoId, u64),
    ) -> Step {
        let mut step = Step::default();
        while step.seen < STEP {
            let Some((place, from)) = self.next(walk) else {
                give_back(&mut self.videos);
                step.done = true;
                return step;
            };
            let (video, viewers) =
                self.videos.get_index_mut(place).expect("next names a place that is there");
            let (left_to_see, part) = viewers.prune(from, rule, STEP - step.seen);
            // At least one, or a step over empty videos would be without bound.
            step.seen += part.seen.max(1);
            step.removed += part.removed;
            self.changed |= part.removed > 0;
            if left_to_see > 0 {
                walk.within = Some((video.clone(), left_to_see));
            } else if viewers.last_beats.is_empty() {
                self.videos.swap_remove_index(place);
            } else {
                finished(video, viewers.count());
            }
        }
        step
    }

    /// One step of a pass over one video; `to_see` of its viewers, counted down to 0.
    pub(super) fn prune_video(&mut self, video: &VideoId, to_see: &mut usize, rule: Rule) -> Step {
        let Some(place) = self.videos.get_index_of(video) else {
            *to_see = 0;
            return Step { done: true, ..Step::default() };
        };
        let viewers = &mut self.videos[place];
        let (left_to_see, mut step) = viewers.prune(*to_see, rule, STEP);
        if viewers.last_beats.is_empty() {
            self.videos.swap_remove_index(place);
        }
        self.changed |= step.removed > 0;
        *to_see = left_to_see;
        step.done = left_to_see == 0;
        step
    }

    /// Whether anything changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn set_changed(&mut self) {
        self.changed = true;
    }

    /// One step of copying the whole shard to `into`; tells whether that is complete.
    pub(super) fn copy(&self, walk: &mut Walk, into: &mut Copied) -> bool {
        let mut budget = STEP;
        while budget > 0 {
            let Some((place, from)) = self.next(walk) else { return true };
            let (video, viewers) = self.videos.get_index(place).expect("next names a place that is there");
            let from = from.min(viewers.last_beats.len());
            let to = from.saturating_sub(budget);
            let part = viewers.last_beats.as_slice().get_range(to..from).expect("the range ends in the map");
            into.push((video.clone(), part.iter().map(|(viewer, last)| (viewer.clone(), *last)).collect()));
            budget -= (from - to).clamp(1, budget);
            if to > 0 {
                walk.within = Some((video.clone(), to));
            }
        }
        false
    }

    /// The place of the video to go on with, and how many of its viewers are to be seen.
    fn next(&self, walk: &mut Walk) -> Option<(usize, usize)> {
        if let Some((video, from)) = walk.within.take()
            && let Some(place) = self.videos.get_index_of(&video)
        {
            return Some((place, from));
        }
        walk.videos = walk.videos.min(self.videos.len()).checked_sub(1)?;
        Some((walk.videos, usize::MAX))
    }
}

/// Videos with viewers and their last beats; a video may stand in it more than once.
pub(super) type Copied = Vec<(VideoId, Vec<(ViewerId, Timestamp)>)>;

impl Viewers {
    fn count(&self) -> u64 {
        self.last_beats.len() as u64
    }

    /// Looks at up to `most` of the first `from` viewers, the last of them first, and answers how
    /// many of them are left to be seen.
    fn prune(&mut self, from: usize, rule: Rule, most: usize) -> (usize, Step) {
        let from = from.min(self.last_beats.len());
        let to = from.saturating_sub(most);
        let mut removed = 0;
        for place in (to..from).rev() {
            let Some((_, last)) = self.last_beats.get_index_mut(place) else { continue };
            *last = rule.now.min(*last);
            if rule.removed_before.is_some_and(|deadline| *last < deadline) {
                self.last_beats.swap_remove_index(place);
                removed += 1;
            }
        }
        if to == 0 {
            give_back(&mut self.last_beats);
        }
        (to, Step { seen: from - to, removed, done: to == 0 })
    }
}

fn give_back<K, V>(map: &mut IndexMap<K, V, RandomState>) {
    if map.capacity() > STEP && map.capacity() / ROOMY > map.len() {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn beat(video: &str, viewer: &str) -> Beat {
        Beat { video: VideoId::parse(video).unwrap(), viewer: ViewerId::from_stored(viewer) }
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn beats(shard: &mut Shard, video: &str, viewer: &str, secs: i64) -> u64 {
        shard.beat(beat(video, viewer), at(secs), || true).unwrap()
    }

    fn count(shard: &Shard, video: &str) -> u64 {
        shard.count(&VideoId::parse(video).unwrap())
    }

    fn rule(now: i64) -> Rule {
        Rule { removed_before: Some(at(now - 600)), now: at(now) }
    }

    /// A whole pass; what is done between its steps is up to the caller.
    fn sweep(shard: &mut Shard, now: i64, mut between: impl FnMut(&mut Shard)) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        let mut walk = Walk::whole();
        loop {
            let step = shard.prune(&mut walk, rule(now), |video, count| {
                counts.insert(video.to_string(), count);
            });
            assert!(step.seen <= STEP);
            if step.done {
                return counts;
            }
            between(shard);
        }
    }

    #[test]
    fn a_viewer_is_there_for_exactly_one_window() {
        let mut shard = Shard::default();
        beats(&mut shard, "film", "ann", 0);
        sweep(&mut shard, 600, |_| {});
        assert_eq!(count(&shard, "film"), 1);
        sweep(&mut shard, 601, |_| {});
        assert_eq!((count(&shard, "film"), shard.videos()), (0, 0));
    }

    #[test]
    fn beating_twice_counts_once_and_a_late_beat_sets_nobody_back() {
        let mut shard = Shard::default();
        assert_eq!(beats(&mut shard, "film", "ann", 500), 1);
        assert_eq!(beats(&mut shard, "film", "ann", 30), 1);
        assert_eq!(beats(&mut shard, "film", "bob", 30), 2);
        sweep(&mut shard, 1_000, |_| {});
        assert_eq!(count(&shard, "film"), 1);
    }

    #[test]
    fn a_leave_removes_only_who_has_not_beaten_since() {
        let mut shard = Shard::default();
        beats(&mut shard, "film", "ann", 100);
        assert!(!shard.leave(&beat("film", "ann"), at(99)));
        assert!(!shard.leave(&beat("film", "bob"), at(100)));
        assert!(!shard.leave(&beat("show", "ann"), at(100)));
        assert_eq!(count(&shard, "film"), 1);
        assert!(shard.leave(&beat("film", "ann"), at(100)));
        assert!(!shard.leave(&beat("film", "ann"), at(100)));
        assert_eq!((count(&shard, "film"), shard.videos()), (0, 0));
    }

    #[test]
    fn only_who_is_new_needs_to_be_admitted() {
        let mut shard = Shard::default();
        beats(&mut shard, "film", "ann", 1);
        assert_eq!(shard.beat(beat("film", "ann"), at(2), || false), Some(1));
        assert_eq!(shard.beat(beat("film", "bob"), at(2), || false), None);
        assert_eq!(shard.beat(beat("show", "ann"), at(2), || false), None);
        assert_eq!(shard.videos(), 1);
    }

    #[test]
    fn a_beat_from_the_future_is_taken_for_one_of_now() {
        let mut shard = Shard::default();
        beats(&mut shard, "film", "ann", 9_000);
        sweep(&mut shard, 1_000, |_| {});
        sweep(&mut shard, 1_600, |_| {});
        assert_eq!(count(&shard, "film"), 1);
        sweep(&mut shard, 1_601, |_| {});
        assert_eq!(count(&shard, "film"), 0);
    }

    #[test]
    fn a_pass_misses_nobody_who_went_before_and_takes_nobody_who_beat_during_it() {
        let mut shard = Shard::default();
        let stale: i64 = 0;
        for number in 0..5_000 {
            beats(&mut shard, "large", &format!("viewer-{number}"), stale);
        }
        for number in 0..3_000 {
            beats(&mut shard, &format!("small-{number}"), "ann", stale);
        }
        let mut returned = BTreeSet::new();
        let mut step = 0_usize;
        sweep(&mut shard, 1_000, |shard| {
            // One who may have been removed already, or be about to be, and one who leaves.
            step += 1;
            for number in [step * 97 % 5_000, step * 31 % 5_000, 4_999 - step] {
                let viewer = format!("viewer-{number}");
                beats(shard, "large", &viewer, 1_000);
                returned.insert(viewer);
            }
            let gone = format!("viewer-{}", step * 53 % 5_000);
            shard.leave(&beat("large", &gone), at(1_000));
            returned.remove(&gone);
            shard.leave(&beat(&format!("small-{}", step * 41 % 3_000), "ann"), at(1_000));
        });
        assert!(step > 5);
        assert_eq!(count(&shard, "large"), returned.len() as u64);
        assert_eq!(shard.videos(), 1);
        // S4: the video of those who returned is still swept.
        sweep(&mut shard, 1_601, |_| {});
        assert_eq!(shard.videos(), 0);
    }

    #[test]
    fn a_pass_tells_every_video_that_is_left_with_its_count() {
        let mut shard = Shard::default();
        let mut expected = BTreeMap::new();
        for video in 0..50_u64 {
            for viewer in 0..=video * 3 {
                beats(&mut shard, &format!("v{video}"), &format!("u{viewer}"), 10);
            }
            beats(&mut shard, &format!("v{video}"), "gone", 0);
            expected.insert(format!("v{video}"), video * 3 + 1);
        }
        assert_eq!(sweep(&mut shard, 605, |_| {}), expected);
    }

    #[test]
    fn a_copy_has_everybody_though_some_leave_meanwhile() {
        let mut shard = Shard::default();
        for number in 0..4_000 {
            beats(&mut shard, "large", &format!("viewer-{number}"), number);
            beats(&mut shard, &format!("small-{number}"), "ann", number);
        }
        let (mut walk, mut copied, mut gone) = (Walk::whole(), Copied::new(), BTreeSet::new());
        while !shard.copy(&mut walk, &mut copied) {
            let number = gone.len() * 37 % 4_000;
            gone.insert(number);
            assert!(shard.leave(&beat("large", &format!("viewer-{number}")), at(9_000)));
            assert!(shard.leave(&beat(&format!("small-{number}"), "ann"), at(9_000)));
        }
        assert!(gone.len() > 5);
        let copied: BTreeSet<_> = copied
            .into_iter()
            .flat_map(|(video, viewers)| {
                viewers.into_iter().map(move |(viewer, last)| (video.clone(), viewer, last))
            })
            .collect();
        for number in 0..4_000 {
            let (large, small) =
                (beat("large", &format!("viewer-{number}")), beat(&format!("small-{number}"), "ann"));
            for wanted in [large, small] {
                let is_there = copied.contains(&(wanted.video.clone(), wanted.viewer.clone(), at(number)));
                assert!(is_there || gone.contains(&usize::try_from(number).unwrap()), "{wanted:?}");
            }
        }
    }

    #[test]
    fn one_video_is_pruned_in_steps() {
        let mut shard = Shard::default();
        for number in 0..2_500 {
            beats(&mut shard, "film", &format!("viewer-{number}"), number % 2 * 1_000);
        }
        let film = VideoId::parse("film").unwrap();
        let (mut to_see, mut removed, mut steps) = (usize::MAX, 0, 0);
        loop {
            let step = shard.prune_video(&film, &mut to_see, rule(1_000));
            removed += step.removed;
            steps += 1;
            if step.done {
                break;
            }
        }
        assert_eq!((removed, steps, shard.count(&film)), (1_250, 3, 1_250));
    }

    #[test]
    fn memory_comes_back_when_viewers_are_gone() {
        let mut shard = Shard::default();
        for number in 0..20_000 {
            beats(&mut shard, "film", &format!("viewer-{number}"), i64::from(number < 10) * 600);
            beats(&mut shard, &format!("small-{number}"), "ann", i64::from(number < 10) * 600);
        }
        sweep(&mut shard, 1_000, |_| {});
        assert_eq!((count(&shard, "film"), shard.videos()), (10, 11));
        assert!(shard.videos[&VideoId::parse("film").unwrap()].last_beats.capacity() < 2_000);
        assert!(shard.videos.capacity() < 2_000);
    }
}
