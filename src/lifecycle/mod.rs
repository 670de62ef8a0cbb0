//! Starting, watching and stopping everything that runs.
//!
//! Tasks belong to a [`Phase`]. On a stop the phases end one after the other, each waited for, so
//! that what was accepted by one is in the last batch of the next: first the listeners, then the
//! writers, then the jobs (the last flush), then the connections. A task that ends before its phase
//! is told to takes the whole process down: half a service is worse than none.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::failpoint;

/// What a task is for, in the order in which tasks are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Takes requests.
    Http,
    /// Carries what requests brought to the stores.
    Writers,
    /// Runs by itself: sweep, flush, snapshot.
    Jobs,
    /// Keeps connections.
    Links,
}

const PHASES: [Phase; 4] = [Phase::Http, Phase::Writers, Phase::Jobs, Phase::Links];

/// What tests call the moment before each phase is told to stop.
const BOUNDARIES: [&str; PHASES.len()] = ["drain.http", "drain.writers", "drain.jobs", "drain.links"];

/// How a run of the service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything that was taken is where it belongs.
    Drained,
    /// A second signal or the time limit cut the drain short.
    CutShort,
    /// A task died.
    TaskDied,
}

/// The service's tasks. Clones share them.
#[derive(Clone)]
pub struct Lifecycle {
    shared: Arc<Shared>,
}

struct Shared {
    drain_delay: Duration,
    drain: Duration,
    draining: CancellationToken,
    cut_short: CancellationToken,
    died: AtomicBool,
    /// How many tasks of each name run, so that a stop that hangs can say on whom.
    running: Mutex<BTreeMap<&'static str, usize>>,
    phases: [(CancellationToken, TaskTracker); PHASES.len()],
}

impl Lifecycle {
    /// Nothing runs yet. `drain_delay` passes between the wish to stop and the end of listening;
    /// all of the stop must be over within `drain`.
    #[must_use]
    pub fn new(drain_delay: Duration, drain: Duration) -> Self {
        let shared = Shared {
            drain_delay,
            drain,
            draining: CancellationToken::new(),
            cut_short: CancellationToken::new(),
            died: AtomicBool::new(false),
            running: Mutex::default(),
            phases: std::array::from_fn(|_| (CancellationToken::new(), TaskTracker::new())),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs a task until it ends by itself, which it may only do after [`Lifecycle::stopping`] of
    /// its phase says so.
    #[expect(clippy::disallowed_methods, reason = "the one place that spawns: the tracker waits for it")]
    pub fn spawn(&self, phase: Phase, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (stopping, tracker) = &self.shared.phases[phase as usize];
        *self.shared.running.lock().entry(name).or_default() += 1;
        let guard = Guard { name, stopping: stopping.clone(), shared: self.shared.clone() };
        tokio::spawn(tracker.track_future(async move {
            let _guard = guard;
            task.await;
        }));
    }

    /// Cancelled when tasks of `phase` are to finish what they have and end.
    #[must_use]
    pub fn stopping(&self, phase: Phase) -> CancellationToken {
        self.shared.phases[phase as usize].0.clone()
    }

    /// Cancelled as soon as the service has been asked to stop.
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.shared.draining.clone()
    }

    /// Asks the service to stop; asked again, it stops at once.
    pub fn stop(&self) {
        if self.shared.draining.is_cancelled() {
            self.shared.cut_short.cancel();
        }
        self.shared.draining.cancel();
    }

    /// Gives up a start that failed half-way: what was spawned by then may be dropped as it is.
    pub fn abandon(&self) {
        self.shared.cut_short.cancel();
        self.shared.draining.cancel();
    }

    /// The tasks that have not ended, by name.
    #[must_use]
    pub fn running(&self) -> Vec<&'static str> {
        self.shared.running.lock().keys().copied().collect()
    }

    /// Waits until the service is asked to stop, stops it phase by phase, and tells how that went.
    pub async fn run(&self) -> Stopped {
        let shared = &self.shared;
        shared.draining.cancelled().await;
        let drain = async {
            // One that lost a task can't keep its promises: it stops taking requests at once.
            if !shared.died.load(Ordering::SeqCst) {
                tokio::time::sleep(shared.drain_delay).await;
            }
            for ((stopping, tracker), boundary) in shared.phases.iter().zip(BOUNDARIES) {
                failpoint::boundary(boundary).await;
                stopping.cancel();
                tracker.close();
                tracker.wait().await;
            }
        };
        let cut_short = tokio::select! {
            biased;
            () = shared.cut_short.cancelled() => Some("it was asked to stop a second time"),
            () = drain => None,
            () = tokio::time::sleep(shared.drain) => Some("server.drain is over"),
        };
        if let Some(reason) = cut_short {
            let running = self.running().join(", ");
            tracing::error!(tasks = running, "the stop was cut short: {reason}; still running: {running}");
            // What is dropped from here on has not died by itself.
            shared.cut_short.cancel();
        }
        if shared.died.load(Ordering::SeqCst) {
            Stopped::TaskDied
        } else if cut_short.is_some() {
            Stopped::CutShort
        } else {
            Stopped::Drained
        }
    }
}

/// Dropped when a task returns and when it panics alike, so that none dies alone.
struct Guard {
    name: &'static str,
    stopping: CancellationToken,
    shared: Arc<Shared>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let shared = &self.shared;
        let mut running = shared.running.lock();
        if let Some(count) = running.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.name);
            }
        }
        drop(running);
        if shared.cut_short.is_cancelled() {
            return;
        }
        // A panic while stopping counts as well: the last batch may be lost with it.
        if std::thread::panicking() || !self.stopping.is_cancelled() {
            tracing::error!(task = self.name, "{} ended and must not have; stopping the service", self.name);
            shared.died.store(true, Ordering::SeqCst);
            shared.draining.cancel();
        }
    }
}

#[cfg(test)]
mod tests;
