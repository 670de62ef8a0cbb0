//! The protocol as it is: every promise holds in every state of every world.

use std::collections::BTreeSet;

use headcount_model::{
    ABA, ALL_DONE, BLOCKED, BROUGHT_BACK, FORGOTTEN, GAVE_UP, LATE_COMMIT, LATE_SETTLE, LOOKED_AGAIN,
    MARK_TOO_MANY, PULLED_AWAY, Protocol, REFUSED, REFUSED_IN_PART, RETAKEN, SHARED, TAKEN_OFF, World,
};
use stateright::{Expectation, Model};

use crate::check::{all_of, way_to_break};

/// What two flushers are bound to meet.
const TWO_FLUSHERS: &[&str] = &[ALL_DONE, SHARED, BLOCKED, RETAKEN, LATE_SETTLE, LATE_COMMIT];
/// What readers are bound to meet.
const READERS: &[&str] = &[LOOKED_AGAIN, GAVE_UP, TAKEN_OFF, ABA];
/// What a copy of Redis that takes over does.
const FAILOVERS: &[&str] = &[BROUGHT_BACK];

/// Three plays of one video.
const THREE: &[usize] = &[0, 0, 0];
/// A play of each of two videos.
const EACH: &[usize] = &[0, 1];

/// A world, and what must be met in it.
type Case = (World, &'static [&'static [&'static str]]);

const THREE_FLUSHERS: Case = (
    World {
        name: "three flushers, rows and records that refuse",
        plays: THREE,
        flushers: 3,
        records_fail: true,
        ..World::REFUSING
    },
    &[TWO_FLUSHERS, &[REFUSED, MARK_TOO_MANY]],
);
const TWO_VIDEOS: Case = (
    World { name: "two videos, rows that refuse", plays: &[0, 0, 1], videos: 2, ..World::REFUSING },
    &[TWO_FLUSHERS, &[REFUSED, REFUSED_IN_PART]],
);
const READ_THREE: Case =
    (World { name: "a reader, three plays", plays: THREE, ..World::READ }, &[TWO_FLUSHERS, READERS]);
const READ_TWICE: Case = (World { name: "two readers", readers: 2, ..World::READ }, &[TWO_FLUSHERS, READERS]);
const READ_VIDEOS: Case =
    (World { name: "a reader, two videos", plays: EACH, videos: 2, ..World::READ }, &[TWO_FLUSHERS, READERS]);
const READ_REFUSED: Case = (
    World { name: "a reader, a row that refuses", plays: &[0], readers: 1, ..World::REFUSING },
    &[TWO_FLUSHERS, READERS, &[REFUSED]],
);
const READ_REFUSED_TWO: Case = (
    World { name: "a reader, a row that refuses, two plays", readers: 1, flushers: 1, ..World::REFUSING },
    &[READERS, &[ALL_DONE, REFUSED]],
);
const REPLICA: Case = (
    World { name: "wait_replicas, two failovers", plays: THREE, failovers: 2, ..World::REPLICATED },
    &[TWO_FLUSHERS, FAILOVERS, &[FORGOTTEN, PULLED_AWAY]],
);
const REPLICA_REFUSED: Case = (
    World {
        name: "wait_replicas, rows and records that refuse",
        rows_refuse: true,
        records_fail: true,
        ..World::REPLICATED
    },
    &[TWO_FLUSHERS, FAILOVERS, &[FORGOTTEN, PULLED_AWAY, REFUSED, MARK_TOO_MANY]],
);
const REPLICA_READ: Case = (
    World { name: "wait_replicas, a reader", readers: 1, ..World::REPLICATED },
    &[TWO_FLUSHERS, FAILOVERS, READERS, &[FORGOTTEN, PULLED_AWAY]],
);
const REPLICA_READ_TWICE: Case = (
    World {
        name: "wait_replicas, two failovers, two readers",
        plays: &[0],
        failovers: 2,
        readers: 2,
        ..World::REPLICATED
    },
    &[FAILOVERS, READERS, &[FORGOTTEN, PULLED_AWAY]],
);
const WAIT: Case = (
    World { name: "plays.wait, three plays", plays: THREE, ..World::PLAYS_WAIT },
    &[TWO_FLUSHERS, FAILOVERS, &[PULLED_AWAY]],
);
const WAIT_READ: Case = (
    World { name: "plays.wait, a reader", flushers: 1, readers: 1, ..World::PLAYS_WAIT },
    &[FAILOVERS, READERS, &[ALL_DONE, RETAKEN]],
);
const FILE: Case = (
    World { name: "batch_min_age, two power cuts", plays: THREE, failovers: 2, ..World::PERSISTED },
    &[TWO_FLUSHERS, FAILOVERS, &[FORGOTTEN]],
);
const FILE_READ: Case = (
    World { name: "batch_min_age, a reader", readers: 1, ..World::PERSISTED },
    &[TWO_FLUSHERS, FAILOVERS, READERS, &[FORGOTTEN]],
);

/// All of them.
macro_rules! worlds {
    ($($law:ident $case:ident)+) => {
        const WORLDS: &[Case] = &[$($case),+];
        $(#[test] fn $law() { holds($case); })+
    };
}

worlds! {
    three_flushers_add_each_play_once_and_set_refused_ones_aside THREE_FLUSHERS
    two_videos_in_one_batch_are_refused_one_by_one TWO_VIDEOS
    a_reader_never_sees_a_total_fall READ_THREE
    two_readers_never_see_a_total_fall READ_TWICE
    a_reader_of_two_videos_never_sees_a_total_fall READ_VIDEOS
    a_reader_counts_refused_plays_once READ_REFUSED
    a_reader_counts_plays_once_that_come_after_refused_ones READ_REFUSED_TWO
    failovers_forget_only_what_the_replica_lacked REPLICA
    failovers_strand_no_refused_play REPLICA_REFUSED
    a_reader_sees_a_failover_take_only_what_it_forgot REPLICA_READ
    two_readers_see_failovers_take_only_what_they_forgot REPLICA_READ_TWICE
    with_plays_wait_a_failover_forgets_no_acknowledged_play WAIT
    with_plays_wait_a_total_stays_right WAIT_READ
    power_cuts_forget_only_what_the_file_lacked FILE
    a_reader_sees_a_power_cut_take_only_what_it_forgot FILE_READ
}

/// Every state of a world keeps every promise, and what the world is for is met in it.
fn holds((world, sights): Case) {
    let found = all_of(world);
    let ways: Vec<String> = found
        .broken
        .iter()
        .map(|promise| {
            format!(
                "not so: {promise}
{}",
                way_to_break(world, promise).unwrap_or_default()
            )
        })
        .collect();
    assert!(
        ways.is_empty(),
        "in {:?}
{}",
        world.name,
        ways.join(
            "
"
        )
    );
    let missed: Vec<_> =
        sights.iter().copied().flatten().filter(|sight| !found.met.contains(*sight)).collect();
    assert!(missed.is_empty(), "in {:?} this never happens: {missed:?}", world.name);
}

#[test]
fn every_sight_is_asked_for_in_some_world() {
    let properties = Protocol { world: World::SMALL }.properties();
    let sights = properties.into_iter().filter(|property| property.expectation == Expectation::Sometimes);
    let all: BTreeSet<&str> = sights.map(|property| property.name).collect();
    let asked: BTreeSet<&str> =
        WORLDS.iter().flat_map(|(_, sights)| sights.iter().copied().flatten().copied()).collect();
    assert_eq!(all, asked);
}

#[test]
fn states_that_differ_by_names_only_are_no_loss() {
    for world in
        [World::SMALL, World { plays: &[0], ..World::READ }, World { plays: &[0], ..World::REPLICATED }]
    {
        let (merged, named) =
            (all_of(world), all_of(World { name: "  the same, names kept", names_kept: true, ..world }));
        assert!(merged.broken.is_empty() && named.broken.is_empty(), "{}", world.name);
        assert_eq!(merged.met, named.met, "{}", world.name);
    }
}
