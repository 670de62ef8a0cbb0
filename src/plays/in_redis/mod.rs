//! Plays counted in Redis, on their way to Postgres.
//!
//! `record` dedupes and counts in one script; `flush` (one folder up) moves what was counted to the
//! database; `read` adds the two up. What a read shows goes through `shown`, which keeps it for a
//! second and sees to it that a total never goes backward. `witness` reports what was counted, and
//! `audit` looks whether all of it is still somewhere.

mod audit;
mod books;
mod linger;
mod misses;
mod read;
mod record;
mod shown;
pub mod sketches;
#[cfg(test)]
mod tests;
mod unanswered;
mod upkeep;
mod witness;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

pub use self::audit::RedisBooks;
use self::{
    books::Books,
    linger::Linger,
    read::Reader,
    record::{Counted, Writer},
    shown::Shown,
    sketches::Sketches,
    upkeep::Upkeep,
    witness::{Witness, WitnessJob},
};
use super::{
    Play, PlayCount, Plays, Recorded,
    flush::{self, FlushJob, Flusher},
    postgres::Ledger,
};
use crate::{
    batch::{Batcher, Bounds},
    config::{Ack, Config},
    error::{Part, StoreError},
    ids::VideoId,
    jobs::Job,
    lifecycle::Lifecycle,
    store::{
        postgres::Postgres,
        redis::{Redis, Replicas, WaitFor},
        script::LuaScript,
    },
};

/// How long Redis keeps what the database holds; prolonged by reads while the database fails.
pub(super) const TOTAL_LIFE: Duration = Duration::from_secs(3_600);

/// How long Redis keeps the unique viewers of a video after its last play.
pub(super) const SKETCH_LIFE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Plays in one pipeline that are waited for: one call of the script. Two of these, which is what the last
/// of a queue waits for under overload, take Redis 3 ms, and still under 50 where it has a small part of a
/// core; larger ones would share little more.
const BATCH: usize = record::AT_ONCE;

/// The same where replicas are waited for: that takes as long for few.
const BATCH_FOR_REPLICAS: usize = 1_000;

/// Plays in one pipeline that nobody waits for.
const LINGERING: usize = 2_000;

/// The scripts to load on every connection.
pub const SCRIPTS: &[&LuaScript] = &[
    &record::RECORD,
    &flush::CLAIM,
    &flush::SETTLE,
    &misses::LOOK,
    &misses::FILL,
    &sketches::MERGE,
    #[cfg(feature = "kafka")]
    &super::in_kafka::raise::RAISE,
    &crate::store::lock::RENEW,
    &crate::store::lock::RELEASE,
];

/// Counts plays in Redis and moves them to Postgres.
pub struct RedisPlays {
    writer: Arc<Writer>,
    take: Take,
    reader: Reader,
    flusher: Arc<Flusher>,
    upkeep: Arc<Upkeep>,
    witness: Arc<Witness>,
    books: Arc<RedisBooks>,
    flush_every: Duration,
}

/// When a play is answered.
enum Take {
    /// When Redis has counted it.
    Stored(Arc<Batcher<Play, Recorded>>),
    /// At once.
    Received(Arc<Linger>),
}

impl RedisPlays {
    /// Starts the tasks that carry plays to Redis and counts back; the jobs are not started yet.
    /// Times are those of `redis`'s own clock.
    #[must_use]
    pub fn open(config: &Config, redis: &Redis, postgres: &Postgres, lifecycle: &Lifecycle) -> Arc<Self> {
        let ledger = Ledger::new(postgres.clone(), config.plays.timezone);
        let shown =
            Arc::new(Shown::new(redis.clock().clone(), config.plays.cached_videos, config.presence.window));
        let counted = Counted::new(redis.clock().clone(), config.plays.dedupe_window);
        let window = config.plays.dedupe_window;
        let wanted = config.redis.wait_replicas;
        let replicas = |what| Replicas::start(redis, lifecycle, wanted, what);
        let for_plays = config.plays.wait.then(|| replicas(WaitFor::Plays));
        let books = Books::new(postgres.clone());
        let witness = Witness::new(redis.clone(), books.clone());
        let (seen, told) = (witness.clone(), shown.clone());
        let writer = Arc::new(Writer::new(redis.clone(), counted, told, seen, window, for_plays));
        let take = match config.plays.ack {
            Ack::Stored => {
                let batch = if config.plays.wait { BATCH_FOR_REPLICAS } else { BATCH };
                let bounds = Bounds { waiting: config.plays.max_pending, batch, prompt: true };
                let writer = writer.clone();
                Take::Stored(Batcher::start(
                    lifecycle,
                    "plays",
                    Part::Redis,
                    bounds,
                    move |plays: Vec<Play>| {
                        let writer = writer.clone();
                        async move { writer.write(&plays).await }
                    },
                ))
            }
            Ack::Received => {
                let bounds = Bounds { waiting: config.plays.max_pending, batch: LINGERING, prompt: false };
                Take::Received(Linger::start(lifecycle, writer.clone(), bounds, config.plays.linger))
            }
        };
        let reader = Reader::start(lifecycle, redis.clone(), ledger.clone(), shown, config.redis.deadline);
        let sketches = Sketches::new(redis.clone(), ledger.clone(), config.plays.cached_videos as u64);
        let min_age = config.redis.batch_min_age;
        let for_flush = (wanted > 0).then(|| replicas(WaitFor::Flush));
        let flusher = Arc::new(Flusher::new(redis.clone(), ledger.clone(), sketches, min_age, for_flush));
        let upkeep = Arc::new(Upkeep::new(redis.clone(), ledger, books.clone()));
        let books = Arc::new(RedisBooks::new(redis.clone(), books, Some(witness.clone())));
        let flush_every = config.jobs.flush_every;
        Arc::new(Self { writer, take, reader, flusher, upkeep, witness, books, flush_every })
    }

    /// What must run by itself for plays to reach the database.
    #[must_use]
    pub fn jobs(&self) -> Vec<Arc<dyn Job>> {
        let mut jobs = FlushJob::all(&self.flusher, self.flush_every, rand::random());
        jobs.push(Arc::new(WitnessJob::new(self.witness.clone(), self.flush_every, rand::random())));
        jobs.push(self.upkeep.clone());
        jobs
    }

    /// What the audit reads.
    #[must_use]
    pub fn books(&self) -> Arc<RedisBooks> {
        self.books.clone()
    }

    /// What a command reads, which has counted nothing itself.
    #[must_use]
    pub fn books_of(redis: &Redis, postgres: &Postgres) -> RedisBooks {
        RedisBooks::new(redis.clone(), Books::new(postgres.clone()), None)
    }

    /// What moves plays to the database, for who steps it by hand.
    #[must_use]
    pub fn flusher(&self) -> &Arc<Flusher> {
        &self.flusher
    }
}

#[async_trait]
impl Plays for RedisPlays {
    async fn record(&self, play: Play) -> Result<Recorded, StoreError> {
        if self.writer.counted_lately(&play) {
            return Ok(Recorded::Duplicate);
        }
        match &self.take {
            Take::Stored(batcher) => batcher.submit(play).await,
            Take::Received(linger) => linger.take(play).map(|()| Recorded::Accepted),
        }
    }

    async fn counts(&self, videos: &[VideoId]) -> Vec<PlayCount> {
        self.reader.counts(videos).await
    }

    fn fullness(&self) -> f64 {
        match &self.take {
            Take::Stored(batcher) => batcher.fullness(),
            Take::Received(linger) => linger.fullness(),
        }
    }
}
