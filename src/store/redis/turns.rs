//! Jobs take turns: one of them at a time has Redis work for it, whatever the partition.
//!
//! What a job sends at once keeps Redis from everybody else for one to five milliseconds. Partitions whose
//! jobs run at the same time would add up: sixteen of them are sixteen such calls in a row, before which
//! no heartbeat is written and no play counted. What is short (locks, stamps) is sent without a turn, and so
//! is a claim that waits for replicas, on a connection of its own.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::Redis;

/// Who may go. The next one is who has waited longest.
#[derive(Debug)]
pub(super) struct Turns(Semaphore);

/// Until it is dropped nobody else has a turn.
#[derive(Debug)]
#[must_use]
pub struct Turn<'a> {
    _permit: SemaphorePermit<'a>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self(Semaphore::new(1))
    }
}

impl Redis {
    /// Waits until no other job of this instance has Redis work for it. For one exchange, or a few short
    /// ones; requests don't wait for a turn.
    pub async fn turn(&self) -> Turn<'_> {
        Turn { _permit: self.shared.turns.0.acquire().await.expect("nobody closes it") }
    }
}
