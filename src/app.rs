//! The whole program as a function: settings, listeners, lifecycle and clock come in, so that a test
//! runs what production runs.
//!
//! What starts here stops in the order of `lifecycle::Phase`: listeners, writers, jobs, connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::net::TcpListener;

use crate::{
    api::{self, AppState, Parts},
    backend::{self, Stores},
    clock::Clock,
    config::{BackendKind, Config},
    doctor, jobs,
    jobs::{Job, Watch},
    lifecycle::{Lifecycle, Phase, Stopped},
    plays::Plays,
    presence::Presence,
    server::{
        self, Door,
        pressure::{self, Gate, Pulse, Queue},
    },
    telemetry::metrics::{Metrics, Upkeep},
    videos::Catalog,
};

/// What operators have under way when everything else has stopped: a scrape, a probe.
const OPERATORS_PATIENCE: Duration = Duration::from_secs(1);

/// Scrapes and people at a time.
const OPERATORS_CONNECTIONS: usize = 128;

/// The two sockets.
#[derive(Debug)]
pub struct Listeners {
    /// For players and pages.
    pub public: TcpListener,
    /// For operators.
    pub ops: TcpListener,
}

impl Listeners {
    /// Listens at the addresses of the settings.
    ///
    /// # Errors
    /// One of them can't be had.
    pub async fn bind(config: &Config) -> anyhow::Result<Self> {
        let public = listen("server.listen", config.server.listen).await?;
        Ok(Self { public, ops: Self::for_operators(config).await? })
    }

    /// Listens at the operators' address alone.
    ///
    /// # Errors
    /// It can't be had.
    pub async fn for_operators(config: &Config) -> anyhow::Result<TcpListener> {
        listen("ops.listen", config.ops.listen).await
    }
}

async fn listen(setting: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{setting}: can't listen at {address}"))
}

/// Runs the service until `lifecycle` is asked to stop, and tells how it ended.
///
/// # Errors
/// The stores can't be opened; nothing was taken.
pub async fn serve(
    config: Config,
    listeners: Listeners,
    lifecycle: Lifecycle,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
) -> anyhow::Result<Stopped> {
    let draining = lifecycle.draining();
    let Some(stores) = open(&config, &lifecycle, clock.clone()).await? else {
        return Ok(lifecycle.run().await);
    };

    let watch = Watch::default();
    let mut jobs = stores.jobs.clone();
    jobs.push(Arc::new(Upkeep::of(&metrics)));
    if config.backend == BackendKind::Redis {
        jobs.push(Arc::new(doctor::Watching::new(&config, clock.clone(), draining.clone())) as Arc<dyn Job>);
    }
    for job in jobs {
        jobs::start(&lifecycle, &watch, job);
    }

    let gate = Arc::new(Gate::new(config.server.max_delay));
    let queues = queues(&stores.presence, &stores.plays);
    let presence = stores.presence.clone();
    let press = move |pressure| {
        presence.press(pressure);
        presence.next_heartbeat()
    };
    // To the end, as a drain may be the time of the highest pressure.
    let pulse = Pulse::new(config.presence.heartbeat_every, config.presence.window);
    let watching = pressure::watch(gate.clone(), queues, pulse, press, lifecycle.stopping(Phase::Links));
    lifecycle.spawn(Phase::Links, "pressure", watching);
    let door = door(&config, connections(&config), Some(gate));
    let state = state(&config, stores, watch, &lifecycle, clock);
    announce(&config, &listeners)?;
    lifecycle.spawn(
        Phase::Http,
        "http",
        server::serve(
            listeners.public,
            api::public(state.clone()),
            door,
            lifecycle.stopping(Phase::Http),
            patience(&config),
        ),
    );
    operate(listeners.ops, &config, state, &metrics, &lifecycle);
    Ok(lifecycle.run().await)
}

