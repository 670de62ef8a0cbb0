//! The one connection to Redis: multiplexed, kept alive by a task of its own, every call with a deadline.
//! To a cluster it is one to each primary.
//!
//! redis-rs pipelines what is sent on a multiplexed connection at the same time, so a pool in front
//! of it only costs. A connection that broke or didn't answer in time is dropped and made anew;
//! calls fail at once meanwhile. Each connection has an epoch: what was learnt on one (what is
//! registered, what is in the data) may be untrue on the next.
//!
//! redis-rs has clients for clusters and sentinels of its own, which hide what is needed here: which run of
//! which server answered, that a connection is another one by now, that `WAIT` goes the way of the writes
//! before it, and what of a pipeline was not answered.

pub mod address;
mod cluster;
mod cluster_keeper;
mod connection;
mod keeper;
mod node;
mod replicas;
mod reply;
mod servers;
mod slots;
#[cfg(test)]
mod tests;
mod turns;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use parking_lot::Mutex;
use redis::AsyncConnectionConfig;
use tokio::sync::{Notify, watch};

pub(crate) use self::slots::slot_of;
pub use self::{
    connection::Connection,
    replicas::{Replicas, Sent, Unvouched, WaitFor},
    reply::{is_unheard, refusal, reply},
    servers::primaries,
    turns::Turn,
};
use self::{connection::Live, servers::Servers};
use super::{keys::Keys, script::LuaScript, time::StoreClock};
use crate::{
    clock::millis,
    config,
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
};

/// Without Redis for longer, what it holds may lack beats that players sent meanwhile.
pub const LONG_OUTAGE: Duration = Duration::from_secs(2);

/// The way to Redis. Clones share the connection.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    way: Way,
    current: ArcSwapOption<Live>,
    /// Why there is no connection, where one was tried for.
    failure: ArcSwapOption<String>,
    /// Kept beside the first: that one tells of outages and of the time, and is greeted.
    beside: bool,
    epoch: watch::Sender<u64>,
    broke: Notify,
    greeters: Mutex<Vec<Arc<dyn Greeter>>>,
    turns: turns::Turns,
    /// Monotonic milliseconds of the last answer.
    answered: AtomicU64,
    /// Monotonic milliseconds plus one at which the last long outage ended; 0 for none.
    outage_over: AtomicU64,
}

/// What every connection of a way has in common.
#[derive(Clone)]
struct Way {
    servers: Servers,
    connect: AsyncConnectionConfig,
    deadline: Duration,
    keys: Keys,
    clock: Arc<StoreClock>,
    scripts: Vec<&'static LuaScript>,
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
    /// `url` is no Redis address, or certificates can't be used.
    pub fn new(
        settings: &config::Redis,
        keys: Keys,
        clock: Arc<StoreClock>,
        scripts: Vec<&'static LuaScript>,
    ) -> Result<Self, StoreError> {
        let servers = Servers::new(settings)?;
        let connect = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(settings.connect_timeout))
            // Every call has its own deadline around it, which counts the wait to be sent as well.
            .set_response_timeout(None);
        let deadline = settings.deadline;
        Ok(Self::of(Way { servers, connect, deadline, keys, clock, scripts }, false))
    }

    fn of(way: Way, beside: bool) -> Self {
        let shared = Shared {
            way,
            current: ArcSwapOption::empty(),
            failure: ArcSwapOption::empty(),
            beside,
            epoch: watch::Sender::new(0),
            broke: Notify::new(),
            greeters: Mutex::default(),
            turns: turns::Turns::new(),
            answered: AtomicU64::new(0),
            outage_over: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// One more way to the same server, with a connection of its own that nobody else's calls go by:
    /// for calls that hold up whatever comes behind them. Started here.
    fn beside(&self, lifecycle: &Lifecycle) -> Self {
        let beside = Self::of(self.shared.way.clone(), true);
        beside.start(lifecycle);
        beside
    }

    /// Adds one who speaks first on every connection. Before [`Redis::start`].
    pub fn greet_with(&self, greeter: Arc<dyn Greeter>) {
        self.shared.greeters.lock().push(greeter);
    }

    /// Starts the task that makes the connection and keeps it.
    pub fn start(&self, lifecycle: &Lifecycle) {
        self.shared.answered.store(millis(self.shared.way.clock.monotonic()), Ordering::Relaxed);
        let keeper = self.clone();
        let stopping = lifecycle.stopping(Phase::Links);
        let name = if self.shared.beside { "redis-link-beside" } else { "redis-link" };
        let dismiss = DismissGreeters(self.shared.clone());
        lifecycle.spawn(Phase::Links, name, async move {
            let _at_the_end = dismiss;
            stopping.run_until_cancelled(keeper.keep()).await;
        });
    }

    /// The connection, if there is one.
    ///
    /// # Errors
    /// There is none just now; the keeper is making one.
    pub fn connection(&self) -> Result<Connection, StoreError> {
        match self.shared.current.load_full() {
            Some(live) if !live.is_broken() => Ok(Connection { live, shared: self.shared.clone() }),
            _ => Err(self.shared.no_connection()),
        }
    }

    /// [`Redis::connection`] for who only wants to know whether there is one.
    ///
    /// # Errors
    /// There is none just now.
    pub fn check_connected(&self) -> Result<(), StoreError> {
        match &*self.shared.current.load() {
            Some(live) if !live.is_broken() => Ok(()),
            _ => Err(self.shared.no_connection()),
        }
    }

    /// Whether keys of different slots are on different servers: then all keys of a call must be of one.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.shared.way.servers.is_cluster()
    }

    /// The keys of this deployment.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.shared.way.keys
    }

    /// Redis's time.
    #[must_use]
    pub fn clock(&self) -> &Arc<StoreClock> {
        &self.shared.way.clock
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
        Some(self.shared.way.clock.monotonic().saturating_sub(Duration::from_millis(over)))
    }
}

/// Whoever greets holds the way to Redis, which holds it: dropped with the task that keeps the way, or
/// neither would ever be.
struct DismissGreeters(Arc<Shared>);

impl Drop for DismissGreeters {
    fn drop(&mut self) {
        let greeters = std::mem::take(&mut *self.0.greeters.lock());
        drop(greeters);
    }
}

impl Shared {
    fn no_connection(&self) -> StoreError {
        match self.failure.load().as_deref() {
            Some(reason) => StoreError::unavailable(Part::Redis, format!("no connection: {reason}")),
            None => StoreError::unavailable(Part::Redis, "no connection"),
        }
    }

    /// An answer of one node of several says nothing of the others: whoever keeps those says it.
    fn note_answer_of_one(&self) {
        if !self.way.servers.is_cluster() {
            self.note_answer();
        }
    }

    fn note_answer(&self) {
        self.answered.store(millis(self.way.clock.monotonic()), Ordering::Relaxed);
    }

    fn note_end_of_outage(&self) {
        let now = millis(self.way.clock.monotonic());
        let before = self.answered.swap(now, Ordering::Relaxed);
        // The first connection of a process ends no outage: it has missed no beats.
        if *self.epoch.borrow() > 0 && now.saturating_sub(before) > millis(LONG_OUTAGE) {
            self.outage_over.store(now + 1, Ordering::Relaxed);
        }
    }
}

/// The value of `name:value` in an answer to `INFO`.
#[must_use]
pub fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
