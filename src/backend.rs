//! The only file that names concrete stores.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    clock::Clock,
    config::{BackendKind, Config},
    health::{Health, HealthCheck},
    jobs::Job,
    lifecycle::Lifecycle,
    plays::{self, Plays, in_redis::RedisPlays, in_sqlite::SqlitePlays},
    presence::{
        self, Presence,
        in_memory::{self, InMemoryPresence},
        in_redis::RedisPresence,
    },
    store::{postgres::Postgres, probe, redis::Redis, sqlite::Sqlite, time::StoreClock},
    videos::{VideoStore, in_postgres::PostgresVideos, in_sqlite::SqliteVideos},
};

/// The stores the program works on, whichever backend is configured.
#[derive(Clone)]
pub struct Stores {
    /// Who is watching.
    pub presence: Arc<dyn Presence>,
    /// How often it was played.
    pub plays: Arc<dyn Plays>,
    /// Which videos there are.
    pub videos: Arc<dyn VideoStore>,
    /// Whether the stores do their work.
    pub health: Arc<dyn HealthCheck>,
    /// What must run by itself for the numbers to stay right. Not started yet: tests step them.
    pub jobs: Vec<Arc<dyn Job>>,
}

/// Opens the configured stores. Their jobs are not started yet.
///
/// # Errors
/// A store can't be used as it is configured.
pub async fn open(config: &Config, lifecycle: &Lifecycle, clock: Arc<dyn Clock>) -> anyhow::Result<Stores> {
    match config.backend {
        BackendKind::Embedded => open_embedded(config, lifecycle, clock).await,
        BackendKind::Redis => open_redis(config, lifecycle, clock),
    }
}

/// Opens memory and the `SQLite` file of this process; fails where another process has it.
async fn open_embedded(
    config: &Config,
    lifecycle: &Lifecycle,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Stores> {
    let sqlite = Sqlite::open(&config.embedded.path).await?;
    let settings = in_memory::Settings {
        window: config.presence.window,
        heartbeat_every: config.presence.heartbeat_every,
        sweep_every: config.jobs.sweep_every,
        snapshot_every: config.embedded.snapshot_every,
        max_viewers: config.embedded.max_viewers,
    };
    let presence = InMemoryPresence::open(settings, &sqlite, clock.clone()).await?;
    let mut jobs = presence.jobs(&sqlite);
    jobs.push(SqlitePlays::prune_job(&sqlite, &config.plays, clock.clone()));
    let plays = SqlitePlays::start(&sqlite, &config.plays, lifecycle, clock);
    sqlite.close_at_stop(lifecycle);
    Ok(Stores {
        presence,
        plays: Arc::new(plays),
        videos: Arc::new(SqliteVideos::new(sqlite.clone())),
        health: Arc::new(sqlite),
        jobs,
    })
}

/// Opens the ways to Redis and Postgres. Neither has to be there yet.
fn open_redis(config: &Config, lifecycle: &Lifecycle, clock: Arc<dyn Clock>) -> anyhow::Result<Stores> {
    let caution = config.presence.heartbeat_every * 2;
    let redis_clock = Arc::new(StoreClock::new(clock, caution));
    let scripts = [&probe::PROBE]
        .into_iter()
        .chain(presence::in_redis::SCRIPTS)
        .chain(plays::in_redis::SCRIPTS.iter().copied());
    let redis = Redis::new(&config.redis, redis_clock, scripts.collect())?;
    let postgres = Postgres::new(&config.postgres)?;
    postgres.start(lifecycle);
    let presence = RedisPresence::open(config, &redis, lifecycle);
    let plays = RedisPlays::open(config, &redis, &postgres, lifecycle);
    // Last: who speaks first on a connection has to be known before there is one.
    redis.start(lifecycle);
    let mut jobs = presence.jobs(config);
    jobs.extend(plays.jobs());
    Ok(Stores {
        presence,
        plays,
        videos: Arc::new(PostgresVideos::new(postgres.clone())),
        health: Arc::new(RedisHealth { redis, postgres }),
        jobs,
    })
}

/// Nothing can be taken without Redis; without Postgres everything can, for a while.
struct RedisHealth {
    redis: Redis,
    postgres: Postgres,
}

#[async_trait]
impl HealthCheck for RedisHealth {
    async fn check(&self) -> Health {
        let (redis, postgres) = tokio::join!(probe::probe(&self.redis), self.postgres.ping());
        Health {
            failed: redis.err().into_iter().collect(),
            degraded: postgres.err().map(|error| error.part()).into_iter().collect(),
        }
    }
}
