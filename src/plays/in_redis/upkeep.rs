//! What has no other place: how many plays wait, batch ids that nobody can bring any more, and rows
//! that conservation has not placed yet.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use redis::Cmd;

use super::books::Books;
use crate::{
    error::StoreError,
    ids::Partition,
    jobs::Job,
    plays::postgres::Ledger,
    store::redis::{Connection, Redis, reply},
};

/// How often waiting plays are counted.
const EVERY: Duration = Duration::from_secs(15);

/// How often old batch ids are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// Videos of a partition whose plays are counted; more are reckoned from these.
const SAMPLE: usize = 1_000;

/// Steps of taking rows in, of 1,000 rows each, in one run.
const ADOPTING_STEPS: usize = 20;

/// When to go on where rows are left.
const GO_ON: Duration = Duration::from_secs(1);

/// Counts what waits and deletes what is over.
pub(super) struct Upkeep {
    redis: Redis,
    ledger: Ledger,
    books: Books,
    forgotten_at: Mutex<Option<Duration>>,
}

impl Upkeep {
    pub(super) fn new(redis: Redis, ledger: Ledger, books: Books) -> Self {
        Self { redis, ledger, books, forgotten_at: Mutex::new(None) }
    }

    /// Tells how many plays wait in Redis and for how many videos the database refused some. All
    /// instances tell the same, of the whole fleet.
    pub(super) async fn count_waiting(&self, connection: &Connection) -> Result<(f64, u64), StoreError> {
        let keys = self.redis.keys();
        let ask = |name: &str, key: String| {
            let mut command = redis::cmd(name);
            command.arg(key);
            command
        };
        let questions = Partition::all().flat_map(|partition| {
            let dirty = keys.dirty(partition);
            let mut sample = ask("SRANDMEMBER", dirty.clone());
            sample.arg(SAMPLE);
            [ask("SCARD", dirty), sample, ask("SCARD", keys.refused(partition))]
        });
        let mut answers = connection.pipe(questions.collect()).await?.into_iter();
        let mut next = || answers.next().unwrap_or(redis::Value::Nil);
        let (mut refused, mut sizes, mut deltas) = (0, Vec::new(), Vec::<Cmd>::new());
        for partition in Partition::all() {
            let dirty: u64 = reply(next())?;
            let sample: Vec<String> = reply(next())?;
            refused += reply::<u64>(next())?;
            let videos = sample.iter().filter_map(|video| crate::ids::VideoId::parse(video).ok());
            let sample: Vec<String> = videos.map(|video| keys.delta(partition, &video)).collect();
            if !sample.is_empty() {
                sizes.push((dirty, sample.len()));
                let mut counts = redis::cmd("MGET");
                counts.arg(sample);
                deltas.push(counts);
            }
        }
        let mut pending = 0.0;
        for ((dirty, sampled), counts) in sizes.into_iter().zip(connection.pipe(deltas).await?) {
            let counts: Vec<Option<String>> = reply(counts)?;
            let plays = counts.into_iter().flatten().filter_map(|count| count.parse::<u64>().ok());
            #[expect(clippy::cast_precision_loss, reason = "a metric; far below 2^52")]
            let (plays, share) = (plays.sum::<u64>() as f64, dirty as f64 / sampled as f64);
            pending += plays * share.max(1.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "a metric; far below 2^52")]
        metrics::gauge!("headcount_plays_refused").set(refused as f64);
        metrics::gauge!("headcount_plays_pending").set(pending);
        Ok((pending, refused))
    }

    pub(super) async fn forget_batches(&self) -> Result<(), StoreError> {
        let now = self.redis.clock().monotonic();
        let due = self.forgotten_at.lock().is_none_or(|at| now.saturating_sub(at) >= FORGET_EVERY);
        if due && self.ledger.postgres().is_migrated() {
            let forgotten = self.ledger.forget_batches().await?;
            self.books.fold().await?;
            tracing::debug!(batches.forgotten = forgotten, "forgot {forgotten} old batch ids");
            *self.forgotten_at.lock() = Some(now);
        }
        Ok(())
    }

    /// Takes rows in that no flush made; answers whether some may be left.
    pub(super) async fn adopt(&self) -> Result<bool, StoreError> {
        let mut left = self.books.is_migrated();
        for _ in 0..ADOPTING_STEPS {
            if !left {
                break;
            }
            left = self.books.adopt().await?;
        }
        Ok(left)
    }
}

#[async_trait]
impl Job for Upkeep {
    fn name(&self) -> &'static str {
        "upkeep"
    }

    fn first_in(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn every(&self) -> Duration {
        EVERY
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        let counted = match self.redis.connection() {
            Ok(connection) => self.count_waiting(&connection).await.map(drop),
            Err(error) => Err(error),
        };
        self.forget_batches().await?;
        let left = self.adopt().await?;
        counted.map(|()| left.then_some(GO_ON))
    }
}
