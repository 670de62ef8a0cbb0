//! What players and pages are told while Redis is in trouble, and that all is well again after it.

use std::time::Duration;

use headcount::{
    config::{Ack, SecretUrl},
    error::StoreError,
    lifecycle::Stopped,
};

use headcount_support::OwnRedis;

use crate::world::{World, eventually, secs};

/// What a caller may have to wait at most, however slow the machine: far above the deadline.
const LONG: Duration = Duration::from_secs(20);

async fn world_over(redis: &OwnRedis) -> World {
    World::redis_with(|config| {
        config.redis.url = SecretUrl::new(redis.url(""));
        config.redis.deadline = Duration::from_millis(500);
        config.presence.ack = Ack::Received;
        config.presence.max_merged = 1_000;
    })
    .await
}

fn durable() -> [&'static str; 4] {
    ["--appendonly", "yes", "--appendfsync", "always"]
}

async fn set(redis: &OwnRedis, name: &str, value: &str) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg(name).arg(value);
    redis.query::<String>(set).await.unwrap();
}

/// Waits until beats are refused: a beat that is only received is taken until then.
async fn refused(world: &World, viewer: &str) -> StoreError {
    let mut error = None;
    eventually("beats are refused", async || {
        error = world.try_beat("film", viewer).await.err();
        error.is_some()
    })
    .await;
    error.unwrap()
}

async fn well(world: &World) {
    eventually("beats are taken", async || world.try_beat("film", "witness").await.is_ok()).await;
}

/// Past the time for which low numbers are doubted after an outage.
async fn settle(world: &World, viewers: u32) {
    for _ in 0..4 {
        world.beat_all("film", 0..viewers).await;
        world.pass_swept(1).await;
    }
}

/// [limitador, redis-rs#275]
#[tokio::test]
async fn beats_sent_while_redis_is_gone_are_refused_and_written_when_it_is_back() {
    let mut redis = OwnRedis::start(&durable()).await;
    let world = world_over(&redis).await;
    world.beat_all("film", 0..10).await;
    well(&world).await;
    redis.kill().await;
    assert!(refused(&world, "ann").await.is_transient());
    for viewer in 0..20 {
        assert!(world.try_beat("film", &format!("late-{viewer}")).await.is_err());
    }
    redis.start_again().await;
    well(&world).await;
    settle(&world, 10).await;
    // Ten, the witness, Ann, and the twenty whose beats were answered with 503.
    eventually("all are there", async || world.swept_count("film").await == Some(32)).await;
}

/// [PeerTube#7751]
#[tokio::test]
async fn a_redis_that_does_not_answer_keeps_nobody_waiting() {
    let redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    world.sweep().await;
    well(&world).await;
    world.forget_what_was_read();
    redis.signal("-STOP").await;
    let asked = async {
        let error = refused(&world, "ann").await;
        assert!(error.is_transient(), "{error}");
        let play = crate::world::a_play("film", Some("ann"), None);
        assert!(world.stores.plays.record(play).await.is_err_and(|error| error.is_transient()));
        world.forget_what_was_read();
        let count = world.online("film").await;
        assert!(count.stale, "{count:?}");
    };
    tokio::time::timeout(LONG, asked).await.expect("answers in spite of it");
    redis.signal("-CONT").await;
    well(&world).await;
}

#[tokio::test]
async fn what_is_merged_while_redis_is_gone_is_bounded() {
    let mut redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    redis.kill().await;
    refused(&world, "ann").await;
    let mut full = 0;
    for viewer in 0..1_500 {
        let error = world.try_beat("film", &format!("viewer-{viewer}")).await.unwrap_err();
        full += u32::from(matches!(error, StoreError::Full { .. }));
    }
    assert_eq!(full, 501, "a thousand fit, Ann among them");
}

#[tokio::test]
async fn with_redis_gone_the_last_good_number_is_told_as_stale_for_a_window() {
    let mut redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    world.beat_all("film", 0..7).await;
    eventually("they are counted", async || world.swept_count("film").await == Some(7)).await;
    redis.kill().await;
    refused(&world, "ann").await;
    world.forget_what_was_read();
    let count = world.online("film").await;
    assert_eq!((count.online, count.stale), (Some(7), true), "{count:?}");
    world.pass(secs(601));
    let count = world.online("film").await;
    assert_eq!((count.online, count.stale, count.as_of), (None, true, None), "{count:?}");
}

/// [sourcegraph#296]
#[tokio::test]
async fn a_redis_without_memory_refuses_beats_and_plays_and_takes_them_again() {
    let redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    well(&world).await;
    set(&redis, "maxmemory", "1").await;
    let error = refused(&world, "ann").await;
    assert!(error.is_transient(), "{error}");
    let play = crate::world::a_play("film", Some("ann"), None);
    assert!(world.stores.plays.record(play.clone()).await.is_err_and(|error| error.is_transient()));
    set(&redis, "maxmemory", "0").await;
    well(&world).await;
    assert_eq!(world.stores.plays.record(play).await.unwrap(), headcount::plays::Recorded::Counted);
}

/// [StackExchange.Redis#2264] The socket of a node that was demoted stays open.
#[tokio::test]
async fn a_redis_that_became_a_replica_is_left_until_it_is_a_primary_again() {
    let redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    well(&world).await;
    let mut demote = redis::cmd("REPLICAOF");
    demote.arg("127.0.0.1").arg(1);
    redis.query::<String>(demote).await.unwrap();
    assert!(refused(&world, "ann").await.is_transient());
    let play = crate::world::a_play("film", Some("ann"), None);
    assert!(world.stores.plays.record(play.clone()).await.is_err_and(|error| error.is_transient()));
    let mut promote = redis::cmd("REPLICAOF");
    promote.arg("NO").arg("ONE");
    redis.query::<String>(promote).await.unwrap();
    well(&world).await;
    assert_eq!(world.stores.plays.record(play).await.unwrap(), headcount::plays::Recorded::Counted);
}

/// Plays that were accepted are worth a wait of up to `server.drain`.
#[tokio::test]
async fn a_stop_while_redis_is_gone_waits_with_the_plays_that_were_accepted() {
    let mut redis = OwnRedis::start(&durable()).await;
    let world = World::redis_with(|config| {
        config.redis.url = SecretUrl::new(redis.url(""));
        config.plays.ack = Ack::Received;
        config.plays.linger = secs(3);
    })
    .await;
    redis.kill().await;
    let mut accepted = 0;
    for viewer in 0..50 {
        let play = crate::world::a_play("film", Some(&format!("viewer-{viewer}")), None);
        accepted += u64::from(world.stores.plays.record(play).await.is_ok());
    }
    assert!(accepted > 0);
    world.lifecycle.stop();
    let (stopped, ()) = futures::future::join(world.lifecycle.run(), redis.start_again()).await;
    assert_eq!(stopped, Stopped::Drained);
    let next = world.another().await;
    assert_eq!(next.plays("film").await.plays, Some(accepted));
}
