//! Sweeps of all partitions in one instance take turns: one of them at a time has Redis work for it.
//!
//! What a sweep sends at once keeps Redis from everybody else for about a millisecond. Partitions that
//! are swept at the same time would add up: sixteen of them are sixteen such calls in a row.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Who is next is who has waited longest.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

/// From when it is had until it is dropped nobody else has a turn.
#[must_use]
pub(crate) struct Turn<'a>(
    #[expect(dead_code, reason = "it is given back when dropped")] SemaphorePermit<'a>,
);

impl Turns {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Waits for a turn.
    pub(crate) async fn mine(&self) -> Turn<'_> {
        Turn(self.0.acquire().await.expect("nobody closes it"))
    }
}
