//! Makes states that differ in nothing anyone can ever notice one state.

use crate::{
    Action, Protocol,
    fault::Fault,
    state::{Reading, Redis, State, bit, has, id_bit},
    world::World,
};

impl Protocol {
    /// Tidies what `action` may have touched.
    pub(crate) fn tidy(&self, state: &mut State, action: Action) {
        if state.failovers == 0 {
            state.copy = Redis::default();
        }
        if self.world.readers == 0 {
            for redis in [&mut state.redis, &mut state.copy] {
                (redis.total, redis.settled) = Default::default();
            }
        }
        let ids = !matches!(action, Action::Client(..));
        let copied = matches!(action, Action::Fault(Fault::CopyCatchesUp | Fault::CopyTakesOver));
        let plays = copied || matches!(action, Action::Client(..));
        if ids {
            forget_unnamed(state);
        }
        if ids && !self.world.names_kept {
            state.flushers[..self.world.flushers].sort_unstable();
            state.readers[..self.world.readers].sort_unstable();
            rename_ids(state);
        }
        if plays && !self.world.names_kept {
            sort_plays(&self.world, state);
        }
    }
}

/// The ids that flushers hold.
#[must_use]
pub(crate) fn ids_in_hand(state: &State) -> u16 {
    state.flushers.iter().fold(0, |set, flusher| set | id_bit(flusher.batch)) & !1
}

/// The ids that anybody can still bring or compare.
fn ids_named(state: &State) -> u16 {
    let State { redis, copy, late, .. } = state;
    let kept = [redis.batch, redis.settled, copy.batch, copy.settled, late.batch];
    let read = state.readers.iter().flat_map(|reader| [reader.batch, reader.settled]);
    kept.into_iter().chain(read).fold(ids_in_hand(state), |set, id| set | id_bit(id)) & !1
}

/// An id that is no other's: as good as a new one.
#[must_use]
pub(crate) fn unused_id(state: &State) -> u8 {
    let named = ids_named(state) | id_bit(0) | id_bit(state.database.newest) | state.database.ids;
    u8::try_from(named.trailing_ones()).expect("there are 16 bits")
}

/// An id in the database that nobody can ever ask for is as good as purged.
fn forget_unnamed(state: &mut State) {
    let named = ids_named(state);
    let database = &mut state.database;
    database.ids &= named;
    for refused in &mut database.refused {
        *refused &= named;
    }
    if id_bit(database.newest) & named == 0 {
        database.newest = 0;
    }
}

/// Gives ids the smallest numbers in the order in which they are met: only their equality matters.
fn rename_ids(state: &mut State) {
    let mut names = [0_u8; 16];
    let mut last = 0;
    let mut rename = |id: &mut u8| {
        let name = &mut names[usize::from(*id)];
        if *id != 0 && *name == 0 {
            last += 1;
            *name = last;
        }
        *id = *name;
    };
    rename(&mut state.redis.batch);
    rename(&mut state.redis.settled);
    rename(&mut state.copy.batch);
    rename(&mut state.copy.settled);
    rename(&mut state.late.batch);
    state.flushers.iter_mut().for_each(|flusher| rename(&mut flusher.batch));
    for reader in state.readers.iter_mut().filter(|reader| reader.step != Reading::Idle) {
        rename(&mut reader.batch);
        rename(&mut reader.settled);
    }
    rename(&mut state.database.newest);
    let [first, second] = &mut state.database.refused;
    for ids in [&mut state.database.ids, first, second] {
        let named = (1..16).filter(|id| *ids & id_bit(*id) != 0);
        *ids = named.fold(0, |set, id| set | id_bit(names[usize::from(id)]));
    }
}

/// Plays of one video are told apart by what became of them only.
fn sort_plays(world: &World, state: &mut State) {
    let mut fates = [0_u16; crate::state::PLAYS];
    let plays = &mut fates[..world.plays.len()];
    for (play, fate) in plays.iter_mut().enumerate() {
        for (place, set) in sets_of_plays(state).into_iter().enumerate() {
            *fate |= u16::from(has(*set, play)) << place;
        }
    }
    // Plays of one video stand together.
    for group in plays_by_video(world, plays) {
        group.sort_unstable();
    }
    for (place, set) in sets_of_plays(state).into_iter().enumerate() {
        let members = plays.iter().enumerate().filter(|(_, fate)| **fate & (1 << place) != 0);
        *set = members.fold(0, |set, (play, _)| set | bit(play));
    }
}

fn sets_of_plays(state: &mut State) -> [&mut u8; 10] {
    let State { redis, copy, clients, witness, .. } = state;
    [
        &mut redis.seen,
        &mut copy.seen,
        &mut clients.acknowledged,
        &mut clients.noted,
        &mut clients.waiting,
        &mut clients.durable,
        &mut clients.half,
        &mut clients.other_half,
        &mut witness.counted,
        &mut witness.forgotten,
    ]
}

fn plays_by_video<'a>(world: &World, plays: &'a mut [u16]) -> impl Iterator<Item = &'a mut [u16]> {
    let first = world.plays.iter().filter(|video| **video == 0).count();
    let (first, second) = plays.split_at_mut(first);
    [first, second].into_iter()
}
