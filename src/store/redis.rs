//! The one connection to Redis: multiplexed, kept alive by a task of its own, every call with a deadline.
//!
//! redis-rs pipelines what is sent on a multiplexed connection at the same time, so a pool in front
//! of it only costs. A connection that broke or didn't answer in time is dropped and made anew;
//! calls fail at once meanwhile. Each connection has an epoch: what was learnt on one (what is
//! registered, what is in the data) may be untrue on the next.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use parking_lot::Mutex;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, Value, aio::MultiplexedConnection};
use tokio::sync::{Notify, watch};

use super::{keys::Keys, script::LuaScript, time::StoreClock};
use crate::{
    clock::Timestamp,
    config,
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
};

/// How often the keeper looks whether an idle connection still answers, and what time it is there.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long the keeper waits after a failed attempt: well again at most a second after Redis is.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_millis(500);

/// Without Redis for longer, what it holds may lack beats that players sent meanwhile.
pub const LONG_OUTAGE: Duration = Duration::from_secs(2);

/// The way to Redis. Clones share the connection.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    client: redis::Client,
    connect: AsyncConnectionConfig,
    deadline: Duration,
    keys: Keys,
    clock: Arc<StoreClock>,
    scripts: Vec<&'static LuaScript>,
    current: ArcSwapOption<Live>,
    epoch: watch::Sender<u64>,
    broke: Notify,
    greeters: Mutex<Vec<Arc<dyn Greeter>>>,
    /// Monotonic milliseconds of the last answer.
    answered: AtomicU64,
    /// Monotonic milliseconds plus one at which the last long outage ended; 0 for none.
    outage_over: AtomicU64,
}

struct Live {
    epoch: u64,
    run_id: Arc<str>,
    inner: MultiplexedConnection,
    broken: AtomicBool,
}

/// Who has something to say to Redis first thing on every connection.
#[async_trait]
pub trait Greeter: Send + Sync {
    /// Runs before anybody else uses the connection; an error drops it.
    async fn greet(&self, connection: &Connection) -> Result<(), StoreError>;
}

impl Redis {
    /// Prepares the way; nothing is sent before [`Redis::start`].
    ///
    /// # Errors
    /// `url` is no Redis address.
    pub fn new(
        settings: &config::Redis,
        clock: Arc<StoreClock>,
        scripts: Vec<&'static LuaScript>,
    ) -> Result<Self, StoreError> {
        crate::tls::choose_provider();
        let client = redis::Client::open(settings.url.expose())
            // The error's own text may repeat the URL, and the URL may hold a password.
            .map_err(|error| {
                StoreError::unexpected(Part::Redis, format!("redis.url: {}", error.category()))
            })?;
        let connect = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(settings.connect_timeout))
            // Every call has its own deadline around it, which counts the wait to be sent as well.
            .set_response_timeout(None);
        Ok(Self {
            shared: Arc::new(Shared {
                client,
                connect,
                deadline: settings.deadline,
                keys: Keys::new(&settings.prefix),
                clock,
                scripts,
                current: ArcSwapOption::empty(),
                epoch: watch::Sender::new(0),
                broke: Notify::new(),
                greeters: Mutex::default(),
                answered: AtomicU64::new(0),
                outage_over: AtomicU64::new(0),
            }),
        })
    }

    /// Adds one who speaks first on every connection. Before [`Redis::start`].
    pub fn greet_with(&self, greeter: Arc<dyn Greeter>) {
        self.shared.greeters.lock().push(greeter);
    }

    /// Starts the task that makes the connection and keeps it.
    pub fn start(&self, lifecycle: &Lifecycle) {
        self.shared.answered.store(millis(self.shared.clock.monotonic()), Ordering::Relaxed);
        let keeper = self.clone();
        let stopping = lifecycle.stopping(Phase::Links);
        lifecycle.spawn(Phase::Links, "redis-link", async move {
            stopping.run_until_cancelled(keeper.keep()).await;
        });
    }

    /// The connection, if there is one.
    ///
    /// # Errors
    /// There is none just now; the keeper is making one.
    pub fn connection(&self) -> Result<Connection, StoreError> {
        match self.shared.current.load_full() {
            Some(live) if !live.broken.load(Ordering::Relaxed) => {
                Ok(Connection { live, shared: self.shared.clone() })
            }
            _ => Err(StoreError::unavailable(Part::Redis, "no connection")),
        }
    }

    /// The keys of this deployment.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.shared.keys
    }

    /// Redis's time.
    #[must_use]
    pub fn clock(&self) -> &Arc<StoreClock> {
        &self.shared.clock
    }

    /// Changes with every new connection.
    #[must_use]
    pub fn epochs(&self) -> watch::Receiver<u64> {
        self.shared.epoch.subscribe()
    }

    /// How long ago the last outage of over [`LONG_OUTAGE`] ended, if there was one.
    #[must_use]
    pub fn since_long_outage(&self) -> Option<Duration> {
        let over = self.shared.outage_over.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.shared.clock.monotonic().saturating_sub(Duration::from_millis(over)))
    }

    async fn keep(self) {
        let mut wait = RETRY_FIRST;
        let mut told = false;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    if told {
                        tracing::info!("redis is back");
                    }
                    (wait, told) = (RETRY_FIRST, false);
                    self.watch(&connection).await;
                }
                Err(error) => {
                    if !told {
                        told = true;
                        tracing::warn!(error = %error, "redis can't be used; trying on");
                    }
                }
            }
            self.shared.current.store(None);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
    }

    /// Makes a connection fit for use: to a primary, loaded, greeted.
    async fn connect(&self) -> Result<Connection, StoreError> {
        let shared = &self.shared;
        let inner = shared
            .client
            .get_multiplexed_async_connection_with_config(&shared.connect)
            .await
            .map_err(|error| StoreError::unavailable(Part::Redis, error))?;
        let mut connection = Connection {
            live: Arc::new(Live { epoch: 0, run_id: "".into(), inner, broken: AtomicBool::new(false) }),
            shared: shared.clone(),
        };
        let [server, role] = connection.pipe_array([info("server"), info("replication")]).await?;
        let role: String = reply(role)?;
        if info_field(&role, "role") == Some("slave") {
            return Err(StoreError::unavailable(Part::Redis, "it is a replica and takes no writes"));
        }
        let server: String = reply(server)?;
        let run_id = info_field(&server, "run_id").unwrap_or("unknown").into();
        connection.load_scripts().await?;
        connection.observe_time().await?;

        let epoch = *shared.epoch.borrow() + 1;
        let inner = connection.live.inner.clone();
        connection.live = Arc::new(Live { epoch, run_id, inner, broken: AtomicBool::new(false) });
        let greeters = shared.greeters.lock().clone();
        for greeter in greeters {
            greeter.greet(&connection).await?;
        }
        shared.note_end_of_outage();
        shared.current.store(Some(connection.live.clone()));
        shared.epoch.send_replace(epoch);
        Ok(connection)
    }

    /// Returns when the connection can't be used any more.
    async fn watch(&self, connection: &Connection) {
        while !connection.is_broken() {
            let broke = tokio::time::timeout(PROBE_EVERY, self.shared.broke.notified()).await.is_ok();
            if !broke && connection.observe_time().await.is_err() {
                connection.give_up("the probe failed");
            }
        }
    }
}

