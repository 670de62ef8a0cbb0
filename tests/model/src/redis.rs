//! The scripts: what Redis does in one step. Each follows its `.lua` file line by line, but for
//! `#at` and `#tries`, which are in `flusher` as what follows from them.

use crate::{
    clauses::{Clause, Clauses},
    state::{ByVideo, Redis, VIDEOS, bit, has},
};

/// What a reader saw of the batch at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The batch at hand.
    pub batch: u8,
    /// The last settled one.
    pub settled: u8,
    /// The video's plays in the batch.
    pub in_batch: u8,
    /// The video's delta.
    pub delta: u8,
}

impl Redis {
    /// `record.lua`: counts a play unless it was counted before; whether it did.
    pub fn record(&mut self, play: usize, video: usize) -> bool {
        if has(self.seen, play) {
            return false;
        }
        self.seen |= bit(play);
        self.dirty |= bit(video);
        self.delta[video] += 1;
        true
    }

    /// `record.lua`, refused after the play was noted as seen and perhaps after the video was marked.
    pub fn record_refused(&mut self, play: usize, video: usize, marked: bool, clauses: Clauses) {
        if marked {
            self.dirty |= bit(video);
        }
        if !clauses.has(Clause::SeenDroppedOnFailure) {
            self.seen |= bit(play);
        }
    }

    /// `claim.lua` for a batch of these videos. A batch that is there stays. Answers whether it made
    /// one, and the videos without plays.
    pub fn claim(&mut self, videos: u8, id: u8, deltas: Option<ByVideo>, clauses: Clauses) -> (bool, u8) {
        if self.batch != 0 && clauses.has(Clause::BatchThereComesFirst) {
            return (false, 0);
        }
        let (mut plays, mut empty) = (ByVideo::default(), 0);
        for video in (0..VIDEOS).filter(|video| has(videos, *video)) {
            let delta = deltas.map_or(self.waiting(video), |deltas| deltas[video]);
            if delta > 0 {
                plays[video] = delta;
            } else {
                empty |= bit(video);
            }
        }
        if clauses.has(Clause::EmptyUnmarkedInClaim) {
            self.dirty &= !empty;
        }
        let made = plays != ByVideo::default();
        if made {
            (self.batch, self.claimed) = (id, plays);
        }
        (made, empty)
    }

    /// `settle.lua` for a batch of which the database says these totals and these refused videos.
    /// Answers the videos that have no plays left, and whether there were fewer than it took off.
    pub fn settle(
        &mut self,
        id: u8,
        remembered: ByVideo,
        views: ByVideo,
        refused: u8,
        clauses: Clauses,
    ) -> (u8, bool) {
        if self.batch != id && clauses.has(Clause::IdCheckedAtSettle) {
            return (0, false);
        }
        let amounts = if clauses.has(Clause::AmountsFromBatch) { self.claimed } else { remembered };
        let (mut empty, mut short) = (0, false);
        for video in (0..VIDEOS).filter(|video| remembered[*video] > 0) {
            if has(refused, video) && clauses.has(Clause::RefusedPlaysStay) {
                self.dirty &= !bit(video);
                if clauses.has(Clause::RefusedSetAside) {
                    self.refused |= bit(video);
                }
            } else if amounts[video] > 0 {
                let left = self.delta[video] - signed(amounts[video]);
                short |= left < 0;
                self.delta[video] = left.max(0);
                if left <= 0 || !clauses.has(Clause::MarkStaysWithPlays) {
                    empty |= bit(video);
                }
                if clauses.has(Clause::TotalSetAtSettle) {
                    self.total[video] = views[video];
                }
            }
        }
        if clauses.has(Clause::UnmarkedInOneStep) {
            self.unmark(empty);
        }
        (self.settled, self.batch, self.claimed) = (id, 0, ByVideo::default());
        (empty, short)
    }

    /// The part of `settle.lua` that takes marks off.
    pub fn unmark(&mut self, videos: u8) {
        self.dirty &= !videos;
        self.refused &= !videos;
    }

    /// What a flush without batches takes off: what it read before.
    pub fn take_off(&mut self, plays: ByVideo, views: ByVideo) {
        for video in (0..VIDEOS).filter(|video| plays[*video] > 0) {
            self.delta[video] -= signed(plays[video]);
            if self.delta[video] == 0 {
                self.unmark(bit(video));
            }
            self.total[video] = views[video];
        }
    }

    /// `view_look.lua`: the video's total where it is kept, else the look.
    pub fn look(&self, video: usize) -> Result<u8, Look> {
        match self.total[video] {
            0 => Err(Look {
                batch: self.batch,
                settled: self.settled,
                in_batch: self.claimed[video],
                delta: self.waiting(video),
            }),
            total => Ok(total + self.waiting(video)),
        }
    }

    /// `view_fill.lua`: the video's total, kept by now or from `base` if the look holds; else the next
    /// look.
    pub fn fill(&mut self, video: usize, look: Look, base: u8, clauses: Clauses) -> Result<u8, Look> {
        self.look(video).or_else(|now| {
            let moved = now.batch != look.batch && clauses.has(Clause::BatchCompared)
                || now.settled != look.settled && clauses.has(Clause::SettledCompared);
            if moved && clauses.has(Clause::LookHolds) {
                return Err(now);
            }
            self.total[video] = base;
            Ok(base + if clauses.has(Clause::DeltaReadLast) { now.delta } else { look.delta })
        })
    }

    /// The video's delta as readers and claims see it.
    fn waiting(&self, video: usize) -> u8 {
        u8::try_from(self.delta[video]).unwrap_or(0)
    }
}

fn signed(plays: u8) -> i8 {
    i8::try_from(plays).expect("there are only a few plays")
}
