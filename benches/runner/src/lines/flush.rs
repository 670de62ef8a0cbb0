//! Flushes of many videos under traffic: how fast they are, and what the traffic notices.

use std::time::{Duration, Instant};

use anyhow::ensure;
use redis::aio::MultiplexedConnection;
use serde::Serialize;

use crate::{
    audience::{Dice, video, viewer},
    bench::Bench,
    bulk,
    figures::{doubt_of_share, percentile},
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
    /// Of the traffic during the flush.
    sent: usize,
    failed: usize,
    failed_in_all: usize,
}

impl Flushed {
    #[expect(clippy::cast_precision_loss, reason = "a hundred thousand videos")]
    fn rate(&self) -> f64 {
        self.videos as f64 / self.seconds
    }

    #[expect(clippy::cast_precision_loss, reason = "requests of a few seconds")]
    fn failed_share(&self) -> f64 {
        self.failed as f64 / self.sent as f64
    }

    fn written(&self) -> String {
        format!("{:.1} ms, {} of {} failed", self.p99, self.failed, self.sent)
    }
}

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let videos = bench.scaled(100_000);
    let at_once = flush(bench, videos, "0s").await?;
    let aged = flush(bench, videos, "2s").await?;
    // A tenth of the videos is a batch a partition: it is over before there is anything to see.
    let too_few = bench.options.quick.then(|| "too few videos with --quick".to_owned());
    let doubt = |flushed: &Flushed| too_few.clone().or_else(|| doubt_of_share(flushed.failed_share()));
    let what = format!("flush of {videos} videos, daily rows included");
    let figure = Figure::new(what, at_once.rate(), "videos/s").must(AtLeast(40_000.0));
    bench.figure(figure.aim(AtLeast(80_000.0)).doubted(too_few.clone()));
    let what = format!("traffic's p99 during it ({}) ÷ without it", at_once.written());
    let figure = Figure::new(what, at_once.p99 / at_once.quiet_p99, "").must(AtMost(2.0));
    bench.figure(figure.doubted(doubt(&at_once)));
    let what = "the same with `redis.batch_min_age` = 2s, as it is set";
    bench.figure(Figure::new(what, aged.rate(), "videos/s").doubted(too_few.clone()));
    let what = format!("traffic's p99 during that ({}) ÷ without it", aged.written());
    let figure = Figure::new(what, aged.p99 / aged.quiet_p99, "").must(AtMost(2.0));
    bench.figure(figure.doubted(doubt(&aged)));
    bench.raw("flush", at_once);
    bench.raw("flush-of-aged-batches", aged);
    Ok(())
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
    let meanwhile = traffic.now();
    // The half in the middle: batches under way at its beginning make up for those at its end.
    let first = until(&mut connection, |left| left < all / 4 * 3).await?;
    let began = Instant::now();
    let last = until(&mut connection, |left| left < all / 4).await?;
    let seconds = began.elapsed().as_secs_f64();
    until(&mut connection, |left| left < all / 50 + u64::from(TRAFFIC_VIDEOS)).await?;
    let meanwhile = (meanwhile, traffic.now());
    let sent = traffic.end().await.sent;
    world.kill_service().await?;

    let within = |(from, to): (f64, f64)| sent.iter().filter(move |sent| (from..to).contains(&sent.due));
    let is_taken = |sent: &&Sent| sent.status == 200;
    let p = |window, share| {
        let taken = within(window).filter(is_taken);
        percentile(&mut taken.map(|sent| sent.latency).collect::<Vec<_>>(), share)
    };
    let during = within(meanwhile).count();
    Ok(Flushed {
        videos: first - last,
        seconds,
        quiet_p50: p(quiet, 0.5),
        quiet_p99: p(quiet, 0.99),
        p50: p(meanwhile, 0.5),
        p99: p(meanwhile, 0.99),
        sent: during,
        failed: during - within(meanwhile).filter(is_taken).count(),
        failed_in_all: sent.iter().filter(|sent| sent.status != 200).count(),
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
