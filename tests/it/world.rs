//! A service's stores with a clock that a test moves, on either backend.

use std::{sync::Arc, time::Duration};

use headcount::{
    backend,
    clock::{Clock, ManualClock, Timestamp},
    config::{self, BackendKind, Config},
    error::{Part, StoreError},
    ids::{PlayId, UserId, VideoId, ViewerId},
    lifecycle::Lifecycle,
    plays::{Play, PlayCount, Recorded},
    presence::{Beat, OnlineCount},
};
pub use headcount_support::{eventually, service};
use uuid::Uuid;

use crate::rights;

/// Where every test's clock begins.
pub const NOON: Timestamp = Timestamp::from_millis(1_735_732_800_000);

/// Longer than any fact a test waits for takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The stores of one instance, and what it takes to open another over the same data.
pub struct World {
    pub stores: backend::Stores,
    pub clock: Arc<ManualClock>,
    pub config: Config,
    pub lifecycle: Lifecycle,
    folder: Arc<tempfile::TempDir>,
    /// Whether [`World::play`] waits for what a log that is counted later comes to, one play at a time.
    #[cfg(feature = "kafka")]
    pub deciding: Option<tokio::sync::Mutex<()>>,
}

/// An instance that has stopped.
pub struct Drained {
    clock: Arc<ManualClock>,
    config: Config,
    folder: Arc<tempfile::TempDir>,
}

impl Drained {
    /// Opens it again over the same data.
    pub async fn started(self) -> World {
        World::start(self.config, self.clock, self.folder).await
    }
}

impl World {
    pub async fn embedded() -> Self {
        Self::embedded_with(|_| {}).await
    }

    pub async fn redis() -> Self {
        Self::redis_with(|_| {}).await
    }

    /// As [`Self::redis`], in a Redis Cluster.
    pub async fn cluster() -> Self {
        Self::cluster_with(|_| {}).await
    }

    /// As [`Self::cluster`], each video's viewers on one node.
    pub async fn pinned() -> Self {
        Self::cluster_with(|config| config.presence.pin_video_to_slot = true).await
    }

    pub async fn cluster_with(change: impl FnOnce(&mut Config)) -> Self {
        let urls = rights::of_shared_cluster().await;
        Self::redis_with(|config| {
            config.redis.topology = config::Topology::Cluster;
            config.redis.urls = urls;
            change(config);
        })
        .await
    }

