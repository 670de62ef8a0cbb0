//! The sweep: drops viewers who left, once an interval for the whole fleet, and refreshes counts.
//!
//! Each partition is swept for itself under a fleet lock that is kept after a good pass, so that
//! the next pass comes an interval later, whoever makes it. A pass that lost its lock stops before
//! its next write; whatever it did until then is right whoever else does it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::RngExt;

use super::{
    in_redis::{
        read::stamps,
        since::{Cause, Known},
        walk::{Walked, Walker},
        writer::note_life,
    },
    shards::Shards,
    tally::{Share, Tally},
};
use crate::{
    clock::Timestamp,
    config::Config,
    error::{Part, StoreError},
    ids::{Partition, VideoId},
    jobs::Job,
    store::{
        lock::{Held, Lock, Taken},
        redis::{Connection, Redis, reply},
        script::LuaScript,
    },
};

/// Stores the count of a video of more than one shard.
pub(crate) static COUNT_STORE: LuaScript = LuaScript::new("count_store", include_str!("lua/count_store.lua"));

/// Takes videos off the registry.
pub(crate) static REGISTRY_LEAVE: LuaScript =
    LuaScript::new("registry_leave", include_str!("lua/registry_leave.lua"));

/// Ends a pass.
pub(crate) static FINISH: LuaScript = LuaScript::new("finish", include_str!("lua/finish.lua"));

/// Videos whose shards are walked together.
const VIDEOS_TOGETHER: usize = 64;

/// Members of the registry looked at in one step.
const REGISTRY_STEP: usize = 500;

/// The most watched videos that a partition keeps.
const RANKED: usize = 200;

/// The life of a stored count.
const COUNT_LIFE: Duration = Duration::from_secs(600);

/// The sweep of one partition.
pub struct Sweep {
    redis: Redis,
    partition: Partition,
    shards: Shards,
    walker: Walker,
    interval: Duration,
    window: Duration,
    note_life: Duration,
    /// Kept after a good pass; given back at the end of the service.
    lock: Mutex<Option<Lock>>,
    tally: Arc<Tally>,
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
}

/// A pass under way: it owns the lock, or thinks so.
struct Pass<'a> {
    sweep: &'a Sweep,
    connection: Connection,
    lock: Held,
    began: Timestamp,
    swept: Swept,
    ranking: BTreeSet<(Reverse<u64>, VideoId)>,
}

impl Sweep {
    /// The sweep of `partition`.
    pub(super) fn new(
        redis: &Redis,
        walker: &Walker,
        config: &Config,
        partition: Partition,
        tally: &Arc<Tally>,
        known: &Known,
    ) -> Self {
        Self {
            walker: walker.clone(),
            redis: redis.clone(),
            partition,
            shards: Shards::fixed(config.presence.shards),
            interval: config.jobs.sweep_every,
            window: config.presence.window,
            note_life: note_life(&config.presence),
            lock: Mutex::default(),
            tally: tally.clone(),
            known: known.clone(),
        }
    }

    /// Makes a pass if it is due; `Err` with the time left where another instance makes it.
    ///
    /// # Errors
    /// Redis failed, or the lock was lost; what was done until then is right.
    pub async fn run_once(&self) -> Result<Result<Swept, Duration>, StoreError> {
        let connection = self.redis.connection()?;
        let key = self.redis.keys().sweep_lock(self.partition);
        // 0.9 of an interval: whoever comes an interval later finds it free.
        let lock = match Lock::take(&connection, key, self.interval.mul_f64(0.9)).await? {
            Taken::Mine(lock) => lock,
            Taken::Others(left) => return Ok(Err(left)),
        };
        *self.lock.lock() = Some(lock.clone());
        let pass = Pass {
            sweep: self,
            connection: connection.clone(),
            lock: Held::new(lock.clone()),
            began: self.redis.clock().now(),
            swept: Swept::default(),
            ranking: BTreeSet::new(),
        };
        let result = pass.run().await;
        if result.is_err() {
            self.lock.lock().take();
            if let Err(error) = lock.release(&connection).await {
                tracing::debug!(error = %error, "the lock of a failed sweep runs out by itself");
            }
        }
        result.map(Ok)
    }

