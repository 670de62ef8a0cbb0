//! A reader's steps where the total isn't kept: look (R1), ask the database (R2), fill (R3). It may
//! stall between them for ever; one that dies has done nothing that others see.

use crate::{
    Action, Protocol,
    clauses::Clause,
    redis::Look,
    state::{Reader, Reading, State},
};

/// How often a look may not hold before the reader gives up.
const ROUNDS: u8 = 3;

/// What a reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// `MGET total delta`, and `view_look.lua` where there is no total.
    Look(usize),
    /// Reads the total alone, where a clause is away.
    AskViews,
    /// Reads the total and whether the batch is in it.
    Ask,
    /// `view_fill.lua`.
    Fill,
}

impl Protocol {
    pub(crate) fn offer_reads(&self, state: &State, offers: &mut Vec<Action>) {
        for index in 0..self.world.readers {
            let mut offer = |deed| offers.push(Action::Reader(index, deed));
            match state.readers[index].step {
                Reading::Idle => (0..self.world.videos).for_each(|video| offer(Read::Look(video))),
                Reading::Looked if !self.has(Clause::AskedInOneStatement) => offer(Read::AskViews),
                Reading::Looked | Reading::HalfAsked => offer(Read::Ask),
                Reading::Asked => offer(Read::Fill),
            }
        }
    }

    pub(crate) fn read(&self, state: &mut State, index: usize, deed: Read) {
        let reader = state.readers[index];
        let video = usize::from(reader.video);
        let Reader { batch, settled, in_batch, delta, .. } = reader;
        state.readers[index] = match deed {
            Read::Look(video) => match state.redis.look(video) {
                Ok(total) => self.answer(state, video, total),
                Err(look) => self.looked(video, 0, look),
            },
            Read::AskViews => {
                Reader { step: Reading::HalfAsked, base: state.database.views[video], ..reader }
            }
            Read::Ask => {
                let clauses = self.world.clauses;
                let base = if reader.step == Reading::HalfAsked {
                    state.database.base_of(reader.base, video, batch, in_batch, clauses)
                } else {
                    state.database.base(video, batch, in_batch, clauses)
                };
                // A total of less than nothing is an error to the reader, which should have no cause.
                state.witness.wrong |= base.is_none();
                base.map(|base| Reader { step: Reading::Asked, base, ..reader }).unwrap_or_default()
            }
            Read::Fill => {
                let look = Look { batch, settled, in_batch, delta };
                match state.redis.fill(video, look, reader.base, self.world.clauses) {
                    Ok(total) => self.answer(state, video, total),
                    Err(look) if reader.round + 1 < ROUNDS => self.looked(video, reader.round + 1, look),
                    Err(_) if self.has(Clause::UnverifiedNeverAnswered) => Reader::default(),
                    Err(look) => self.answer(state, video, reader.base + look.delta),
                }
            }
        };
    }

    fn looked(&self, video: usize, round: u8, look: Look) -> Reader {
        let video = u8::try_from(video).expect("there are at most 2 videos");
        let Look { batch, settled, in_batch, delta } = look;
        let delta = if self.has(Clause::DeltaReadLast) { 0 } else { delta };
        Reader { step: Reading::Looked, video, round, batch, settled, in_batch, delta, base: 0 }
    }

    /// A total is shown: that of all plays that Redis knows at this moment, no less, no more.
    fn answer(&self, state: &mut State, video: usize, total: u8) -> Reader {
        let known = State::count(&self.world, state.redis.seen, video);
        state.witness.wrong |= total != known;
        state.witness.fell |= total < state.witness.shown[video];
        state.witness.shown[video] = total;
        Reader::default()
    }
}
