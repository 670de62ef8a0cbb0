//! A primary that sentinels name: it dies, is demoted in place, and is found again.

use std::time::Duration;

use headcount::config::{Config, SecretUrl, Topology};
use headcount_support::{OwnSentinels, own_sentinels};

use crate::{
    load::Load,
    world::{World, complaint, eventually},
};

const SETTINGS: [&str; 2] = ["--appendonly", "yes"];

fn by_sentinels(config: &mut Config, servers: &OwnSentinels) {
    config.redis.topology = Topology::Sentinel;
    config.redis.urls = servers.urls().into_iter().map(SecretUrl::new).collect();
    own_sentinels::NAME.clone_into(&mut config.redis.sentinel_master);
    // What is told here is how to speak to the primary, not where it is.
    config.redis.url = SecretUrl::new(format!("redis://:{}@nowhere.invalid:1", own_sentinels::PASSWORD));
}

#[tokio::test(flavor = "multi_thread")]
async fn plays_and_viewers_are_counted_once_through_failovers_that_sentinels_make() {
    let mut servers = OwnSentinels::start(&SETTINGS).await;
    let one = World::redis_with(|config| {
        by_sentinels(config, &servers);
        // All that may be promoted.
        config.redis.wait_replicas = 2;
        config.plays.wait = true;
        config.redis.deadline = Duration::from_secs(2);
    })
    .await;
    let other = one.another().await;
    let load = Load::new([&one, &other]);

    let first = servers.primary().await;
    load.run(async {
        servers.kill(first).await;
        servers.is_promoted_after(first).await;
        servers.start_again(first).await;
    })
    .await;
    load.is_counted().await;
    let refused = load.refused();
    assert!(refused > 0, "the primary was away and nobody was told so");

    // In place: whoever stays on the old socket is told READONLY.
    load.run(servers.fail_over()).await;
    load.is_counted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_sentinel_gone_nothing_is_missed_and_a_wrong_name_is_told() {
    let mut servers = OwnSentinels::start(&[]).await;
    servers.kill_sentinel(0).await;
    let world = World::redis_with(|config| by_sentinels(config, &servers)).await;
    world.beat("film", "ann").await;
    assert_eq!(world.online("film").await.online, Some(1));
    let mut config = world.config.clone();
    config.redis.sentinel_master = "movies".to_owned();
    complaint(&config, world.clock.clone(), "movies").await;
}

/// The primary's host is often a sentinel's as well: what is gone with it doesn't even refuse connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_stands_still_holds_no_failover_up() {
    let mut servers = OwnSentinels::start(&[]).await;
    let world = World::redis_with(|config| {
        by_sentinels(config, &servers);
        config.redis.deadline = Duration::from_secs(1);
    })
    .await;
    world.beat("film", "ann").await;
    let first = servers.primary().await;
    servers.signal_sentinel(0, "-STOP").await;
    servers.kill(first).await;
    eventually("another takes the beats", async || world.try_beat("film", "ben").await.is_ok()).await;
    servers.signal_sentinel(0, "-CONT").await;
}
