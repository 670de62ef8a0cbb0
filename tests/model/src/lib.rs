//! The protocol of plays as a model, checked exhaustively: every order in which the steps of clients,
//! flushers, readers and faults can follow each other in a small world is tried.
//!
//! How to read it: [`State`] is what a world consists of; `redis` holds the scripts and `database` the
//! statements, each one step; `request`, `flusher`, `reader` and `fault` say who may do which step
//! when; `promise` says what holds in every state, `sight` what must be met for that to mean anything.
//! [`World`] says how large a world is. The worlds that are checked, and the table of what breaks when
//! a [`Clause`] is taken away, are in this crate's tests; they print their figures, and for each clause
//! the shortest way to the broken promise:
//!
//! ```text
//! cargo test -p headcount-model -- --nocapture
//! ```
//!
//! A clause that is changed in the code is to be changed here first.
//!
//! What makes it small without making it kinder: batches, plays, flushers and readers that differ by
//! name only are one (`tidy`); an id in the database that nobody can ask for any more counts as
//! purged; a flusher that dies, one that gives up and one whose answer is lost are one; one that wakes
//! late is one that wasn't looked at for a while. What a copy of Redis holds is any earlier state of
//! Redis, in order.
//!
//! What is not in it: a play remembered for less time than its client repeats it; an old primary that
//! goes on answering after its replica was promoted (it gets no WAIT from all replicas, so it applies
//! nothing, and what it acknowledges is forgotten); a database that forgets a commit; partitions, which
//! share nothing; daily rows, which are in the same transactions; unique viewers, which decide nothing.

mod clauses;
mod database;
mod fault;
mod flusher;
mod promise;
mod reader;
mod redis;
mod request;
mod sight;
mod state;
mod tidy;
mod trace;
mod world;

use stateright::{Model, Property};

pub use self::{
    clauses::{Clause, Clauses},
    fault::Fault,
    flusher::Flush,
    promise::{
        ACKNOWLEDGED, BROUGHT_HOME, EXACT, KEPT, NEVER_FALLS, NEVER_MORE, NOT_NEGATIVE, NOT_STRANDED, QUIET,
    },
    reader::Read,
    request::Request,
    sight::{
        ABA, ALL_DONE, BLOCKED, BROUGHT_BACK, FORGOTTEN, GAVE_UP, LATE_COMMIT, LATE_SETTLE, LOOKED_AGAIN,
        MARK_TOO_MANY, PULLED_AWAY, REFUSED, REFUSED_IN_PART, RETAKEN, SHARED, TAKEN_OFF,
    },
    state::{ByVideo, Clients, Database, Flusher, LateCommit, Reader, Reading, Redis, State, Step, Witness},
    trace::trace,
    world::{Store, World},
};

/// The protocol in one world.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// The world.
    pub world: World,
}

/// One step of anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Of the client that sends a play.
    Client(usize, Request),
    /// Of a flusher.
    Flusher(usize, Flush),
    /// Of a reader.
    Reader(usize, Read),
    /// Of the stores.
    Fault(Fault),
}

impl Protocol {
    pub(crate) fn has(&self, clause: Clause) -> bool {
        self.world.clauses.has(clause)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.world)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.offer_requests(state, actions);
        self.offer_flushes(state, actions);
        self.offer_reads(state, actions);
        self.offer_faults(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Client(play, request) => self.send(&mut next, play, request),
            Action::Flusher(index, flush) => self.flush(&mut next, index, flush),
            Action::Reader(index, read) => self.read(&mut next, index, read),
            Action::Fault(fault) => self.happen(&mut next, fault),
        }
        self.tidy(&mut next, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = promise::promises();
        properties.extend(sight::sights());
        properties
    }
}
