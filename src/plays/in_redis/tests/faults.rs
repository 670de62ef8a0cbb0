//! Plays while Redis is away, deaf, slow or full.

use std::time::Duration;

use super::{OwnRedis, Plays, Proxy, Way, World, eventually, play, video, world};
use crate::{
    clock::{SystemClock, Timestamp},
    config::{Ack, Config, SecretUrl},
    error::StoreError,
    lifecycle::Stopped,
    plays::{Play, Recorded},
};

/// A world whose way to Redis can be broken.
async fn behind_a_proxy(change: impl FnOnce(&mut Config)) -> (World, Proxy) {
    let direct = world::settings().await;
    let proxy = Proxy::to(direct.redis.url.expose()).await;
    let mut config = direct.clone();
    config.redis.url = SecretUrl::new(proxy.by(direct.redis.url.expose()));
    config.redis.deadline = Duration::from_millis(500);
    change(&mut config);
    (World::open(direct, config, SystemClock::start()).await, proxy)
}

impl World {
    async fn record_when_back(&self, play: &Play) -> Recorded {
        eventually("redis is back", async || self.redis.connection().is_ok()).await;
        self.record(play.clone()).await.unwrap()
    }
}

#[tokio::test]
async fn a_play_whose_answer_was_lost_is_unavailable_and_its_retry_doesnt_count_twice() {
    let (world, proxy) = behind_a_proxy(|_| {}).await;
    for lost in [Way::Deaf, Way::CutAfter("EVALSHA")] {
        let sent = play("1", &format!("{lost:?}").replace(' ', ""), "");
        proxy.set(lost);
        let result = world.record(sent.clone()).await;
        assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
        proxy.set(Way::Open);
        assert_eq!(world.record_when_back(&sent).await, Recorded::Duplicate, "{lost:?}");
    }
    assert_eq!(world.count(&video("1")).await.plays, Some(2));
}

#[tokio::test]
async fn a_play_that_never_arrived_counts_when_it_is_sent_again() {
    let (world, proxy) = behind_a_proxy(|_| {}).await;
    let sent = play("1", "ann", "x1");
    proxy.set(Way::Cut);
    eventually("redis is gone", async || world.redis.connection().is_err()).await;
    let result = world.record(sent.clone()).await;
    assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
    proxy.set(Way::Open);
    assert_eq!(world.record_when_back(&sent).await, Recorded::Counted);
    assert_eq!(world.count(&video("1")).await.plays, Some(1));
}

#[tokio::test]
async fn what_was_just_counted_is_answered_without_redis() {
    let (world, proxy) = behind_a_proxy(|_| {}).await;
    let sent = play("1", "ann", "x1");
    assert_eq!(world.record(sent.clone()).await.unwrap(), Recorded::Counted);
    proxy.set(Way::Stalled);
    assert_eq!(world.record(sent).await.unwrap(), Recorded::Duplicate);
    assert_eq!(world.record(play("1", "ann", "")).await.unwrap(), Recorded::Duplicate);
    assert_eq!(world.record(play("1", "ben", "x1")).await.unwrap(), Recorded::Duplicate);
    assert!(world.record(play("1", "ben", "x2")).await.is_err());
}

/// What was counted may be gone with the connection: the next one may be to a Redis that is older.
#[tokio::test]
async fn a_note_of_what_was_counted_ends_with_its_connection() {
    let (world, proxy) = behind_a_proxy(|_| {}).await;
    let sent = play("1", "ann", "x1");
    assert_eq!(world.record(sent.clone()).await.unwrap(), Recorded::Counted);
    for key in world.keys().await {
        world.ask::<i64>(&format!("DEL {}{key}", world.config.redis.prefix)).await;
    }
    proxy.set(Way::Cut);
    eventually("redis is gone", async || world.redis.connection().is_err()).await;
    assert!(world.record(sent.clone()).await.is_err(), "nobody can say");
    proxy.set(Way::Open);
    assert_eq!(world.record_when_back(&sent).await, Recorded::Counted);
    assert_eq!(world.count(&video("1")).await.plays, Some(1));
}

#[tokio::test]
async fn a_note_of_what_was_counted_ends_well_before_redis_forgets() {
    let (world, clock) = World::at(Timestamp::from_secs(1_000_000), |_| {}).await;
    let sent = play("1", "ann", "");
    world.record(sent.clone()).await.unwrap();
    assert!(world.plays.writer.counted_lately(&sent));
    clock.advance(world.config.plays.dedupe_window / 2);
    assert!(!world.plays.writer.counted_lately(&sent));
    assert_eq!(world.record(sent).await.unwrap(), Recorded::Duplicate, "redis remembers");
}

