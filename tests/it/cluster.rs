//! A Redis Cluster that changes while it is used: slots move, a primary dies, nodes come and go.

use std::time::Duration;

use headcount::config::{SecretUrl, Topology};
use headcount_support::OwnCluster;

use crate::{
    load::Load,
    world::{World, a_play, complaint, eventually},
};

/// Durable enough to be killed; a write is on the replica before it is answered (`wait_replicas`).
const SETTINGS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "everysec"];

async fn world_on(cluster: &OwnCluster, pinned: bool) -> World {
    World::redis_with(|config| {
        config.redis.topology = Topology::Cluster;
        config.redis.urls = cluster.urls().into_iter().map(SecretUrl::new).collect();
        config.redis.wait_replicas = 1;
        config.redis.deadline = Duration::from_secs(2);
        config.plays.wait = true;
        config.presence.pin_video_to_slot = pinned;
        config.presence.viewers_per_shard = 10;
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn plays_and_viewers_are_counted_once_while_slots_move_a_primary_dies_and_nodes_come_and_go() {
    let mut cluster = OwnCluster::start(&SETTINGS).await;
    let one = world_on(&cluster, false).await;
    let other = one.another().await;
    let load = Load::new([&one, &other]);

    let primaries = cluster.primaries().await;
    load.run(async {
        cluster.reshard(2_000, primaries[0], primaries[1]).await;
        cluster.reshard(2_000, primaries[1], primaries[0]).await;
    })
    .await;
    load.is_counted().await;

    let heir = cluster.replica_of(primaries[2]).await;
    load.run(async {
        cluster.kill(primaries[2]).await;
        cluster.promoted(heir).await;
        // The one that was killed follows it: or nothing could be on a replica any more.
        cluster.start_again(primaries[2]).await;
        cluster.at(primaries[2]).in_step().await;
    })
    .await;
    load.is_counted().await;
    assert!(load.refused() > 0, "a primary was away and nobody was told so");

    let mut held = Some(cluster);
    load.run(async {
        let cluster = held.as_mut().unwrap();
        let newcomer = cluster.add_primary(&SETTINGS).await;
        // No replica of its own: what it has is vouched for by nobody until it is gone again.
        cluster.reshard(300, primaries[0], newcomer).await;
        cluster.empty(newcomer, primaries[0]).await;
        cluster.remove(newcomer).await;
    })
    .await;
    load.is_counted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_pins_videos_otherwise_than_the_others_is_not_ready_and_says_why() {
    let world = World::cluster_with(|config| config.presence.pin_video_to_slot = true).await;
    world.beat("film", "ann").await;
    assert_eq!(world.online("film").await.online, Some(1));
    let keys = world.redis_keys().await;
    assert!(keys.contains(&"video:online:{film}:0".to_owned()), "{keys:?}");
    let mut config = world.config.clone();
    config.presence.pin_video_to_slot = false;
    complaint(&config, world.clock.clone(), "presence.pin_video_to_slot").await;
}

/// Without a replica to take over, and without the rest refusing all for it.
#[tokio::test(flavor = "multi_thread")]
async fn with_one_node_gone_for_good_the_others_go_on_also_when_their_connections_break() {
    let settings = ["--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes"];
    let mut cluster = OwnCluster::start(&settings).await;
    let world = World::redis_with(|config| {
        config.redis.topology = Topology::Cluster;
        config.redis.urls = cluster.urls().into_iter().map(SecretUrl::new).collect();
    })
    .await;
    let videos: Vec<String> = (0..40).map(|number| format!("video-{number}")).collect();
    let mut number = 0;
    let mut taken = async || {
        let mut taken = Vec::new();
        for video in &videos {
            number += 1;
            let play = a_play(video, None, Some(&format!("play-{number}")));
            taken.push(world.stores.plays.record(play).await.is_ok());
        }
        taken
    };
    assert!(taken().await.iter().all(|taken| *taken));

    let primaries = cluster.primaries().await;
    cluster.kill(primaries[0]).await;
    let mut left = Vec::new();
    eventually("what is on the one that is gone is refused, and nothing else", async || {
        left = taken().await;
        let again = taken().await;
        left == again && left.contains(&true) && left.contains(&false)
    })
    .await;
    assert!(world.stores.health.check().await.failed.is_empty(), "what is left is not ready");
    for port in &primaries[1..] {
        let mut end = redis::cmd("CLIENT");
        end.arg("KILL").arg("TYPE").arg("normal");
        cluster.at(*port).query::<i64>(end).await.unwrap();
    }
    eventually("the others are there again", async || taken().await == left).await;
    cluster.start_again(primaries[0]).await;
    eventually("so is the one that was gone", async || taken().await.iter().all(|taken| *taken)).await;
}
