//! Viewers in Redis, shared by any number of instances: a hash of viewers for each shard of a video.
//!
//! `merge`, `writer`, `form` and `send` carry beats there, `read` and `cache` bring counts back, `walk` counts while
//! it drops who left, `since` tells lost data from few viewers. `map` knows in how many shards a video
//! is, and `moves` takes viewers off those they were in before. The sweep is `presence/sweep/`.

mod cache;
mod form;
pub(crate) mod map;
mod merge;
mod moves;
mod notes;
mod rank;
pub(crate) mod read;
mod send;
pub(crate) mod since;
mod slowed;
pub(crate) mod walk;
pub(crate) mod writer;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

pub use self::since::History;
use super::{Beat, OnlineCount, Presence, Ranking, rhythm::Rhythm, sweep, tally::Tally};
use crate::{
    config::Config,
    error::StoreError,
    ids::{Partition, VideoId},
    jobs::Job,
    lifecycle::{Lifecycle, Phase},
    store::{redis::Redis, script::LuaScript},
};

/// The scripts to be loaded on every connection.
pub static SCRIPTS: [&LuaScript; 8] = [
    &since::SINCE,
    &form::BEAT_NEWER,
    &form::HDEL_OLDER,
    &map::RESHARD,
    &walk::PRUNE,
    &sweep::COUNT_STORE,
    &sweep::REGISTRY_LEAVE,
    &sweep::FINISH,
];

/// Presence in Redis.
pub struct RedisPresence {
    redis: Redis,
    writer: Arc<writer::Writer>,
    reader: Arc<read::Reader>,
    rank: rank::Rank,
    walker: walk::Walker,
    map: map::ShardMap,
    known: since::Known,
    rhythm: Arc<Rhythm>,
}

impl RedisPresence {
    /// Starts the writer and the reader. Before `redis` is started: stamps come first on every
    /// connection.
    #[must_use]
    pub fn open(
        config: &Config,
        redis: &Redis,
        history: Arc<dyn History>,
        rhythm: Arc<Rhythm>,
        lifecycle: &Lifecycle,
    ) -> Arc<Self> {
        let life = writer::shard_life(&config.presence, &config.jobs);
        let map = map::ShardMap::new(redis.clone(), &config.presence, life);
        let known = since::Known::default();
        let writer = Arc::new(writer::Writer::new(
            redis.clone(),
            map.clone(),
            known.clone(),
            &config.presence,
            &config.jobs,
        ));
        let listpacks = walk::Listpacks::default();
        let walker = walk::Walker::new(redis.clone(), &config.presence, &config.jobs, listpacks.clone());
        let (reader, asked) =
            read::Reader::new(redis.clone(), map.clone(), walker.clone(), rhythm.clone(), config);
        let waiting = writer.clone();
        redis.greet_with(Arc::new(since::Stamper {
            redis: redis.clone(),
            listpacks,
            known: known.clone(),
            history,
            rhythm: rhythm.clone(),
            beats_waited: Box::new(move || waiting.beats_waited()),
        }));
        redis.greet_with(Arc::new(map.clone()));
        let stopping = lifecycle.stopping(Phase::Writers);
        lifecycle.spawn(Phase::Writers, "beats", writer.clone().run(stopping.clone()));
        lifecycle.spawn(Phase::Writers, "shard-map", map.clone().run(stopping.clone()));
        lifecycle.spawn(Phase::Writers, "counts", reader.clone().run(asked, stopping));
        Arc::new(Self {
            redis: redis.clone(),
            rank: rank::Rank::new(redis.clone(), reader.clone(), config.presence.window),
            writer,
            reader,
            walker,
            map,
            known,
            rhythm,
        })
    }

    /// The sweeps, one job a partition.
    #[must_use]
    pub fn jobs(&self, config: &Config) -> Vec<Arc<dyn Job>> {
        let tally = Arc::new(Tally::new(self.redis.clock().now().secs()));
        let fleet = Arc::new(sweep::Fleet::default());
        let slowed = slowed::Slowed { redis: self.redis.clone(), rhythm: self.rhythm.clone() };
        Partition::all()
            .map(|partition| {
                let means = sweep::Means {
                    redis: self.redis.clone(),
                    walker: self.walker.clone(),
                    map: self.map.clone(),
                    known: self.known.clone(),
                    tally: tally.clone(),
                    fleet: fleet.clone(),
                };
                Arc::new(sweep::Sweep::new(means, config, partition)) as Arc<dyn Job>
            })
            .chain([Arc::new(slowed) as Arc<dyn Job>])
            .collect()
    }

    /// The number at hand or in Redis, at least the viewer who asks.
    async fn with_me(&self, video: VideoId) -> u64 {
        let now = self.redis.clock().monotonic();
        let entry = self.reader.counts().entry(&video);
        entry.beat(now);
        let count = match self.reader.at_hand(&video, &entry, now) {
            Some(count) => Some(count),
            None => self.reader.online(&[video]).await.pop(),
        };
        count.and_then(|count| count.online).unwrap_or(0).max(1)
    }
}

#[async_trait]
impl Presence for RedisPresence {
    async fn beat(&self, beat: Beat) -> Result<u64, StoreError> {
        let video = beat.video.clone();
        self.writer.beat(beat).await?;
        Ok(self.with_me(video).await)
    }

    async fn beat_many(&self, beats: Vec<Beat>) -> Vec<Result<(), StoreError>> {
        let now = self.redis.clock().monotonic();
        let taken = beats.into_iter().map(async |beat| {
            let video = beat.video.clone();
            self.writer.beat(beat).await?;
            self.reader.counts().entry(&video).beat(now);
            Ok(())
        });
        futures::future::join_all(taken).await
    }

    async fn leave(&self, beat: Beat) -> Result<OnlineCount, StoreError> {
        let video = beat.video.clone();
        self.writer.leave(beat).await?;
        self.reader.counts().left(&video);
        let counts = self.reader.online(&[video]).await;
        Ok(counts.into_iter().next().unwrap_or(OnlineCount::UNKNOWN))
    }

    async fn online(&self, videos: &[VideoId]) -> Vec<OnlineCount> {
        self.reader.online(videos).await
    }

    async fn top(&self, limit: usize) -> Ranking {
        self.rank.top(limit).await
    }

    fn next_heartbeat(&self) -> Duration {
        self.rhythm.next()
    }

    fn press(&self, pressure: f64) {
        self.rhythm.press(pressure);
    }

    fn fullness(&self) -> f64 {
        self.writer.fullness().max(self.reader.fullness())
    }
}