/// Counts what is in Kafka's log until `lifecycle` is asked to stop. Only operators are served.
///
/// # Errors
/// The stores can't be opened.
#[cfg(feature = "kafka")]
pub async fn consume(
    config: Config,
    ops: TcpListener,
    lifecycle: Lifecycle,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
) -> anyhow::Result<Stopped> {
    let Some(stores) = open(&config, &lifecycle, clock.clone()).await? else {
        return Ok(lifecycle.run().await);
    };
    let watch = Watch::default();
    // What else there is to do is done by those who serve.
    jobs::start(&lifecycle, &watch, Arc::new(Upkeep::of(&metrics)));
    let ops_listen = ops.local_addr().context("ops.listen is gone")?;
    tracing::info!(
        ops.listen = %ops_listen,
        "headcount {} counts the plays in kafka's log, and listens for operators at http://{ops_listen}",
        env!("CARGO_PKG_VERSION")
    );
    operate(ops, &config, state(&config, stores, watch, &lifecycle, clock), &metrics, &lifecycle);
    Ok(lifecycle.run().await)
}

/// Opens the stores; `None` where the service is asked to stop meanwhile: they may take their time, and a
/// stop doesn't wait for them.
async fn open(
    config: &Config,
    lifecycle: &Lifecycle,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Option<Stores>> {
    let opening = backend::open(config, lifecycle, clock);
    let opened = lifecycle.draining().run_until_cancelled(opening).await.transpose();
    opened
        .inspect_err(|_| lifecycle.abandon())
        .with_context(|| format!("can't open the {} backend", config.backend.name()))
}

fn state(
    config: &Config,
    stores: Stores,
    jobs: Watch,
    lifecycle: &Lifecycle,
    clock: Arc<dyn Clock>,
) -> AppState {
    AppState::new(Parts {
        presence: stores.presence,
        plays: stores.plays,
        videos: Catalog::new(stores.videos, config.videos.unknown, clock.clone()),
        audit: stores.audit,
        health: stores.health,
        jobs,
        draining: lifecycle.draining(),
        clock,
        identity: config.presence.identity,
        window: config.presence.window,
        request_timeout: config.server.request_timeout,
        body_timeout: config.server.body_timeout,
    })
}

/// Serves operators, up until the end, so that probes and scrapes see the drain.
fn operate(ops: TcpListener, config: &Config, state: AppState, metrics: &Metrics, lifecycle: &Lifecycle) {
    let door = door(config, OPERATORS_CONNECTIONS, None);
    let routes = api::operators(state, metrics.renderer());
    let stopping = lifecycle.stopping(Phase::Links);
    let serving = server::serve(ops, routes, door, stopping, OPERATORS_PATIENCE);
    lifecycle.spawn(Phase::Links, "operators-http", serving);
}

/// How many connections players and pages may have.
fn connections(config: &Config) -> usize {
    let stores = match config.backend {
        // The audit has one of its own.
        BackendKind::Redis => config.postgres.max_connections as usize + 1,
        BackendKind::Embedded => 0,
    };
    server::affordable(config.server.max_connections, OPERATORS_CONNECTIONS + stores)
}

/// What a listener's clients are held to.
fn door(config: &Config, connections: usize, gate: Option<Arc<Gate>>) -> Door {
    Door {
        connections,
        header_timeout: config.server.header_timeout,
        write_timeout: config.server.write_timeout,
        gate,
        refuse: api::refuse,
    }
}

/// What fills while the stores don't keep up.
fn queues(presence: &Arc<dyn Presence>, plays: &Arc<dyn Plays>) -> Vec<Queue> {
    let (presence, plays) = (presence.clone(), plays.clone());
    vec![Arc::new(move || presence.fullness()), Arc::new(move || plays.fullness())]
}

/// How long the stop waits for requests: each ends within its timeout, but the last batch and the
/// last flush need time as well.
fn patience(config: &Config) -> Duration {
    let left = config.server.drain.saturating_sub(config.server.drain_delay);
    (config.server.request_timeout + Duration::from_millis(500)).min(left / 2)
}

fn announce(config: &Config, listeners: &Listeners) -> anyhow::Result<()> {
    let public = listeners.public.local_addr().context("server.listen is gone")?;
    let ops = listeners.ops.local_addr().context("ops.listen is gone")?;
    let backend = config.backend.name();
    tracing::info!(
        server.listen = %public,
        ops.listen = %ops,
        backend,
        "headcount {} listens at http://{public}, for operators at http://{ops}, backend {backend}",
        env!("CARGO_PKG_VERSION")
    );
    Ok(())
}
