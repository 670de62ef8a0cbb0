//! One headcount with the servers it needs, all of them started for one measurement.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use headcount_support::{OwnPostgres, OwnRedis, redis_connection};
use redis::aio::MultiplexedConnection;
use tokio::{process::Command, time::Instant};

use crate::{audience, bench::Bench, bulk, http, process::Process};

/// Longer than any start takes, on a machine that compiles beside.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Longer than a sweep of all partitions takes.
const SWEPT_WITHIN: Duration = Duration::from_secs(120);

/// Longer than any doubt about what is in Redis.
const AN_HOUR: u64 = 3_600;

/// Into which headcount splits videos.
pub(crate) const PARTITIONS: u32 = 16;

/// Redis as the figures of `docs/performance.md` are made with: without its log (`--aof` adds it).
const WITHOUT_LOG: &[&str] = &["--appendonly", "no"];
const WITH_LOG: &[&str] = &["--appendonly", "yes", "--appendfsync", "everysec"];

/// A histogram of 20 kB for each command that was called would be weighed as if it were of viewers.
const WITHOUT_HISTOGRAMS: &[&str] = &["--latency-tracking", "no"];

/// For lines that wrk keeps at their limit: the service answers whatever comes, however long that waits, as
/// what is beside it does. Refused ones would be left out, and the comparison with them. The longest allowed.
pub(crate) const AT_ITS_LIMIT: (&str, &str) = ("SERVER__MAX_DELAY", "10s");

/// A Redis with its process id.
pub(crate) struct Redis {
    own: OwnRedis,
    pub(crate) id: u32,
}

impl Redis {
    pub(crate) async fn start(bench: &Bench) -> anyhow::Result<Self> {
        Self::start_with(bench, &[]).await
    }

    /// One whose memory is weighed.
    pub(crate) async fn to_weigh(bench: &Bench) -> anyhow::Result<Self> {
        Self::start_with(bench, WITHOUT_HISTOGRAMS).await
    }

