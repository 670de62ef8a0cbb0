//! The only file that names concrete stores.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

#[cfg(feature = "kafka")]
use crate::plays::in_kafka::{
    KafkaPlays,
    consumer::{self, Rebuilt},
};
use crate::{
    clock::{Clock, Timestamp},
    config::{BackendKind, Config},
    error::{Part, StoreError},
    health::{Health, HealthCheck},
    jobs::Job,
    lifecycle::Lifecycle,
    plays::{
        self, Plays,
        audit::{Audit, AuditJob, Books},
        in_redis::{RedisBooks, RedisPlays},
        in_sqlite::{SqliteBooks, SqlitePlays},
        postgres::Ledger,
    },
    presence::{
        self, Presence,
        in_memory::{self, InMemoryPresence},
        in_redis::{History, RedisPresence},
        rhythm::Rhythm,
    },
    store::{
        keys::Keys,
        postgres::Postgres,
        probe,
        redis::Redis,
        script::LuaScript,
        sqlite::{self, Sqlite},
        time::StoreClock,
    },
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
    /// Whether every play that was counted is still somewhere.
    pub audit: Arc<Audit>,
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
    jobs.push(SqlitePlays::adopt_job(&sqlite));
    let plays = SqlitePlays::start(&sqlite, &config.plays, lifecycle, clock.clone());
    let audit = audit(Arc::new(SqliteBooks::of(&sqlite)), clock, &mut jobs);
    sqlite.close_at_stop(lifecycle);
    Ok(Stores {
        presence,
        plays: Arc::new(plays),
        audit,
        videos: Arc::new(SqliteVideos::new(sqlite.clone())),
        health: Arc::new(sqlite),
        jobs,
    })
}

/// Opens the ways to Redis and Postgres. Neither has to be there yet.
fn open_redis(config: &Config, lifecycle: &Lifecycle, clock: Arc<dyn Clock>) -> anyhow::Result<Stores> {
    let scripts = [&probe::PROBE]
        .into_iter()
        .chain(presence::in_redis::SCRIPTS)
        .chain(plays::in_redis::SCRIPTS.iter().copied());
    let (redis, rhythm) = way_to_redis(config, clock.clone(), scripts.collect())?;
    let postgres = Postgres::new(&config.postgres)?;
    postgres.start(lifecycle);
    let history = Ledger::new(postgres.clone(), config.plays.timezone);
    let presence = RedisPresence::open(config, &redis, Arc::new(history), rhythm, lifecycle);
    let kept = RedisPlays::open(config, &redis, &postgres, lifecycle);
    let (plays, others) = recording(config, &redis, kept.clone(), lifecycle)?;
    // Last: who speaks first on a connection has to be known before there is one.
    redis.start(lifecycle);
    let mut jobs = presence.jobs(config);
    jobs.extend(kept.jobs());
    let audit = audit(kept.books(), clock, &mut jobs);
    Ok(Stores {
        presence,
        plays,
        audit,
        videos: Arc::new(PostgresVideos::new(postgres.clone())),
        health: Arc::new(RedisHealth { redis, postgres, others }),
        jobs,
    })
}

/// Where plays are recorded, and what else the service's health hangs on then.
type Recording = (Arc<dyn Plays>, Option<Arc<dyn HealthCheck>>);

/// Plays go through Kafka where its brokers are set; `kept` has their totals in any case.
#[cfg(feature = "kafka")]
fn recording(
    config: &Config,
    redis: &Redis,
    kept: Arc<RedisPlays>,
    lifecycle: &Lifecycle,
) -> Result<Recording, StoreError> {
    if !config.kafka.is_used() {
        return Ok((kept, None));
    }
    let plays = KafkaPlays::open(config, redis, kept, lifecycle)?;
    Ok((plays.clone(), Some(plays)))
}

/// The settings refuse Kafka's brokers in this build.
#[cfg(not(feature = "kafka"))]
#[expect(clippy::unnecessary_wraps, reason = "with Kafka in the build it may fail")]
fn recording(_: &Config, _: &Redis, kept: Arc<RedisPlays>, _: &Lifecycle) -> Result<Recording, StoreError> {
    Ok((kept, None))
}

/// Batches of plays tell of a deployment that was here before: their newest ids are kept for ever.
#[async_trait]
impl History for Ledger {
    async fn reaches_before(&self, at: Timestamp) -> Result<bool, StoreError> {
        self.had_batches_before(at).await
    }
}

fn way_to_redis(
    config: &Config,
    clock: Arc<dyn Clock>,
    scripts: Vec<&'static LuaScript>,
) -> Result<(Redis, Arc<Rhythm>), StoreError> {
    let rhythm =
        Arc::new(Rhythm::new(config.presence.heartbeat_every, config.presence.window, clock.clone()));
    let clock = Arc::new(StoreClock::new(clock, rhythm.clone()));
    let keys = Keys::new(&config.redis.prefix, config.presence.pin_video_to_slot);
    Ok((Redis::new(&config.redis, keys, clock, scripts)?, rhythm))
}

/// The audit of these books, and the job that exports it.
fn audit(books: Arc<dyn Books>, clock: Arc<dyn Clock>, jobs: &mut Vec<Arc<dyn Job>>) -> Arc<Audit> {
    let audit = Audit::new(books, clock);
    jobs.push(Arc::new(AuditJob::new(audit.clone(), rand::random())));
    audit
}

/// How long a command waits for a store.
const COMMAND_WAITS: Duration = Duration::from_secs(5);

