//! Plays on disk in this process's SQLite file, committed before the answer.
//!
//! Plays that come in while a commit is under way share the next one, so that the disk is waited
//! for once a batch and not once a play.

mod books;
mod decide;
mod inbox;
mod lately;
mod ledger;
mod notes;
mod prune;
mod sketch;
mod tables;
#[cfg(test)]
mod tests;
mod totals;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

pub use self::books::SqliteBooks;
use self::{
    books::Adopt,
    decide::TimedPlay,
    inbox::Inbox,
    ledger::{Counted, Ledger},
    notes::Notes,
    prune::PruneSeen,
    totals::Totals,
};
use super::{Play, PlayCount, Plays, Recorded};
use crate::{
    batch::{Batcher, Bounds},
    clock::Clock,
    config::{self, Ack},
    error::{Part, StoreError},
    ids::VideoId,
    jobs::Job,
    lifecycle::Lifecycle,
    store::sqlite::Sqlite,
};

/// Plays in one transaction, at most.
const BATCH: usize = 1_000;

/// How often videos were played, in SQLite.
pub struct SqlitePlays {
    books: Arc<Books>,
    way: Way,
    clock: Arc<dyn Clock>,
}

/// How plays come into the books.
enum Way {
    /// Answered when they are in.
    Stored(Arc<Batcher<TimedPlay, bool>>),
    /// Answered before.
    Received(Arc<Inbox>),
}

impl SqlitePlays {
    /// Starts counting into the tables of `sqlite`.
    #[must_use]
    pub fn start(
        sqlite: &Sqlite,
        settings: &config::Plays,
        lifecycle: &Lifecycle,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let books = Arc::new(Books {
            ledger: Ledger::new(sqlite.clone(), settings.dedupe_window, settings.timezone),
            totals: Totals::new(sqlite.clone(), clock.clone(), settings.cached_videos as u64),
            notes: Notes::new(settings.dedupe_window),
            turn: Mutex::new(()),
        });
        let way = match settings.ack {
            Ack::Stored => {
                let bounds = Bounds { waiting: settings.max_pending, batch: BATCH, prompt: true };
                let into = books.clone();
                Way::Stored(Batcher::start(lifecycle, "plays", Part::Sqlite, bounds, move |plays| {
                    let books = into.clone();
                    on_a_thread(async move { books.record(&plays).await })
                }))
            }
            Ack::Received => {
                let (linger, most) = (settings.linger, settings.max_pending);
                Way::Received(Inbox::start(lifecycle, books.clone(), linger, most))
            }
        };
        Self { books, way, clock }
    }

    /// The job that keeps the table of what was seen small.
    #[must_use]
    pub fn prune_job(sqlite: &Sqlite, settings: &config::Plays, clock: Arc<dyn Clock>) -> Arc<dyn Job> {
        Arc::new(PruneSeen::new(sqlite.clone(), settings.dedupe_window, clock))
    }

    /// The job that takes in rows that were not made by counting a play.
    #[must_use]
    pub fn adopt_job(sqlite: &Sqlite) -> Arc<dyn Job> {
        Arc::new(Adopt { sqlite: sqlite.clone() })
    }
}

#[async_trait]
impl Plays for SqlitePlays {
    async fn record(&self, play: Play) -> Result<Recorded, StoreError> {
        let timed = TimedPlay { play, at: self.clock.now() };
        let known = self.books.notes.knows(&timed);
        match &self.way {
            Way::Stored(_) if known => Ok(Recorded::Duplicate),
            Way::Stored(batcher) => {
                let counts = batcher.submit(timed).await?;
                Ok(if counts { Recorded::Counted } else { Recorded::Duplicate })
            }
            Way::Received(inbox) => {
                if !known {
                    inbox.take(timed)?;
                }
                Ok(Recorded::Accepted)
            }
        }
    }

    async fn counts(&self, videos: &[VideoId]) -> Vec<PlayCount> {
        self.books.totals.of(videos).await
    }

    fn fullness(&self) -> f64 {
        match &self.way {
            Way::Stored(batcher) => batcher.fullness(),
            Way::Received(inbox) => inbox.fullness(),
        }
    }
}

/// Does `work` on a thread of its own. It goes to SQLite's thread and back several times, and on the runtime
/// it would each time wait for its turn behind the requests of the moment.
async fn on_a_thread<W>(work: W) -> W::Output
where
    W: Future<Output: Send> + Send + 'static,
{
    let runtime = tokio::runtime::Handle::current();
    match tokio::task::spawn_blocking(move || runtime.block_on(work)).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime goes, and whoever waits with it.
        Err(_) => std::future::pending().await,
    }
}

/// The tables, and what is kept in memory of them.
struct Books {
    ledger: Ledger,
    totals: Totals,
    notes: Notes,
    /// One batch at a time: the next must find in memory what the one before left on disk.
    turn: Mutex<()>,
}

impl Books {
    /// Counts plays on disk and brings what is kept in memory up to date. `false` is a duplicate.
    async fn record(&self, plays: &[TimedPlay]) -> Vec<Result<bool, StoreError>> {
        let _turn = self.turn.lock().await;
        let results = self.ledger.record(plays, |part, counted| self.keep(&plays[part], counted)).await;
        for (timed, result) in plays.iter().zip(&results) {
            if result.is_err() {
                self.totals.doubt(&timed.play.video);
            }
        }
        results
    }

    fn keep(&self, plays: &[TimedPlay], counted: &Counted) {
        for (video, total) in &counted.totals {
            self.totals.put(video, *total);
        }
        for (timed, _) in plays.iter().zip(&counted.counts).filter(|(_, counts)| **counts) {
            self.notes.take(timed);
        }
    }
}
