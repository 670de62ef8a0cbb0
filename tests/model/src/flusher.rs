//! A flusher's steps: pick, claim, wait, apply in a transaction of separate statements, settle. It may
//! stall before any of them for ever, and die, fail or give up instead, which is one to the others.
//!
//! The lock isn't here: it is an economy, and nothing may rest on it.

use crate::{
    Action, Protocol,
    clauses::Clause,
    state::{ByVideo, Flusher, LateCommit, State, Step, VIDEOS, bit, has},
    tidy::unused_id,
    world::Store,
};

/// What a flusher does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// `SRANDMEMBER dirty`: all that are marked, or some.
    Pick(u8),
    /// `claim.lua`.
    Claim,
    /// The replica has what the claim wrote.
    Waited,
    /// Begins a statement that does everything at once, with a snapshot of now.
    Begin,
    /// `insert into play_batch … on conflict do nothing`.
    Insert,
    /// Adds the plays, and finds out which rows can't take them.
    Add,
    /// Reads totals and refused videos.
    Read,
    /// Commits.
    Commit,
    /// Sends the commit and hears no more of it.
    CommitUnheard,
    /// `settle.lua`.
    Settle,
    /// Takes marks off, in a step of its own.
    Unmark,
    /// The transaction fails and is tried again, with the batch in memory.
    RollBack,
    /// Dies, or gives up for this time. An open transaction is rolled back.
    Die,
}

impl Protocol {
    pub(crate) fn offer_flushes(&self, state: &State, offers: &mut Vec<Action>) {
        for index in 0..self.world.flushers {
            let mut offer = |deed| offers.push(Action::Flusher(index, deed));
            let flusher = &state.flushers[index];
            match flusher.step {
                Step::Idle => self.picks(state).for_each(|videos| offer(Flush::Pick(videos))),
                Step::Picked if self.may_claim(state) => offer(Flush::Claim),
                Step::Waiting if flusher.durable => offer(Flush::Waited),
                Step::Held if !self.has(Clause::AnswerReadLater) => offer(Flush::Begin),
                Step::Held | Step::Begun if self.may_insert(state, index) => offer(Flush::Insert),
                Step::Inserted if !flusher.adds => offer(Flush::Read),
                Step::Inserted if !state.add_waits(index) => offer(Flush::Add),
                Step::Added => offer(Flush::Read),
                Step::Answered => offer(Flush::Commit),
                Step::Committed => offer(Flush::Settle),
                Step::Unmarking => offer(Flush::Unmark),
                _ => {}
            }
            if flusher.step == Step::Answered && flusher.adds && !state.late.there {
                offer(Flush::CommitUnheard);
            }
            if matches!(flusher.step, Step::Inserted | Step::Added | Step::Answered) {
                offer(Flush::RollBack);
            }
            if flusher.step != Step::Idle {
                offer(Flush::Die);
            }
        }
    }

    /// What `SRANDMEMBER` may answer: all, or as many as it was asked for. Nothing is done where
    /// nothing is marked and no batch is there.
    fn picks(&self, state: &State) -> impl Iterator<Item = u8> {
        let dirty = state.redis.dirty;
        let all = (dirty != 0 || state.redis.batch != 0).then_some(dirty);
        let single =
            (0..self.world.videos).map(bit).filter(move |video| dirty & video != 0 && dirty != *video);
        all.into_iter().chain(single)
    }

    fn may_claim(&self, state: &State) -> bool {
        !self.world.names_kept || state.last_id < LAST_ID
    }

    fn may_insert(&self, state: &State, index: usize) -> bool {
        let id_matters = self.has(Clause::IdInDatabase) && self.has(Clause::PlaysTravelInBatch);
        !(id_matters && state.insert_waits(index))
    }

