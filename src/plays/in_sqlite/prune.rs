//! Forgets what was seen once it is older than the dedupe window.
//!
//! A walk over the whole table, in its own order and a step at a time: what is dropped lies together, and no
//! play has to keep an index by time.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use sqlx::SqliteConnection;

use crate::{
    clock::{Clock, Timestamp},
    error::StoreError,
    jobs::Job,
    store::sqlite::{Sqlite, store_error},
};

/// Rows that are looked at in one transaction: plays wait for it, some 10 ms.
const STEP: i64 = 5_000;

/// Steps in one run.
const STEPS: usize = 100;

/// A walk looks at every row, so it is worth it when a part of them is too old.
const WALKS_A_WINDOW: u32 = 8;

/// The shortest time between two walks.
const SHORTEST: Duration = Duration::from_secs(60);

/// A row, by its key.
type Place = (String, String);

/// The job "prune-seen".
pub(super) struct PruneSeen {
    sqlite: Sqlite,
    window: Duration,
    clock: Arc<dyn Clock>,
    /// The last row that was looked at, where a walk is under way.
    reached: Mutex<Option<Place>>,
}

impl PruneSeen {
    pub(super) fn new(sqlite: Sqlite, window: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { sqlite, window, clock, reached: Mutex::default() }
    }
}

#[async_trait]
impl Job for PruneSeen {
    fn name(&self) -> &'static str {
        "prune-seen"
    }

    fn first_in(&self) -> Duration {
        SHORTEST
    }

    fn every(&self) -> Duration {
        (self.window / WALKS_A_WINDOW).max(SHORTEST)
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        let now = self.clock.now();
        let reached = self.reached.lock().take();
        if reached.is_none() {
            self.forget_lately(now).await.map_err(store_error)?;
        }
        let mut after = reached.unwrap_or_default();
        for _ in 0..STEPS {
            match self.step(&after, now).await.map_err(store_error)? {
                Some(last) => after = last,
                None => return Ok(None),
            }
        }
        *self.reached.lock() = Some(after);
        // More than one run may do: go on soon.
        Ok(Some(Duration::from_secs(1)))
    }
}

impl PruneSeen {
    /// Few rows. What is in memory of them may stay: it is too old to bar anything.
    async fn forget_lately(&self, now: Timestamp) -> Result<(), sqlx::Error> {
        let mut transaction = self.sqlite.write().await?;
        sqlx::query("delete from play_seen_lately where counted_at <= ? or counted_at >= ?")
            .bind((now - self.window).millis())
            .bind((now + self.window).millis())
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await
    }

    /// Goes on behind `after` and answers how far it came; `None` at the end of the table.
    async fn step(&self, after: &Place, now: Timestamp) -> Result<Option<Place>, sqlx::Error> {
        let mut transaction = self.sqlite.write().await?;
        let last = last_of_step(&mut transaction, after).await?;
        // Behind every id and key: those are ASCII.
        let end = || ("\u{7f}".to_owned(), String::new());
        let upto = last.clone().unwrap_or_else(end);
        sqlx::query(
            "delete from play_seen where (video_id, key) > (?, ?) and (video_id, key) <= (?, ?) \
             and (counted_at <= ? or counted_at >= ?)",
        )
        .bind(&after.0)
        .bind(&after.1)
        .bind(upto.0)
        .bind(upto.1)
        .bind((now - self.window).millis())
        .bind((now + self.window).millis())
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(last)
    }
}

async fn last_of_step(
    connection: &mut SqliteConnection,
    after: &Place,
) -> Result<Option<Place>, sqlx::Error> {
    let last = sqlx::query_as(
        "select video_id, key from play_seen where (video_id, key) > (?, ?) \
         order by video_id, key limit 1 offset ?",
    );
    last.bind(&after.0).bind(&after.1).bind(STEP - 1).fetch_optional(connection).await
}
