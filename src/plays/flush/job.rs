//! When plays are flushed, and by whom: one job a partition in every instance, once a period for all of
//! them, and a lock that keeps two instances from doing the same work at once.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::{Either, select};
use parking_lot::Mutex;
use rand::RngExt;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Flushed, Flusher};
use crate::{
    error::{Part, StoreError},
    failpoint,
    ids::{PARTITIONS, Partition},
    jobs::Job,
    store::{
        lock::{Lock, Taken},
        redis::Connection,
    },
};

/// How long a flush that was killed keeps others from its partition.
const LEASE: Duration = Duration::from_secs(10);

/// How long a partition that another has is left alone at least.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// How long the last flush waits, in all, for batches to be old enough.
const LAST_WAIT: Duration = Duration::from_millis(2_500);

/// How long the last flush may take.
const LAST_FLUSH: Duration = Duration::from_secs(8);

/// When to look again whether the schema is there.
const SCHEMA_SOON: Duration = Duration::from_millis(500);

/// When each partition was last found in order, for the metric: it tells the oldest.
#[derive(Debug, Default)]
struct Successes(Mutex<[f64; PARTITIONS as usize]>);

/// Flushes one partition.
pub struct FlushJob {
    flusher: Arc<Flusher>,
    partition: Partition,
    every: Duration,
    /// This instance's own part of a period, between 0 and 1, so that instances started together
    /// don't all come at once.
    phase: f64,
    successes: Arc<Successes>,
}

/// What came of one run.
enum Ran {
    /// All plays that were waiting when it began are in the database.
    Done { retaken: bool },
    /// A batch is too young yet.
    TooYoung(Duration),
    /// Another instance is at it, for at most so long.
    Others(Duration),
}

impl FlushJob {
    /// One job for each partition, their runs spread over the period.
    pub fn all(flusher: &Arc<Flusher>, every: Duration, phase: f64) -> Vec<Arc<dyn Job>> {
        let successes = Arc::new(Successes::default());
        Partition::all()
            .map(|partition| -> Arc<dyn Job> {
                let (flusher, successes) = (flusher.clone(), successes.clone());
                Arc::new(Self { flusher, partition, every, phase, successes })
            })
            .collect()
    }

    /// How long to leave the partition alone, where it has been flushed in this period: each video is
    /// written once a period, however many instances there are.
    async fn not_due_for(&self, connection: &Connection) -> Result<Option<Duration>, StoreError> {
        let asking = self.flusher.since_last_claim(connection, self.partition);
        let Some(ago) = failpoint::step("flush.due", Part::Redis, asking).await? else { return Ok(None) };
        let Some(left) = self.every.mul_f64(0.9).checked_sub(ago).filter(|left| !left.is_zero()) else {
            return Ok(None);
        };
        // A little after that, and not all at once: later, and one instance does all the work.
        let late = rand::rng().random_range(0.05..0.15);
        Ok(Some(left + self.every.mul_f64(late)))
    }

    /// Flushes the partition if nobody else is at it, and if it is `due` or its time has come.
    async fn run_once(&self, due: bool) -> Result<Ran, StoreError> {
        if !self.flusher.ledger.postgres().is_migrated() {
            // That is told, once, by who brings it up to date.
            return Ok(Ran::Others(SCHEMA_SOON));
        }
        let connection = self.flusher.redis.connection()?;
        let key = self.flusher.redis.keys().flush_lock(self.partition);
        let locking = Lock::take(&connection, key, LEASE);
        let lock = match failpoint::step("flush.lock", Part::Redis, locking).await? {
            Taken::Mine(lock) => lock,
            Taken::Others(left) => return Ok(Ran::Others(left)),
        };
        let work = async {
            match if due { None } else { self.not_due_for(&connection).await? } {
                Some(wait) => Ok(Ran::Others(wait)),
                None => self.flush(&connection).await,
            }
        };
        let ran = holding(&lock, &connection, work).await;
        // Not given back, it runs out by itself.
        let _ = failpoint::step("flush.unlock", Part::Redis, lock.release(&connection)).await;
        ran
    }