    pub(crate) fn flush(&self, state: &mut State, index: usize, deed: Flush) {
        let mut flusher = state.flushers[index];
        match deed {
            Flush::Pick(videos) => {
                flusher = Flusher { step: Step::Picked, videos, ..Flusher::default() };
                if !(self.has(Clause::DeltasReadInClaim) && self.has(Clause::PlaysTravelInBatch)) {
                    flusher.plays = deltas(state, videos);
                }
            }
            Flush::Claim => flusher = self.claim(state, flusher),
            Flush::Waited | Flush::RollBack => flusher = held(flusher),
            Flush::Begin => {
                flusher.step = Step::Begun;
                flusher.views = state.database.views;
                flusher.videos = state.database.refused_of(flusher.batch);
            }
            Flush::Insert => {
                flusher.adds = !(self.has(Clause::IdInDatabase) && state.database.knows(flusher.batch));
                flusher.step = Step::Inserted;
            }
            Flush::Add => {
                flusher.step = Step::Added;
                let claimed = (0..VIDEOS).filter(|video| flusher.plays[*video] > 0);
                flusher.videos = claimed
                    .filter(|video| has(state.database.full, *video))
                    .fold(0, |set, video| set | bit(video));
            }
            Flush::Read => self.read_back(state, &mut flusher),
            Flush::Commit => {
                if flusher.adds {
                    let Flusher { batch, plays, videos, .. } = flusher;
                    state.database.commit(batch, plays, videos, self.world.clauses);
                }
                (flusher.step, flusher.adds) = (Step::Committed, false);
            }
            Flush::CommitUnheard => {
                let Flusher { batch, plays, videos: refused, .. } = flusher;
                state.late = LateCommit { there: true, batch, plays, refused };
                flusher = Flusher::default();
            }
            Flush::Settle => flusher = self.settle(state, flusher),
            Flush::Unmark => {
                state.redis.unmark(flusher.videos);
                flusher = Flusher::default();
            }
            Flush::Die => flusher = Flusher::default(),
        }
        state.flushers[index] = flusher;
    }

    fn claim(&self, state: &mut State, flusher: Flusher) -> Flusher {
        if !self.has(Clause::PlaysTravelInBatch) {
            let some = flusher.plays != ByVideo::default();
            return if some { held(flusher) } else { Flusher::default() };
        }
        let named = self.world.names_kept && state.last_id < LAST_ID;
        let id = if named { state.last_id + 1 } else { unused_id(state) };
        let deltas = (!self.has(Clause::DeltasReadInClaim)).then_some(flusher.plays);
        let (made, empty) = state.redis.claim(flusher.videos, id, deltas, self.world.clauses);
        if made && named {
            state.last_id = id;
        }
        if empty != 0 && !self.has(Clause::EmptyUnmarkedInClaim) {
            return Flusher { step: Step::Unmarking, videos: empty, ..Flusher::default() };
        }
        if state.redis.batch == 0 {
            return Flusher::default();
        }
        let (batch, plays) = (state.redis.batch, state.redis.claimed);
        let claim = Flusher { step: Step::Held, batch, plays, ..Flusher::default() };
        let waits = Flusher { step: Step::Waiting, ..claim };
        match self.world.store {
            // What can't be forgotten any more needn't be waited for.
            _ if state.failovers == 0 => claim,
            Store::Replicated if self.has(Clause::ClaimWaits) => {
                // A WAIT on a connection that wrote nothing is answered at once.
                Flusher { durable: !made && !self.has(Clause::RetakeWrites), ..waits }
            }
            // What is in the file already is old enough; whether it is, is looked at now.
            Store::Persisted if self.has(Clause::BatchAges) && state.copy.batch != batch => {
                if self.has(Clause::YoungBatchTakenAnew) { Flusher::default() } else { waits }
            }
            _ => claim,
        }
    }

    /// Later statements see what has been committed meanwhile, and what their own transaction added.
    fn read_back(&self, state: &State, flusher: &mut Flusher) {
        flusher.step = Step::Answered;
        if self.has(Clause::AnswerReadLater) {
            flusher.views = state.database.views;
            if !flusher.adds {
                flusher.videos = state.database.refused_of(flusher.batch);
            }
        }
        for video in 0..VIDEOS {
            if flusher.plays[video] == 0 || self.world.readers == 0 {
                flusher.views[video] = 0;
            } else if flusher.adds && !has(flusher.videos, video) {
                flusher.views[video] += flusher.plays[video];
            }
        }
    }

    fn settle(&self, state: &mut State, flusher: Flusher) -> Flusher {
        let Flusher { batch, plays, views, videos: refused, .. } = flusher;
        if !self.has(Clause::PlaysTravelInBatch) {
            state.redis.take_off(plays, views);
            return Flusher::default();
        }
        let (empty, short) = state.redis.settle(batch, plays, views, refused, self.world.clauses);
        state.witness.short |= short;
        if empty != 0 && !self.has(Clause::UnmarkedInOneStep) {
            return Flusher { step: Step::Unmarking, videos: empty, ..Flusher::default() };
        }
        Flusher::default()
    }
}

/// Where batches keep their names, so many are enough to break any promise.
const LAST_ID: u8 = 11;

/// A flusher that may apply what it holds.
fn held(Flusher { batch, plays, .. }: Flusher) -> Flusher {
    Flusher { step: Step::Held, batch, plays, ..Flusher::default() }
}

/// The deltas of `videos` as they are now.
fn deltas(state: &State, videos: u8) -> ByVideo {
    std::array::from_fn(|video| {
        let delta = if has(videos, video) { state.redis.delta[video] } else { 0 };
        u8::try_from(delta).unwrap_or(0)
    })
}
