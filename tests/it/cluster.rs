//! A Redis Cluster that changes while it is used: slots move, a primary dies, nodes come and go.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use headcount::{
    config::{SecretUrl, Topology},
    plays::Recorded,
};
use headcount_support::OwnCluster;

use crate::world::{World, a_play, eventually, secs};

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

/// What an audience does until it is told to stop, and what came of it.
struct Load<'a> {
    worlds: [&'a World; 2],
    over: AtomicBool,
    played: AtomicU32,
    refused: AtomicU32,
}

const VIDEOS: u32 = 7;

/// Viewers of each video.
const VIEWERS: u32 = 24;

impl<'a> Load<'a> {
    fn new(worlds: [&'a World; 2]) -> Self {
        Self { worlds, over: AtomicBool::new(false), played: 0.into(), refused: 0.into() }
    }

    /// Plays and beats, each sent again until it is taken, with both instances; while `meanwhile` happens.
    async fn run(&self, meanwhile: impl Future<Output = ()>) {
        let events = async {
            meanwhile.await;
            self.over.store(true, Ordering::Relaxed);
        };
        let players = futures::future::join_all((0..4).map(|player| self.play(player)));
        let watchers = futures::future::join_all((0..VIDEOS).map(|video| self.watch(video)));
        let jobs = async {
            while !self.over.load(Ordering::Relaxed) {
                for job in &self.worlds[0].stores.jobs {
                    if matches!(job.name(), "flush" | "sweep") {
                        // While a node is away its partitions can't be flushed.
                        let _ = job.run().await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::join!(events, players, watchers, jobs);
        self.over.store(false, Ordering::Relaxed);
    }

    async fn play(&self, player: usize) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.played.fetch_add(1, Ordering::Relaxed);
            let play_id = format!("play-{number}");
            for attempt in 0.. {
                let world = self.worlds[(player + attempt) % 2];
                let play = a_play(&format!("video-{}", number % VIDEOS), None, Some(&play_id));
                match world.stores.plays.record(play).await {
                    Ok(Recorded::Counted) => break,
                    // One that was not answered, or not vouched for, may have been counted.
                    Ok(_) if attempt > 0 => break,
                    Ok(other) => panic!("{other:?} for a play that is new"),
                    Err(error) => {
                        assert!(error.is_transient(), "{error}");
                        self.refused.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }
    }

    async fn watch(&self, video: u32) {
        for round in 0.. {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let viewer = format!("viewer-{}", round % VIEWERS);
            let world = self.worlds[usize::from(round % 2 == 0)];
            if let Err(error) = world.try_beat(&format!("video-{video}"), &viewer).await {
                assert!(error.is_transient(), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// All plays are counted, once, and all viewers.
    async fn is_counted(&self) {
        for world in self.worlds {
            eventually("it is well again", async || world.stores.health.check().await.degraded.is_empty())
                .await;
        }
        // Everybody beats twice more, which is how long low numbers may be doubted.
        for _ in 0..5 {
            for video in 0..VIDEOS {
                for viewer in 0..VIEWERS {
                    let beat = async || {
                        let (video, viewer) = (format!("video-{video}"), format!("viewer-{viewer}"));
                        self.worlds[0].try_beat(&video, &viewer).await.is_ok()
                    };
                    eventually("the beat is taken", beat).await;
                }
            }
            self.worlds[0].pass_swept(1).await;
        }
        let flush = async || {
            let jobs = self.worlds[0].stores.jobs.iter().filter(|job| job.name() == "flush");
            futures::future::join_all(jobs.map(|job| job.run())).await.iter().all(Result::is_ok)
        };
        eventually("all is flushed", flush).await;
        let played = self.played.load(Ordering::Relaxed);
        for world in self.worlds {
            world.forget_what_was_read();
            for video in 0..VIDEOS {
                let name = format!("video-{video}");
                let sent = (0..played).filter(|number| number % VIDEOS == video).count() as u64;
                let plays = world.plays(&name).await;
                assert_eq!((plays.plays, plays.stale), (Some(sent), false), "{name}");
                let online = world.online(&name).await;
                assert_eq!((online.online, online.stale), (Some(u64::from(VIEWERS)), false), "{name}");
            }
        }
    }
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
    assert!(load.refused.load(Ordering::Relaxed) > 0, "a primary was away and nobody was told so");

    let mut held = Some(cluster);
    load.run(async {
        let cluster = held.as_mut().unwrap();
        let newcomer = cluster.add_primary(&SETTINGS).await;
        // No replica of its own: what it has is vouched for by nobody until it is gone again.
        cluster.reshard(300, primaries[0], newcomer).await;
        cluster.reshard(300, newcomer, primaries[0]).await;
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
    let lifecycle = headcount::lifecycle::Lifecycle::new(Duration::ZERO, secs(30));
    let stores = headcount::backend::open(&config, &lifecycle, world.clock.clone()).await.unwrap();
    eventually("it says why", async || {
        let failed = stores.health.check().await.failed;
        failed.iter().any(|error| error.to_string().contains("presence.pin_video_to_slot"))
    })
    .await;
}
