//! The ways to the stores break: every call ends within its deadline, nothing is left behind, and all
//! is well again by itself.

use std::time::Duration;

use futures::future::{LocalBoxFuture, join_all};
use headcount::{
    config::{Config, SecretUrl},
    plays::Recorded,
};
use headcount_support::{Proxy, Way};

use crate::world::{World, a_play, beat, eventually, service, video_id};

const DEADLINE: Duration = Duration::from_millis(500);

/// Machines that test are slow at times.
const SLACK: u32 = 10;

/// Ways on which nobody hears anything in time.
const SILENT: [Way; 4] = [Way::Stalled, Way::Dark, Way::Deaf, Way::Late(Duration::from_millis(1_500))];

/// A world whose way to Redis can be broken.
async fn behind_redis(change: impl FnOnce(&mut Config)) -> (World, Proxy) {
    let proxy = Proxy::to(&service("TEST_REDIS_URL")).await;
    let url = proxy.by(&service("TEST_REDIS_URL"));
    let world = World::redis_with(|config| {
        config.redis.url = SecretUrl::new(url);
        config.redis.deadline = DEADLINE;
        change(config);
    })
    .await;
    (world, proxy)
}

/// A world whose way to Postgres can be broken.
async fn behind_postgres() -> (World, Proxy) {
    let database = crate::world::new_database().await;
    let proxy = Proxy::to(&database).await;
    let url = proxy.by(&database);
    let world = World::redis_with(|config| {
        config.postgres.url = SecretUrl::new(url);
        config.postgres.deadline = DEADLINE;
    })
    .await;
    (world, proxy)
}

impl World {
    /// As `world.redis_command`, past whatever stands in the service's way.
    async fn ask_redis<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let mut connection = headcount_support::redis_connection(&service("TEST_REDIS_URL")).await.unwrap();
        command.query_async(&mut connection).await.unwrap()
    }

    async fn is_well(&self) -> bool {
        self.try_beat("witness", "witness").await.is_ok()
    }
}

/// Everything that can be asked of a service, each by its name.
fn everything(world: &World) -> Vec<(&'static str, LocalBoxFuture<'_, ()>)> {
    let presence = &world.stores.presence;
    let videos = || vec![video_id("film"), video_id("song")];
    vec![
        ("beat", Box::pin(async { drop(presence.beat(beat("film", "ann")).await) })),
        ("beats", Box::pin(async { drop(presence.beat_many(vec![beat("film", "ann"); 100]).await) })),
        ("leave", Box::pin(async { drop(presence.leave(beat("film", "ann")).await) })),
        ("online", Box::pin(async move { drop(presence.online(&videos()).await) })),
        ("top", Box::pin(async { drop(presence.top(10).await) })),
        (
            "play",
            Box::pin(async { drop(world.stores.plays.record(a_play("film", Some("ann"), None)).await) }),
        ),
        ("plays", Box::pin(async move { drop(world.stores.plays.counts(&videos()).await) })),
        ("videos", Box::pin(async move { drop(world.stores.videos.existing(&videos()).await) })),
    ]
}