    pub async fn embedded_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::open(BackendKind::Embedded, change).await
    }

    pub async fn redis_with(change: impl FnOnce(&mut Config)) -> Self {
        Self::open(BackendKind::Redis, change).await
    }

    async fn open(kind: BackendKind, change: impl FnOnce(&mut Config)) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut config = config::load::load(None, Some(std::collections::HashMap::new())).unwrap().config;
        config.backend = kind;
        config.embedded.path = folder.path().join("headcount.db");
        // A beat is answered when it is stored, so that a test needn't wait for it.
        config.presence.ack = config::Ack::Stored;
        config.presence.linger = Duration::from_millis(10);
        config.redis.batch_min_age = Duration::ZERO;
        config.redis.deadline = Duration::from_secs(10);
        // While a test's clock stands still, no period is over.
        config.jobs.flush_every = Duration::ZERO;
        if kind == BackendKind::Redis {
            config.redis.url = config::SecretUrl::new(service("TEST_REDIS_URL"));
            config.redis.prefix = format!("{}:", Uuid::now_v7().simple());
            config.postgres.url = config::SecretUrl::new(new_database().await);
            config.postgres.max_connections = 4;
        }
        let given = (config.redis.url.clone(), config.postgres.url.clone());
        change(&mut config);
        // Each law is one that holds for users who may no more than docs/security.md says.
        if kind == BackendKind::Redis && config.redis.url.expose() == given.0.expose() {
            config.redis.url = rights::of_shared_redis().await;
        }
        if kind == BackendKind::Redis && config.postgres.url.expose() == given.1.expose() {
            rights::grant(&mut config.postgres).await;
        }
        Self::start(config, ManualClock::at(NOON), folder).await
    }

    async fn start(config: Config, clock: Arc<ManualClock>, folder: Arc<tempfile::TempDir>) -> Self {
        let lifecycle = Lifecycle::new(Duration::ZERO, PATIENCE);
        let stores = backend::open(&config, &lifecycle, clock.clone()).await.unwrap();
        let world = Self {
            stores,
            clock,
            #[cfg(feature = "kafka")]
            deciding: config
                .kafka
                .consume
                .then(tokio::sync::Mutex::default)
                .filter(|_| config.kafka.is_used()),
            config,
            lifecycle,
            folder,
        };
        eventually("the stores are there", async || {
            let health = world.stores.health.check().await;
            health.failed.is_empty() && health.degraded.is_empty()
        })
        .await;
        world
    }

    /// Ends this instance's tasks and their connections; what is in the stores stays.
    pub async fn stop(&self) {
        self.lifecycle.stop();
        self.lifecycle.run().await;
    }

    /// Another instance over the same data, with the same clock.
    pub async fn another(&self) -> Self {
        self.another_with(|_| {}).await
    }

    /// Another instance over the same data, with other settings: another way to Redis, say.
    pub async fn another_with(&self, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = self.config.clone();
        change(&mut config);
        Self::start(config, self.clock.clone(), self.folder.clone()).await
    }

    /// Stops this instance as SIGTERM does and opens it again over the same data.
    pub async fn restarted(self) -> Self {
        self.drained().await.started().await
    }

    /// Stops this instance as SIGTERM does.
    pub async fn drained(self) -> Drained {
        for job in &self.stores.jobs {
            job.finish().await;
        }
        self.stop().await;
        let Self { stores, clock, config, folder, .. } = self;
        drop(stores);
        Drained { clock, config, folder }
    }

    /// Opens what the next process finds where this one is killed now. Embedded only.
    pub async fn killed(self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["headcount.db", "headcount.db-wal"] {
            std::fs::copy(self.folder.path().join(name), folder.path().join(name)).unwrap();
        }
        // What this one still does is done to a file that nobody looks at.
        let Drained { clock, mut config, .. } = self.drained().await;
        config.embedded.path = folder.path().join("headcount.db");
        Self::start(config, clock, Arc::new(folder)).await
    }

    /// The same world with other settings.
    pub async fn changed(self, change: impl FnOnce(&mut Config)) -> Self {
        let mut world = self;
        change(&mut world.config);
        world.restarted().await
    }

    pub fn is_redis(&self) -> bool {
        self.config.backend == BackendKind::Redis
    }

    pub fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Lets minutes pass with a sweep in each, as they do in a healthy service.
    pub async fn pass_swept(&self, minutes: u32) {
        for _ in 0..minutes {
            self.clock.advance(secs(60));
            self.sweep().await;
        }
    }

    /// Lets time pass until nothing that was read before is served again.
    pub fn forget_what_was_read(&self) {
        self.clock.advance(Duration::from_secs(6));
    }

    pub async fn try_beat(&self, video: &str, viewer: &str) -> Result<u64, StoreError> {
        self.stores.presence.beat(beat(video, viewer)).await
    }

    pub async fn beat(&self, video: &str, viewer: &str) -> u64 {
        self.try_beat(video, viewer).await.unwrap()
    }

    /// Beats of many viewers.
    pub async fn beat_all(&self, video: &str, viewers: impl IntoIterator<Item = u32>) {
        let beats = viewers.into_iter().map(|viewer| beat(video, &format!("viewer-{viewer}"))).collect();
        for result in self.stores.presence.beat_many(beats).await {
            result.unwrap();
        }
    }

    pub async fn leave(&self, video: &str, viewer: &str) -> OnlineCount {
        self.stores.presence.leave(beat(video, viewer)).await.unwrap()
    }

    /// What a page is told.
    pub async fn online(&self, video: &str) -> OnlineCount {
        self.stores.presence.online(&[video_id(video)]).await[0]
    }

    /// The number after a sweep, read anew.
    pub async fn swept_count(&self, video: &str) -> Option<u64> {
        self.sweep().await;
        self.forget_what_was_read();
        let count = self.online(video).await;
        assert!(!count.stale, "{count:?} right after a sweep");
        count.online
    }

    /// One sweep of everything, whoever made the last.
    pub async fn sweep(&self) {
        if self.is_redis() {
            for partition in 0..16 {
                let lock = self.key(&format!("task:lock:sweep:{{{partition}}}"));
                self.redis_command::<i64>(redis::cmd("DEL").arg(lock)).await;
            }
        }
        assert!(self.run_jobs("sweep").await > 0);
    }

    /// Moves all plays to the database, where that is another place.
    pub async fn flush(&self) {
        if self.is_redis() {
            assert!(self.run_jobs("flush").await > 0);
        }
    }

    /// Runs the jobs of that name once each and tells how many there are.
    pub async fn run_jobs(&self, name: &str) -> usize {
        let jobs: Vec<_> = self.stores.jobs.iter().filter(|job| job.name() == name).collect();
        for job in &jobs {
            job.run().await.unwrap();
        }
        jobs.len()
    }

    pub async fn play(&self, video: &str, viewer: Option<&str>, play: Option<&str>) -> Recorded {
        #[cfg(feature = "kafka")]
        if let Some(deciding) = &self.deciding {
            let _one_at_a_time = deciding.lock().await;
            return self.play_decided(a_play(video, viewer, play)).await;
        }
        self.stores.plays.record(a_play(video, viewer, play)).await.unwrap()
    }

    pub async fn plays(&self, video: &str) -> PlayCount {
        self.stores.plays.counts(&[video_id(video)]).await[0]
    }

    /// Sends a command to this world's Redis, in a cluster to whoever has its keys.
    pub async fn redis_command<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let mut answers = Vec::new();
        for url in self.redis_urls().await {
            let mut connection = headcount_support::redis_connection(&url).await.unwrap();
            match command.query_async(&mut connection).await {
                Err(error) if error.code() == Some("MOVED") => answers.push(error),
                answer => return answer.unwrap(),
            }
        }
        panic!("nobody has the keys: {answers:?}")
    }

    /// Every primary.
    async fn redis_urls(&self) -> Vec<String> {
        match self.config.redis.topology {
            config::Topology::Cluster => {
                self.config.redis.urls.iter().map(|url| rights::as_owner(url, "TEST_REDIS_URL")).collect()
            }
            config::Topology::Sentinel => vec![self.named_by_sentinels().await],
            config::Topology::Single => vec![rights::as_owner(&self.config.redis.url, "TEST_REDIS_URL")],
        }
    }

    /// The primary, with the user and password by which the service comes.
    async fn named_by_sentinels(&self) -> String {
        let mut told = None;
        eventually("a sentinel names the primary", async || {
            for url in &self.config.redis.urls {
                let name = &self.config.redis.sentinel_master;
                told = headcount_support::own_sentinels::primary_by(url.expose(), name).await.ok();
                if told.is_some() {
                    break;
                }
            }
            told.is_some()
        })
        .await;
        let (host, port) = told.unwrap();
        let mut url = url::Url::parse(self.config.redis.url.expose()).unwrap();
        url.set_host(Some(&host)).unwrap();
        url.set_port(Some(port)).unwrap();
        url.to_string()
    }

    /// A connection of who may do everything with this world's Redis, which is one server.
    pub async fn redis_connection(&self) -> redis::aio::MultiplexedConnection {
        headcount_support::redis_connection(&self.redis_urls().await[0]).await.unwrap()
    }

    /// A connection of who owns this world's database.
    pub async fn database(&self) -> sqlx::PgConnection {
        use sqlx::Connection as _;

        let url = rights::as_owner(&self.config.postgres.url, "TEST_POSTGRES_URL");
        sqlx::PgConnection::connect(&url).await.unwrap()
    }

    /// Every key of this world, without the prefix.
    pub async fn redis_keys(&self) -> Vec<String> {
        let prefix = &self.config.redis.prefix;
        let mut keys: Vec<String> = Vec::new();
        for url in self.redis_urls().await {
            let mut connection = headcount_support::redis_connection(&url).await.unwrap();
            let mut all = redis::cmd("KEYS");
            let some: Vec<String> = all.arg(format!("{prefix}*")).query_async(&mut connection).await.unwrap();
            keys.extend(some);
        }
        keys.sort();
        keys.into_iter().map(|key| key[prefix.len()..].to_owned()).collect()
    }

    /// The key of a viewer's shard, where the number of shards is fixed or there is one.
    pub fn shard_key(&self, video: &str, viewer: &str) -> String {
        let shards = match self.config.presence.shards {
            config::Shards::Auto => 1,
            config::Shards::Fixed(shards) => shards,
        };
        let shard = viewer_id(viewer).hash64() & u64::from(shards - 1);
        let video =
            if self.config.presence.pin_video_to_slot { format!("{{{video}}}") } else { video.to_owned() };
        self.key(&format!("video:online:{video}:{shard}"))
    }

    /// A folder of this world's own.
    #[cfg(feature = "kafka")]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// A key with the prefix.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.config.redis.prefix)
    }
}

