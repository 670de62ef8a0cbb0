//! What is read while a store is away: the last good number, as stale, or none; never a guess.

use std::{sync::Arc, time::Duration};

use super::{Plays, Proxy, Way, World, eventually, video, world};
use crate::{
    clock::{ManualClock, Timestamp},
    config::SecretUrl,
    plays::PlayCount,
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

/// A world whose time stands still and whose ways can be broken: to Redis, to Postgres.
async fn world_of_broken_ways() -> (World, Arc<ManualClock>, Proxy, Proxy) {
    let direct = world::settings().await;
    let redis = Proxy::to(direct.redis.url.expose()).await;
    let postgres = Proxy::to(direct.postgres.url.expose()).await;
    let mut config = direct.clone();
    config.redis.url = SecretUrl::new(redis.by(direct.redis.url.expose()));
    config.postgres.url = SecretUrl::new(postgres.by(direct.postgres.url.expose()));
    config.postgres.deadline = Duration::from_secs(1);
    let clock = ManualClock::at(NOW);
    (World::open(direct, config, clock.clone()).await, clock, redis, postgres)
}

impl World {
    async fn until_postgres_is_missed(&self) {
        eventually("postgres is missed", async || self.postgres.is_down()).await;
    }
}

#[tokio::test]
async fn without_redis_the_last_good_number_is_told_as_stale_for_the_window() {
    let (world, clock, redis, _postgres) = world_of_broken_ways().await;
    world.played("1", 5).await;
    let good = world.count(&video("1")).await;
    redis.set(Way::Cut);
    eventually("redis is missed", async || world.redis.connection().is_err()).await;
    clock.advance(Duration::from_millis(900));
    assert_eq!(world.count(&video("1")).await, good, "it was asked a moment ago");
    clock.advance(Duration::from_millis(599_100));
    assert_eq!(world.count(&video("1")).await, PlayCount { stale: true, ..good });
    assert_eq!(world.count(&video("2")).await, PlayCount::UNKNOWN, "nothing was ever known of it");
    clock.advance(Duration::from_millis(1));
    assert_eq!(world.count(&video("1")).await, PlayCount::UNKNOWN);
    redis.set(Way::Open);
    eventually("redis is back", async || world.redis.connection().is_ok()).await;
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.stale), (Some(5), false));
}

#[tokio::test]
async fn without_postgres_totals_that_redis_keeps_are_right_and_dont_run_out() {
    let (world, clock, _redis, postgres) = world_of_broken_ways().await;
    world.played("1", 5).await;
    world.flush_all().await;
    world.played("1", 2).await;
    let count = world.count(&video("1")).await;
    postgres.set(Way::Cut);
    world.until_postgres_is_missed().await;
    let key = world.direct.keys().total(video("1").partition(), &video("1"));
    world.ask::<i64>(&format!("EXPIRE {key} 60")).await;
    clock.advance(Duration::from_secs(1));
    let now = world.count(&video("1")).await;
    assert_eq!((now.plays, now.unique_viewers, now.stale), (Some(7), count.unique_viewers, false));
    let left: i64 = world.ask(&format!("TTL {key}")).await;
    assert!(left > 3_000, "{left}");
    // An instance that never asked the database doesn't know whether Redis's sketch is whole.
    let now = world.fresh_count("1").await;
    assert_eq!((now.plays, now.unique_viewers, now.stale), (Some(7), None, false));
}

#[tokio::test]
async fn without_postgres_a_total_that_redis_doesnt_keep_is_the_last_good_one_or_none() {
    let (world, clock, _redis, postgres) = world_of_broken_ways().await;
    world.played("1", 5).await;
    world.flush_all().await;
    let good = world.count(&video("1")).await;
    for broken in [Way::Cut, Way::Stalled] {
        postgres.set(broken);
        world.until_postgres_is_missed().await;
        world.lose_total("1").await;
        world.played("1", 1).await;
        clock.advance(Duration::from_secs(1));
        assert_eq!(world.count(&video("1")).await, PlayCount { stale: true, ..good }, "{broken:?}");
        assert_eq!(world.fresh_count("1").await, PlayCount::UNKNOWN, "{broken:?}");
        postgres.set(Way::Open);
        eventually("postgres is back", async || !world.postgres.is_down()).await;
    }
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.stale), (Some(7), false));
}

#[tokio::test]
async fn a_postgres_that_says_nothing_holds_no_total_up_for_long() {
    let (world, _clock, _redis, postgres) = world_of_broken_ways().await;
    world.played("1", 5).await;
    world.flush_all().await;
    postgres.set(Way::Stalled);
    // Nobody has noticed yet; this instance would like to know of unique viewers.
    let count = world.fresh_count("1").await;
    assert_eq!((count.plays, count.stale), (Some(5), false));
}

#[tokio::test]
async fn a_service_starts_while_postgres_is_away_and_flushes_once_it_is_there() {
    let direct = world::settings().await;
    let proxy = Proxy::to(direct.postgres.url.expose()).await;
    proxy.set(Way::Cut);
    let mut config = direct.clone();
    config.postgres.url = SecretUrl::new(proxy.by(direct.postgres.url.expose()));
    let lifecycle = crate::lifecycle::Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
    let postgres = crate::store::postgres::Postgres::new(&config.postgres).unwrap();
    postgres.start(&lifecycle);
    eventually("postgres is missed", async || postgres.is_down()).await;
    assert!(!postgres.is_migrated());
    let unmigrated = World::open_on(direct, config, ManualClock::at(NOW), postgres.clone(), lifecycle).await;
    unmigrated.played("1", 5).await;
    for job in unmigrated.plays.jobs() {
        job.run().await.unwrap();
    }
    assert_eq!(unmigrated.delta("1").await, 5);
    proxy.set(Way::Open);
    eventually("the schema is there", async || postgres.is_migrated()).await;
    for job in unmigrated.plays.jobs() {
        job.run().await.unwrap();
    }
    assert_eq!(unmigrated.views(&video("1")).await, 5);
    assert_eq!(unmigrated.plays.counts(&[video("1")]).await[0].plays, Some(5));
}
