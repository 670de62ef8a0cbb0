//! Twice as many requests as the machine can answer: what becomes of those that are taken, of those that
//! aren't, and of the memory.

use std::{cell::RefCell, rc::Rc, time::Duration};

use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    audience::{Body, Dice, video, viewer},
    bench::{Bench, WARM_UP},
    figures::percentile,
    http::{self, post},
    open_loop::{Sent, Traffic},
    process::resident,
    report::{Bound::AtMost, Figure},
    world::{Service, World},
    wrk::{Load, round},
};

/// More than can be in work: a request hardly ever waits for a connection.
const CONNECTIONS: usize = 2_000;

const VIDEOS: u32 = 1_000;

/// Videos in one GET.
const AT_ONCE: usize = 100;

#[derive(Debug, Serialize)]
struct Overloaded {
    can_do: f64,
    asked: f64,
    answered: usize,
    accepted: usize,
    refused: usize,
    refused_share: f64,
    without_retry_after: usize,
    unanswered: usize,
    others: usize,
    accepted_p50: f64,
    accepted_p99: f64,
    accepted_p99_from_send: f64,
    refused_p99: f64,
    lag_p99: f64,
    memory_before: u64,
    memory_after: u64,
    memory_largest: u64,
    lost: Option<i64>,
}

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &[]).await?;
    for (what, body) in [("plays", Body::NewPlay), ("heartbeats", Body::Viewer)] {
        let overloaded = overload(bench, &world, body).await?;
        let share = overloaded.refused_share * 100.0;
        let name = format!(
            "twice the {what} ({:.0}/s asked, {share:.0} % refused): p99 of those taken",
            overloaded.asked
        );
        bench.figure(Figure::new(name, overloaded.accepted_p99, "ms").must(AtMost(50.0)));
        #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
        let bad = (overloaded.without_retry_after + overloaded.unanswered + overloaded.others) as f64;
        bench.figure(
            Figure::new("answered otherwise than 200, or 503 with `Retry-After`", bad, "").must(AtMost(0.0)),
        );
        #[expect(clippy::cast_precision_loss, reason = "bytes of a process")]
        let grown = overloaded.memory_largest as f64 / overloaded.memory_before as f64;
        bench.figure(Figure::new("largest memory of the service ÷ before", grown, "").must(AtMost(1.5)));
        if let Some(lost) = overloaded.lost {
            #[expect(clippy::cast_precision_loss, reason = "counts of plays")]
            bench.figure(
                Figure::new("plays acknowledged and not counted", lost.max(0) as f64, "").must(AtMost(0.0)),
            );
        }
        bench.raw(&format!("overload-of-{what}"), overloaded);
    }
    world.stop().await
}

async fn overload(bench: &Bench, world: &World, body: Body) -> anyhow::Result<Overloaded> {
    let service = &world.service;
    let is_play = matches!(body, Body::NewPlay);
    let path = if is_play { "/api/video/%s/play" } else { "/api/video/%s/heartbeat" };
    let load = Load::new(service, None, bench.requests(body)?, "POST", path).connections(256);
    round(bench, &load, WARM_UP).await?;
    let can_do = round(bench, &load, bench.round()).await?.requests_per_second;

    let run = bench.next_run();
    let request: Box<dyn Fn(u64) -> Vec<u8>> = Box::new(move |number| {
        let mut dice = Dice::new(number);
        let video = over_video(dice.below(VIDEOS));
        if is_play {
            post(&format!("/api/video/{video}/play"), &format!("{{\"playId\":\"{run}-{number}\"}}"))
        } else {
            post(
                &format!("/api/video/{video}/heartbeat"),
                &format!("{{\"userId\":\"{}\"}}", viewer(dice.below(100_000))),
            )
        }
    });
    let memory_before = resident(service.id())?;
    let memory = Rc::new(RefCell::new(vec![memory_before]));
    let mut watching = JoinSet::new();
    watching.spawn_local(watch_memory(service.id(), Rc::clone(&memory)));
    let length = Duration::from_secs(if bench.options.quick { 5 } else { 12 });
    let traffic = Traffic { server: service.public, rate: 2.0 * can_do, connections: CONNECTIONS, request };
    let sent = traffic.run(length).await;
    let lost = if is_play { Some(acknowledged(&sent) - counted(service).await?) } else { None };
    let memory_largest = memory.borrow().iter().copied().max().unwrap_or_default();

    let part = |which: fn(&Sent) -> bool| -> Vec<Sent> { sent.iter().copied().filter(which).collect() };
    let p = |sent: &[Sent], share, figure: fn(&Sent) -> f64| {
        percentile(&mut sent.iter().map(figure).collect::<Vec<_>>(), share)
    };
    let (accepted, refused) = (part(|sent| sent.status == 200), part(|sent| sent.status == 503));
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    let refused_share = refused.len() as f64 / sent.len() as f64;
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    let asked = sent.len() as f64 / length.as_secs_f64();
    Ok(Overloaded {
        can_do,
        asked,
        answered: sent.len(),
        accepted: accepted.len(),
        refused: refused.len(),
        refused_share,
        without_retry_after: refused.iter().filter(|sent| !sent.has_retry_after).count(),
        unanswered: part(|sent| sent.status == 0).len(),
        others: part(|sent| ![0, 200, 503].contains(&sent.status)).len(),
        accepted_p50: p(&accepted, 0.5, |sent| sent.latency),
        accepted_p99: p(&accepted, 0.99, |sent| sent.latency),
        accepted_p99_from_send: p(&accepted, 0.99, |sent| sent.latency - sent.lag),
        refused_p99: p(&refused, 0.99, |sent| sent.latency),
        lag_p99: p(&sent, 0.99, |sent| sent.lag),
        memory_before,
        memory_after: resident(service.id())?,
        memory_largest,
        lost,
    })
}

/// Not one of those that wrk plays.
fn over_video(number: u32) -> String {
    format!("over-{}", video(usize::try_from(number).unwrap_or(0)))
}

async fn watch_memory(id: u32, seen: Rc<RefCell<Vec<u64>>>) {
    while let Ok(bytes) = resident(id) {
        seen.borrow_mut().push(bytes);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn acknowledged(sent: &[Sent]) -> i64 {
    i64::try_from(sent.iter().filter(|sent| sent.status == 200).count()).unwrap_or(i64::MAX)
}

/// All plays of these videos, as the service tells them. More than were acknowledged may be: a play whose
/// answer was lost is counted as well.
async fn counted(service: &Service) -> anyhow::Result<i64> {
    // Beyond a second, for which a count is kept.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let videos: Vec<String> = (0..VIDEOS).map(over_video).collect();
    let mut sum = 0;
    for some in videos.chunks(AT_ONCE) {
        let (_, body) =
            http::ask(service.public, &format!("/api/videos/counts?ids={}", some.join(","))).await?;
        let answer: serde_json::Value = serde_json::from_str(&body)?;
        let plays =
            answer["counts"].as_array().into_iter().flatten().filter_map(|count| count["plays"].as_i64());
        sum += plays.sum::<i64>();
    }
    Ok(sum)
}
