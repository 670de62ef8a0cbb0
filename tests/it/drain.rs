//! The whole program in this process: a stop under load loses nothing that was acknowledged.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use headcount::{
    app::{Listeners, serve},
    backend::{self, Stores},
    clock::SystemClock,
    config::{Ack, BackendKind, Config, load::load},
    lifecycle::{Lifecycle, Stopped},
    telemetry::metrics::Metrics,
    tls,
};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::world::{World, eventually, video_id};

const VIDEO: &str = "drained";
const CLIENTS: usize = 16;
const DRAIN: Duration = Duration::from_secs(30);

/// What the clients of one run were told.
#[derive(Default)]
struct Told {
    plays: AtomicU64,
    beats: AtomicU64,
    /// Requests whose outcome nobody told: they may have taken effect.
    unsure: AtomicU64,
}

fn any_port(mut config: Config) -> Config {
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.ops.listen = "127.0.0.1:0".parse().unwrap();
    // A busy machine is no overload of the service.
    config.server.max_delay = Duration::from_secs(10);
    config
}

fn embedded(folder: &tempfile::TempDir) -> Config {
    let mut config = load(None, Some(HashMap::new())).unwrap().config;
    folder.path().clone_into(&mut config.embedded.path);
    any_port(config)
}

/// Redis keys and a database that no other test has.
async fn redis() -> Config {
    let mut config = World::redis().await.config;
    config.redis.prefix = format!("{}:", Uuid::now_v7().simple());
    // A beat is answered before it is written, so the last batch has something to lose.
    config.presence.ack = Ack::Received;
    config.presence.linger = Duration::from_secs(1);
    any_port(config)
}

/// Plays and beats, each by a viewer of its own, until nobody listens any more.
async fn play_on(base: String, told: Arc<Told>) {
    let client = reqwest::Client::new();
    loop {
        let viewer = Uuid::now_v7().simple();
        for (verb, done) in [("play", &told.plays), ("heartbeat", &told.beats)] {
            let url = format!("{base}/api/video/{VIDEO}/{verb}?userId={viewer}");
            match client.post(url).send().await {
                Ok(answer) if answer.status() == 200 => drop(done.fetch_add(1, Ordering::SeqCst)),
                Err(error) if error.is_connect() => return,
                Ok(_) | Err(_) => drop(told.unsure.fetch_add(1, Ordering::SeqCst)),
            }
        }
    }
}

/// The stores as the next start finds them.
async fn reopened(config: &Config) -> (Stores, Lifecycle) {
    let lifecycle = Lifecycle::new(Duration::ZERO, DRAIN);
    let stores = backend::open(config, &lifecycle, SystemClock::start()).await.unwrap();
    eventually("the stores are there", async || {
        let health = stores.health.check().await;
        health.failed.is_empty() && health.degraded.is_empty()
    })
    .await;
    (stores, lifecycle)
}

async fn a_stop_under_load_loses_nothing(config: Config) {
    tls::choose_provider();
    let listeners = Listeners::bind(&config).await.unwrap();
    let base = format!("http://{}", listeners.public.local_addr().unwrap());
    let lifecycle = Lifecycle::new(Duration::ZERO, DRAIN);
    let metrics = Metrics::install().unwrap();
    let mut service = JoinSet::new();
    service.spawn(serve(config.clone(), listeners, lifecycle.clone(), SystemClock::start(), metrics));

    let probe = reqwest::Client::new();
    let ready = format!("{base}/readyz");
    eventually("it is ready", async || {
        let answer = probe.get(&ready).send().await;
        answer.is_ok_and(|answer| answer.status() == 200)
    })
    .await;

    let told = Arc::new(Told::default());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(play_on(base.clone(), told.clone()));
    }
    eventually("there is load", async || told.beats.load(Ordering::SeqCst) >= 200).await;
    lifecycle.stop();
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let stopped = service.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(stopped, Stopped::Drained);
    assert!(lifecycle.running().is_empty(), "{:?}", lifecycle.running());

    let unsure = told.unsure.load(Ordering::SeqCst);
    let (stores, lifecycle) = reopened(&config).await;
    let videos = [video_id(VIDEO)];
    let plays = told.plays.load(Ordering::SeqCst);
    let counted = stores.plays.counts(&videos).await[0].plays.expect("a total");
    assert!((plays..=plays + unsure).contains(&counted), "{plays} acknowledged, {counted} counted");
    let beats = told.beats.load(Ordering::SeqCst);
    let online = stores.presence.online(&videos).await[0].online.expect("a count");
    assert!((beats..=beats + unsure).contains(&online), "{beats} acknowledged, {online} online");
    lifecycle.stop();
    assert_eq!(lifecycle.run().await, Stopped::Drained);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_stop_under_load_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    a_stop_under_load_loses_nothing(embedded(&folder)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_a_stop_under_load_loses_nothing() {
    a_stop_under_load_loses_nothing(redis().await).await;
}

#[tokio::test]
async fn a_stop_with_every_store_away_still_ends_in_time() {
    let mut config = redis().await;
    config.redis.url = headcount::config::SecretUrl::new("redis://127.0.0.1:1");
    config.postgres.url = headcount::config::SecretUrl::new("postgres://x@127.0.0.1:1/x");
    assert_eq!(config.backend, BackendKind::Redis);
    let listeners = Listeners::bind(&config).await.unwrap();
    let ops = format!("http://{}", listeners.ops.local_addr().unwrap());
    let lifecycle = Lifecycle::new(Duration::ZERO, DRAIN);
    let mut service = JoinSet::new();
    service.spawn(serve(config, listeners, lifecycle.clone(), SystemClock::start(), Metrics::none()));
    tls::choose_provider();
    let (alive, ready) = (format!("{ops}/livez"), format!("{ops}/readyz"));
    let client = reqwest::Client::new();
    assert_eq!(client.get(&alive).send().await.unwrap().status(), 200);
    assert_eq!(client.get(&ready).send().await.unwrap().status(), 503);
    lifecycle.stop();
    assert_eq!(service.join_next().await.unwrap().unwrap().unwrap(), Stopped::Drained);
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = embedded(&folder);
    config.embedded.path = folder.path().join("headcount.db");
    std::fs::write(&config.embedded.path, "this is no database, but it is long enough to be one").unwrap();
    let listeners = Listeners::bind(&config).await.unwrap();
    let lifecycle = Lifecycle::new(Duration::ZERO, DRAIN);
    let error = serve(config, listeners, lifecycle, SystemClock::start(), Metrics::none()).await.unwrap_err();
    assert!(format!("{error:#}").contains("embedded.path"), "{error:#}");
}
