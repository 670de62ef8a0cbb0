//! What must hold in every state.

use stateright::Property;

use crate::{
    Protocol,
    clauses::Clause,
    fault::Fault,
    flusher::Flush,
    state::{State, Step, VIDEOS, has},
};

/// The database holds no play more often than once.
pub const NEVER_MORE: &str = "the database never holds more plays than were counted";
/// When all is quiet, each play that Redis knows is in the database once.
pub const QUIET: &str = "when all is quiet, each play that Redis knows is in the database once";
/// No acknowledged play is lost.
pub const ACKNOWLEDGED: &str = "an acknowledged play is known, unless a failover forgot it";
/// No acknowledged play is lost, whatever happens to Redis.
pub const KEPT: &str = "with plays.wait, a failover forgets no acknowledged play";
/// From every state a flusher that is left alone makes it quiet, and right.
pub const BROUGHT_HOME: &str = "a flusher that is left alone brings each play home, once";
/// No video is stranded.
pub const NOT_STRANDED: &str = "no video is stranded: one with plays is marked, refused or in a batch";
/// Deltas hold what was counted.
pub const NOT_NEGATIVE: &str = "no more is taken off a delta than there is";
/// Totals don't fall.
pub const NEVER_FALLS: &str = "a total never falls, but by what a failover forgot";
/// Totals are right.
pub const EXACT: &str = "a total is the number of plays that Redis knows at that moment";

/// What must hold in every state.
pub(crate) fn promises() -> Vec<Property<Protocol>> {
    vec![
        always(NEVER_MORE, |protocol, state| {
            (0..VIDEOS).all(|video| {
                state.database.views[video] <= State::count(&protocol.world, state.witness.counted, video)
            })
        }),
        always(QUIET, |protocol, state| !is_quiet(state) || protocol.adds_up(state)),
        always(ACKNOWLEDGED, |_, state| {
            state.clients.acknowledged & !state.redis.seen & !state.witness.forgotten == 0
        }),
        always(KEPT, |protocol, state| {
            !protocol.world.plays_wait || state.clients.acknowledged & !state.redis.seen == 0
        }),
        always(BROUGHT_HOME, Protocol::comes_home),
        always(NOT_STRANDED, |_, state| (0..VIDEOS).all(|video| !is_stranded(state, video))),
        always(NOT_NEGATIVE, |_, state| {
            !state.witness.short && state.redis.delta.iter().all(|delta| *delta >= 0)
        }),
        always(NEVER_FALLS, |_, state| !state.witness.fell),
        always(EXACT, |_, state| !state.witness.wrong),
    ]
}

fn always(name: &'static str, law: fn(&Protocol, &State) -> bool) -> Property<Protocol> {
    Property::always(name, law)
}

pub(crate) fn is_quiet(state: &State) -> bool {
    let idle = state.flushers.iter().all(|flusher| flusher.step == Step::Idle);
    idle && !state.late.there && nothing_waits(state) && nothing_half_done(state)
}

fn nothing_waits(state: &State) -> bool {
    state.redis.batch == 0 && state.redis.dirty == 0
}

fn nothing_half_done(state: &State) -> bool {
    state.clients.half == 0
}

fn is_stranded(state: &State, video: usize) -> bool {
    let redis = &state.redis;
    let reached =
        has(redis.dirty | redis.refused, video) || redis.claimed[video] > 0 || has_step_to_come(state);
    redis.delta[video] > 0 && !reached
}

/// A request or a settling that is done by half may still put it right.
fn has_step_to_come(state: &State) -> bool {
    let unmarking = state.flushers.iter().any(|flusher| flusher.step == Step::Unmarking);
    !nothing_half_done(state) || unmarking
}

impl Protocol {
    /// Whether the database, with what it refused, holds what Redis knows.
    fn adds_up(&self, state: &State) -> bool {
        (0..self.world.videos).all(|video| {
            let waiting = if has(state.redis.refused, video) { state.redis.delta[video] } else { 0 };
            let held = i16::from(state.database.views[video]) + i16::from(waiting);
            held == i16::from(State::count(&self.world, state.redis.seen, video))
        })
    }

    /// Lets everybody die but one flusher that nothing happens to, with rows as they are; then mends
    /// the rows and lets it go on. A commit under way may go either way.
    fn comes_home(&self, state: &State) -> bool {
        if !nothing_half_done(state) {
            return true;
        }
        let outcomes: &[bool] = if state.late.there { &[true, false] } else { &[false] };
        outcomes.iter().all(|happens| {
            let mut state = *state;
            self.happen(&mut state, Fault::LateCommit { happens: *happens });
            state.flushers = Default::default();
            self.flush_all(&mut state);
            if !nothing_waits(&state) || !self.adds_up(&state) {
                return false;
            }
            (0..self.world.videos).for_each(|video| self.happen(&mut state, Fault::RowMended(video)));
            self.flush_all(&mut state);
            nothing_waits(&state) && state.redis.delta == [0; VIDEOS] && self.adds_up(&state)
        })
    }

    fn flush_all(&self, state: &mut State) {
        // One batch is there perhaps, another is made, and each may be too young once.
        for _ in 0..6 {
            if nothing_waits(state) {
                return;
            }
            self.flush(state, 0, Flush::Pick(state.redis.dirty));
            for _ in 0..10 {
                state.copy = state.redis;
                let adds = state.flushers[0].adds;
                let deed = match state.flushers[0].step {
                    Step::Idle => break,
                    Step::Picked => Flush::Claim,
                    Step::Waiting => Flush::Waited,
                    Step::Held if !self.has(Clause::AnswerReadLater) => Flush::Begin,
                    Step::Held | Step::Begun => Flush::Insert,
                    Step::Inserted if adds => Flush::Add,
                    Step::Inserted | Step::Added => Flush::Read,
                    Step::Answered => Flush::Commit,
                    Step::Committed => Flush::Settle,
                    Step::Unmarking => Flush::Unmark,
                };
                self.flush(state, 0, deed);
            }
        }
    }
}
