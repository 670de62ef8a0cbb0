//! The sweep: drops viewers who left, once an interval for the whole fleet, and refreshes counts.
//!
//! Each partition is swept for itself under a fleet lock that is kept after a good pass, so that
//! the next pass comes an interval later, whoever makes it. A pass that lost its lock stops before
//! its next write; whatever it did until then is right whoever else does it. While a pass is under way
//! the lock is a short one that is prolonged: whoever dies over it costs the fleet a third of an interval,
//! so that no partition is left for two.

mod pass;
mod reshard;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::RngExt;

use self::pass::Pass;
pub(crate) use self::pass::{COUNT_STORE, FINISH, REGISTRY_LEAVE};
use super::{
    in_redis::{map::ShardMap, since::Known, walk::Walker, writer::note_life},
    tally::{Share, Tally},
};
use crate::{
    config::Config,
    error::{Part, StoreError},
    failpoint,
    ids::Partition,
    jobs::Job,
    store::{
        lock::{Lock, Taken},
        redis::Redis,
    },
};

/// What every sweep works with.
pub(super) struct Means {
    pub(super) redis: Redis,
    pub(super) walker: Walker,
    pub(super) map: ShardMap,
    pub(super) known: Known,
    pub(super) tally: Arc<Tally>,
    pub(super) fleet: Arc<Fleet>,
}

/// Whether other instances sweep as well: when one of them was last met at a lock.
#[derive(Debug, Default)]
pub(super) struct Fleet(Mutex<Option<Instant>>);

impl Fleet {
    /// Of sixteen partitions an instance that isn't alone finds one taken in each interval.
    const FORGOTTEN_AFTER: u32 = 3;

    fn met(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    fn is_there(&self, interval: Duration) -> bool {
        self.0.lock().is_some_and(|met| met.elapsed() < interval * Self::FORGOTTEN_AFTER)
    }
}

/// The sweep of one partition.
pub struct Sweep {
    redis: Redis,
    partition: Partition,
    walker: Walker,
    map: ShardMap,
    viewers_per_shard: u32,
    interval: Duration,
    window: Duration,
    note_life: Duration,
    /// Kept after a good pass; given back at the end of the service where it was alone.
    lock: Mutex<Option<Lock>>,
    tally: Arc<Tally>,
    fleet: Arc<Fleet>,
    known: Known,
}

/// What a pass found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Videos on the registry.
    pub videos: u64,
    /// Shards that are not empty.
    pub shards: u64,
    /// Viewers dropped.
    pub removed: u64,
    /// Viewers left.
    pub left: u64,
    /// Viewers in the fullest shard.
    pub fullest: u64,
    /// Videos of more than one shard.
    pub sharded: u64,
    /// Videos whose number of shards was changed.
    pub resharded: u64,
}

impl Sweep {
    /// The sweep of `partition`.
    pub(super) fn new(means: Means, config: &Config, partition: Partition) -> Self {
        let Means { redis, walker, map, known, tally, fleet } = means;
        Self {
            redis,
            partition,
            walker,
            map,
            viewers_per_shard: config.presence.viewers_per_shard,
            interval: config.jobs.sweep_every,
            window: config.presence.window,
            note_life: note_life(&config.presence),
            lock: Mutex::default(),
            tally,
            fleet,
            known,
        }
    }

    /// How long whoever dies over a pass keeps the others from it.
    fn lease(&self) -> Duration {
        self.interval.mul_f64(0.3)
    }

    /// For how much longer the lock of a good pass is kept that has taken so long: 0.9 of an interval in
    /// all, so that whoever comes an interval later finds it free.
    fn rest_of_interval(&self, taken: Duration) -> Duration {
        self.interval.mul_f64(0.9).saturating_sub(taken)
    }

    /// Makes a pass if it is due; `Err` with the time left where another instance makes it.
    ///
    /// # Errors
    /// Redis failed, or the lock was lost; what was done until then is right.
    pub async fn run_once(&self) -> Result<Result<Swept, Duration>, StoreError> {
        let connection = self.redis.connection()?;
        let key = self.redis.keys().sweep_lock(self.partition);
        let locking = Lock::take(&connection, key, self.lease());
        let lock = match failpoint::step("sweep.lock", Part::Redis, locking).await? {
            Taken::Mine(lock) => lock,
            Taken::Others(left) => {
                self.fleet.met();
                return Ok(Err(left));
            }
        };
        *self.lock.lock() = Some(lock.clone());
        let result = Pass::begin(self, connection.clone(), lock.clone()).run().await;
        if result.is_err() {
            self.lock.lock().take();
            let releasing = failpoint::step("sweep.unlock", Part::Redis, lock.release(&connection));
            if let Err(error) = releasing.await {
                tracing::debug!(error = %error, "the lock of a failed sweep runs out by itself");
            }
        }
        result.map(Ok)
    }

    fn report(&self, swept: &Swept, corrupt: u64, took: Duration) {
        let Swept { videos, shards, removed, left, fullest, sharded, resharded } = *swept;
        metrics::counter!("headcount_sweep_removed_total").increment(removed);
        metrics::histogram!("headcount_sweep_duration_seconds").record(took.as_secs_f64());
        let swept = self.redis.clock().now().secs();
        let share = Share { swept, videos, sharded, viewers: left, fullest_shard: fullest };
        self.tally.set(self.partition, share);
        if videos > 0 || removed > 0 {
            tracing::info!(
                sweep.partition = %self.partition,
                sweep.videos = videos,
                sweep.shards = shards,
                sweep.resharded = resharded,
                sweep.fields = left + removed,
                sweep.removed = removed,
                sweep.corrupt = corrupt,
                sweep.left = left,
                sweep.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                "swept partition {}: {removed} viewers left, {left} watch {videos} videos",
                self.partition,
            );
        }
    }
}

#[async_trait]
impl Job for Sweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    /// Soon, so that counts are vouched for soon; not all partitions at once.
    fn first_in(&self) -> Duration {
        self.interval.min(Duration::from_secs(1)).mul_f64(rand::rng().random_range(0.0..1.0))
    }

    fn every(&self) -> Duration {
        self.interval
    }

    /// The lock was given back: whoever is first makes the pass up.
    fn retry_in(&self) -> Duration {
        self.interval.mul_f64(0.1)
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        // That Redis is away is told once, by its keeper, and not by every partition.
        if self.redis.connection().is_err() {
            return Ok(Some(self.retry_in()));
        }
        match self.run_once().await? {
            Ok(_) => Ok(None),
            Err(left) => {
                let swept = self.redis.clock().now().secs();
                self.tally.set(self.partition, Share { swept, ..Share::default() });
                // A little after the lock runs out. Much later, and one instance does all the work;
                // sooner, and there are more sweeps than intervals.
                let late = rand::rng().random_range(0.05..0.15);
                Ok(Some(left + self.interval.mul_f64(late)))
            }
        }
    }

    /// One that is alone gives the lock back, so that its successor begins with a sweep. Where there are
    /// others they make the next, and a successor is not to make one more in this interval.
    async fn finish(&self) {
        let lock = self.lock.lock().take().filter(|_| !self.fleet.is_there(self.interval));
        if let (Some(lock), Ok(connection)) = (lock, self.redis.connection())
            && let Err(error) = lock.release(&connection).await
        {
            tracing::debug!(error = %error, "the sweep's lock runs out by itself");
        }
    }
}
