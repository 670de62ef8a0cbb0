//! The embedded backend, with its file on the disk that target/ is on.

use crate::{
    audience::Body,
    bench::Bench,
    figures::{doubt, ratio},
    report::{Bound::AtLeast, Figure},
    world::{AT_ITS_LIMIT, embedded},
    wrk::{Load, alternate},
};

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let service = embedded(bench, &[AT_ITS_LIMIT]).await?;
    for (what, body, route, must) in
        [("heartbeat", Body::Viewer, "heartbeat", 0.90), ("play, on disk,", Body::NewPlay, "play", 0.5)]
    {
        let path = format!("/api/video/%s/{route}");
        let real = Load::new(&service, None, bench.requests(body)?, "POST", &path);
        let empty = Load { path: format!("/api/video/%s/noop/{route}"), ..real.clone() };
        let rounds = alternate(bench, &[&real, &empty]).await?;
        let ratio = ratio(&rounds[0], &rounds[1]);
        bench.route(&format!("embedded: {}", what.trim_end_matches(',')), Some(ratio), rounds[0].clone());
        bench.route("its empty handler", None, rounds[1].clone());
        let figure = Figure::new(format!("embedded: {what} ÷ empty handler"), ratio, "");
        bench.figure(figure.must(AtLeast(must)).doubted(doubt(&[&rounds[0], &rounds[1]])));
    }
    service.stop().await
}
