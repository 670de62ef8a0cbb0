//! Headcount beside what one would write otherwise, each with a Redis of its own.

use std::time::Duration;

use tokio::process::Command;

use crate::{
    audience::Body,
    bench::Bench,
    figures::{doubt, ratio},
    report::{Bound::AtLeast, Figure},
    world::{AT_ITS_LIMIT, Redis, Service, World},
    wrk::{Load, SETTLE, alternate},
};

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &[AT_ITS_LIMIT]).await?;
    let (axum_redis, node_redis) = (Redis::start(bench).await?, Redis::start(bench).await?);
    let axum = Service::peer(bench, "axum-pool", Command::new(&bench.options.axum_peer), &axum_redis).await?;
    let mut command = Command::new("node");
    command.arg(bench.options.peers.join("node/server.js")).env("NODE_ENV", "production");
    let node = Service::peer(bench, "node", command, &node_redis).await?;

    let kinds = [
        ("heartbeat", Body::Viewer, "POST", "/api/video/%s/heartbeat"),
        ("play", Body::NewPlay, "POST", "/api/video/%s/play"),
        ("count", Body::None, "GET", "/api/video/%s/online-count"),
    ];
    for (what, body, method, path) in kinds {
        let requests = bench.requests(body)?;
        let load = |service, redis| Load::new(service, Some(redis), requests.clone(), method, path);
        let settle = if what == "heartbeat" { SETTLE } else { Duration::ZERO };
        let ours = load(&world.service, &world.redis).settle(settle);
        let rounds = alternate(bench, &[&ours, &load(&axum, &axum_redis), &load(&node, &node_redis)]).await?;
        let (to_axum, to_node) = (ratio(&rounds[0], &rounds[1]), ratio(&rounds[0], &rounds[2]));
        let [doubt_of_axum, doubt_of_node] = [1, 2].map(|peer| doubt(&[&rounds[0], &rounds[peer]]));
        for (who, rounds) in ["headcount", "axum + deadpool", "fastify + ioredis"].iter().zip(rounds) {
            bench.route(&format!("{what}: {who}"), None, rounds);
        }
        let figure = Figure::new(format!("{what}s a second ÷ axum with a pool"), to_axum, "×");
        let figure = figure.doubted(doubt_of_axum);
        bench.figure(if what == "heartbeat" { figure.must(AtLeast(3.0)).aim(AtLeast(3.6)) } else { figure });
        let figure = Figure::new(format!("{what}s a second ÷ fastify with ioredis"), to_node, "×");
        bench.figure(figure.doubted(doubt_of_node));
    }
    axum.stop().await?;
    node.stop().await?;
    world.stop().await
}
