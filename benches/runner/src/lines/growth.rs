//! Ten thousand, a hundred thousand and a million viewers at the same load: what a heartbeat costs must
//! not depend on how many there are.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::{
    bench::Bench,
    process::processor_time,
    report::{Bound::AtMost, Figure},
    simulator,
    world::{Redis, World},
};

/// Heartbeats a second, whatever the audience: a larger one beats more rarely.
const RATE: u32 = 4_000;

/// Two sweeps fit in.
const MEASURED: Duration = Duration::from_secs(60);
const SETTINGS: &[(&str, &str)] = &[("PRESENCE__WINDOW", "30m"), ("JOBS__SWEEP_EVERY", "30s")];

/// How much longer than one round of beats it may take until everybody is there.
const SLACK: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize)]
struct Size {
    viewers: u32,
    beat_every_seconds: f64,
    beats_per_second: f64,
    service_micros: f64,
    redis_micros: f64,
    redis_micros_without_sweeps: f64,
    memory_per_viewer: f64,
    sweep_seconds: f64,
    service_memory: u64,
    simulator_micros: f64,
}

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let mut sizes = Vec::new();
    for viewers in [10_000, 100_000, 1_000_000].map(|viewers| bench.scaled(viewers)) {
        let size = measure(bench, viewers).await?;
        let what = |what: &str| format!("{viewers} viewers: {what}");
        bench.figure(Figure::new(what("service time"), size.service_micros, "µs a heartbeat"));
        bench.figure(Figure::new(what("Redis time, sweeps included"), size.redis_micros, "µs a heartbeat"));
        bench.figure(Figure::new(what("Redis memory"), size.memory_per_viewer, "B a viewer"));
        bench.figure(Figure::new(what("one sweep of all"), size.sweep_seconds, "s"));
        sizes.push(size);
    }
    if let [first, .., last] = &sizes[..] {
        let cost = |size: &Size| size.service_micros + size.redis_micros_without_sweeps;
        let what = format!("heartbeat's processor time at {} viewers ÷ at {}", last.viewers, first.viewers);
        bench.figure(Figure::new(what, cost(last) / cost(first), "").must(AtMost(1.3)).aim(AtMost(1.0)));
    }
    bench.raw("growth", sizes);
    Ok(())
}

async fn measure(bench: &Bench, viewers: u32) -> anyhow::Result<Size> {
    let every = Duration::from_secs_f64(f64::from(viewers) / f64::from(RATE));
    let world = World::to_weigh(bench, SETTINGS).await?;
    let service = &world.service;
    let simulator = simulator::start(bench, service, viewers, every, (every + SLACK + MEASURED) * 2, &[])?;

    let entered = Instant::now();
    while service.metric("headcount_online_fields").await? < f64::from(viewers) * 0.999 {
        ensure!(entered.elapsed() < every + SLACK, "not everybody is there in time");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;

    let ids = [service.id(), world.redis.id, simulator.id()];
    let times = || ids.iter().map(|id| processor_time(*id)).collect::<anyhow::Result<Vec<_>>>();
    let beats = "headcount_heartbeats_total";
    let (began, before, beats_before) = (Instant::now(), times()?, service.metric(beats).await?);
    let sweeps = |service| async move { sweeps(service).await };
    let (sweeps_before, commands_before) = (sweeps(service).await?, scripts_micros(&world.redis).await?);
    tokio::time::sleep(MEASURED).await;
    let (after, beaten) = (times()?, service.metric(beats).await? - beats_before);
    let (sweeps_after, commands_after) = (sweeps(service).await?, scripts_micros(&world.redis).await?);
    let taken = |which: usize| (after[which] - before[which]) * 1e6 / beaten;
    let service_memory = crate::process::resident(service.id())?;
    simulator.kill().await?;

    let passes = (sweeps_after.0 - sweeps_before.0) / 16.0;
    ensure!(passes > 0.0, "nothing was swept");
    let size = Size {
        viewers,
        beat_every_seconds: every.as_secs_f64(),
        beats_per_second: beaten / began.elapsed().as_secs_f64(),
        service_micros: taken(0),
        redis_micros: taken(1),
        redis_micros_without_sweeps: taken(1) - (commands_after - commands_before) / beaten,
        memory_per_viewer: 0.0,
        sweep_seconds: (sweeps_after.1 - sweeps_before.1) / passes,
        service_memory,
        simulator_micros: taken(2),
    };
    let (_, memory) = super::memory::bytes(world).await?;
    #[expect(clippy::cast_precision_loss, reason = "bytes of Redis")]
    let memory_per_viewer = memory as f64 / f64::from(viewers);
    Ok(Size { memory_per_viewer, ..size })
}

/// How many partitions were swept, and how long that took in all.
async fn sweeps(service: &crate::world::Service) -> anyhow::Result<(f64, f64)> {
    let metric = "headcount_sweep_duration_seconds";
    Ok((service.metric(&format!("{metric}_count")).await?, service.metric(&format!("{metric}_sum")).await?))
}

/// What Redis has spent in scripts: with heartbeats and nothing else, those of the sweep.
async fn scripts_micros(redis: &Redis) -> anyhow::Result<f64> {
    let mut connection = redis.connect().await?;
    let text: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
    let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or("usec=0");
    let micros = line.split(',').find_map(|field| field.strip_prefix("usec=")).context("no usec")?;
    Ok(micros.parse()?)
}
