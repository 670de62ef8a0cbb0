//! What a viewer takes of Redis's memory, where the audience decides on the shards.

use headcount::config::{SecretUrl, Shards};
use headcount_support::OwnRedis;

use crate::{
    shards::number_of_shards,
    world::{World, beat, secs},
};

/// Redis keeps a histogram of some 20 kB for each command that was ever called.
const WITHOUT_HISTOGRAMS: &[&str] = &["--latency-tracking", "no"];

/// Bytes of Redis's memory, of which nothing is for connections: nobody else has one.
async fn used_memory(redis: &OwnRedis) -> i64 {
    let info: String = redis.query(redis::cmd("INFO").arg("memory").clone()).await.unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    used.trim().parse().unwrap()
}

async fn over(redis: &OwnRedis, shards: Shards) -> World {
    World::redis_with(|config| {
        config.redis.url = SecretUrl::new(redis.url(""));
        config.redis.prefix = String::new();
        config.presence.shards = shards;
    })
    .await
}

/// Beats of viewers with ids of nine digits.
async fn beats_of(world: &World, beats: impl Iterator<Item = (String, u32)>) {
    let beats: Vec<_> = beats
        .map(|(video, viewer)| beat(&video, &format!("{:09}", 100_000_000 + viewer * 7_919 % 900_000_000)))
        .collect();
    for beats in beats.chunks(20_000) {
        for result in world.stores.presence.beat_many(beats.to_vec()).await {
            result.unwrap();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn each(bytes: i64, viewers: u32) -> f64 {
    bytes as f64 / f64::from(viewers)
}

/// A hash of 98 such viewers, its key and its life included, takes 15.1 bytes a viewer in Debian's Redis 7.0.15,
/// written by hand as well; a hashtable takes five times as much.
#[tokio::test]
async fn a_hundred_thousand_viewers_of_one_video_take_the_memory_of_listpacks() {
    const VIEWERS: u32 = 100_000;
    for shards in [Shards::Fixed(1_024), Shards::Auto] {
        let redis = OwnRedis::start(WITHOUT_HISTOGRAMS).await;
        let world = over(&redis, shards).await;
        world.sweep().await;
        let stopped = world.drained().await;
        let before = used_memory(&redis).await;
        let world = stopped.started().await;
        let film = || (0..VIEWERS).map(|viewer| ("film".to_owned(), viewer));
        beats_of(&world, film()).await;
        if shards == Shards::Auto {
            assert_eq!(world.swept_count("film").await, Some(u64::from(VIEWERS)));
            world.pass(secs(30));
            beats_of(&world, film()).await;
            assert_eq!(world.swept_count("film").await, Some(u64::from(VIEWERS)));
            assert_eq!(number_of_shards(&world, "film").await, 1_024);
        }
        world.drained().await;
        let taken = each(used_memory(&redis).await - before, VIEWERS);
        println!("{shards:?}: {taken:.1} bytes a viewer");
        assert!(taken <= 15.5, "{shards:?}: {taken} bytes a viewer");
    }
}

#[tokio::test]
async fn ten_thousand_cold_videos_take_little_beside_their_hashes() {
    const VIDEOS: u32 = 10_000;
    let redis = OwnRedis::start(WITHOUT_HISTOGRAMS).await;
    let world = over(&redis, Shards::Auto).await;
    world.sweep().await;
    let stopped = world.drained().await;
    let before = used_memory(&redis).await;
    let world = stopped.started().await;
    let beats = (0..3 * VIDEOS).map(|viewer| (format!("{:09}", 500_000_000 + viewer / 3), viewer));
    beats_of(&world, beats).await;
    world.sweep().await;
    assert_eq!(world.stores.presence.top(1).await.videos.len(), 1);
    world.drained().await;
    let all = each(used_memory(&redis).await - before, 3 * VIDEOS);
    let names: Vec<String> = redis.query(redis::cmd("KEYS").arg("video:*").clone()).await.unwrap();
    let others: Vec<&String> = names.iter().filter(|name| !name.starts_with("video:online:")).collect();
    assert!(!others.iter().any(|name| name.starts_with("video:online-count")), "{others:?}");
    redis.query::<i64>(redis::cmd("DEL").arg(&others).clone()).await.unwrap();
    let hashes = each(used_memory(&redis).await - before, 3 * VIDEOS);
    println!("all keys: {all:.1} bytes a viewer, hashes alone: {hashes:.1}");
    assert!(hashes <= 66.0, "{hashes} bytes a viewer for the hashes");
    assert!(all <= 120.0, "{all} bytes a viewer");
}