async fn every_call_ends(world: &World, deadline: Duration, way: Way) {
    let calls = everything(world).into_iter().map(async |(name, call)| {
        let ended = tokio::time::timeout(deadline * SLACK, call).await;
        assert!(ended.is_ok(), "{name} hangs while the way is {way:?}");
    });
    join_all(calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_says_nothing_every_call_ends_within_its_deadline() {
    for way in SILENT {
        let (world, proxy) = behind_redis(|_| {}).await;
        proxy.set(way);
        // Before and after it is noticed.
        every_call_ends(&world, DEADLINE, way).await;
        every_call_ends(&world, DEADLINE, way).await;
        world.forget_what_was_read();
        every_call_ends(&world, DEADLINE, way).await;
        proxy.set(Way::Open);
        eventually("it is well", async || world.is_well().await).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_postgres_says_nothing_every_call_ends_within_its_deadline_and_plays_are_counted() {
    for way in SILENT {
        let (world, proxy) = behind_postgres().await;
        proxy.set(way);
        for viewer in 0..3 {
            every_call_ends(&world, DEADLINE, way).await;
            assert_eq!(world.play("song", Some(&format!("viewer-{viewer}")), None).await, Recorded::Counted);
        }
        proxy.set(Way::Open);
        eventually("it is well", async || world.stores.health.check().await.degraded.is_empty()).await;
        eventually("it is flushed", async || {
            for job in world.stores.jobs.iter().filter(|job| job.name() == "flush") {
                drop(job.run().await);
            }
            let existing = world.stores.videos.existing(&[video_id("song"), video_id("film")]).await;
            existing.is_ok_and(|existing| existing.len() == 2)
        })
        .await;
        let count = world.plays("song").await;
        assert_eq!((count.plays, count.stale), (Some(3), false), "{way:?}");
    }
}

/// A second is the promise; the figures are printed, and a slow machine has some more time.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_used_again_soon_after_its_way_is_open() {
    let (by_redis, to_redis) = behind_redis(|_| {}).await;
    let (by_postgres, to_postgres) = behind_postgres().await;
    for way in [Way::Cut, Way::Stalled, Way::Dark] {
        // The way opens at another moment between two attempts each time.
        for dark in [600, 1_100, 1_700, 2_300] {
            to_redis.set(way);
            to_postgres.set(way);
            eventually("redis is missed", async || by_redis.try_beat("film", "ann").await.is_err()).await;
            eventually("postgres is missed", async || {
                by_postgres.stores.videos.existing(&[video_id("film")]).await.is_err()
            })
            .await;
            tokio::time::sleep(Duration::from_millis(dark)).await;
            let opened = tokio::time::Instant::now();
            let redis = async {
                to_redis.set(Way::Open);
                eventually("redis is used", async || by_redis.try_beat("film", "ann").await.is_ok()).await;
                opened.elapsed()
            };
            let postgres = async {
                to_postgres.set(Way::Open);
                eventually("postgres is used", async || {
                    by_postgres.stores.videos.existing(&[video_id("film")]).await.is_ok()
                })
                .await;
                opened.elapsed()
            };
            let (redis, postgres) = tokio::join!(redis, postgres);
            eprintln!("{way:?} for {dark} ms more: redis after {redis:?}, postgres after {postgres:?}");
            assert!(redis.max(postgres) < Duration::from_secs(1) * 5, "{way:?}: {redis:?}, {postgres:?}");
        }
    }
}

/// A slow way is no broken one.
#[tokio::test(flavor = "multi_thread")]
async fn with_every_answer_late_but_in_time_everything_is_taken() {
    let (world, proxy) = behind_redis(|config| config.redis.deadline = Duration::from_secs(10)).await;
    proxy.set(Way::Late(Duration::from_millis(100)));
    let plays = (0..200).map(|viewer| {
        let world = &world;
        async move {
            world.beat("film", &format!("viewer-{viewer}")).await;
            world.play("film", Some(&format!("viewer-{viewer}")), None).await
        }
    });
    assert!(join_all(plays).await.into_iter().all(|recorded| recorded == Recorded::Counted));
    assert_eq!(world.swept_count("film").await, Some(200));
    assert_eq!(world.plays("film").await.plays, Some(200));
}

/// Calls that were given up, and connections that were tried in vain.
#[tokio::test]
async fn calls_into_the_dark_leave_no_task_behind() {
    let (world, proxy) = behind_redis(|_| {}).await;
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    eventually("it is well", async || world.is_well().await).await;
    every_call_ends(&world, DEADLINE, Way::Open).await;
    let before = alive();
    for way in [Way::Dark, Way::Stalled, Way::Cut] {
        proxy.set(way);
        for round in 0..3 {
            let viewers: Vec<String> = (0..500).map(|viewer| format!("viewer-{round}-{viewer}")).collect();
            let calls = viewers.iter().map(|viewer| world.try_beat("film", viewer));
            let refused = join_all(calls).await.into_iter().filter(Result::is_err).count();
            assert!(refused > 0, "{way:?}");
            every_call_ends(&world, DEADLINE, way).await;
        }
        proxy.set(Way::Open);
        eventually("it is well", async || world.is_well().await).await;
        eventually("no task is left", async || alive() <= before).await;
    }
}

/// [S13] As a play: both a viewer and the mark by which the sweep finds it are there, or the viewer
/// isn't.
#[tokio::test(flavor = "multi_thread")]
async fn a_beat_cut_at_any_byte_is_written_in_the_end_and_never_outside_the_sweep() {
    const LANES: usize = 16;
    let (first, _proxy) = behind_redis(|config| {
        config.presence.shards = headcount::config::Shards::Fixed(1);
        config.redis.deadline = Duration::from_secs(10);
    })
    .await;
    let lanes = join_all((0..LANES).map(async |_| {
        let proxy = Proxy::to(&service("TEST_REDIS_URL")).await;
        let url = proxy.by(&service("TEST_REDIS_URL"));
        (first.another_with(|config| config.redis.url = SecretUrl::new(url)).await, proxy)
    }))
    .await;
    lanes[0].1.set(Way::Open);
    lanes[0].0.beat("video-length", "ann").await;
    // What is asked on a new connection has a stamp more, and a probe may have come between.
    let length = lanes[0].1.asked();
    assert!(length > 200, "{length}");

    let runs = lanes.iter().enumerate().map(async |(lane, (world, proxy))| {
        for byte in (lane..=length).step_by(LANES) {
            let video = format!("video-{byte:06}");
            proxy.set(Way::CutAsked(byte));
            let result = world.try_beat(&video, "ann").await;
            assert!(
                result.as_ref().err().is_none_or(headcount::error::StoreError::is_transient),
                "{result:?}"
            );
            let (viewers, score) = in_redis(world, &video).await;
            assert!(viewers == 0 || score.is_some(), "{byte}: a viewer that no sweep finds");
            proxy.set(Way::Open);
            eventually("it is taken", async || world.try_beat(&video, "ann").await.is_ok()).await;
            let (viewers, score) = in_redis(world, &video).await;
            assert!(viewers == 1 && score.is_some(), "{byte}: {viewers} {score:?}");
        }
    });
    join_all(runs).await;
    first.sweep().await;
    first.forget_what_was_read();
    for byte in 0..=length {
        let count = first.online(&format!("video-{byte:06}")).await;
        assert_eq!((count.online, count.stale), (Some(1), false), "{byte}");
    }
    eprintln!("broken at each of {length} bytes");
}

/// The viewers of a video whose only viewer is Ann, and its place in the registry.
async fn in_redis(world: &World, video: &str) -> (u64, Option<i64>) {
    let mut length = redis::cmd("HLEN");
    length.arg(world.shard_key(video, "ann"));
    let mut score = redis::cmd("ZSCORE");
    let partition = video_id(video).partition();
    score.arg(world.key(&format!("video:active:{{{partition}}}"))).arg(video);
    (world.ask_redis(&length).await, world.ask_redis(&score).await)
}
