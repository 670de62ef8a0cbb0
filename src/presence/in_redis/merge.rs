//! Beats on their way to Redis, merged: one a viewer and video, the latest wins.

use std::collections::{HashMap, hash_map::Entry};

use ahash::RandomState;
use tokio::sync::oneshot;

use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    presence::Beat,
};

/// What is to be written about one viewer of one video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// When it happened, in Redis's time.
    pub(super) at: Timestamp,
    /// A beat, or a goodbye.
    pub(super) what: What,
    /// It failed once: Redis may hold a newer one that another instance wrote.
    pub(super) late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Beat,
    Leave,
}

/// Whom to tell what came of a mark.
pub(super) type Answer = oneshot::Sender<Result<(), StoreError>>;

/// Marks and who waits for them, as they leave together.
#[derive(Default)]
pub(super) struct Round {
    pub(super) marks: HashMap<Beat, Mark, RandomState>,
    pub(super) waiting: Vec<(Beat, Answer)>,
}

/// The bounded merge.
pub(super) struct Merge {
    next: Round,
    most: usize,
    oldest: Option<Timestamp>,
}

impl Merge {
    pub(super) fn new(most: usize) -> Self {
        Self { next: Round::default(), most, oldest: None }
    }

    /// Takes a mark; refused where it would be one more than fits.
    pub(super) fn put(&mut self, beat: Beat, at: Timestamp, what: What) -> Result<(), StoreError> {
        let full = self.next.marks.len() >= self.most;
        match self.next.marks.entry(beat) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                if at >= known.at {
                    *known = Mark { at, what, late: known.late };
                }
            }
            Entry::Vacant(_) if full => return Err(StoreError::Full { part: Part::Redis, queue: "beats" }),
            Entry::Vacant(free) => {
                free.insert(Mark { at, what, late: false });
            }
        }
        self.oldest.get_or_insert(at);
        Ok(())
    }

    /// Has `answer` told what comes of the mark of `beat`.
    pub(super) fn wait(&mut self, beat: Beat, answer: Answer) {
        self.next.waiting.push((beat, answer));
    }

    /// Puts back what could not be written. A newer mark of the same viewer stays; what doesn't fit is
    /// forgotten, the viewer's next beat is as good.
    pub(super) fn put_back(&mut self, marks: impl IntoIterator<Item = (Beat, Mark)>) {
        for (beat, mark) in marks {
            let full = self.next.marks.len() >= self.most;
            match self.next.marks.entry(beat) {
                Entry::Occupied(mut newer) => newer.get_mut().late = true,
                Entry::Vacant(_) if full => continue,
                Entry::Vacant(free) => {
                    free.insert(Mark { late: true, ..mark });
                }
            }
            self.oldest = Some(self.oldest.map_or(mark.at, |oldest| oldest.min(mark.at)));
        }
    }

    /// Everything there is, in one round.
    pub(super) fn take(&mut self) -> Round {
        self.oldest = None;
        // The next round is about as large.
        let marks = HashMap::with_capacity_and_hasher(self.next.marks.len(), RandomState::default());
        std::mem::replace(&mut self.next, Round { marks, waiting: Vec::new() })
    }

    pub(super) fn len(&self) -> usize {
        self.next.marks.len()
    }

    /// How full it is, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share; merges are far below 2^52")]
    pub(super) fn fullness(&self) -> f64 {
        self.len() as f64 / self.most as f64
    }

    pub(super) fn anybody_waits(&self) -> bool {
        !self.next.waiting.is_empty()
    }

    /// When the first mark of the next round happened.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        self.oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{UserId, VideoId, ViewerId};

    fn beat(video: &str, user: &str) -> Beat {
        Beat {
            video: VideoId::parse(video).unwrap(),
            viewer: ViewerId::of_user(&UserId::parse(user).unwrap()),
        }
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn of_two_marks_of_a_viewer_the_later_is_written() {
        let mut merge = Merge::new(10);
        merge.put(beat("film", "ann"), at(1), What::Beat).unwrap();
        merge.put(beat("film", "ann"), at(3), What::Leave).unwrap();
        merge.put(beat("film", "ann"), at(2), What::Beat).unwrap();
        let round = merge.take();
        assert_eq!(round.marks.len(), 1);
        assert_eq!(round.marks[&beat("film", "ann")], Mark { at: at(3), what: What::Leave, late: false });
        assert_eq!(merge.len(), 0);
    }

    #[test]
    fn a_full_merge_refuses_new_viewers_and_goes_on_with_known_ones() {
        let mut merge = Merge::new(1);
        merge.put(beat("film", "ann"), at(1), What::Beat).unwrap();
        assert!(matches!(merge.put(beat("film", "bob"), at(1), What::Beat), Err(StoreError::Full { .. })));
        merge.put(beat("film", "ann"), at(2), What::Beat).unwrap();
        assert_eq!(merge.len(), 1);
    }

    #[test]
    fn what_failed_and_what_came_meanwhile_are_no_more_than_fits() {
        let mut merge = Merge::new(2);
        merge.put(beat("film", "ann"), at(1), What::Beat).unwrap();
        merge.put(beat("film", "bob"), at(1), What::Beat).unwrap();
        let round = merge.take();
        merge.put(beat("film", "eve"), at(2), What::Beat).unwrap();
        merge.put_back(round.marks);
        assert_eq!(merge.len(), 2);
        assert!(merge.take().marks.contains_key(&beat("film", "eve")), "the newer one stays");
    }

    #[test]
    fn what_failed_comes_back_as_late_and_never_over_a_newer_mark() {
        let mut merge = Merge::new(10);
        merge.put(beat("film", "ann"), at(1), What::Beat).unwrap();
        merge.put(beat("film", "bob"), at(1), What::Beat).unwrap();
        let round = merge.take();
        merge.put(beat("film", "ann"), at(5), What::Beat).unwrap();
        merge.put_back(round.marks);
        let round = merge.take();
        assert_eq!(round.marks[&beat("film", "ann")].at, at(5));
        assert!(round.marks[&beat("film", "ann")].late);
        assert_eq!(round.marks[&beat("film", "bob")], Mark { at: at(1), what: What::Beat, late: true });
    }
}
