//! An audience that asks for twice what the service can do, and does as it is told: its load falls by itself.

use std::time::Duration;

use serde::Serialize;

use crate::{
    audience::Body,
    bench::{Bench, WARM_UP},
    process::{Apart, Process, neighbours},
    report::{Bound::AtMost, Figure},
    simulator,
    world::World,
    wrk::{Load, round},
};

/// Programs that take their share of the processor headcount is on: else the simulator, which has but the
/// others, couldn't ask for twice what it can do.
const NEIGHBOURS: usize = 4;

/// How often viewers beat at first: six times as often as by default, and all that follows is as much shorter.
const EVERY: Duration = Duration::from_secs(5);
const SLOWEST: &str = "33";
const SETTINGS: [(&str, &str); 3] =
    [("PRESENCE__HEARTBEAT_EVERY", "5s"), ("PRESENCE__WINDOW", "100s"), ("JOBS__SWEEP_EVERY", "10s")];

const TIMES: f64 = 2.0;

const LOOKS: u32 = 24;
const A_LOOK: Duration = Duration::from_secs(5);

/// What happened between two looks.
#[derive(Debug, Serialize)]
struct Seen {
    /// Requests a second.
    asked: f64,
    refused_share: f64,
    next_heartbeat: f64,
}

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &SETTINGS).await?;
    let neighbours = neighbours(NEIGHBOURS, &bench.log("neighbours"))?;
    let service = &world.service;
    let crowded = neighbours.iter().map(Process::id).chain([service.id(), world.redis.id]);
    let apart = Apart::keep(&crowded.collect::<Vec<_>>())?;

    let load = Load::new(service, None, bench.requests(Body::Viewer)?, "POST", "/api/video/%s/heartbeat");
    round(bench, &load, WARM_UP).await?;
    let can_do = round(bench, &load, bench.round()).await?.requests_per_second;
    // Whoever was slowed down by that is not any more.
    while service.metric("headcount_next_heartbeat_seconds").await? > EVERY.as_secs_f64() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few 100,000 viewers")]
    let viewers = (can_do * TIMES * EVERY.as_secs_f64()) as u32;
    let looks = if bench.options.quick { LOOKS / 2 } else { LOOKS };
    // With fewer requests in flight it would wait for answers, and ask for less by itself.
    let more = ["--in-flight", "1000"];
    let simulator = simulator::start(bench, service, viewers, EVERY, A_LOOK * looks * 2, &more)?;
    let mut seen = Vec::new();
    for _ in 0..looks {
        let before = answered(&world).await?;
        let began = std::time::Instant::now();
        tokio::time::sleep(A_LOOK).await;
        let after = answered(&world).await?;
        let asked = after.0 - before.0;
        seen.push(Seen {
            asked: asked / began.elapsed().as_secs_f64(),
            refused_share: (after.1 - before.1) / asked,
            next_heartbeat: service.metric("headcount_next_heartbeat_seconds").await?,
        });
    }
    simulator.kill().await?;
    drop(apart);
    drop(neighbours);

    let busiest = seen.iter().map(|seen| seen.asked).fold(0.0, f64::max);
    let slowest = seen.iter().map(|seen| seen.next_heartbeat).fold(0.0, f64::max);
    if let Some(last) = seen.last() {
        let name = format!("{viewers} viewers who obey: requests at most a second ÷ what can be done");
        bench.figure(Figure::new(name, busiest / can_do, ""));
        bench.figure(Figure::new(
            format!("longest `nextHeartbeatSeconds`, of {SLOWEST} at worst"),
            slowest,
            "s",
        ));
        let name = "requests a second in the end ÷ what can be done";
        bench.figure(Figure::new(name, last.asked / can_do, "").must(AtMost(1.0)));
        let name = "refused in the end";
        bench.figure(Figure::new(name, last.refused_share * 100.0, "%").must(AtMost(1.0)));
    }
    bench.raw("backoff", seen);
    world.stop().await
}

/// Requests that were answered, and those of them that were refused.
async fn answered(world: &World) -> anyhow::Result<(f64, f64)> {
    let name = "headcount_http_requests_total";
    Ok((world.service.metric(name).await?, world.service.metric_with(name, "status=\"503\"").await?))
}
