//! The memory of the service while it does all it can: it must not grow.

use std::time::Duration;

use crate::{
    audience::Body,
    bench::Bench,
    figures::{bad_share, digits, doubt, median},
    process::resident,
    report::{Bound::AtMost, Figure},
    world::{AT_ITS_LIMIT, World},
    wrk::{Load, round},
};

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &[AT_ITS_LIMIT]).await?;
    let service = &world.service;
    let load = |body, method, path| anyhow::Ok(Load::new(service, None, bench.requests(body)?, method, path));
    let loads = [
        load(Body::Viewer, "POST", "/api/video/%s/heartbeat")?,
        load(Body::NewPlay, "POST", "/api/video/%s/play")?,
        load(Body::None, "GET", "/api/video/%s/counts")?,
    ];
    // Named, it takes the time that the promise names.
    let seconds = match (bench.options.quick, bench.options.only.contains(&super::Line::Soak)) {
        (true, _) => 15,
        (false, false) => 45,
        (false, true) => 600,
    };
    let length = Duration::from_secs(seconds);
    let id = service.id();
    let mut seen: Vec<f64> = Vec::new();
    let watching = async {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            #[expect(clippy::cast_precision_loss, reason = "bytes of a process")]
            seen.push(resident(id)? as f64);
        }
        #[expect(unreachable_code, reason = "it ends when the rounds do")]
        anyhow::Ok(())
    };
    let rounds = async {
        tokio::try_join!(
            round(bench, &loads[0], length),
            round(bench, &loads[1], length),
            round(bench, &loads[2], length)
        )
    };
    let (beats, plays, counts) = tokio::select! {
        rounds = rounds => rounds?,
        watched = watching => return watched,
    };
    let rounds = [beats, plays, counts];
    // The first quarter is the warming up: caches fill.
    let quarter = seen.len() / 4;
    let early = median(seen[quarter..2 * quarter].iter().copied());
    let late = median(seen[3 * quarter..].iter().copied());
    let what = format!(
        "service memory over {seconds} s at full load: last quarter ÷ second ({:.0} MB, {} % refused or failed)",
        late / 1e6,
        digits(bad_share(&rounds) * 100.0)
    );
    let figure = Figure::new(what, late / early, "").must(AtMost(1.1));
    bench.figure(figure.doubted(doubt(&[&rounds])));
    bench.raw("soak-rounds", rounds);
    bench.raw("soak-memory", seen);
    world.stop().await
}
