//! Clients send each play until it is acknowledged, through an instance that keeps notes of what it
//! saw counted. Requests and answers may be lost, and requests may arrive late.

use crate::{
    Action, Protocol,
    clauses::Clause,
    state::{State, bit, has},
};

/// What becomes of a request to count a play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// It reaches Redis and the answer reaches the client.
    Heard,
    /// It reaches Redis; the answer reaches the instance only.
    HeardByInstance,
    /// It reaches Redis, perhaps late; nobody gets the answer.
    Unheard,
    /// Redis refuses it half-way, before or after marking the video.
    Refused {
        /// Whether the video was marked.
        marked: bool,
    },
    /// The instance answers a repeated request from its notes.
    Noted,
    /// `plays.wait`: it reaches Redis; the instance now waits for the replica.
    Written,
    /// `plays.wait`: the replica has it and the client is told.
    Waited,
    /// `plays.wait`: the replica has it and only the instance hears of it.
    WaitedUnheard,
    /// `plays.wait`: the replica is too slow; the client gets an error.
    WaitFailed,
    /// Where a clause is away: the first half of it happens.
    FirstHalf,
    /// Where a clause is away: the rest happens and the client is told.
    SecondHalf,
    /// Where a clause is away: the rest is lost.
    HalfLost,
}

impl Protocol {
    pub(crate) fn offer_requests(&self, state: &State, offers: &mut Vec<Action>) {
        for play in 0..self.world.plays.len() {
            let mut offer = |deed| offers.push(Action::Client(play, deed));
            let clients = &state.clients;
            let acknowledged = has(clients.acknowledged, play);
            if self.in_halves() {
                self.offer_halves(state, play, &mut offer);
            } else if self.world.plays_wait {
                if !has(clients.waiting, play) {
                    if !acknowledged {
                        offer(Request::Written);
                    }
                } else if has(clients.durable, play) {
                    offer(Request::Waited);
                    offer(Request::WaitedUnheard);
                    offer(Request::WaitFailed);
                } else {
                    offer(Request::WaitFailed);
                }
            } else {
                // One that is acknowledged may still arrive once more; to one that is known Redis does
                // nothing.
                if !has(state.redis.seen, play) {
                    offer(Request::Unheard);
                }
                if !acknowledged {
                    offer(Request::Heard);
                    if self.notes_matter(state) {
                        offer(Request::HeardByInstance);
                    }
                }
            }
            if has(clients.noted, play) && !acknowledged {
                offer(Request::Noted);
            }
            if self.world.records_fail && !acknowledged && !has(state.redis.seen, play) {
                offer(Request::Refused { marked: false });
                offer(Request::Refused { marked: true });
            }
        }
    }

    fn offer_halves(&self, state: &State, play: usize, offer: &mut impl FnMut(Request)) {
        let (half, other) = (has(state.clients.half, play), has(state.clients.other_half, play));
        let looks = !self.has(Clause::DedupedInOneStep);
        if !half || (looks && !other) {
            offer(Request::FirstHalf);
        }
        if half || other {
            offer(Request::SecondHalf);
            offer(Request::HalfLost);
        }
    }

    pub(crate) fn send(&self, state: &mut State, play: usize, deed: Request) {
        let (video, one) = (self.world.plays[play], bit(play));
        match deed {
            Request::Heard => {
                self.record(state, play);
                acknowledge(state, play);
            }
            Request::HeardByInstance => {
                self.record(state, play);
                self.note(state, play);
            }
            Request::Unheard => {
                self.record(state, play);
            }
            Request::Refused { marked } => {
                state.redis.record_refused(play, video, marked, self.world.clauses);
            }
            Request::Noted => acknowledge(state, play),
            Request::Written => {
                let counted = self.record(state, play);
                let writes = counted || self.has(Clause::RepeatWrites);
                if !self.has(Clause::NotedAfterWait) {
                    self.note(state, play);
                }
                state.clients.waiting |= one;
                // A WAIT on a connection that wrote nothing since is answered at once.
                if !writes || !self.has(Clause::AnswerWaits) || state.failovers == 0 {
                    state.clients.durable |= one;
                }
            }
            Request::Waited | Request::WaitedUnheard | Request::WaitFailed => {
                state.clients.waiting &= !one;
                state.clients.durable &= !one;
                match deed {
                    Request::Waited => acknowledge(state, play),
                    Request::WaitedUnheard => self.note(state, play),
                    _ => {}
                }
            }
            Request::FirstHalf | Request::SecondHalf | Request::HalfLost => self.send_half(state, play, deed),
        }
    }

    /// Without the one step: count, then mark; or look, then count.
    fn send_half(&self, state: &mut State, play: usize, deed: Request) {
        let (video, one) = (self.world.plays[play], bit(play));
        let looks = !self.has(Clause::DedupedInOneStep);
        let clients = &mut state.clients;
        match deed {
            Request::FirstHalf if looks => {
                if has(state.redis.seen, play) {
                    clients.acknowledged |= one;
                } else if has(clients.half, play) {
                    clients.other_half |= one;
                } else {
                    clients.half |= one;
                }
            }
            Request::FirstHalf => {
                let dirty = state.redis.dirty;
                if self.record(state, play) {
                    state.redis.dirty = dirty;
                    state.clients.half |= one;
                } else {
                    acknowledge(state, play);
                }
            }
            half => {
                if has(clients.other_half, play) {
                    clients.other_half &= !one;
                } else {
                    clients.half &= !one;
                }
                if half == Request::HalfLost {
                    return;
                }
                if looks {
                    state.redis.seen &= !one;
                    self.record(state, play);
                } else {
                    state.redis.dirty |= bit(video);
                }
                acknowledge(state, play);
            }
        }
    }

    fn record(&self, state: &mut State, play: usize) -> bool {
        let counted = state.redis.record(play, self.world.plays[play]);
        state.witness.counted |= state.redis.seen;
        counted
    }

    fn note(&self, state: &mut State, play: usize) {
        if self.notes_matter(state) && !has(state.clients.acknowledged, play) {
            state.clients.noted |= bit(play);
        }
    }

    /// A note says what Redis would say, unless Redis can forget.
    fn notes_matter(&self, state: &State) -> bool {
        state.failovers > 0 || !self.has(Clause::NotesEndWithConnection)
    }

    fn in_halves(&self) -> bool {
        !(self.has(Clause::MarkedInOneStep) && self.has(Clause::DedupedInOneStep))
    }
}

fn acknowledge(state: &mut State, play: usize) {
    state.clients.acknowledged |= bit(play);
    state.clients.noted &= !bit(play);
}
