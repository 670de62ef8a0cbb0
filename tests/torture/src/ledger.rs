//! What is known of each video from outside, and so what a total may be.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{tally::Wrong, world::INSTANCES};

/// Videos that are played; enough for every partition to have some.
pub(crate) const VIDEOS: usize = 60;

/// One video.
pub(crate) struct Video {
    pub(crate) id: String,
    /// Different plays that were sent at least once.
    begun: AtomicU64,
    /// Those that were answered.
    acknowledged: AtomicU64,
    /// The greatest good total that each instance has answered.
    shown: [AtomicU64; INSTANCES],
    /// What is known by anybody: now, one turn ago, two turns ago.
    known: [AtomicU64; 3],
}

/// What a total asked for at some moment must at least be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    instance: usize,
    shown: u64,
    known: u64,
}

impl Video {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            id: format!("video-{index}"),
            begun: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            shown: array::from_fn(|_| AtomicU64::new(0)),
            known: array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Before a play is sent for the first time.
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// After it was answered. Who answers that it `counts_later` needn't know it yet.
    pub(crate) fn acknowledge(&self, counts_later: bool) {
        let acknowledged = self.acknowledged.fetch_add(1, Ordering::SeqCst) + 1;
        if !counts_later {
            self.known[0].fetch_max(acknowledged, Ordering::SeqCst);
        }
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// A turn lasts longer than any cache: what was known two turns ago, everybody knows.
    pub(crate) fn turn(&self) {
        for turn in (1..self.known.len()).rev() {
            self.known[turn].store(self.known[turn - 1].load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    /// To be taken before asking `instance`.
    pub(crate) fn floor(&self, instance: usize) -> Floor {
        let shown = self.shown[instance].load(Ordering::SeqCst);
        Floor { instance, shown, known: self.known[2].load(Ordering::SeqCst) }
    }

    /// Takes a good total that was asked for after `floor` was taken, and says what is wrong with it.
    pub(crate) fn judge(&self, floor: Floor, total: u64) -> Result<(), (Wrong, String)> {
        let Floor { instance, shown, known } = floor;
        let id = &self.id;
        let begun = self.begun.load(Ordering::SeqCst);
        if total > begun {
            let what = format!("instance {instance} says {total} plays of {id}, of which {begun} were sent");
            return Err((Wrong::Double, what));
        }
        if total < shown {
            let what = format!("instance {instance} says {total} plays of {id} and has said {shown}");
            return Err((Wrong::StepBack, what));
        }
        if total < known {
            let what = format!("instance {instance} says {total} plays of {id}; {known} were known long ago");
            return Err((Wrong::Lost, what));
        }
        self.shown[instance].fetch_max(total, Ordering::SeqCst);
        self.known[0].fetch_max(total, Ordering::SeqCst);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(result: &Result<(), (Wrong, String)>) -> Option<Wrong> {
        result.as_ref().err().map(|(wrong, _)| *wrong)
    }

    #[test]
    fn a_total_is_between_what_is_known_and_what_was_sent() {
        let video = Video::new(7);
        let before = video.floor(0);
        for _ in 0..3 {
            video.begin();
        }
        assert_eq!(video.judge(before, 2), Ok(()));
        assert_eq!(wrong(&video.judge(video.floor(0), 4)), Some(Wrong::Double));
        assert_eq!(wrong(&video.judge(video.floor(0), 1)), Some(Wrong::StepBack));
        assert_eq!(video.judge(before, 1), Ok(()), "it was asked for before 2 was answered");
        assert_eq!(video.judge(video.floor(1), 1), Ok(()), "the other may know it later");
        video.turn();
        assert_eq!(video.judge(video.floor(1), 1), Ok(()), "one turn ago is not long ago");
        video.turn();
        assert_eq!(wrong(&video.judge(video.floor(1), 1)), Some(Wrong::Lost));
    }

    #[test]
    fn what_counts_later_is_known_once_it_was_shown() {
        let video = Video::new(7);
        for _ in 0..2 {
            video.begin();
            video.acknowledge(true);
        }
        let two_turns = || (0..2).for_each(|_| video.turn());
        two_turns();
        assert_eq!(video.judge(video.floor(0), 1), Ok(()), "the log may be counted no further");
        two_turns();
        assert_eq!(wrong(&video.judge(video.floor(1), 0)), Some(Wrong::Lost), "the other has shown it");
    }
}