impl Shared {
    fn note_answer(&self) {
        self.answered.store(millis(self.clock.monotonic()), Ordering::Relaxed);
    }

    fn note_end_of_outage(&self) {
        let now = millis(self.clock.monotonic());
        let before = self.answered.swap(now, Ordering::Relaxed);
        // The first connection of a process ends no outage: it has missed no beats.
        if *self.epoch.borrow() > 0 && now.saturating_sub(before) > millis(LONG_OUTAGE) {
            self.outage_over.store(now + 1, Ordering::Relaxed);
        }
    }
}

/// One connection to Redis. It may break at any time; it never becomes another one.
#[derive(Clone)]
pub struct Connection {
    live: Arc<Live>,
    shared: Arc<Shared>,
}

impl Connection {
    /// Which connection this is; later ones have greater numbers.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.live.epoch
    }

    /// Which run of which Redis server is behind it.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.live.run_id
    }

    /// Whether it is of no more use.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.live.broken.load(Ordering::Relaxed)
    }

    /// Sends commands together and returns a value for each, in order. A command that Redis
    /// refused has a [`Value::ServerError`] in its place (see [`reply`]) and doesn't touch the
    /// others. Scripts that Redis has lost are loaded and called again.
    ///
    /// # Errors
    /// No answer within the deadline, or the connection broke: what happened to the commands is
    /// unknown.
    pub async fn pipe(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let sent = self.send(&commands);
        let mut values = match tokio::time::timeout(self.shared.deadline, sent).await {
            Ok(result) => result?,
            Err(_elapsed) => return Err(self.give_up("no answer within redis.deadline")),
        };
        let lost: Vec<usize> = (0..values.len())
            .filter(|index| server_error_code(&values[*index]) == Some("NOSCRIPT"))
            .collect();
        if !lost.is_empty() {
            let again: Vec<Cmd> = lost.iter().map(|index| commands[*index].clone()).collect();
            let resent = async {
                self.load_scripts().await?;
                self.send(&again).await
            };
            match tokio::time::timeout(self.shared.deadline, resent).await {
                Ok(result) => {
                    for (index, value) in lost.into_iter().zip(result?) {
                        values[index] = value;
                    }
                }
                Err(_elapsed) => return Err(self.give_up("no answer within redis.deadline")),
            }
        }
        // The socket of a server that was demoted or shut its doors stays open: leave it.
        if values.iter().any(|value| matches!(server_error_code(value), Some("READONLY" | "NOAUTH"))) {
            self.give_up("it no longer takes writes from this connection");
        }
        Ok(values)
    }

    /// [`Connection::pipe`] for a number of commands known beforehand.
    ///
    /// # Errors
    /// As [`Connection::pipe`].
    pub async fn pipe_array<const N: usize>(&self, commands: [Cmd; N]) -> Result<[Value; N], StoreError> {
        let values = self.pipe(commands.into()).await?;
        values.try_into().map_err(|_| StoreError::unexpected(Part::Redis, "a pipeline answered too little"))
    }

    /// Sends one command and reads its answer.
    ///
    /// # Errors
    /// As [`Connection::pipe`], and where Redis refused the command.
    pub async fn query<T: FromRedisValue>(&self, command: Cmd) -> Result<T, StoreError> {
        let [value] = self.pipe_array([command]).await?;
        reply(value)
    }

    async fn send(&self, commands: &[Cmd]) -> Result<Vec<Value>, StoreError> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let mut inner = self.live.inner.clone();
        let values = inner
            .send_packed_commands(&pipeline, 0, commands.len())
            .await
            .map_err(|error| self.give_up(&error.to_string()))?;
        if values.len() != commands.len() {
            return Err(self.give_up("a pipeline answered too little"));
        }
        self.shared.note_answer();
        Ok(values)
    }

    async fn load_scripts(&self) -> Result<(), StoreError> {
        let loads: Vec<Cmd> = self
            .shared
            .scripts
            .iter()
            .map(|script| {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.source());
                load
            })
            .collect();
        if loads.is_empty() {
            return Ok(());
        }
        let loaded = tokio::time::timeout(self.shared.deadline, self.send(&loads)).await;
        let values = loaded.map_err(|_elapsed| self.give_up("no answer within redis.deadline"))??;
        for value in values {
            reply::<String>(value)?;
        }
        Ok(())
    }

    async fn observe_time(&self) -> Result<(), StoreError> {
        let asked = self.shared.clock.monotonic();
        let (secs, micros): (i64, i64) = self.query(redis::cmd("TIME")).await?;
        let round_trip = self.shared.clock.monotonic().saturating_sub(asked);
        let told = Timestamp::from_millis(secs.saturating_mul(1_000).saturating_add(micros / 1_000));
        self.shared.clock.observe(told, round_trip);
        Ok(())
    }

    /// Marks the connection as broken and wakes the keeper.
    fn give_up(&self, reason: &str) -> StoreError {
        if !self.live.broken.swap(true, Ordering::Relaxed) {
            tracing::debug!(redis.reason = reason, "dropping the connection to redis");
            self.shared.broke.notify_one();
        }
        StoreError::unavailable(Part::Redis, reason)
    }
}

