//! One deployment for one test.

use std::{sync::Arc, time::Duration};

use headcount_support::{eventually, service};
use redis::{Cmd, FromRedisValue};
use uuid::Uuid;

use super::super::{RedisPlays, SCRIPTS};
use crate::{
    clock::{Clock, ManualClock, SystemClock, Timestamp},
    config::{Config, SecretUrl},
    error::StoreError,
    ids::{PlayId, UserId, VideoId, ViewerId},
    lifecycle::Lifecycle,
    plays::{Play, PlayCount, Plays, Recorded, flush::Flushed},
    store::{keys::Keys, postgres::Postgres, redis::Connection, redis::Redis, time::StoreClock},
};

/// A Redis and a Postgres, and one instance of the service on them.
pub(super) struct World {
    pub(super) config: Config,
    pub(super) lifecycle: Lifecycle,
    pub(super) redis: Redis,
    pub(super) postgres: Postgres,
    pub(super) plays: Arc<RedisPlays>,
    /// A way to the stores that stays open whatever a test does to the service's own.
    pub(super) direct: Redis,
    pub(super) rows: Postgres,
    clock: Arc<dyn Clock>,
}

/// The settings of a test: a prefix and an empty database of its own.
pub(super) async fn settings() -> Config {
    let mut config: Config = ::config::Config::builder()
        .add_source(::config::File::from_str(
            include_str!("../../../../config/default.toml"),
            ::config::FileFormat::Toml,
        ))
        .build()
        .unwrap()
        .try_deserialize()
        .unwrap();
    let name = format!("test_{}", Uuid::now_v7().simple());
    config.redis.url = SecretUrl::new(service("TEST_REDIS_URL"));
    config.redis.prefix = format!("{name}:");
    config.redis.batch_min_age = Duration::ZERO;
    // Machines that test are slow at times; tests of the deadline set their own.
    config.redis.deadline = Duration::from_secs(20);
    config.postgres = crate::store::postgres::tests::settings().await;
    // Enough for several flushes to meet each other.
    config.postgres.max_connections = 20;
    config
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// A world with other settings.
    pub(super) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = settings().await;
        change(&mut config);
        Self::open(config.clone(), config, SystemClock::start()).await
    }

    /// A world whose time stands still.
    pub(super) async fn at(now: Timestamp, change: impl FnOnce(&mut Config)) -> (Self, Arc<ManualClock>) {
        let mut config = settings().await;
        change(&mut config);
        let clock = ManualClock::at(now);
        (Self::open(config.clone(), config, clock.clone()).await, clock)
    }

    /// A world whose service goes by other ways than the test does.
    pub(super) async fn open(direct: Config, config: Config, clock: Arc<dyn Clock>) -> Self {
        let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
        let postgres = Postgres::new(&config.postgres).unwrap();
        postgres.start(&lifecycle);
        eventually("the schema is there", async || postgres.is_migrated()).await;
        Self::open_on(direct, config, clock, postgres, lifecycle).await
    }

    /// A world on a Postgres that may not be there yet.
    pub(super) async fn open_on(
        direct: Config,
        config: Config,
        clock: Arc<dyn Clock>,
        postgres: Postgres,
        lifecycle: Lifecycle,
    ) -> Self {
        let rows = Postgres::new(&direct.postgres).unwrap();
        let straight = redis_of(&direct, &clock, &lifecycle).await;
        let redis = redis_of(&config, &clock, &lifecycle).await;
        let plays = RedisPlays::open(&config, &redis, &postgres, &lifecycle);
        Self { config, lifecycle, redis, postgres, plays, direct: straight, rows, clock }
    }

    /// One more instance on the same stores, with ways of its own.
    pub(super) async fn beside(other: &Self) -> Self {
        Self::open(other.config.clone(), other.config.clone(), other.clock.clone()).await
    }

    /// One more instance on the same stores.
    pub(super) fn instance(&self) -> Arc<RedisPlays> {
        RedisPlays::open(&self.config, &self.redis, &self.postgres, &self.lifecycle)
    }

    /// One more instance, which goes to the stores by other ways.
    pub(super) async fn instance_by(&self, config: &Config, postgres: &Postgres) -> (Redis, Arc<RedisPlays>) {
        let redis = redis_of(config, &self.clock, &self.lifecycle).await;
        let plays = RedisPlays::open(config, &redis, postgres, &self.lifecycle);
        (redis, plays)
    }

    pub(super) fn connection(&self) -> Connection {
        self.direct.connection().unwrap()
    }

    pub(super) async fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        self.connection().query(command_of(command)).await.unwrap()
    }

    /// Names of the keys under this world's prefix, without it.
    pub(super) async fn keys(&self) -> Vec<String> {
        let prefix = &self.config.redis.prefix;
        let mut keys = Vec::new();
        let mut cursor = "0".to_owned();
        loop {
            let scan = format!("SCAN {cursor} MATCH {prefix}* COUNT 10000");
            let (next, found): (String, Vec<String>) = self.ask(&scan).await;
            keys.extend(found.iter().map(|key| key[prefix.len()..].to_owned()));
            cursor = next;
            if cursor == "0" {
                keys.sort();
                return keys;
            }
        }
    }

    pub(super) async fn record(&self, play: Play) -> Result<Recorded, StoreError> {
        self.plays.record(play).await
    }

    pub(super) async fn count(&self, video: &VideoId) -> PlayCount {
        self.plays.counts(std::slice::from_ref(video)).await[0]
    }

    /// Flushes one batch of the partition of `video`.
    pub(super) async fn flush(&self, video: &VideoId) -> Result<Flushed, StoreError> {
        self.plays.flusher().flush_once(&self.redis.connection()?, video.partition()).await
    }

    /// What the database holds of a video.
    pub(super) async fn views(&self, video: &VideoId) -> i64 {
        let views = "select coalesce(sum(views), 0)::bigint from videos where video_id = $1";
        self.select::<(i64,)>(sqlx::query_as(views).bind(video.to_string())).await[0].0
    }

    pub(super) async fn select<T>(
        &self,
        query: sqlx::query::QueryAs<'_, sqlx::Postgres, T, sqlx::postgres::PgArguments>,
    ) -> Vec<T>
    where
        T: for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow> + Send + Unpin,
    {
        self.rows.fetch_all(crate::store::postgres::Lane::Reads, query).await.unwrap()
    }

    /// Runs statements as an operator would.
    pub(super) async fn operate(&self, sql: &str) {
        let url = self.config.postgres.url.expose();
        let mut url = url::Url::parse(url).unwrap();
        let server = url::Url::parse(&service("TEST_POSTGRES_URL")).unwrap();
        url.set_port(server.port()).unwrap();
        let mut connection = <sqlx::PgConnection as sqlx::Connection>::connect(url.as_str()).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

async fn redis_of(config: &Config, clock: &Arc<dyn Clock>, lifecycle: &Lifecycle) -> Redis {
    let store_clock = Arc::new(StoreClock::new(clock.clone(), Duration::from_secs(60)));
    let redis =
        Redis::new(&config.redis, Keys::new(&config.redis.prefix, false), store_clock, SCRIPTS.to_vec())
            .unwrap();
    redis.start(lifecycle);
    eventually("redis is connected", async || redis.connection().is_ok()).await;
    redis
}

pub(super) fn command_of(text: &str) -> Cmd {
    let mut words = text.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    command
}

pub(super) fn video(id: &str) -> VideoId {
    VideoId::parse(id).unwrap()
}

/// Another video of the same partition.
pub(super) fn sibling(id: &str) -> String {
    let others = (0..10_000).map(|number| format!("sibling{number}"));
    others.into_iter().find(|other| video(other).partition() == video(id).partition()).unwrap()
}

/// A play by a viewer, or one with a play id, or both; "" for none.
pub(super) fn play(id: &str, viewer: &str, play_id: &str) -> Play {
    Play {
        video: video(id),
        viewer: UserId::parse(viewer).ok().map(|user| ViewerId::of_user(&user)),
        play_id: PlayId::parse(play_id).ok(),
    }
}
