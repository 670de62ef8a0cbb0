//! The statements: what the database does in one step of a READ COMMITTED transaction.

use crate::{
    clauses::{Clause, Clauses},
    state::{ByVideo, Database, Flusher, LateCommit, State, Step, VIDEOS, bit, has, id_bit},
};

impl Database {
    /// Whether the batch's id is there, as committed.
    #[must_use]
    pub fn knows(&self, batch: u8) -> bool {
        batch != 0 && self.ids & id_bit(batch) != 0
    }

    /// The videos of which the batch's plays were refused.
    #[must_use]
    pub fn refused_of(&self, batch: u8) -> u8 {
        (0..VIDEOS)
            .filter(|video| self.refused[*video] & id_bit(batch) != 0)
            .fold(0, |set, video| set | bit(video))
    }

    /// Commits plays and the id of their batch.
    pub fn commit(&mut self, batch: u8, plays: ByVideo, refused: u8, clauses: Clauses) {
        for video in (0..VIDEOS).filter(|video| !has(refused, *video)) {
            self.views[video] += plays[video];
        }
        if batch == 0 || !clauses.has(Clause::IdInDatabase) {
            return;
        }
        self.ids |= id_bit(batch);
        self.newest = batch;
        if clauses.has(Clause::RefusedNamedWithId) {
            for video in (0..VIDEOS).filter(|video| has(refused, *video)) {
                self.refused[video] |= id_bit(batch);
            }
        }
    }

    /// Deletes a batch's id.
    pub fn forget(&mut self, batch: u8) {
        self.ids &= !id_bit(batch);
        for refused in &mut self.refused {
            *refused &= !id_bit(batch);
        }
    }

    /// R2: the video's total without the batch's plays. `None` where that is less than nothing.
    #[must_use]
    pub fn base(&self, video: usize, batch: u8, in_batch: u8, clauses: Clauses) -> Option<u8> {
        self.base_of(self.views[video], video, batch, in_batch, clauses)
    }

    /// The same where the total was read earlier.
    #[must_use]
    pub fn base_of(&self, views: u8, video: usize, batch: u8, in_batch: u8, clauses: Clauses) -> Option<u8> {
        let refused = has(self.refused_of(batch), video) && clauses.has(Clause::RefusedNotTakenOff);
        let counted = self.knows(batch) && !refused && clauses.has(Clause::BatchTakenOffTotal);
        views.checked_sub(if counted { in_batch } else { 0 })
    }
}

impl State {
    /// Whether another transaction, not committed yet, has inserted the id: an insert of it waits.
    #[must_use]
    pub fn insert_waits(&self, index: usize) -> bool {
        let batch = self.flushers[index].batch;
        self.others(index).any(|(of, ..)| of == batch)
    }

    /// Whether another transaction, not committed yet, has added to one of the rows: an update waits.
    #[must_use]
    pub fn add_waits(&self, index: usize) -> bool {
        let mine = self.flushers[index].plays;
        let meets = |plays: ByVideo| plays.iter().zip(mine).any(|(theirs, mine)| *theirs > 0 && mine > 0);
        self.others(index).any(|(_, plays, added)| added && meets(plays))
    }

    /// Other open transactions that add: their batch, their plays and whether those are added yet.
    fn others(&self, index: usize) -> impl Iterator<Item = (u8, ByVideo, bool)> {
        let open = |flusher: &Flusher| {
            flusher.adds && matches!(flusher.step, Step::Inserted | Step::Added | Step::Answered)
        };
        let flushers = self.flushers.iter().enumerate();
        let others = flushers.filter(move |(other, flusher)| *other != index && open(flusher));
        let others =
            others.map(|(_, flusher)| (flusher.batch, flusher.plays, flusher.step != Step::Inserted));
        let LateCommit { there, batch, plays, .. } = self.late;
        others.chain(there.then_some((batch, plays, true)))
    }
}
