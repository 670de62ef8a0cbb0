//! How many plays killed instances may have counted and not reported any more, judged from outside.
//!
//! An instance reports what it counted every few hundred milliseconds while its stores answer. So what
//! it counted before it was last seen well for a while, it has reported.

use std::{
    array,
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{
    instance,
    world::{INSTANCES, World},
};

/// Well without a break for so long, an instance has surely reported.
const REPORTS_WITHIN: Duration = Duration::from_secs(3);

/// Between two looks whether an instance is well.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What may be unreported.
pub(crate) struct Tails {
    instances: [Mutex<Tail>; INSTANCES],
    left: AtomicU64,
}

#[derive(Default)]
struct Tail {
    /// When plays were answered as counted that may be unreported.
    counted: VecDeque<Instant>,
    /// Since when every look found the instance well.
    well: Option<Instant>,
}

impl Tails {
    pub(crate) fn new() -> Self {
        Self { instances: array::from_fn(|_| Mutex::default()), left: AtomicU64::new(0) }
    }

    /// An instance has answered that a play counted.
    pub(crate) fn counted(&self, instance: usize) {
        self.instances[instance].lock().counted.push_back(Instant::now());
    }

    /// An instance is at its end. If it didn't end in quiet, its tail stays unreported.
    pub(crate) fn ended(&self, instance: usize, in_quiet: bool) {
        let tail = std::mem::take(&mut *self.instances[instance].lock());
        if !in_quiet {
            self.left.fetch_add(tail.counted.len() as u64, Ordering::Relaxed);
        }
    }

    /// What instances that are gone have left unreported, at most.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Looks after the instances for as long as it is let.
    pub(crate) async fn watch(self: Arc<Self>, world: Arc<World>, index: usize) -> anyhow::Result<()> {
        loop {
            let asked = Instant::now();
            let is_well = instance::is_well(&world.http, &world.urls[index]).await;
            self.instances[index].lock().looked(asked, is_well);
            sleep(LOOK_EVERY).await;
        }
    }
}

impl Tail {
    fn looked(&mut self, asked: Instant, is_well: bool) {
        if !is_well {
            self.well = None;
            return;
        }
        let since = *self.well.get_or_insert(asked);
        if asked.duration_since(since) >= REPORTS_WITHIN {
            while self.counted.front().is_some_and(|counted| *counted + REPORTS_WITHIN < asked) {
                self.counted.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_reported_once_the_instance_was_well_for_a_while() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut tail = Tail { counted: [0, 2_000].map(at).into(), well: None };
        for (millis, is_well, left) in [
            (0, true, 2),
            (2_900, true, 2),
            (3_000, true, 2),
            (3_001, true, 1),
            (4_000, false, 1),
            (9_000, true, 1),
            (12_000, true, 0),
        ] {
            tail.looked(at(millis), is_well);
            assert_eq!(tail.counted.len(), left, "at {millis} ms");
        }
    }
}
