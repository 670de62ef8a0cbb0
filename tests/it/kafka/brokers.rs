//! Brokers that stop, are killed or say nothing: nothing that was acknowledged is missing or twice in the
//! log, nobody waits longer than the deadline, and all is well again without a restart.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use headcount::{
    error::{Part, StoreError},
    plays::Recorded,
};
use headcount_support::OwnKafka;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{play_ids, world_with};
use crate::{
    routes::get,
    world::{World, a_play, eventually, secs},
};

/// Sends so many plays at once, and tells how many were taken, refused at once, and unknown.
async fn burst(world: &World, name: &str, plays: usize) -> (Vec<String>, usize, usize) {
    let ids: Vec<String> = (0..plays).map(|n| format!("{name}-{n}")).collect();
    let told = join_all(ids.iter().map(|id| world.stores.plays.record(a_play("film", None, Some(id))))).await;
    let full = told.iter().filter(|told| matches!(told, Err(StoreError::Full { .. }))).count();
    let unknown = told.iter().filter(|told| matches!(told, Err(StoreError::Unavailable { .. }))).count();
    let taken = ids.into_iter().zip(told).filter(|(_, told)| told.is_ok()).map(|(id, _)| id);
    (taken.collect(), full, unknown)
}

async fn takes_plays_again(world: &World, id: &str) {
    eventually("plays are taken again", async || {
        world.stores.plays.record(a_play("film", None, Some(id))).await.is_ok()
    })
    .await;
    eventually("all is well", async || world.stores.health.check().await.degraded.is_empty()).await;
}

#[tokio::test]
async fn while_brokers_are_away_the_queue_is_bounded_and_all_is_well_without_a_restart_when_they_are_back() {
    const MOST: usize = 200;
    let mut kafka = OwnKafka::start(1, &[]).await;
    let world = world_with(&kafka.addresses(), 1, |config| {
        config.plays.max_pending = MOST;
        config.kafka.deadline = secs(1);
    })
    .await;
    let (mut acknowledged, full, unknown) = burst(&world, "before", 100).await;
    assert_eq!((acknowledged.len(), full, unknown), (100, 0, 0));

    kafka.kill(0).await;
    for round in 0..2 {
        let began = Instant::now();
        let (taken, full, unknown) = burst(&world, &format!("away-{round}"), 1_000).await;
        assert_eq!(taken.len(), 0);
        assert!(unknown <= MOST && full >= 1_000 - MOST, "{unknown} waited, {full} were refused");
        assert!(began.elapsed() < secs(20), "they waited {:?}", began.elapsed());
        eventually("there is room again", async || world.stores.plays.fullness() == 0.0).await;
    }
    eventually("it is told", async || world.stores.health.check().await.degraded == [Part::Kafka]).await;
    let probe = get(&world, "/readyz").await;
    assert_eq!((probe.status.as_u16(), &probe.body["degraded"]), (200, &serde_json::json!(["kafka"])));
    assert_eq!(world.beat("film", "ann").await, 1, "beats go on");

    kafka.start_again(0).await;
    takes_plays_again(&world, "back").await;
    let (taken, full, unknown) = burst(&world, "after", 100).await;
    assert_eq!((taken.len(), full, unknown), (100, 0, 0));
    acknowledged.extend(taken);
    let log = play_ids(&world.config).await;
    assert!(acknowledged.iter().all(|id| log.get(id) == Some(&1)), "{log:?}");
    assert!(log.iter().all(|(id, times)| id == "back" || *times == 1), "{log:?}");
}

#[tokio::test]
async fn brokers_that_take_connections_and_say_nothing_keep_nobody_longer_than_the_deadline() {
    let kafka = OwnKafka::start(1, &[]).await;
    let world = world_with(&kafka.addresses(), 1, |config| config.kafka.deadline = secs(1)).await;
    let (acknowledged, ..) = burst(&world, "before", 10).await;
    kafka.signal(0, "-STOP").await;
    let (taken, full, unknown) = burst(&world, "dark", 10).await;
    assert_eq!((taken.len(), full, unknown), (0, 0, 10));
    kafka.signal(0, "-CONT").await;
    takes_plays_again(&world, "back").await;
    let log = play_ids(&world.config).await;
    assert!(acknowledged.iter().all(|id| log.get(id) == Some(&1)), "{log:?}");
    // What was under way may have arrived: never twice, as that was one attempt of one client.
    assert!(log.iter().all(|(id, times)| id == "back" || *times == 1), "{log:?}");
}

/// Sends plays, one after the other, until it is told to stop: each that isn't acknowledged is sent again
/// under another id.
async fn play_on(
    world: Arc<World>,
    client: usize,
    done: Arc<AtomicU64>,
    over: CancellationToken,
) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for n in 0.. {
        if over.is_cancelled() {
            break;
        }
        let id = format!("{client}-{n}");
        let play = a_play(&format!("film-{}", n % 50), None, Some(&id));
        match world.stores.plays.record(play).await {
            Ok(told) => {
                assert_eq!(told, Recorded::Accepted);
                acknowledged.push(id);
                done.fetch_add(1, Ordering::SeqCst);
            }
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_of_three_brokers_killed_under_load_every_acknowledged_play_is_in_the_log_once() {
    let mut kafka = OwnKafka::start(3, &[]).await;
    let world = Arc::new(world_with(&kafka.addresses(), 3, |_| {}).await);
    let (done, over) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
    let mut clients = JoinSet::new();
    for client in 0..16 {
        clients.spawn(play_on(world.clone(), client, done.clone(), over.clone()));
    }
    let goes_on = async |what: &str| {
        let before = done.load(Ordering::SeqCst);
        eventually(what, async || done.load(Ordering::SeqCst) >= before + 500).await;
    };
    goes_on("there is load").await;
    let leader = leader_of(&world).await;
    kafka.kill(leader).await;
    goes_on("plays are taken by the two that are left").await;
    kafka.start_again(leader).await;
    goes_on("plays are taken by all three").await;
    over.cancel();
    let acknowledged: BTreeSet<String> = clients.join_all().await.into_iter().flatten().collect();
    let log = play_ids(&world.config).await;
    let missing: Vec<_> = acknowledged.iter().filter(|id| !log.contains_key(*id)).collect();
    assert!(missing.is_empty(), "{} of {} are missing: {missing:?}", missing.len(), acknowledged.len());
    let twice: Vec<_> = log.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "in the log more than once: {twice:?}");
}

/// The position of the broker that leads the topic's first partition.
async fn leader_of(world: &World) -> usize {
    let (brokers, topic) = (world.config.kafka.brokers.clone(), world.config.kafka.topic.clone());
    let asking = tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer =
            rdkafka::ClientConfig::new().set("bootstrap.servers", &brokers).create().unwrap();
        let metadata = consumer.fetch_metadata(Some(&topic), secs(30)).unwrap();
        metadata.topics()[0].partitions()[0].leader()
    });
    usize::try_from(asking.await.unwrap()).unwrap() - 1
}
