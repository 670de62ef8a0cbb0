//! What must happen in some state of some world: a check that never meets it proves nothing about it.

use stateright::Property;

use crate::{
    Protocol,
    promise::is_quiet,
    state::{Reading, State, Step, VIDEOS, bit, has},
};

/// Two flushers hold one batch.
pub const SHARED: &str = "two flushers hold one batch";
/// One transaction waits for another's.
pub const BLOCKED: &str = "an insert waits for another flusher's transaction";
/// A batch that is in the database is claimed again.
pub const RETAKEN: &str = "a batch is taken up that is in the database already";
/// A settle that comes too late.
pub const LATE_SETTLE: &str = "a flusher is about to settle and another batch is at hand";
/// A commit that nobody waits for.
pub const LATE_COMMIT: &str = "a commit is under way whose batch another flusher holds";
/// Plays that a row didn't take.
pub const REFUSED: &str = "a video's plays are refused and stay";
/// One of two rows refuses.
pub const REFUSED_IN_PART: &str = "a batch is in the database for one of its videos only";
/// A reader whose look doesn't hold.
pub const LOOKED_AGAIN: &str = "a look does not hold";
/// A reader that gives up.
pub const GAVE_UP: &str = "a look does not hold for the third time";
/// A reader that takes a batch off.
pub const TAKEN_OFF: &str = "a reader takes the batch at hand off the total";
/// ABA.
pub const ABA: &str = "only the last settled batch tells that the look is old";
/// A mark without plays.
pub const MARK_TOO_MANY: &str = "a video is marked and has no plays";
/// A failover that forgets.
pub const FORGOTTEN: &str = "a failover forgot an acknowledged play";
/// A failover that brings an old batch.
pub const BROUGHT_BACK: &str = "a failover brought a batch back that is in the database";
/// A failover under a flusher's feet.
pub const PULLED_AWAY: &str = "a flusher holds a batch that is in no Redis";
/// All is well in the end.
pub const ALL_DONE: &str = "every play is acknowledged and in the database, and all is quiet";

/// What must happen in some state of one world or another.
pub(crate) fn sights() -> Vec<Property<Protocol>> {
    vec![
        sometimes(SHARED, |_, state| {
            let held = held_ids(state);
            held.enumerate().any(|(at, id)| held_ids(state).skip(at + 1).any(|other| other == id))
        }),
        sometimes(BLOCKED, |protocol, state| {
            (0..protocol.world.flushers)
                .any(|index| state.flushers[index].step == Step::Held && state.insert_waits(index))
        }),
        sometimes(RETAKEN, |_, state| {
            let held = state.flushers.iter().filter(|flusher| flusher.step == Step::Held);
            held.into_iter().any(|flusher| state.database.knows(flusher.batch))
        }),
        sometimes(LATE_SETTLE, |_, state| {
            let settling = state.flushers.iter().filter(|flusher| flusher.step == Step::Committed);
            let at_hand = state.redis.batch;
            settling.into_iter().any(|flusher| at_hand != 0 && at_hand != flusher.batch)
        }),
        sometimes(LATE_COMMIT, |_, state| {
            state.late.there && held_ids(state).any(|id| id == state.late.batch)
        }),
        sometimes(REFUSED, |_, state| state.redis.refused != 0),
        sometimes(REFUSED_IN_PART, |_, state| {
            let batch = state.redis.batch;
            let claimed = (0..VIDEOS).filter(|video| state.redis.claimed[*video] > 0).count();
            state.database.knows(batch) && claimed == 2 && state.database.refused_of(batch).is_power_of_two()
        }),
        sometimes(LOOKED_AGAIN, |_, state| state.readers.iter().any(|reader| reader.round > 0)),
        sometimes(GAVE_UP, |_, state| {
            state.readers.iter().any(|reader| {
                let moved = (reader.batch, reader.settled) != (state.redis.batch, state.redis.settled);
                reader.step == Reading::Asked && reader.round == 2 && moved
            })
        }),
        sometimes(TAKEN_OFF, |_, state| {
            state.readers.iter().any(|reader| {
                let video = usize::from(reader.video);
                reader.step == Reading::Asked && reader.base < state.database.views[video]
            })
        }),
        sometimes(ABA, |_, state| {
            state.readers.iter().any(|reader| {
                let same = reader.batch == state.redis.batch && reader.settled != state.redis.settled;
                reader.step == Reading::Asked && same
            })
        }),
        sometimes(MARK_TOO_MANY, |_, state| {
            (0..VIDEOS).any(|video| has(state.redis.dirty, video) && state.redis.delta[video] == 0)
        }),
        sometimes(FORGOTTEN, |_, state| state.witness.forgotten & !state.redis.seen != 0),
        sometimes(BROUGHT_BACK, |protocol, state| {
            let gone_back = state.failovers < protocol.world.failovers;
            gone_back && state.database.knows(state.redis.batch) && held_ids(state).next().is_none()
        }),
        sometimes(PULLED_AWAY, |_, state| {
            let waiting = state.flushers.iter().filter(|flusher| flusher.step == Step::Waiting);
            waiting.into_iter().any(|flusher| flusher.batch != state.redis.batch)
        }),
        sometimes(ALL_DONE, |protocol, state| {
            let all = bit(protocol.world.plays.len()) - 1;
            let home = state.clients.acknowledged == all && state.redis.seen == all;
            home && is_quiet(state) && state.redis.delta == [0; VIDEOS]
        }),
    ]
}

fn held_ids(state: &State) -> impl Iterator<Item = u8> {
    let held = state.flushers.iter().filter(|flusher| flusher.step >= Step::Waiting);
    held.map(|flusher| flusher.batch).filter(|id| *id != 0)
}

fn sometimes(name: &'static str, sight: fn(&Protocol, &State) -> bool) -> Property<Protocol> {
    Property::sometimes(name, sight)
}
