//! Counts: of one video against the empty handler, of 100 in one call against single calls.

use crate::{
    audience::Body,
    bench::Bench,
    figures::{doubt, ratio},
    report::{Bound::AtLeast, Figure},
    world::{AT_ITS_LIMIT, World},
    wrk::{Load, alternate},
};

const LIST: usize = 100;

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &[AT_ITS_LIMIT]).await?;
    let redis = Some(&world.redis);
    let one =
        Load::new(&world.service, redis, bench.requests(Body::None)?, "GET", "/api/video/%s/online-count");
    let empty = Load { path: "/api/video/%s/noop/online-count".to_owned(), ..one.clone() };
    let rounds = alternate(bench, &[&one, &empty]).await?;
    let one_ratio = ratio(&rounds[0], &rounds[1]);
    {
        bench.route("count of one video", Some(one_ratio), rounds[0].clone());
        bench.route("its empty handler", None, rounds[1].clone());
        let figure = Figure::new("count of one video ÷ empty handler", one_ratio, "");
        let figure = figure.doubted(doubt(&[&rounds[0], &rounds[1]]));
        bench.figure(figure.must(AtLeast(0.88)).aim(AtLeast(0.97)));
    }

    let both = Load { path: "/api/video/%s/counts".to_owned(), ..one.clone() };
    let many = Load::new(&world.service, redis, bench.lists(LIST)?, "GET", "/api/videos/counts?ids=%s");
    let rounds = alternate(bench, &[&many, &both]).await?;
    let times = ratio(&rounds[0], &rounds[1]) * f64::from(u32::try_from(LIST)?);
    bench.route("counts of 100 videos in one call", None, rounds[0].clone());
    bench.route("both counts of one video", None, rounds[1].clone());
    let what = "videos a second in calls of 100 ÷ in single calls";
    let figure = Figure::new(what, times, "×").must(AtLeast(20.0));
    bench.figure(figure.doubted(doubt(&[&rounds[0], &rounds[1]])));
    world.stop().await
}
