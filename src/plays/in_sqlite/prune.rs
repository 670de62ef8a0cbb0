//! Forgets what was seen once it is older than the dedupe window.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    clock::{Clock, Timestamp},
    error::StoreError,
    jobs::Job,
    store::sqlite::{Sqlite, store_error},
};

/// Rows in one transaction: plays wait for it, some 20 ms.
const STEP: i64 = 5_000;

/// Steps in one run.
const STEPS: usize = 100;

const EVERY: Duration = Duration::from_secs(60);

/// The job "prune-seen".
pub(super) struct PruneSeen {
    pub(super) sqlite: Sqlite,
    pub(super) window: Duration,
    pub(super) clock: Arc<dyn Clock>,
}

#[async_trait]
impl Job for PruneSeen {
    fn name(&self) -> &'static str {
        "prune-seen"
    }

    fn first_in(&self) -> Duration {
        EVERY
    }

    fn every(&self) -> Duration {
        EVERY
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        let now = self.clock.now();
        self.forget_lately(now).await.map_err(store_error)?;
        let mut steps = STEPS;
        while steps > 0 {
            let forgotten = self.step(now).await.map_err(store_error)?;
            if forgotten < STEP.unsigned_abs() {
                return Ok(None);
            }
            steps -= 1;
        }
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

    async fn step(&self, now: Timestamp) -> Result<u64, sqlx::Error> {
        let mut transaction = self.sqlite.write().await?;
        let deleted = sqlx::query(
            "delete from play_seen where (video_id, key) in \
             (select video_id, key from play_seen where counted_at <= ? or counted_at >= ? limit ?)",
        )
        .bind((now - self.window).millis())
        .bind((now + self.window).millis())
        .bind(STEP)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(deleted.rows_affected())
    }
}
