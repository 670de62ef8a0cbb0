//! What a viewer takes of Redis's memory.

use std::time::Duration;

use crate::{
    audience::{video, viewer},
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

const COLD_VIDEOS: u32 = 10_000;
const VIEWERS_OF_A_COLD_ONE: u32 = 3;

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let viewers = bench.scaled(100_000);
    at_once(bench, viewers).await?;
    grown(bench, viewers).await?;
    cold(bench).await
}

/// Everybody comes while the video has its shards already.
async fn at_once(bench: &Bench, viewers: u32) -> anyhow::Result<()> {
    let shards = (viewers / 100).next_power_of_two().to_string();
    let measured = Measured::start(bench, &[("PRESENCE__SHARDS", &shards)]).await?;
    everybody_beats(&measured.world.service, viewers).await?;
    tokio::time::sleep(SETTLE + Duration::from_secs(2)).await;
    let bytes = measured.end().await?.1;
    let what = format!("memory, {viewers} viewers of one video, loaded at once");
    let figure = Figure::new(what, per(bytes, viewers), "B a viewer").must(AtMost(14.5));
    bench.report.borrow_mut().figure(figure);
    Ok(())
}

/// One shard at first; the audience grows tenfold between sweeps.
async fn grown(bench: &Bench, viewers: u32) -> anyhow::Result<()> {
    let measured = Measured::start(bench, &[]).await?;
    let service = &measured.world.service;
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
    let bytes = measured.end().await?.1;
    let what = format!("memory, {viewers} viewers of one video, grown from one shard");
    let figure = Figure::new(what, per(bytes, viewers), "B a viewer").must(AtMost(15.5));
    bench.report.borrow_mut().figure(figure);
    Ok(())
}

async fn cold(bench: &Bench) -> anyhow::Result<()> {
    let videos = bench.scaled(COLD_VIDEOS);
    let viewers = videos * VIEWERS_OF_A_COLD_ONE;
    let measured = Measured::start(bench, &[]).await?;
    let beats =
        (0..viewers).map(|number| (video(usize::try_from(number % videos).unwrap_or(0)), viewer(number)));
    bulk::beat(measured.world.service.public, beats).await?;
    tokio::time::sleep(SETTLE + Duration::from_secs(2)).await;
    let (hashes, all) = measured.end().await?;
    let mut report = bench.report.borrow_mut();
    for (what, bytes, must) in [("shard hashes alone", hashes, 66.0), ("all keys", all, 120.0)] {
        let what = format!("memory, {videos} cold videos × {VIEWERS_OF_A_COLD_ONE}: {what}");
        report.figure(Figure::new(what, per(bytes, viewers), "B a viewer").must(AtMost(must)));
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

/// A world whose Redis was looked at before anybody used it.
struct Measured {
    world: World,
    before: u64,
}

impl Measured {
    async fn start(bench: &Bench, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        let redis = Redis::start(bench).await?;
        let before = redis.memory().await?;
        let world = World::with(bench, redis, &[&SETTINGS, settings].concat()).await?;
        Ok(Self { world, before })
    }

    /// What the hashes of viewers take, and what everything takes, without what connections take.
    async fn end(self) -> anyhow::Result<(u64, u64)> {
        let Self { world, before } = self;
        let redis = world.kill_service().await?;
        let all = redis.memory().await?.saturating_sub(before);
        let mut connection = redis.connect().await?;
        // Hashes stay; in steps, since a script may not hold up Redis for long, not even here.
        for key in redis.keys("*").await? {
            if !key.starts_with("video:online:") {
                redis::cmd("DEL").arg(key).query_async::<()>(&mut connection).await?;
            }
        }
        drop(connection);
        let hashes = redis.memory().await?.saturating_sub(before);
        Ok((hashes, all))
    }
}
