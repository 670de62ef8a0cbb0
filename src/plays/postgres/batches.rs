//! The ids of batches: for how long they are known, and what they tell of the past.

use super::Ledger;
use crate::{clock::Timestamp, error::StoreError, store::postgres::Lane};

/// Deletes batch ids that no flusher can bring any more; the newest of each partition may still be
/// in Redis, however long ago it was.
const FORGET: &str = "delete from play_batch where id in (
    select id from play_batch as old
    where applied_at < now() - interval '7 days' and exists (
        select from play_batch as newer where newer.partition = old.partition
            and (newer.applied_at, newer.id) > (old.applied_at, old.id))
    limit 1000)";

/// What [`FORGET`] deletes at most, and how often it runs in one go.
const FORGOTTEN_AT_ONCE: u64 = 1_000;
const FORGOTTEN_STEPS: usize = 50;

impl Ledger {
    /// Whether plays were added well before `at`, in a batch or out of Kafka's log. A minute is for clocks that differ: this server's
    /// and the one that told `at`.
    ///
    /// # Errors
    /// The database is away.
    pub async fn had_batches_before(&self, at: Timestamp) -> Result<bool, StoreError> {
        let had = "select to_regclass('play_batch') is not null and to_regclass('play_seen') is not null";
        let tables: Vec<(bool,)> = self.postgres.fetch_all(Lane::Reads, sqlx::query_as(had)).await?;
        if tables != [(true,)] {
            return Ok(false);
        }
        let had = "select exists (select from generate_series(0, 15) as partitions(number) where exists (
            select from play_batch
            where partition = number and applied_at < to_timestamp($1) - interval '1 minute'))
            or exists (select from kafka_offset where exists (
                select from play_seen where play_seen.position = kafka_offset.position
                    and counted_at < to_timestamp($1) - interval '1 minute'))";
        #[expect(clippy::cast_precision_loss, reason = "seconds are far below 2^52")]
        let had = sqlx::query_as(had).bind(at.secs() as f64);
        let had: Vec<(bool,)> = self.postgres.fetch_all(Lane::Reads, had).await?;
        Ok(had == [(true,)])
    }

    /// Deletes batch ids older than seven days, the newest of each partition excepted: a batch that
    /// waits in Redis that long is still known. Answers how many.
    ///
    /// # Errors
    /// The database is away.
    pub async fn forget_batches(&self) -> Result<u64, StoreError> {
        let mut forgotten = 0;
        for _ in 0..FORGOTTEN_STEPS {
            let mut session = self.postgres.session(Lane::Flush).await?;
            let deleted = session.execute(sqlx::query(FORGET)).await?;
            session.end().await?;
            forgotten += deleted;
            if deleted < FORGOTTEN_AT_ONCE {
                break;
            }
        }
        Ok(forgotten)
    }
}
