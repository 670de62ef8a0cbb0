//! Plays against the empty handler of the same server.

use std::time::Duration;

use crate::{
    audience::Body,
    bench::Bench,
    figures::{doubt, median_of, ratio},
    report::{
        Bound::{AtLeast, AtMost},
        Figure,
    },
    world::{AT_ITS_LIMIT, World},
    wrk::{Load, alternate},
};

const PLAY: &str = "/api/video/%s/play";
const EMPTY: &str = "/api/video/%s/noop/play";

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let kinds = [
        ("play, `playId` only", Body::NewPlay, 0.65, Some(0.80), Some(12.0)),
        ("play with a viewer (`userId`)", Body::NewViewer, 0.60, Some(0.80), Some(16.0)),
        ("a repeated play", Body::OldPlay, 0.90, None, None),
    ];
    for (what, body, must, aim, redis_must) in kinds {
        // The keys of one kind shouldn't weigh on the next.
        let world = World::start(bench, &[AT_ITS_LIMIT]).await?;
        // The more wait for an answer, the more share a call of the script.
        for connections in [64, 256] {
            let play = Load::new(&world.service, Some(&world.redis), bench.requests(body)?, "POST", PLAY);
            let play = play.connections(connections);
            let empty = Load { path: EMPTY.to_owned(), settle: Duration::ZERO, ..play.clone() };
            let rounds = alternate(bench, &[&play, &empty]).await?;
            let ratio = ratio(&rounds[0], &rounds[1]);
            let redis = median_of(&rounds[0], |round| round.redis_micros.unwrap_or(f64::NAN));
            let what = format!("{what}, {connections} connections");
            bench.route(&what, Some(ratio), rounds[0].clone());
            bench.route(&format!("its empty handler, {connections} connections"), None, rounds[1].clone());
            let figure = Figure::new(format!("{what} ÷ empty handler"), ratio, "").must(AtLeast(must));
            let figure = figure.doubted(doubt(&[&rounds[0], &rounds[1]]));
            bench.figure(Figure { aim: aim.map(AtLeast), ..figure });
            if let Some(bound) = redis_must {
                let figure = Figure::new("its Redis time", redis, "µs a play").must(AtMost(bound));
                bench.figure(figure.aim(AtMost(8.0)).doubted(doubt(&[&rounds[0]])));
            }
        }
        world.stop().await?;
    }
    Ok(())
}