/// Reads one value of a pipeline's answer.
///
/// # Errors
/// Redis refused the command, or answered with something else than `T`.
pub fn reply<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    if let Value::ServerError(error) = &value {
        return Err(refusal(&format!("{} {}", error.code(), error.details().unwrap_or_default())));
    }
    redis::from_redis_value(value).map_err(|error| StoreError::unexpected(Part::Redis, error))
}

/// What it means that Redis refused with `text`, whose first word is the code; for the errors that a
/// script hands on.
#[must_use]
pub fn refusal(text: &str) -> StoreError {
    if is_passing(text.split_whitespace().next().unwrap_or_default()) {
        StoreError::unavailable(Part::Redis, text)
    } else {
        StoreError::unexpected(Part::Redis, text)
    }
}

/// Whether Redis, having refused with this code, may say yes later.
fn is_passing(code: &str) -> bool {
    matches!(
        code,
        "OOM"
            | "READONLY"
            | "LOADING"
            | "BUSY"
            | "MASTERDOWN"
            | "MISCONF"
            | "NOREPLICAS"
            | "NOSCRIPT"
            | "NOAUTH"
            | "WRONGPASS"
            | "CLUSTERDOWN"
            | "TRYAGAIN"
            | "MOVED"
            | "ASK"
    )
}

fn server_error_code(value: &Value) -> Option<&str> {
    match value {
        Value::ServerError(error) => Some(error.code()),
        _ => None,
    }
}

fn info(section: &str) -> Cmd {
    let mut command = redis::cmd("INFO");
    command.arg(section);
    command
}

/// The value of `name:value` in an answer to `INFO`.
#[must_use]
pub fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