    async fn start_with(bench: &Bench, settings: &[&str]) -> anyhow::Result<Self> {
        let log = if bench.options.aof { WITH_LOG } else { WITHOUT_LOG };
        // On a port: that is how services reach one, and it costs more than a socket in a folder.
        let own = OwnRedis::start_primary(&[log, settings].concat()).await;
        let mut redis = Self { own, id: 0 };
        redis.id = redis.info("server", "process_id").await?;
        Ok(redis)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.own.port())
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        Ok(redis_connection(&self.url()).await?)
    }

    /// One number of what Redis tells of itself.
    pub(crate) async fn info<T: std::str::FromStr>(&self, section: &str, name: &str) -> anyhow::Result<T> {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        let info: String = self.own.query(info).await?;
        let value =
            info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
        value.with_context(|| format!("Redis doesn't tell its {name}"))
    }

    /// The names of all keys that fit.
    pub(crate) async fn keys(&self, pattern: &str) -> anyhow::Result<Vec<String>> {
        let mut connection = self.connect().await?;
        let (mut cursor, mut keys) = (0_u64, Vec::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1_000);
            let (next, some): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
            keys.extend(some);
            cursor = next;
            if cursor == 0 {
                return Ok(keys);
            }
        }
    }

    /// When each partition was swept last.
    pub(crate) async fn sweeps(&self) -> anyhow::Result<Vec<Option<String>>> {
        let mut connection = self.connect().await?;
        let swept = (0..PARTITIONS).map(|partition| format!("video:swept:{{{partition}}}"));
        Ok(redis::cmd("MGET").arg(swept.collect::<Vec<_>>()).query_async(&mut connection).await?)
    }

    /// Waits until every partition was swept again.
    pub(crate) async fn is_swept_since(&self, sweeps: &[Option<String>]) -> anyhow::Result<()> {
        let until = Instant::now() + SWEPT_WITHIN;
        while self.sweeps().await?.iter().zip(sweeps).any(|(now, then)| now.is_none() || now == then) {
            ensure!(Instant::now() < until, "the sweeps don't end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Sets back since when viewers have been in it, and until when those are looked for elsewhere whose
    /// video was spread over more shards. A service that finds viewers new in a deployment that isn't takes
    /// them for what is left of others, and counts anew for each read for two minutes; and for eleven it
    /// asks at the first beat of each for what it left in another shard.
    async fn has_been_here_for(&self, seconds: u64) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        for partition in 0..PARTITIONS {
            let key = format!("video:since:{{{partition}}}");
            let stamp: String = redis::cmd("GET").arg(&key).query_async(&mut connection).await?;
            let (at, rest) = stamp.split_once(' ').context("a stamp is a time, a run and a word")?;
            let stamp = format!("{} {rest}", at.parse::<u64>()? - seconds);
            redis::cmd("SET").arg(&key).arg(stamp).query_async::<()>(&mut connection).await?;
        }
        let map = "video:{shards}:map";
        let entries: Vec<(String, String)> =
            redis::cmd("HGETALL").arg(map).query_async(&mut connection).await?;
        for (video, entry) in entries {
            let mut parts = Vec::new();
            for part in entry.split(' ') {
                parts.push(match part.split_once(':') {
                    Some((shards, until)) => format!("{shards}:{}", until.parse::<u64>()? - seconds),
                    None => part.to_owned(),
                });
            }
            let entry = parts.join(" ");
            redis::cmd("HSET").arg(map).arg(video).arg(entry).query_async::<()>(&mut connection).await?;
        }
        Ok(redis::cmd("INCR").arg("video:{shards}:version").query_async(&mut connection).await?)
    }

    /// The bytes it has taken for what is in it, and for itself.
    pub(crate) async fn memory(&self) -> anyhow::Result<u64> {
        self.info("memory", "used_memory").await
    }
}

/// A server that is measured.
pub(crate) struct Service {
    process: Process,
    pub(crate) public: SocketAddr,
    /// Headcount's own; others have none.
    pub(crate) ops: SocketAddr,
}

impl Service {
    /// Headcount with these settings, once it is ready.
    pub(crate) async fn headcount(bench: &Bench, settings: &[(String, String)]) -> anyhow::Result<Self> {
        let (public, ops) = (free_address()?, free_address()?);
        let mut command = Command::new(&bench.options.headcount);
        command.arg("serve").envs(settings.iter().map(|(name, value)| (name, value)));
        command.env("HEADCOUNT_SERVER__LISTEN", public.to_string());
        command.env("HEADCOUNT_OPS__LISTEN", ops.to_string());
        let process = Process::start(command, &bench.log("headcount"))?;
        let mut service = Self { process, public, ops };
        service.answers("/readyz", &bench.log("headcount")).await?;
        Ok(service)
    }

    /// Another server, which listens at what the variable `LISTEN` says.
    pub(crate) async fn peer(
        bench: &Bench,
        name: &str,
        mut command: Command,
        redis: &Redis,
    ) -> anyhow::Result<Self> {
        let public = free_address()?;
        command.env("LISTEN", public.to_string()).env("REDIS_URL", redis.url());
        let process = Process::start(command, &bench.log(name))?;
        let mut service = Self { process, public, ops: public };
        service.answers("/livez", &bench.log(name)).await?;
        Ok(service)
    }

    async fn answers(&mut self, path: &str, log: &Path) -> anyhow::Result<()> {
        let until = Instant::now() + STARTS_WITHIN;
        while !http::ask(self.public, path).await.is_ok_and(|(status, _)| status == 200) {
            ensure!(!self.process.has_ended(), "a server ended at its start; see {}", log.display());
            ensure!(Instant::now() < until, "a server isn't ready; see {}", log.display());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.process.stop().await
    }

    pub(crate) async fn kill(self) -> anyhow::Result<()> {
        self.process.kill().await
    }

    /// What `/metrics` says of one name, its labels added up.
    pub(crate) async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        self.metric_with(name, "").await
    }

    /// The same of those that have this label.
    pub(crate) async fn metric_with(&self, name: &str, label: &str) -> anyhow::Result<f64> {
        let (_, text) = http::ask(self.ops, "/metrics").await?;
        let samples = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            if !rest.starts_with([' ', '{']) {
                return None;
            }
            let (labels, value) = rest.rsplit_once(' ')?;
            if labels.contains(label) { value.parse::<f64>().ok() } else { None }
        });
        Ok(samples.sum())
    }
}