/// Opens the books alone, beside whatever service runs on them. What keeps the ways to servers open
/// runs in `lifecycle`.
///
/// # Errors
/// A store is away.
pub async fn open_books(
    config: &Config,
    lifecycle: &Lifecycle,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Arc<dyn Books>> {
    match config.backend {
        BackendKind::Embedded => Ok(Arc::new(SqliteBooks::visiting(sqlite::visit(&config.embedded.path)?))),
        BackendKind::Redis => {
            let (redis, _) = way_to_redis(config, clock, Vec::new())?;
            let mut connected = redis.epochs();
            redis.start(lifecycle);
            let there = tokio::time::timeout(COMMAND_WAITS, connected.wait_for(|epoch| *epoch > 0)).await;
            if !matches!(there, Ok(Ok(_))) {
                anyhow::bail!(
                    "redis at {} can't be used; headcount doctor says why",
                    config.redis.addresses().1
                );
            }
            let books: RedisBooks = RedisPlays::books_of(&redis, &Postgres::new(&config.postgres)?);
            Ok(Arc::new(books))
        }
    }
}

/// Makes all totals anew from Kafka's log, into an empty database. Redis is left alone.
///
/// # Errors
/// A store is away, or the database isn't empty.
#[cfg(feature = "kafka")]
pub async fn rebuild(
    config: &Config,
    lifecycle: &Lifecycle,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Rebuilt> {
    let postgres = Postgres::new(&config.postgres)?;
    if config.postgres.migrate {
        postgres.migrate().await?;
    }
    postgres.start(lifecycle);
    let clock = Arc::new(StoreClock::new(clock, Duration::ZERO));
    let ledger = Ledger::new(postgres, config.plays.timezone);
    Ok(consumer::rebuild(config, ledger, clock, &lifecycle.draining()).await?)
}

/// Nothing can be taken without Redis; without Postgres everything can, for a while.
struct RedisHealth {
    redis: Redis,
    postgres: Postgres,
    others: Option<Arc<dyn HealthCheck>>,
}

#[async_trait]
impl HealthCheck for RedisHealth {
    async fn check(&self) -> Health {
        let (redis, postgres) = tokio::join!(probe::probe(&self.redis), self.postgres.probe());
        // Without its schema it answers, and nothing can be read or flushed.
        let degraded = postgres.is_err() || !self.postgres.is_migrated();
        let mut health = match &self.others {
            Some(others) => others.check().await,
            None => Health::default(),
        };
        // Of a cluster the rest goes on; an instance that says no for it would take that away as well.
        let partly = matches!(redis, Ok(probe::Works::Partly));
        let degraded = [partly.then_some(Part::Redis), degraded.then_some(Part::Postgres)];
        health.failed.extend(redis.err());
        health.degraded.extend(degraded.into_iter().flatten());
        health
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::Path};

    use super::*;
    use crate::{
        clock::ManualClock,
        config::load::load,
        ids::{UserId, VideoId, ViewerId},
        lifecycle::Stopped,
        plays::{Play, Recorded},
        presence::Beat,
    };

    fn config(file: &Path) -> Config {
        let mut config = load(None, Some(HashMap::new())).unwrap().config;
        config.embedded.path = file.to_owned();
        config
    }

    fn lifecycle() -> Lifecycle {
        Lifecycle::new(Duration::ZERO, Duration::from_secs(20))
    }

    #[tokio::test]
    async fn the_embedded_backend_needs_a_file_and_finds_everything_again_after_a_stop() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(&folder.path().join("new/folder/numbers.db"));
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let (video, user) = (VideoId::parse("film").unwrap(), UserId::parse("ann").unwrap());
        let viewer = ViewerId::of_user(&user);
        let play = Play { video: video.clone(), viewer: Some(viewer.clone()), play_id: None };
        for start in 0..3 {
            let lifecycle = lifecycle();
            let stores = open(&config, &lifecycle, clock.clone()).await.unwrap();
            assert!(stores.health.check().await.failed.is_empty());
            let names: Vec<_> = stores.jobs.iter().map(|job| job.name()).collect();
            assert_eq!(names, ["sweep", "snapshot", "prune-seen", "adopt", "audit"]);
            if start == 0 {
                assert!(stores.videos.existing(std::slice::from_ref(&video)).await.unwrap().is_empty());
                let beat = Beat { video: video.clone(), viewer: viewer.clone() };
                assert_eq!(stores.presence.beat(beat).await.unwrap(), 1);
                assert_eq!(stores.plays.record(play.clone()).await.unwrap(), Recorded::Counted);
            } else {
                assert_eq!(stores.plays.record(play.clone()).await.unwrap(), Recorded::Duplicate);
            }
            assert!(stores.videos.existing(std::slice::from_ref(&video)).await.unwrap().contains(&video));
            let online = stores.presence.online(std::slice::from_ref(&video)).await[0];
            assert_eq!((online.online, online.stale), (Some(1), false));
            assert_eq!(stores.plays.counts(std::slice::from_ref(&video)).await[0].plays, Some(1));
            let watch = crate::jobs::Watch::default();
            for job in stores.jobs.clone() {
                crate::jobs::start(&lifecycle, &watch, job);
            }
            lifecycle.stop();
            assert_eq!(lifecycle.run().await, Stopped::Drained);
            assert_eq!(stores.health.check().await.failed.len(), 1);
            clock.advance(Duration::from_secs(60));
        }
    }

    #[tokio::test]
    async fn a_second_start_on_one_file_is_told_why_it_fails() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let (first, second) = (lifecycle(), lifecycle());
        let stores = open(&config, &first, clock.clone()).await.unwrap();
        let error = open(&config, &second, clock.clone()).await.err().unwrap();
        assert!(error.to_string().contains("in use by another headcount"), "{error}");
        // Gone without a stop, the first leaves nothing that stands in the way.
        drop(stores);
        assert!(open(&config, &second, clock).await.is_ok());
    }
}