    fn report(&self, swept: &Swept, corrupt: u64, took: Duration) {
        let Swept { videos, shards, removed, left, fullest } = *swept;
        metrics::counter!("headcount_sweep_removed_total").increment(removed);
        metrics::histogram!("headcount_sweep_duration_seconds").record(took.as_secs_f64());
        let swept = self.redis.clock().now().secs();
        self.tally.set(self.partition, Share { swept, videos, viewers: left, fullest_shard: fullest });
        if videos > 0 || removed > 0 {
            tracing::info!(
                sweep.partition = %self.partition,
                sweep.videos = videos,
                sweep.shards = shards,
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

impl Pass<'_> {
    async fn run(mut self) -> Result<Swept, StoreError> {
        let started = Instant::now();
        self.mind_the_gap().await?;
        let videos = self.registry().await?;
        self.swept.videos = videos.len() as u64;
        let mut corrupt = 0;
        let mut failed = None;
        for videos in videos.chunks(VIDEOS_TOGETHER) {
            let places: Vec<_> = videos
                .iter()
                .map(|(video, _)| (video.clone(), self.sweep.shards.places(video).all()))
                .collect();
            let began = self.sweep.redis.clock().now();
            let walked = self.sweep.walker.walk(&self.connection, &places, Some(&mut self.lock)).await?;
            let mut counted = Vec::new();
            for ((video, score), walked) in videos.iter().zip(walked) {
                match walked {
                    Ok(walked) => {
                        corrupt += walked.corrupt;
                        self.note(video, &walked);
                        counted.push((video, *score, walked));
                    }
                    // Its own shards fail it; the others are swept all the same.
                    Err(error) => {
                        tracing::error!(video.id = %video, error = %error, "a video can't be swept");
                        failed = error.is_transient().then_some(error).or(failed);
                    }
                }
            }
            self.lock.still_mine(&self.connection).await?;
            self.store(&counted, began).await?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.finish().await?;
        self.sweep.report(&self.swept, corrupt, started.elapsed());
        Ok(self.swept)
    }

    /// Sets the stamp that makes low counts doubted: where nobody swept for long, nobody may have been
    /// able to beat either; and where the stamp is gone, so may be the data.
    async fn mind_the_gap(&self) -> Result<(), StoreError> {
        let (sweep, redis) = (self.sweep, &self.sweep.redis);
        let stamps = stamps(redis.keys(), sweep.partition);
        let (swept, since): (Option<String>, Option<String>) = self.connection.query(stamps).await?;
        // What can't be read is as good as long ago; the end of this pass writes it anew.
        let gap = swept.map(|swept| {
            swept.parse().map_or(Duration::MAX, |swept| self.began.since(Timestamp::from_secs(swept)))
        });
        let cause = if gap.is_some_and(|gap| gap > sweep.interval.mul_f64(2.5) + Duration::from_secs(1)) {
            Cause::Reset
        } else if since.is_none() {
            Cause::Again
        } else {
            return Ok(());
        };
        let call = sweep.known.call(redis, &self.connection, sweep.partition, cause);
        let stamp: String = self.connection.query(call).await?;
        sweep.known.note(sweep.partition, &stamp);
        tracing::info!(
            sweep.partition = %sweep.partition,
            "nobody swept for long, or data was lost: low counts are doubted for a while"
        );
        Ok(())
    }

    /// Every registered video and its last registered beat. A scan may repeat a member.
    async fn registry(&self) -> Result<Vec<(VideoId, i64)>, StoreError> {
        let key = self.sweep.redis.keys().active(self.sweep.partition);
        let mut videos = BTreeMap::new();
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("ZSCAN");
            scan.arg(&key).arg(&cursor).arg("COUNT").arg(REGISTRY_STEP);
            let (next, page): (String, Vec<(String, f64)>) = self.connection.query(scan).await?;
            for (video, score) in page {
                match VideoId::parse(&video) {
                    #[expect(clippy::cast_possible_truncation, reason = "scores are Unix seconds")]
                    Ok(video) => drop(videos.insert(video, score as i64)),
                    Err(error) => tracing::warn!(error = %error, "the registry holds what is no video id"),
                }
            }
            if next == "0" {
                return Ok(videos.into_iter().collect());
            }
            cursor = next;
        }
    }

    fn note(&mut self, video: &VideoId, walked: &Walked) {
        let swept = &mut self.swept;
        swept.shards += walked.shards;
        swept.removed += walked.removed;
        swept.left += walked.left;
        swept.fullest = swept.fullest.max(walked.fullest);
        if walked.left > 0 {
            self.ranking.insert((Reverse(walked.left), video.clone()));
            if self.ranking.len() > RANKED {
                self.ranking.pop_last();
            }
        }
    }

    /// Stores counts, and takes off the registry who has had no viewer for a window.
    async fn store(&self, counted: &[(&VideoId, i64, Walked)], began: Timestamp) -> Result<(), StoreError> {
        let keys = self.sweep.redis.keys();
        let active = keys.active(self.sweep.partition);
        let now = self.sweep.redis.clock().now();
        let mut commands = Vec::new();
        for (video, score, walked) in counted {
            // A time in the future becomes the present, or the video would stay for the jump's length.
            if *score > now.secs() {
                let mut clamp = redis::cmd("ZADD");
                clamp.arg(&active).arg("XX").arg("LT").arg(now.secs()).arg(video.as_str());
                commands.push(clamp);
            }
            if !self.sweep.shards.places(video).is_single() {
                let args = [
                    walked.left.to_string(),
                    began.secs().to_string(),
                    COUNT_LIFE.as_secs().to_string(),
                    now.secs().to_string(),
                ];
                commands.push(COUNT_STORE.call(&[keys.online_count(video)], &args));
            }
        }
        let limit = (began - self.sweep.window - self.sweep.note_life).secs();
        let mut leaving = vec![limit.to_string()];
        leaving.extend(
            counted
                .iter()
                .filter(|(_, score, walked)| walked.left == 0 && *score < limit)
                .map(|(video, ..)| video.to_string()),
        );
        if leaving.len() > 1 {
            commands.push(REGISTRY_LEAVE.call(&[active], &leaving));
        }
        for value in self.connection.pipe(commands).await? {
            reply::<i64>(value)?;
        }
        Ok(())
    }

    async fn finish(&self) -> Result<(), StoreError> {
        let keys = self.sweep.redis.keys();
        let mut args = vec![self.lock.lock().token().to_owned(), self.began.secs().to_string()];
        for (Reverse(viewers), video) in &self.ranking {
            args.extend([viewers.to_string(), video.to_string()]);
        }
        let partition = self.sweep.partition;
        let keys = [self.lock.lock().key().to_owned(), keys.swept(partition), keys.rank(partition)];
        if self.connection.query::<i64>(FINISH.call(&keys, &args)).await? == 1 {
            return Ok(());
        }
        metrics::counter!("headcount_lock_lost_total").increment(1);
        Err(StoreError::unavailable(Part::Redis, "another instance has taken over the sweep"))
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

    async fn finish(&self) {
        let lock = self.lock.lock().take();
        if let (Some(lock), Ok(connection)) = (lock, self.redis.connection())
            && let Err(error) = lock.release(&connection).await
        {
            tracing::debug!(error = %error, "the sweep's lock runs out by itself");
        }
    }
}
