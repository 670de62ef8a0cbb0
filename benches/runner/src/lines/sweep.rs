//! Sweeps of a large audience, a tenth of which has left: what they cost Redis, and what others wait.

use std::time::{Duration, Instant};

use anyhow::ensure;
use headcount_support::OwnPostgres;
use serde::Serialize;

use crate::{
    audience::{video, viewer},
    bench::Bench,
    bulk,
    process::processor_time,
    report::{Bound::AtMost, Figure},
    waits::{Waited, Waits},
    world::{PARTITIONS, Redis, World},
    wrk::SETTLE,
};

/// Nobody is swept while the audience comes; shards are changed meanwhile where they follow it.
const LOADING: &[(&str, &str)] =
    &[("PRESENCE__WINDOW", "1h"), ("JOBS__SWEEP_EVERY", "3s"), ("PRESENCE__HEARTBEAT_EVERY", "30s")];

/// Each partition once in so long: the same work as once a minute, and a run needn't wait a minute for it.
const SWEEPING: &[(&str, &str)] = &[("JOBS__SWEEP_EVERY", "15s")];

/// Two sweeps, and the five seconds after which instances look for a new number of shards.
const NOTICED: Duration = Duration::from_secs(12);

/// Long enough to tell what a look costs Redis, which is counted in hundredths of a second.
const QUIET: Duration = Duration::from_secs(5);

/// Makes every tenth viewer of a part of a hash one who left, from a cursor and from a place on.
const AGE: &str = "
local step = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', 1000)
for place = 1 + 2 * ARGV[3], #step[2], 20 do
    redis.call('HSET', KEYS[1], step[2][place], ARGV[2])
end
return step[1]";

#[derive(Debug, Serialize)]
struct Swept {
    viewers: u32,
    videos: u32,
    keys: usize,
    removed: f64,
    redis_seconds: f64,
    service_seconds: f64,
    sweeps_seconds: f64,
    wall_seconds: f64,
    quiet: Waited,
    meanwhile: Waited,
}

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let viewers = bench.scaled(1_000_000);
    let many = bench.scaled(100_000);
    let scale = f64::from(viewers) / 1e6;
    for (videos, must, aim) in [(1, 1.7, 1.2), (many, 2.6, 1.5)] {
        let swept = sweep(bench, viewers, videos).await?;
        let name = if videos == 1 { "one video".to_owned() } else { format!("{videos} videos") };
        let figure =
            Figure::new(format!("sweep, {viewers} viewers, {name}: Redis time"), swept.redis_seconds, "s");
        bench.figure(figure.must(AtMost(must * scale)).aim(AtMost(aim * scale)));
        let what = format!("another client's longest wait meanwhile ({:.1} ms without)", swept.quiet.longest);
        bench.figure(Figure::new(what, swept.meanwhile.longest, "ms").must(AtMost(10.0)).aim(AtMost(6.0)));
        bench.raw(&format!("sweep-of-{videos}"), swept);
    }
    Ok(())
}

async fn sweep(bench: &Bench, viewers: u32, videos: u32) -> anyhow::Result<Swept> {
    let world = World::start(bench, LOADING).await?;
    // Twice: the second time everybody goes where the number of shards now wants them.
    for _ in 0..2 {
        let beats =
            (0..viewers).map(|number| (video(usize::try_from(number % videos).unwrap_or(0)), viewer(number)));
        bulk::beat(world.service.public, beats).await?;
        tokio::time::sleep(if videos == 1 { NOTICED } else { SETTLE }).await;
    }
    let redis = world.kill_service().await?;
    let keys = age(&redis).await?;
    unlock(&redis).await?;
    let sweeps = redis.sweeps().await?;

    // Its start takes the machine for a while, and is no part of what others wait for.
    let postgres = OwnPostgres::start().await;
    let waits = Waits::watch(&redis).await?;
    let idle = processor_time(redis.id)?;
    tokio::time::sleep(QUIET).await;
    let (quiet, before) = (waits.take(), processor_time(redis.id)?);
    ensure!(quiet.looks > 0, "nobody looks");
    let seconds_a_look = (before - idle) / f64::from(quiet.looks);

    let began = Instant::now();
    let world = World::over(bench, redis, postgres, &[LOADING, SWEEPING].concat()).await?;
    world.redis.is_swept_since(&sweeps).await?;
    let wall_seconds = began.elapsed().as_secs_f64();
    // There are fewer looks where each waits longer.
    let (meanwhile, after) = (waits.take(), processor_time(world.redis.id)?);
    let redis_seconds = after - before - seconds_a_look * f64::from(meanwhile.looks);
    let swept = Swept {
        viewers,
        videos,
        keys,
        removed: world.service.metric("headcount_sweep_removed_total").await?,
        redis_seconds,
        service_seconds: processor_time(world.service.id())?,
        sweeps_seconds: world.service.metric("headcount_sweep_duration_seconds_sum").await?,
        wall_seconds,
        quiet,
        meanwhile,
    };
    let share = swept.removed / f64::from(viewers);
    ensure!((0.05..0.2).contains(&share), "a tenth should have been dropped, not {share:.3}");
    drop(waits);
    world.kill_service().await?;
    Ok(swept)
}

/// Makes a tenth of all viewers ones who left an hour ago and more; how many hashes they are in.
async fn age(redis: &Redis) -> anyhow::Result<usize> {
    let now: u64 = {
        let mut connection = redis.connect().await?;
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await?;
        seconds
    };
    let then = now - 2 * 3_600;
    let mut connection = redis.connect().await?;
    let mut open: Vec<(String, String)> =
        redis.keys("video:online:*").await?.into_iter().map(|key| (key, "0".to_owned())).collect();
    let keys = open.len();
    while !open.is_empty() {
        let mut left = Vec::new();
        for some in open.chunks(1_000) {
            let mut pipe = redis::pipe();
            for (place, (key, cursor)) in some.iter().enumerate() {
                // Another place in each, or every viewer of a hash of one would be taken.
                pipe.cmd("EVAL").arg(AGE).arg(1).arg(key).arg(cursor).arg(then).arg(place % 10);
            }
            let cursors: Vec<String> = pipe.query_async(&mut connection).await?;
            let next = some.iter().zip(cursors).filter(|(_, cursor)| cursor != "0");
            left.extend(next.map(|((key, _), cursor)| (key.clone(), cursor)));
        }
        open = left;
    }
    Ok(keys)
}

/// The service that was killed keeps its locks for a while.
async fn unlock(redis: &Redis) -> anyhow::Result<()> {
    let mut connection = redis.connect().await?;
    let locks: Vec<String> =
        (0..PARTITIONS).map(|partition| format!("task:lock:sweep:{{{partition}}}")).collect();
    Ok(redis::cmd("DEL").arg(locks).query_async::<()>(&mut connection).await?)
}
