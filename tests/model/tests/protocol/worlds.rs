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

/// A world for each kind of trouble, with what must be met in it.
const WORLDS: [(World, &[&[&str]]); 10] = [
    (
        World {
            name: "three flushers, rows and records that refuse",
            plays: &[0, 0, 0],
            flushers: 3,
            records_fail: true,
            ..World::REFUSING
        },
        &[TWO_FLUSHERS, &[REFUSED, MARK_TOO_MANY]],
    ),
    (
        World {
            name: "two videos, rows and records that refuse",
            plays: &[0, 0, 1],
            videos: 2,
            records_fail: true,
            ..World::REFUSING
        },
        &[TWO_FLUSHERS, &[REFUSED, REFUSED_IN_PART, MARK_TOO_MANY]],
    ),
    (World { name: "a reader and three plays", plays: &[0, 0, 0], ..World::READ }, &[TWO_FLUSHERS, READERS]),
    (World { name: "two readers", readers: 2, ..World::READ }, &[TWO_FLUSHERS, READERS]),
    (
        World {
            name: "a reader, one flusher, a row that refuses",
            readers: 1,
            flushers: 1,
            ..World::REFUSING
        },
        &[READERS, &[ALL_DONE, REFUSED]],
    ),
    (
        World { name: "wait_replicas, two failovers", plays: &[0, 0, 0], failovers: 2, ..World::REPLICATED },
        &[TWO_FLUSHERS, FAILOVERS, &[FORGOTTEN, PULLED_AWAY]],
    ),
    (
        World { name: "wait_replicas, a failover, a reader", readers: 1, ..World::REPLICATED },
        &[TWO_FLUSHERS, FAILOVERS, READERS, &[FORGOTTEN, PULLED_AWAY]],
    ),
    (
        World { name: "plays.wait, a failover", plays: &[0, 0, 0], ..World::PLAYS_WAIT },
        &[TWO_FLUSHERS, FAILOVERS, &[PULLED_AWAY]],
    ),
    (
        World { name: "batch_min_age, two power cuts", plays: &[0, 0, 0], failovers: 2, ..World::PERSISTED },
        &[TWO_FLUSHERS, FAILOVERS, &[FORGOTTEN]],
    ),
    (
        World { name: "batch_min_age, a power cut, a reader", readers: 1, ..World::PERSISTED },
        &[TWO_FLUSHERS, FAILOVERS, READERS, &[FORGOTTEN]],
    ),
];

/// Every state of a world keeps every promise, and what the world is for is met in it.
fn holds(index: usize) {
    let (world, sights) = WORLDS[index];
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

macro_rules! worlds {
    ($($law:ident $index:literal)+) => { $(#[test] fn $law() { holds($index); })+ };
}

worlds! {
    three_flushers_add_each_play_once_and_set_refused_ones_aside 0
    two_videos_in_one_batch_are_refused_one_by_one 1
    a_reader_never_sees_a_total_fall 2
    two_readers_never_see_a_total_fall 3
    a_reader_counts_refused_plays_once 4
    failovers_forget_only_what_the_replica_lacked 5
    a_reader_sees_a_failover_take_only_what_it_forgot 6
    with_plays_wait_a_failover_forgets_no_acknowledged_play 7
    power_cuts_forget_only_what_the_file_lacked 8
    a_reader_sees_a_power_cut_take_only_what_it_forgot 9
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
