//! What a fault of Redis can cost with each setting for durability: the table of the README. Without
//! `appendfsync always`, which is a store that forgets nothing: all of `worlds.rs` but its failovers.

use headcount_model::{Clause, Clauses, FORGOTTEN, NEVER_MORE, World};

use crate::check::all_of;

const NO_WAIT: Clauses = Clauses::without(&[Clause::ClaimWaits]);
const NO_AGE: Clauses = Clauses::without(&[Clause::BatchAges]);

/// The setting, its world, whether plays may be counted twice, and whether acknowledged ones be lost.
const SETTINGS: [(World, bool, bool); 6] = [
    (World { name: "failover", clauses: NO_WAIT, ..World::REPLICATED }, true, true),
    (World { name: "failover, plays.wait only", clauses: NO_WAIT, ..World::PLAYS_WAIT }, true, false),
    (World { name: "failover, wait_replicas", ..World::REPLICATED }, false, true),
    (World { name: "failover, wait_replicas and plays.wait", ..World::PLAYS_WAIT }, false, false),
    (World { name: "power cut, everysec", clauses: NO_AGE, ..World::PERSISTED }, true, true),
    (World { name: "power cut, everysec, batch_min_age", ..World::PERSISTED }, false, true),
];

#[test]
fn each_setting_costs_what_is_said_of_it() {
    for (world, twice, lost) in SETTINGS {
        let found = all_of(world);
        assert_eq!(found.broken.contains(NEVER_MORE), twice, "counted twice: {}", world.name);
        assert_eq!(found.met.contains(FORGOTTEN), lost, "acknowledged and lost: {}", world.name);
    }
}
