//! What happens to the stores: totals run out, ids are purged, rows stop taking plays, a commit lands
//! late, a copy of Redis catches up, and takes over.

use crate::{
    Action, Protocol,
    clauses::Clause,
    state::{Flusher, LateCommit, State, Step, bit, has},
    tidy::ids_in_hand,
    world::Store,
};

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A video's `total` runs out.
    TotalRunsOut(usize),
    /// The purge deletes a batch's id.
    Purge(u8),
    /// A video's row stops taking plays.
    RowRefuses(usize),
    /// An operator mends the row and marks the video again.
    RowMended(usize),
    /// The commit that nobody waits for happens, or is rolled back.
    LateCommit {
        /// Whether it happens.
        happens: bool,
    },
    /// The replica, or the file, catches up.
    CopyCatchesUp,
    /// The replica is promoted, or the file is loaded: what Redis wrote since is forgotten.
    CopyTakesOver,
}

impl Protocol {
    pub(crate) fn offer_faults(&self, state: &State, offers: &mut Vec<Action>) {
        let mut offer = |fault| offers.push(Action::Fault(fault));
        for video in 0..self.world.videos {
            if state.redis.total[video] != 0 {
                offer(Fault::TotalRunsOut(video));
            }
            if has(state.database.full, video) {
                offer(Fault::RowMended(video));
            } else if self.world.rows_refuse {
                offer(Fault::RowRefuses(video));
            }
        }
        if state.database.ids != 0 {
            let known = (1..16).filter(|id| state.database.knows(*id));
            known.filter(|id| self.may_purge(state, *id)).for_each(|id| offer(Fault::Purge(id)));
        }
        if state.late.there {
            offer(Fault::LateCommit { happens: true });
            offer(Fault::LateCommit { happens: false });
        }
        if state.failovers > 0 {
            offer(Fault::CopyCatchesUp);
            offer(Fault::CopyTakesOver);
        }
    }

    /// An id is purged a week after it was applied: no flusher still holds a batch claimed before that,
    /// but Redis may, where nobody flushed for a week.
    fn may_purge(&self, state: &State, id: u8) -> bool {
        let newest = id == state.database.newest && self.has(Clause::NewestIdStays);
        let in_hand = ids_in_hand(state) & (1 << id) != 0 && self.has(Clause::IdsOutliveStalls);
        !newest && !in_hand
    }

    pub(crate) fn happen(&self, state: &mut State, fault: Fault) {
        match fault {
            Fault::TotalRunsOut(video) => state.redis.total[video] = 0,
            Fault::Purge(id) => state.database.forget(id),
            Fault::RowRefuses(video) => state.database.full |= bit(video),
            Fault::RowMended(video) => {
                state.database.full &= !bit(video);
                state.redis.dirty |= state.redis.refused & bit(video);
            }
            Fault::LateCommit { happens } => {
                let LateCommit { batch, plays, refused, .. } = std::mem::take(&mut state.late);
                if happens {
                    state.database.commit(batch, plays, refused, self.world.clauses);
                }
            }
            Fault::CopyCatchesUp => {
                state.copy = state.redis;
                state.clients.durable |= state.clients.waiting;
                for flusher in state.flushers.iter_mut().filter(|flusher| flusher.step == Step::Waiting) {
                    flusher.durable = true;
                }
            }
            Fault::CopyTakesOver => self.take_over(state),
        }
    }

    fn take_over(&self, state: &mut State) {
        let forgotten = state.redis.seen & !state.copy.seen;
        for video in 0..self.world.videos {
            // A total may fall by what is forgotten, and by no more.
            let plays = State::count(&self.world, forgotten, video);
            state.witness.shown[video] = state.witness.shown[video].saturating_sub(plays);
        }
        state.witness.forgotten |= state.clients.acknowledged & !state.copy.seen;
        state.redis = state.copy;
        state.failovers -= 1;
        // Every connection breaks, and what waits on one fails.
        state.clients.waiting = 0;
        state.clients.durable = 0;
        if self.has(Clause::NotesEndWithConnection) {
            state.clients.noted = 0;
        }
        for flusher in state.flushers.iter_mut().filter(|flusher| flusher.step == Step::Waiting) {
            if self.world.store == Store::Replicated && self.has(Clause::ClaimAndWaitOnOneConnection) {
                *flusher = Flusher::default();
            } else {
                flusher.durable |= self.world.store == Store::Replicated || state.failovers == 0;
            }
        }
    }
}