/// What an instance with these settings says is wrong with its Redis, once `text` is in it.
pub async fn complaint(config: &Config, clock: Arc<dyn Clock>, text: &str) -> String {
    let lifecycle = Lifecycle::new(Duration::ZERO, PATIENCE);
    let stores = backend::open(config, &lifecycle, clock).await.unwrap();
    let mut said = String::new();
    eventually("it says why", async || {
        let failed = stores.health.check().await.failed;
        let ours = failed.iter().find(|error| error.part() == Part::Redis);
        said = ours.map(ToString::to_string).unwrap_or_default();
        // Before the first attempt has failed, that is all there is to say.
        !said.ends_with("no connection") && !said.is_empty() && said.contains(text)
    })
    .await;
    lifecycle.stop();
    lifecycle.run().await;
    said
}

/// The variables by which a process finds that Redis.
pub fn ways_to_redis(redis: &config::Redis) -> Vec<(&'static str, String)> {
    let urls: Vec<&str> = redis.urls.iter().map(config::SecretUrl::expose).collect();
    let topology = match redis.topology {
        config::Topology::Single => "single",
        config::Topology::Sentinel => "sentinel",
        config::Topology::Cluster => "cluster",
    };
    vec![
        ("HEADCOUNT_REDIS__TOPOLOGY", topology.to_owned()),
        ("HEADCOUNT_REDIS__URL", redis.url.expose().to_owned()),
        ("HEADCOUNT_REDIS__URLS", urls.join(",")),
    ]
}

pub fn video_id(video: &str) -> VideoId {
    VideoId::parse(video).unwrap()
}

pub fn viewer_id(viewer: &str) -> ViewerId {
    ViewerId::of_user(&UserId::parse(viewer).unwrap())
}

pub fn beat(video: &str, viewer: &str) -> Beat {
    Beat { video: video_id(video), viewer: viewer_id(viewer) }
}

pub fn a_play(video: &str, viewer: Option<&str>, play: Option<&str>) -> Play {
    Play {
        video: video_id(video),
        viewer: viewer.map(viewer_id),
        play_id: play.map(|play| PlayId::parse(play).unwrap()),
    }
}

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A database of its own for one test.
pub async fn new_database() -> String {
    use sqlx::{Connection, Executor};

    let server = service("TEST_POSTGRES_URL");
    let name = format!("test_{}", Uuid::now_v7().simple());
    let mut connection = sqlx::PgConnection::connect(&server).await.unwrap();
    let create = sqlx::AssertSqlSafe(format!("create database {name}"));
    connection.execute(create).await.unwrap();
    connection.close().await.unwrap();
    let mut url = url::Url::parse(&server).unwrap();
    url.set_path(&name);
    url.to_string()
}
