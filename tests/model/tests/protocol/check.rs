//! Runs the checker over one world and prints its figures.

use std::{collections::BTreeSet, time::Instant};

use headcount_model::{Action, Protocol, State, World, trace};
use stateright::{Checker, Expectation, Model, Property};

/// What was found in a world.
pub(crate) struct Found {
    /// Promises that are broken.
    pub(crate) broken: BTreeSet<&'static str>,
    /// What was met.
    pub(crate) met: BTreeSet<&'static str>,
}

/// Goes through a world, nearest states first, until the promise is broken; writes the shortest way
/// to there down.
pub(crate) fn way_to_break(world: World, promise: &'static str) -> Option<String> {
    let protocol = Protocol { world };
    let one = OnePromise { protocol, holds: protocol.property(promise).condition };
    let checker = search(world.name, one.checker().spawn_bfs());
    let way = checker.discovery(PROMISE)?;
    Some(trace(&protocol, &way.into_vec()))
}

/// Goes through all states of a world.
pub(crate) fn all_of(world: World) -> Found {
    let checker = search(world.name, Protocol { world }.checker().threads(2).spawn_bfs());
    let found: BTreeSet<_> = checker.discoveries().into_keys().collect();
    let (promises, sights): (Vec<_>, Vec<_>) = checker
        .model()
        .properties()
        .into_iter()
        .filter(|property| found.contains(property.name))
        .partition(|property| property.expectation == Expectation::Always);
    let names = |found: Vec<Property<Protocol>>| found.into_iter().map(|property| property.name).collect();
    Found { broken: names(promises), met: names(sights) }
}

/// Waits for the checker and prints its figures.
fn search<M: Model, C: Checker<M>>(name: &str, checker: C) -> C {
    let began = Instant::now();
    let checker = checker.join();
    println!(
        "{name:<44} {:>9} states, {:>10} steps, {:>3} deep, {:>5.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        began.elapsed().as_secs_f64(),
    );
    checker
}

/// A protocol of which one promise is asked only: the checker stops where it is first broken.
struct OnePromise {
    protocol: Protocol,
    holds: fn(&Protocol, &State) -> bool,
}

const PROMISE: &str = "the promise";

impl Model for OnePromise {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.protocol.init_states()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.protocol.actions(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        self.protocol.next_state(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(PROMISE, |one: &Self, state| (one.holds)(&one.protocol, state))]
    }
}
