//! Heartbeats against the empty handler of the same server.

use crate::{
    audience::Body,
    bench::Bench,
    figures::{doubt, median, median_of, ratio},
    report::{
        Bound::{AtLeast, AtMost},
        Figure,
    },
    world::{AT_ITS_LIMIT, World},
    wrk::{Load, SETTLE, alternate},
};

const BEAT: &str = "/api/video/%s/heartbeat";
const EMPTY: &str = "/api/video/%s/noop/heartbeat";

pub(super) async fn received(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &[AT_ITS_LIMIT]).await?;
    let requests = bench.requests(Body::Viewer)?;
    let (mut redis_micros, mut all_beats) = (Vec::new(), Vec::new());
    for connections in [64, 256] {
        let beat = Load::new(&world.service, Some(&world.redis), requests.clone(), "POST", BEAT);
        let beat = beat.connections(connections).settle(SETTLE);
        let empty = Load { path: EMPTY.to_owned(), settle: std::time::Duration::ZERO, ..beat.clone() };
        let rounds = alternate(bench, &[&beat, &empty]).await?;
        let (beats, empties) = (&rounds[0], &rounds[1]);
        let ratio = ratio(beats, empties);
        redis_micros.push(median_of(beats, |round| round.redis_micros.unwrap_or(f64::NAN)));
        bench.route(&format!("heartbeat, {connections} connections"), Some(ratio), beats.clone());
        bench.route(&format!("its empty handler, {connections} connections"), None, empties.clone());
        let what = format!("heartbeat `received` ÷ empty handler, {connections} connections");
        let figure = Figure::new(what, ratio, "").must(AtLeast(0.90)).aim(AtLeast(0.96));
        bench.figure(figure.doubted(doubt(&[beats, empties])));
        all_beats.push(beats.clone());
    }
    let figure = Figure::new("its Redis time", median(redis_micros), "µs a heartbeat");
    let figure = figure.must(AtMost(2.0)).aim(AtMost(1.4));
    bench.figure(figure.doubted(doubt(&[&all_beats[0], &all_beats[1]])));
    world.stop().await
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a round")]
pub(super) async fn stored(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &[AT_ITS_LIMIT, ("PRESENCE__ACK", "stored")]).await?;
    let beat = Load::new(&world.service, Some(&world.redis), bench.requests(Body::Viewer)?, "POST", BEAT);
    let beat = beat.connections(256);
    let empty = Load { path: EMPTY.to_owned(), ..beat.clone() };
    let rounds = alternate(bench, &[&beat, &empty]).await?;
    let ratio = ratio(&rounds[0], &rounds[1]);
    let p99 = median_of(&rounds[0], |round| round.said.p99 as f64 / 1e3);
    bench.route("heartbeat `stored`, 256 connections", Some(ratio), rounds[0].clone());
    bench.route("its empty handler, 256 connections", None, rounds[1].clone());
    let figure = Figure::new("heartbeat `stored` ÷ empty handler, 256 connections", ratio, "");
    let figure = figure.must(AtLeast(0.80)).aim(AtLeast(0.90));
    bench.figure(figure.doubted(doubt(&[&rounds[0], &rounds[1]])));
    let figure = Figure::new("its p99, 256 connections", p99, "ms").must(AtMost(10.0));
    bench.figure(figure.doubted(doubt(&[&rounds[0]])));
    world.stop().await
}
