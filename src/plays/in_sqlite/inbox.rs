//! Plays answered before they are counted: `plays.ack = "received"`.
//!
//! A play waits here for at most `plays.linger`, so that is what a kill can lose. Where the file
//! can't keep up with that, new plays are refused instead.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{Books, decide::TimedPlay};
use crate::{
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
};

/// Plays in one transaction.
const BATCH: usize = 2_000;

/// At a stop, how often plays are tried again that SQLite refuses, and how long in between.
const LAST_TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Notify,
    linger: Duration,
    most: usize,
}

#[derive(Default)]
struct State {
    /// With the time at which each came in.
    waiting: VecDeque<(Instant, TimedPlay)>,
    /// Those SQLite has been given; they go back to the front where it fails.
    given: usize,
    /// When the oldest of those came in.
    given_since: Option<Instant>,
    /// Whether SQLite failed when it was last given plays.
    failing: bool,
}

impl Inbox {
    pub(super) fn start(
        lifecycle: &Lifecycle,
        books: Arc<Books>,
        linger: Duration,
        most: usize,
    ) -> Arc<Self> {
        let inbox = Arc::new(Self { state: Mutex::default(), arrived: Notify::new(), linger, most });
        let stopping = lifecycle.stopping(Phase::Writers);
        let working = inbox.clone();
        lifecycle.spawn(Phase::Writers, "plays-inbox", async move {
            while stopping.run_until_cancelled(working.lingered()).await.is_some() {
                working.empty_into(&books).await;
            }
            working.empty_at_last(&books).await;
        });
        inbox
    }

    /// How full it is, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share; queues are far below 2^52")]
    pub(super) fn fullness(&self) -> f64 {
        let state = self.state.lock();
        (state.waiting.len() + state.given) as f64 / self.most as f64
    }

    /// Takes a play in.
    ///
    /// # Errors
    /// Too many wait, or one has waited too long.
    pub(super) fn take(&self, play: TimedPlay) -> Result<(), StoreError> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.waiting.len() + state.given >= self.most {
            return Err(StoreError::Full { part: Part::Sqlite, queue: "plays" });
        }
        // What waits for its turn is younger than this by design; what was given or came back isn't.
        let oldest = if state.failing { state.waiting.front().map(|(at, _)| *at) } else { state.given_since };
        if oldest.is_some_and(|oldest| now.duration_since(oldest) > self.linger) {
            return Err(StoreError::unavailable(Part::Sqlite, "plays that were taken are not yet on disk"));
        }
        state.waiting.push_back((now, play));
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Returns when plays have waited for half of the linger: the other half is for writing them.
    async fn lingered(&self) {
        while self.state.lock().waiting.is_empty() {
            self.arrived.notified().await;
        }
        tokio::time::sleep(self.linger / 2).await;
    }

    /// Hands all that waits to the books, or as much as they take.
    async fn empty_into(&self, books: &Books) {
        while let Some(given) = self.give() {
            let plays: Vec<TimedPlay> = given.iter().map(|(_, play)| play.clone()).collect();
            let results = books.record(&plays).await;
            if !self.given_back(given, results) {
                return;
            }
        }
    }

    async fn empty_at_last(&self, books: &Books) {
        for _ in 0..LAST_TRIES {
            self.empty_into(books).await;
            if self.state.lock().waiting.is_empty() {
                return;
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        let lost = self.state.lock().waiting.len();
        tracing::error!(plays.lost = lost, "stopping with {lost} plays that SQLite did not take");
    }

    fn give(&self) -> Option<Vec<(Instant, TimedPlay)>> {
        let mut state = self.state.lock();
        let count = state.waiting.len().min(BATCH);
        let given: Vec<_> = state.waiting.drain(..count).collect();
        state.given = given.len();
        state.given_since = given.first().map(|(at, _)| *at);
        #[expect(clippy::cast_precision_loss, reason = "a gauge; queues are far below 2^52")]
        metrics::gauge!("headcount_queue_depth", "queue" => "plays").set(state.waiting.len() as f64);
        (!given.is_empty()).then_some(given)
    }

    /// Puts back what may be taken later and tells whether that was none.
    fn given_back(&self, given: Vec<(Instant, TimedPlay)>, results: Vec<Result<bool, StoreError>>) -> bool {
        let mut state = self.state.lock();
        let mut failed = None;
        // From the last to the first, so that they stand at the front in the order they came.
        for (play, result) in given.into_iter().zip(results).rev() {
            match result {
                Err(error) if error.is_transient() => {
                    state.waiting.push_front(play);
                    failed = Some(error);
                }
                // A play its row refuses was logged; it can't wait for ever.
                Ok(_) | Err(_) => {}
            }
        }
        state.given = 0;
        state.given_since = None;
        let failing = failed.is_some();
        if failing != std::mem::replace(&mut state.failing, failing) {
            if let Some(error) = failed {
                tracing::warn!(error = %error, "plays that were taken wait for SQLite: {error}");
            } else {
                tracing::info!("plays that were taken are on disk again");
            }
        }
        !failing
    }
}
