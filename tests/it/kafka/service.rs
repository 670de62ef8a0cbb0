//! The whole program over Kafka: a stop loses nothing that was acknowledged, and ends in time.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use headcount::{
    app::{Listeners, serve},
    clock::SystemClock,
    config::Config,
    lifecycle::{Lifecycle, Stopped},
    plays::in_kafka::topics,
    telemetry::metrics::Metrics,
    tls,
};
use headcount_support::OwnKafka;
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;

use super::{play_ids, through_kafka};
use crate::world::{World, eventually, secs, service};

const DRAIN: Duration = Duration::from_secs(20);

type Running = JoinSet<anyhow::Result<Stopped>>;

async fn config(brokers: &str) -> Config {
    let mut config = World::redis().await.config;
    config.redis.prefix = format!("{}:", Uuid::now_v7().simple());
    config.server.listen = "127.0.0.1:0".parse().unwrap();
    config.ops.listen = "127.0.0.1:0".parse().unwrap();
    config.server.max_delay = secs(10);
    config.server.drain = DRAIN;
    through_kafka(&mut config, brokers, 1);
    topics::make(&config.kafka).await.unwrap();
    config
}

/// Starts the service, and waits until it takes plays.
async fn started(config: &Config) -> (Running, Lifecycle, String) {
    tls::choose_provider();
    let listeners = Listeners::bind(config).await.unwrap();
    let base = format!("http://{}", listeners.public.local_addr().unwrap());
    let lifecycle = Lifecycle::new(Duration::ZERO, DRAIN);
    let mut running = JoinSet::new();
    let metrics = Metrics::install().unwrap();
    running.spawn(serve(config.clone(), listeners, lifecycle.clone(), SystemClock::start(), metrics));
    let client = reqwest::Client::new();
    eventually("plays are taken", async || {
        let url = format!("{base}/api/video/film/play?playId=first");
        client.post(url).send().await.is_ok_and(|answer| answer.status() == 202)
    })
    .await;
    (running, lifecycle, base)
}

/// Sends plays until nobody listens any more, and tells which were acknowledged.
async fn play_on(base: String, accepted: Arc<AtomicU64>) -> Vec<String> {
    let client = reqwest::Client::new();
    let mut acknowledged = Vec::new();
    loop {
        let id = Uuid::now_v7().simple().to_string();
        let url = format!("{base}/api/video/film/play?playId={id}");
        match client.post(url).send().await {
            Ok(answer) if answer.status() == 202 => {
                acknowledged.push(id);
                accepted.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) if error.is_connect() => return acknowledged,
            Ok(_) | Err(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_leaves_every_acknowledged_play_in_the_log() {
    let config = config(&service("TEST_KAFKA_BROKERS")).await;
    let (mut running, lifecycle, base) = started(&config).await;
    let accepted = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        clients.spawn(play_on(base.clone(), accepted.clone()));
    }
    eventually("there is load", async || accepted.load(Ordering::SeqCst) >= 500).await;
    lifecycle.stop();
    let acknowledged: BTreeSet<String> = clients.join_all().await.into_iter().flatten().collect();
    assert_eq!(running.join_next().await.unwrap().unwrap().unwrap(), Stopped::Drained);
    assert!(lifecycle.running().is_empty(), "{:?}", lifecycle.running());
    let log = play_ids(&config).await;
    assert!(acknowledged.iter().all(|id| log.get(id) == Some(&1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_with_brokers_gone_ends_in_time_and_answers_503_what_was_not_delivered() {
    let mut kafka = OwnKafka::start(1, &[]).await;
    let mut config = config(&kafka.addresses()).await;
    config.kafka.deadline = secs(3);
    let (mut running, lifecycle, base) = started(&config).await;
    kafka.kill(0).await;
    let client = reqwest::Client::new();
    let mut waiting = JoinSet::new();
    for n in 0..50 {
        waiting.spawn(client.post(format!("{base}/api/video/film/play?playId=p-{n}")).send());
    }
    let ops = client.get(format!("{base}/readyz"));
    eventually("it waits for kafka", async || {
        let answer = ops.try_clone().expect("it has no body").send().await.unwrap();
        answer.text().await.unwrap().contains("kafka")
    })
    .await;
    let began = Instant::now();
    lifecycle.stop();
    let statuses: Vec<u16> =
        waiting.join_all().await.into_iter().map(|answer| answer.unwrap().status().as_u16()).collect();
    assert_eq!(running.join_next().await.unwrap().unwrap().unwrap(), Stopped::Drained);
    assert!(began.elapsed() < DRAIN, "the stop took {:?}", began.elapsed());
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
}
