//! Each clause taken away breaks a promise, in the smallest world found for it.

use headcount_model::{
    ACKNOWLEDGED, Clause, Clauses, KEPT, NEVER_FALLS, NEVER_MORE, NOT_NEGATIVE, NOT_STRANDED, QUIET, World,
};

use crate::check::{all_of, way_to_break};

/// What is taken away, in which world, and the promise that breaks.
type Case = (&'static [Clause], World, &'static str);

/// One flusher, one play.
const ALONE: World = World { plays: &[0], flushers: 1, ..World::SMALL };
/// One flusher, two plays.
const ALONE_TWO: World = World { flushers: 1, ..World::SMALL };
/// One play, two flushers.
const PAIR: World = World { plays: &[0], ..World::SMALL };
/// One play that Redis may refuse.
const FAILING: World = World { records_fail: true, ..ALONE };
/// A reader, one flusher.
const READ_ALONE: World = World { flushers: 1, ..World::READ };

/// By what is done instead. Those that begin with S are the defects that services like this one have.
const CASES: &[(&str, Case)] = &[
    // Record.
    ("S13: count, then mark", (&[Clause::MarkedInOneStep], ALONE, NOT_STRANDED)),
    ("S15: seen stays on a failed count", (&[Clause::SeenDroppedOnFailure], FAILING, QUIET)),
    ("look whether it is new, then count", (&[Clause::DedupedInOneStep], ALONE, NEVER_MORE)),
    ("notes outlive their connection", (&[Clause::NotesEndWithConnection], World::REPLICATED, ACKNOWLEDGED)),
    // Claim.
    ("S11: no batch, two flushers add twice", (&[Clause::PlaysTravelInBatch], PAIR, NEVER_MORE)),
    ("S11: no batch, two flushers take off twice", (&[Clause::PlaysTravelInBatch], PAIR, NOT_NEGATIVE)),
    ("a batch is claimed over another", (&[Clause::BatchThereComesFirst], PAIR, NEVER_MORE)),
    ("deltas are read before the claim", (&[Clause::DeltasReadInClaim], PAIR, NEVER_MORE)),
    ("marks without plays are taken off later", (&[Clause::EmptyUnmarkedInClaim], FAILING, NOT_STRANDED)),
    // Apply.
    ("S10: no id in the database", (&[Clause::IdInDatabase], ALONE, NEVER_MORE)),
    ("apply as one statement", (&[Clause::AnswerReadLater], World::READ, NEVER_FALLS)),
    ("refused videos aren't named beside the id", (&[Clause::RefusedNamedWithId], World::REFUSING, QUIET)),
    ("the newest id is purged", (&[Clause::NewestIdStays], ALONE, NEVER_MORE)),
    ("ids are purged under a stalled flusher", (&[Clause::IdsOutliveStalls], World::SMALL, NEVER_MORE)),
    // Settle.
    ("S12: take off, then unmark", (&[Clause::UnmarkedInOneStep], ALONE_TWO, NOT_STRANDED)),
    ("unmarked with plays left", (&[Clause::MarkStaysWithPlays], ALONE_TWO, NOT_STRANDED)),
    ("settled without a look at the id", (&[Clause::IdCheckedAtSettle], World::SMALL, QUIET)),
    (
        "refused plays are taken off",
        (&[Clause::RefusedPlaysStay], World { plays: &[0], ..World::REFUSING }, QUIET),
    ),
    (
        "refused videos aren't set aside",
        (&[Clause::RefusedSetAside], World { plays: &[0], ..World::REFUSING }, NOT_STRANDED),
    ),
    ("the total isn't set at settle", (&[Clause::TotalSetAtSettle], READ_ALONE, NEVER_FALLS)),
    // Durability.
    ("no WAIT before a batch is applied", (&[Clause::ClaimWaits], World::REPLICATED, NEVER_MORE)),
    ("a re-take writes nothing before WAIT", (&[Clause::RetakeWrites], World::REPLICATED, NEVER_MORE)),
    (
        "claim and WAIT on two connections",
        (&[Clause::ClaimAndWaitOnOneConnection], World::REPLICATED, NEVER_MORE),
    ),
    ("no batch_min_age", (&[Clause::BatchAges], World::PERSISTED, NEVER_MORE)),
    ("a young batch is waited for in memory", (&[Clause::YoungBatchTakenAnew], World::PERSISTED, NEVER_MORE)),
    ("plays.wait: answered before WAIT", (&[Clause::AnswerWaits], World::PLAYS_WAIT, KEPT)),
    ("plays.wait: a repeat writes nothing", (&[Clause::RepeatWrites], World::PLAYS_WAIT, KEPT)),
    ("plays.wait: noted before WAIT", (&[Clause::NotedAfterWait], World::PLAYS_WAIT, KEPT)),
    // Read.
    ("S17: database plus delta", (&[Clause::BatchTakenOffTotal, Clause::LookHolds], READ_ALONE, NEVER_FALLS)),
    ("fill without taking the batch off", (&[Clause::BatchTakenOffTotal], READ_ALONE, NEVER_FALLS)),
    ("fill without the re-check", (&[Clause::LookHolds], READ_ALONE, NEVER_FALLS)),
    ("re-check without the batch", (&[Clause::BatchCompared], READ_ALONE, NEVER_FALLS)),
    ("re-check without settled (ABA)", (&[Clause::SettledCompared], READ_ALONE, NEVER_FALLS)),
    (
        "refused plays are taken off the total",
        (&[Clause::RefusedNotTakenOff], World { readers: 1, flushers: 1, ..World::REFUSING }, NEVER_FALLS),
    ),
    ("total and id in two statements", (&[Clause::AskedInOneStatement], READ_ALONE, NEVER_FALLS)),
    (
        "the delta of the look is added",
        (&[Clause::DeltaReadLast], World { readers: 2, ..READ_ALONE }, NEVER_FALLS),
    ),
    (
        "an unverified base is answered in the end",
        (&[Clause::UnverifiedNeverAnswered], READ_ALONE, NEVER_FALLS),
    ),
];

#[test]
fn each_clause_taken_away_breaks_a_promise() {
    let mut unbroken = Vec::new();
    for (name, (clauses, world, promise)) in CASES {
        let world = World { name, clauses: Clauses::without(clauses), names_kept: true, ..*world };
        match way_to_break(world, promise) {
            Some(way) => println!("  not so: {promise}\n{way}\n"),
            None => unbroken.push(name),
        }
    }
    assert!(unbroken.is_empty(), "nothing breaks: {unbroken:?}");
}

#[test]
fn amounts_from_memory_break_nothing_while_the_id_is_checked() {
    let world = World { clauses: Clauses::without(&[Clause::AmountsFromBatch]), ..World::REFUSING };
    assert!(all_of(world).broken.is_empty());
}
