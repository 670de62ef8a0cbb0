//! Flushes of many videos under traffic: how fast they are, and what the traffic notices.

use std::time::{Duration, Instant};

use anyhow::ensure;
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use crate::{
    audience::{Dice, video, viewer},
    bench::Bench,
    bulk,
    figures::percentile,
    http::{get, post},
    open_loop::{Sent, Traffic},
    report::{
        Bound::{AtLeast, AtMost},
        Figure,
    },
    world::{PARTITIONS, World},
};

/// Well below what the machine can do: what is looked for is the flush's doing.
const RATE: f64 = 2_000.0;
const CONNECTIONS: usize = 64;

/// Videos it is about: few beside those that are flushed.
const TRAFFIC_VIDEOS: u32 = 100;

/// What the traffic is like without a flush.
const QUIET: Duration = Duration::from_secs(6);

/// Longer than a flush takes.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize)]
struct Flushed {
    videos: u64,
    seconds: f64,
    quiet_p50: f64,
    quiet_p99: f64,
    p50: f64,
    p99: f64,
    failed: usize,
}

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let videos = bench.scaled(100_000);
    let at_once = flush(bench, videos, "0s").await?;
    let aged = flush(bench, videos, "2s").await?;
    let figure =
        Figure::new(format!("flush of {videos} videos, daily rows included"), rate(&at_once), "videos/s");
    bench.figure(figure.must(AtLeast(40_000.0)).aim(AtLeast(80_000.0)));
    let what = format!("traffic's p99 during it ({:.1} ms) ÷ without it", at_once.p99);
    bench.figure(Figure::new(what, at_once.p99 / at_once.quiet_p99, "").must(AtMost(2.0)));
    let what = "the same with `redis.batch_min_age` = 2s, as it is set";
    bench.figure(Figure::new(what, rate(&aged), "videos/s"));
    let what = format!("traffic's p99 during that ({:.1} ms) ÷ without it", aged.p99);
    bench.figure(Figure::new(what, aged.p99 / aged.quiet_p99, "").must(AtMost(2.0)));
    bench.raw("flush", at_once);
    bench.raw("flush-of-aged-batches", aged);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a hundred thousand videos")]
fn rate(flushed: &Flushed) -> f64 {
    flushed.videos as f64 / flushed.seconds
}

/// Plays wait while Postgres is away, and are flushed when it is back: as after an outage.
async fn flush(bench: &Bench, videos: u32, min_age: &str) -> anyhow::Result<Flushed> {
    // Every second, so that all partitions are at it together.
    let settings = [("JOBS__FLUSH_EVERY", "1s"), ("REDIS__BATCH_MIN_AGE", min_age)];
    let mut world = World::start(bench, &settings).await?;
    let mut connection = world.redis.connect().await?;
    // Rows that are there already are the usual case.
    bulk::play_each(world.service.public, videos, bench.next_run()).await?;
    until(&mut connection, |left| left == 0).await?;

    let run = bench.next_run();
    let request = Box::new(move |number| mixed(number, run));
    let traffic =
        Traffic { server: world.service.public, rate: RATE, connections: CONNECTIONS, request }.start();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let quiet = traffic.now();
    tokio::time::sleep(QUIET).await;
    let quiet = (quiet, traffic.now());

    world.postgres.stop().await;
    bulk::play_each(world.service.public, videos, bench.next_run()).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = dirty(&mut connection).await?;
    world.postgres.start_again().await;
    // Traffic makes a few dirty meanwhile.
    until(&mut connection, |left| left + 500 < all).await?;
    let (first, began) = (dirty(&mut connection).await?, Instant::now());
    let meanwhile = traffic.now();
    let left = until(&mut connection, |left| left < all / 50 + u64::from(TRAFFIC_VIDEOS)).await?;
    let seconds = began.elapsed().as_secs_f64();
    let meanwhile = (meanwhile, traffic.now());
    let sent = traffic.end().await.sent;
    world.kill_service().await?;

    let p = |(from, to): (f64, f64), share| {
        let within = |sent: &&Sent| (from..to).contains(&sent.due);
        percentile(&mut sent.iter().filter(within).map(|sent| sent.latency).collect::<Vec<_>>(), share)
    };
    Ok(Flushed {
        videos: first - left,
        seconds,
        quiet_p50: p(quiet, 0.5),
        quiet_p99: p(quiet, 0.99),
        p50: p(meanwhile, 0.5),
        p99: p(meanwhile, 0.99),
        failed: sent.iter().filter(|sent| sent.status != 200).count(),
    })
}

/// Six beats, two plays and two counts in ten.
fn mixed(number: u64, run: u32) -> Vec<u8> {
    let mut dice = Dice::new(number);
    let video = video(usize::try_from(dice.below(TRAFFIC_VIDEOS)).unwrap_or(0));
    match number % 10 {
        0..6 => {
            let viewer = viewer(dice.below(100_000));
            post(&format!("/api/video/{video}/heartbeat"), &format!("{{\"userId\":\"{viewer}\"}}"))
        }
        6..8 => post(&format!("/api/video/{video}/play"), &format!("{{\"playId\":\"{run}-{number}\"}}")),
        _ => get(&format!("/api/video/{video}/online-count")),
    }
}

/// Videos with plays that aren't in the database.
async fn dirty(connection: &mut MultiplexedConnection) -> anyhow::Result<u64> {
    let mut pipe = redis::pipe();
    for partition in 0..PARTITIONS {
        pipe.cmd("SCARD").arg(format!("video:views:dirty:{{{partition}}}"));
    }
    Ok(pipe.query_async::<Vec<u64>>(connection).await?.into_iter().sum())
}

async fn until(connection: &mut MultiplexedConnection, holds: impl Fn(u64) -> bool) -> anyhow::Result<u64> {
    let began = Instant::now();
    loop {
        let left = dirty(connection).await?;
        if holds(left) {
            return Ok(left);
        }
        ensure!(began.elapsed() < PATIENCE, "the flush doesn't end: {left} videos left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
