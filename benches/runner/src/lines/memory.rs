//! What a viewer takes of Redis's memory.

use std::time::Duration;

use crate::{
    audience::{Dice, video, viewer},
    bench::Bench,
    bulk,
    report::{Bound::AtMost, Figure},
    world::{Redis, Service, World},
    wrk::SETTLE,
};

/// Short, so that what a change of shards leaves behind is gone soon.
const WINDOW: Duration = Duration::from_secs(30);
const SETTINGS: [(&str, &str); 3] =
    [("PRESENCE__WINDOW", "30s"), ("PRESENCE__HEARTBEAT_EVERY", "10s"), ("JOBS__SWEEP_EVERY", "1s")];

/// Two sweeps, and the five seconds after which instances look for a new number of shards.
const NOTICED: Duration = Duration::from_secs(7);

/// A number of shards is over when a window and so much more has passed since the change.
const OVER: Duration = Duration::from_secs(20);

/// In Unix seconds, of as many digits as any for 250 years.
const A_TIME: u32 = 1_796_000_000;

const COLD_VIDEOS: u32 = 10_000;
const VIEWERS_OF_A_COLD_ONE: u32 = 3;

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let viewers = bench.scaled(100_000);
    by_hand(bench, viewers).await?;
    at_once(bench, viewers).await?;
    grown(bench, viewers).await?;
    cold(bench).await
}

/// The same hashes, each with a life, and no other key: no service can take less of this Redis.
async fn by_hand(bench: &Bench, viewers: u32) -> anyhow::Result<()> {
    let redis = Redis::to_weigh(bench).await?;
    let mut connection = redis.connect().await?;
    let mut fields: Vec<Vec<u32>> = vec![Vec::new(); usize::try_from((viewers / 100).next_power_of_two())?];
    let (mut dice, shards) = (Dice::new(3), u32::try_from(fields.len())?);
    for number in 0..viewers {
        fields[usize::try_from(dice.below(shards))?].extend([viewer(number), A_TIME]);
    }
    for (shard, fields) in fields.iter().enumerate() {
        let key = format!("video:online:{}:{shard}", video(0));
        redis::cmd("HSET").arg(&key).arg(fields).query_async::<()>(&mut connection).await?;
        redis::cmd("EXPIRE").arg(&key).arg(750).query_async::<()>(&mut connection).await?;
    }
    let all = redis.memory().await?;
    redis::cmd("FLUSHALL").arg("SYNC").query_async::<()>(&mut connection).await?;
    let bytes = all.saturating_sub(redis.memory().await?);
    let what = format!("memory, {viewers} viewers of one video, written by hand");
    bench.figure(Figure::new(what, per(bytes, viewers), "B a viewer"));
    Ok(())
}

/// Everybody comes while the video has its shards already.
async fn at_once(bench: &Bench, viewers: u32) -> anyhow::Result<()> {
    let shards = (viewers / 100).next_power_of_two().to_string();
    let world = World::to_weigh(bench, &[&SETTINGS[..], &[("PRESENCE__SHARDS", &shards)]].concat()).await?;
    everybody_beats(&world.service, viewers).await?;
    tokio::time::sleep(SETTLE + Duration::from_secs(2)).await;
    let bytes = bytes(world).await?.1;
    let what = format!("memory, {viewers} viewers of one video, loaded at once");
    let figure = Figure::new(what, per(bytes, viewers), "B a viewer").must(AtMost(14.5));
    bench.figure(figure);
    Ok(())
}

/// One shard at first; the audience grows tenfold between sweeps.
async fn grown(bench: &Bench, viewers: u32) -> anyhow::Result<()> {
    let world = World::to_weigh(bench, &SETTINGS).await?;
    let service = &world.service;
    let mut audience = 100;
    loop {
        audience = (audience * 10).min(viewers);
        everybody_beats(service, audience).await?;
        tokio::time::sleep(NOTICED).await;
        if audience == viewers {
            break;
        }
    }
    // Everybody goes on beating until the former numbers of shards are over.
    let until = tokio::time::Instant::now() + WINDOW + OVER + NOTICED;
    while tokio::time::Instant::now() < until {
        everybody_beats(service, viewers).await?;
        tokio::time::sleep(NOTICED).await;
    }
    let bytes = bytes(world).await?.1;
    let what = format!("memory, {viewers} viewers of one video, grown from one shard");
    let figure = Figure::new(what, per(bytes, viewers), "B a viewer").must(AtMost(15.5));
    bench.figure(figure);
    Ok(())
}

async fn cold(bench: &Bench) -> anyhow::Result<()> {
    let videos = bench.scaled(COLD_VIDEOS);
    let viewers = videos * VIEWERS_OF_A_COLD_ONE;
    let world = World::to_weigh(bench, &SETTINGS).await?;
    let beats =
        (0..viewers).map(|number| (video(usize::try_from(number % videos).unwrap_or(0)), viewer(number)));
    bulk::beat(world.service.public, beats).await?;
    tokio::time::sleep(SETTLE + Duration::from_secs(2)).await;
    let (hashes, all) = bytes(world).await?;
    for (what, bytes, must) in [("shard hashes alone", hashes, 66.0), ("all keys", all, 120.0)] {
        let what = format!("memory, {videos} cold videos × {VIEWERS_OF_A_COLD_ONE}: {what}");
        bench.figure(Figure::new(what, per(bytes, viewers), "B a viewer").must(AtMost(must)));
    }
    Ok(())
}

async fn everybody_beats(service: &Service, viewers: u32) -> anyhow::Result<()> {
    bulk::beat(service.public, (0..viewers).map(|number| (video(0), viewer(number)))).await
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a small Redis")]
fn per(bytes: u64, viewers: u32) -> f64 {
    bytes as f64 / f64::from(viewers)
}

/// What the hashes of viewers take of Redis, and what all keys take: whatever else is in its memory
/// (scripts, connections, tables of its own) is there with and without them.
pub(super) async fn bytes(world: World) -> anyhow::Result<(u64, u64)> {
    let redis = world.kill_service().await?;
    let mut connection = redis.connect().await?;
    // What was slow is remembered with its arguments.
    redis::cmd("SLOWLOG").arg("RESET").query_async::<()>(&mut connection).await?;
    let all = redis.memory().await?;
    let keys = redis.keys("*").await?;
    let others: Vec<&String> = keys.iter().filter(|key| !key.starts_with("video:online:")).collect();
    for some in others.chunks(1_000) {
        redis::cmd("DEL").arg(some).query_async::<()>(&mut connection).await?;
    }
    let hashes = redis.memory().await?;
    redis::cmd("FLUSHALL").arg("SYNC").query_async::<()>(&mut connection).await?;
    let nothing = redis.memory().await?;
    Ok((hashes.saturating_sub(nothing), all.saturating_sub(nothing)))
}