    /// Flushes until every play that was waiting at the beginning is through. Not until none is left:
    /// on a busy site that would never be, and each video is written once a period.
    async fn flush(&self, connection: &Connection) -> Result<Ran, StoreError> {
        let began = Instant::now();
        let (mut batches, mut all_videos, mut all_plays) = (0_usize, 0, 0);
        let ran = loop {
            match self.flusher.flush_once(connection, self.partition).await? {
                Flushed::Nothing => break Ran::Done { retaken: false },
                Flushed::TooYoung(wait) => break Ran::TooYoung(wait),
                Flushed::Batch { videos, plays, refused: _, retaken, more } => {
                    batches += 1;
                    all_videos += videos;
                    all_plays += plays;
                    metrics::counter!("headcount_plays_flushed_total").increment(plays.unsigned_abs());
                    if !more {
                        break Ran::Done { retaken };
                    }
                }
            }
        };
        if batches > 0 {
            let took = began.elapsed();
            metrics::histogram!("headcount_flush_duration_seconds").record(took.as_secs_f64());
            tracing::debug!(
                flush.partition = %self.partition, flush.videos = all_videos, flush.plays = all_plays,
                flush.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                "flushed {all_plays} plays of {all_videos} videos"
            );
        }
        if matches!(ran, Ran::Done { .. }) {
            self.keep_owed_sketches(connection, false).await;
        }
        Ok(ran)
    }

    async fn keep_owed_sketches(&self, connection: &Connection, at_once: bool) {
        if let Err(error) = self.flusher.sketches.keep_owed(connection, self.partition, at_once).await {
            tracing::warn!(error = %error, "unique viewers couldn't be kept; the next flush tries again");
        }
    }

    fn is_a_store_away(&self) -> bool {
        let postgres = self.flusher.ledger.postgres();
        let is_redis_away = self.flusher.redis.connection().is_err() || self.flusher.is_short_of_replicas();
        postgres.is_down() || !postgres.is_migrated() || is_redis_away
    }

    fn succeeded(&self) {
        let now = self.flusher.redis.clock().now().secs();
        let mut successes = self.successes.0.lock();
        #[expect(clippy::cast_precision_loss, reason = "a metric in seconds; far below 2^52")]
        let now = now as f64;
        successes[self.partition.index()] = now;
        let oldest = successes.iter().copied().fold(f64::INFINITY, f64::min);
        if oldest > 0.0 {
            metrics::gauge!("headcount_flush_last_success_timestamp_seconds").set(oldest);
        }
    }
}

#[async_trait]
impl Job for FlushJob {
    fn name(&self) -> &'static str {
        "flush"
    }

    fn first_in(&self) -> Duration {
        let place = f64::from(u16::try_from(self.partition.index()).expect("there are 16 partitions"));
        self.every.mul_f64((place + self.phase) / f64::from(PARTITIONS))
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        let ran = match self.run_once(false).await {
            Ok(ran) => ran,
            Err(error) => {
                metrics::counter!("headcount_flush_failed_total").increment(1);
                // That a store is away is told once, by who keeps the way to it, not once a partition.
                return if self.is_a_store_away() { Ok(None) } else { Err(error) };
            }
        };
        self.succeeded();
        Ok(match ran {
            // The period runs from claim to claim.
            Ran::Done { retaken: true } => Some(self.every.saturating_sub(self.flusher.min_age)),
            Ran::Done { retaken: false } => None,
            Ran::TooYoung(wait) => Some(wait),
            Ran::Others(wait) => Some(wait.max(SHORTEST_WAIT)),
        })
    }

    /// What is not flushed when this ends waits in Redis for the next start.
    async fn finish(&self) {
        let last = async {
            let mut patience = LAST_WAIT;
            loop {
                match self.run_once(true).await {
                    Ok(Ran::TooYoung(wait)) if wait <= patience => {
                        patience -= wait;
                        tokio::time::sleep(wait).await;
                    }
                    // A batch that waited here may have left plays behind that came meanwhile.
                    Ok(Ran::Done { retaken: true }) => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::warn!(error = %error, "the last flush failed; plays wait in redis");
                        break;
                    }
                }
            }
            if let Ok(connection) = self.flusher.redis.connection() {
                self.keep_owed_sketches(&connection, true).await;
            }
        };
        if tokio::time::timeout(LAST_FLUSH, last).await.is_err() {
            tracing::warn!("the last flush took too long; plays wait in redis");
        }
    }
}

/// Does `work` and prolongs `lock` meanwhile. Losing it costs double work, never a play.
async fn holding<T>(lock: &Lock, connection: &Connection, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut renewals = tokio::time::interval_at(Instant::now() + LEASE / 3, LEASE / 3);
    renewals.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = renewals.tick() => {
                // Beside the work, which may have others wait for their turn.
                let renewal = pin!(lock.renew(connection));
                if let Either::Left((done, _)) = select(&mut work, renewal).await {
                    return done;
                }
            }
        }
    }
}