/// An address nobody listens at now.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Headcount beside a Redis and a Postgres of its own.
pub(crate) struct World {
    pub(crate) service: Service,
    pub(crate) redis: Redis,
    pub(crate) postgres: OwnPostgres,
}

impl World {
    /// With settings beyond the defaults, named as in the environment without `HEADCOUNT_`.
    pub(crate) async fn start(bench: &Bench, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::with(bench, Redis::start(bench).await?, settings).await
    }

    /// The same, with a Redis whose memory is weighed.
    pub(crate) async fn to_weigh(bench: &Bench, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::with(bench, Redis::to_weigh(bench).await?, settings).await
    }

    /// With this Redis, and a Postgres that is empty.
    async fn with(bench: &Bench, redis: Redis, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::over(bench, redis, OwnPostgres::start().await, settings).await
    }

    /// With these.
    pub(crate) async fn over(
        bench: &Bench,
        redis: Redis,
        postgres: OwnPostgres,
        settings: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let service = Service::headcount(bench, &settings_of(&redis, &postgres, settings)).await?;
        Ok(Self { service, redis, postgres })
    }

    /// With the audience of `requests` there, and every partition swept: as a service is that has run for
    /// a while. One that nobody has swept for yet counts everything anew for each read.
    pub(crate) async fn watched(bench: &Bench, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let world = Self::start(bench, &[("JOBS__SWEEP_EVERY", "2s")]).await?;
        // Twice: the second time everybody goes where the number of shards now wants them.
        for _ in 0..2 {
            bulk::beat(world.service.public, audience::everybody()).await?;
            world.redis.is_swept_since(&world.redis.sweeps().await?).await?;
        }
        let Self { service, redis, postgres } = world;
        service.kill().await?;
        redis.has_been_here_for(AN_HOUR).await?;
        Self::over(bench, redis, postgres, settings).await
    }

    /// Another instance beside the service: it has noted nothing of what that one did.
    pub(crate) async fn another(&self, bench: &Bench, settings: &[(&str, &str)]) -> anyhow::Result<Service> {
        Service::headcount(bench, &settings_of(&self.redis, &self.postgres, settings)).await
    }

    /// Kills the service as a crash does; what it left in Redis stays.
    pub(crate) async fn kill_service(self) -> anyhow::Result<Redis> {
        self.service.kill().await?;
        Ok(self.redis)
    }

    /// Stops everything in order.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.service.stop().await
    }
}

/// Headcount without any server, its file in a folder of this run.
pub(crate) async fn embedded(bench: &Bench, settings: &[(&str, &str)]) -> anyhow::Result<Service> {
    let file = bench.folder.join("embedded.db");
    for file in [file.clone(), file.with_extension("db-wal"), file.with_extension("db-shm")] {
        // What an earlier run left, if it did.
        let _ = std::fs::remove_file(file);
    }
    let mut all = vec![
        ("HEADCOUNT_BACKEND".to_owned(), "embedded".to_owned()),
        ("HEADCOUNT_EMBEDDED__PATH".to_owned(), file.display().to_string()),
    ];
    all.extend(named(settings));
    Service::headcount(bench, &all).await
}

fn settings_of(redis: &Redis, postgres: &OwnPostgres, settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut all = vec![
        ("HEADCOUNT_BACKEND".to_owned(), "redis".to_owned()),
        ("HEADCOUNT_REDIS__URL".to_owned(), redis.url()),
        ("HEADCOUNT_POSTGRES__URL".to_owned(), postgres.url()),
    ];
    all.extend(named(settings));
    all
}

fn named(settings: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    settings.iter().map(|(name, value)| (format!("HEADCOUNT_{name}"), (*value).to_owned()))
}