#[tokio::test]
async fn beyond_max_pending_plays_are_refused_at_once() {
    let (world, proxy) = behind_a_proxy(|config| {
        config.plays.max_pending = 100;
    })
    .await;
    proxy.set(Way::Stalled);
    let plays = (0..3_000).map(|viewer| world.record(play("1", &format!("v{viewer}"), "")));
    let results = futures::future::join_all(plays).await;
    let full = results.iter().filter(|result| matches!(result, Err(StoreError::Full { .. }))).count();
    assert!(full > 0, "some found the queue full");
    assert!(results.iter().all(Result::is_err));
}

#[tokio::test]
async fn out_of_memory_is_unavailable_for_plays_and_the_flush_still_makes_room() {
    let server = OwnRedis::start(&["--maxmemory-policy", "noeviction"]).await;
    let world = World::with(|config| config.redis.url = SecretUrl::new(server.url(""))).await;
    world.record(play("1", "ann", "")).await.unwrap();
    world.ask::<String>("CONFIG SET maxmemory 1").await;
    let result = world.record(play("1", "ben", "")).await;
    assert!(matches!(&result, Err(StoreError::Unavailable { .. })), "{result:?}");
    assert_eq!(world.flush(&video("1")).await.unwrap().plays(), 1);
    assert_eq!(world.views(&video("1")).await, 1);
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.stale), (Some(1), false), "the flush left the total");
    world.ask::<String>("CONFIG SET maxmemory 0").await;
    assert_eq!(world.record(play("1", "ben", "")).await.unwrap(), Recorded::Counted);
}

fn received(config: &mut Config) {
    config.plays.ack = Ack::Received;
}

#[tokio::test]
async fn received_plays_are_accepted_and_counted_within_linger() {
    let (world, proxy) = behind_a_proxy(received).await;
    proxy.set(Way::Cut);
    for viewer in ["ann", "ben", "ann"] {
        assert_eq!(world.record(play("1", viewer, "")).await.unwrap(), Recorded::Accepted);
    }
    proxy.set(Way::Open);
    let reader = world.instance();
    let counted = async || reader.counts(&[video("1")]).await[0].plays == Some(2);
    eventually("they are counted", counted).await;
    assert_eq!(world.record(play("1", "ann", "")).await.unwrap(), Recorded::Duplicate);
}

#[tokio::test]
async fn received_plays_are_refused_once_the_oldest_waits_longer_than_linger() {
    let (world, proxy) = behind_a_proxy(received).await;
    proxy.set(Way::Cut);
    world.record(play("1", "ann", "")).await.unwrap();
    eventually("it is refused", async || {
        matches!(world.record(play("1", "ben", "")).await, Err(StoreError::Unavailable { .. }))
    })
    .await;
    proxy.set(Way::Open);
    eventually("it is taken", async || world.record(play("1", "ben", "")).await.is_ok()).await;
    eventually("both are counted", async || world.count(&video("1")).await.plays == Some(2)).await;
}

#[tokio::test]
async fn received_plays_are_bounded_by_max_pending() {
    let (world, proxy) = behind_a_proxy(|config| {
        received(config);
        config.plays.max_pending = 100;
    })
    .await;
    proxy.set(Way::Cut);
    for viewer in 0..100 {
        world.record(play("1", &format!("v{viewer}"), "")).await.unwrap();
    }
    let result = world.record(play("1", "late", "")).await;
    assert!(matches!(result, Err(StoreError::Full { .. })), "{result:?}");
}

#[tokio::test]
async fn received_plays_are_sent_when_the_service_stops() {
    let world = World::with(|config| {
        received(config);
        config.plays.linger = Duration::from_secs(3);
    })
    .await;
    for viewer in 0..5_000 {
        world.record(play("1", &format!("v{viewer}"), "")).await.unwrap();
    }
    world.lifecycle.stop();
    assert_eq!(world.lifecycle.run().await, Stopped::Drained);
    // The way to Redis is closed by now: look through a new one.
    let delta: u64 =
        world.ask(&format!("GET {}", world.direct.keys().delta(video("1").partition(), &video("1")))).await;
    assert_eq!(delta, 5_000);
}
