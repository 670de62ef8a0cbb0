//! What a play's answer means, on brokers that are well.

use std::time::Duration;

use axum::{body::Body, http::Request};
use futures::future::join_all;
use headcount::{
    backend,
    config::Unknown,
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Stopped},
    plays::{
        Recorded,
        in_kafka::{record::Received, topics},
    },
};

use super::{log_of, play_ids, shared_with, through_kafka, world};
use crate::{
    routes::{Answer, send},
    world::{NOON, World, a_play, eventually, secs, service, video_id},
};

#[tokio::test]
async fn a_play_is_accepted_when_the_log_has_it_with_the_time_it_was_received() {
    let world = world().await;
    assert_eq!(world.play("film", Some("ann"), Some("p-1")).await, Recorded::Accepted);
    let log: Vec<_> = log_of(&world.config).await.into_values().flatten().collect();
    assert_eq!(log.len(), 1);
    assert_eq!((&log[0].play, log[0].at), (&a_play("film", Some("ann"), Some("p-1")), NOON));
    // Whether it counts is decided later, by who reads the log: repeats are accepted as well.
    assert_eq!(world.play("film", Some("ann"), Some("p-1")).await, Recorded::Accepted);
    assert_eq!(log_of(&world.config).await.into_values().flatten().count(), 2);
}

#[tokio::test]
async fn many_plays_at_once_are_all_in_the_log_once_and_those_of_a_video_in_one_partition() {
    let world = world().await;
    let plays = (0..2_000).map(|n| {
        let play = a_play(&format!("film-{}", n % 10), None, Some(&format!("p-{n}")));
        world.stores.plays.record(play)
    });
    assert!(join_all(plays).await.into_iter().all(|told| told.unwrap() == Recorded::Accepted));
    let log = log_of(&world.config).await;
    assert!(log.len() > 1, "all of it is in one partition");
    for n in 0..10 {
        let video = video_id(&format!("film-{n}"));
        let holds = |records: &&Vec<Received>| records.iter().any(|record| record.play.video == video);
        assert_eq!(log.values().filter(holds).count(), 1, "{video}");
    }
    let times = play_ids(&world.config).await;
    assert!(times.len() == 2_000 && times.values().all(|times| *times == 1));
}

#[tokio::test]
async fn what_the_queue_has_no_room_for_is_refused_and_not_in_the_log() {
    let most = 100;
    let world = shared_with(|config| config.plays.max_pending = most).await;
    let plays = (0..2_000).map(|n| world.stores.plays.record(a_play("film", None, Some(&format!("p-{n}")))));
    let told = join_all(plays).await;
    let accepted = told.iter().filter(|told| told.is_ok()).count();
    assert!(accepted >= most, "{accepted}");
    let full = |error: &StoreError| matches!(error, StoreError::Full { part: Part::Kafka, .. });
    assert!(told.iter().filter_map(|told| told.as_ref().err()).all(full));
    assert_eq!(play_ids(&world.config).await.len(), accepted);
    assert_eq!(world.play("film", None, Some("later")).await, Recorded::Accepted);
}

#[tokio::test]
async fn without_its_topic_plays_are_refused_until_somebody_makes_it() {
    let world = World::redis().await;
    let mut config = world.config.clone();
    through_kafka(&mut config, &service("TEST_KAFKA_BROKERS"), 1);
    config.kafka.deadline = Duration::from_millis(500);
    let lifecycle = Lifecycle::new(Duration::ZERO, secs(20));
    let stores = backend::open(&config, &lifecycle, world.clock.clone()).await.unwrap();
    let refused = stores.plays.record(a_play("film", None, Some("p-1"))).await.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    eventually("it is told", async || stores.health.check().await.degraded == [Part::Kafka]).await;

    let made = topics::make(&config.kafka).await.unwrap();
    assert!(made.iter().all(|topic| topic.made) && made.len() == 2, "{made:?}");
    assert!(topics::make(&config.kafka).await.unwrap().iter().all(|topic| !topic.made));
    eventually("plays are taken", async || {
        stores.plays.record(a_play("film", None, Some("p-2"))).await.is_ok()
    })
    .await;
    eventually("all is well", async || stores.health.check().await.degraded.is_empty()).await;
    assert!(!play_ids(&config).await.contains_key("p-1"), "what was answered 503 came late");
    lifecycle.stop();
    assert_eq!(lifecycle.run().await, Stopped::Drained);
}

/// `POST play` through the public router.
async fn post(world: &World, query: &str, purpose: &str) -> Answer {
    let request = Request::post(format!("/api/video/film/play?{query}")).header("sec-purpose", purpose);
    send(world, request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_play_is_answered_202_and_a_prefetch_writes_nothing() {
    let world = world().await;
    let accepted = post(&world, "playId=p-1", "").await;
    assert_eq!((accepted.status.as_u16(), &accepted.body["accepted"]), (202, &serde_json::json!(true)));
    assert_eq!(post(&world, "playId=p-2", "prefetch").await.status, 204);
    assert_eq!(play_ids(&world.config).await.into_keys().collect::<Vec<_>>(), ["p-1"]);
}

#[tokio::test]
async fn where_unknown_videos_are_refused_their_plays_never_reach_the_log() {
    let world = shared_with(|config| config.videos.unknown = Unknown::Reject).await;
    assert_eq!(post(&world, "playId=p-1", "").await.status, 404);
    assert!(play_ids(&world.config).await.is_empty());
}
