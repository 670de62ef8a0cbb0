//! Twice as many requests as headcount can answer: what becomes of those that are taken, of those that
//! aren't, and of the memory.
//!
//! One that is refused costs the service next to nothing, but this program as much as any: to ask for twice
//! what two cores can do it would need more than there are. So for requests of gateways headcount and its Redis
//! have one core, and this program the rest; for plays Redis shares a core with others, so that it is what can
//! do no more.

use std::{cell::RefCell, collections::HashMap, rc::Rc, time::Duration};

use anyhow::ensure;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{
    audience::{self, Body, Dice, video},
    bench::{Bench, WARM_UP},
    bulk,
    figures::percentile,
    http::{self, post},
    open_loop::{Ended, Sent, Traffic, UNANSWERED},
    process::{Apart, Process, neighbours, resident},
    report::{
        Bound::{AtLeast, AtMost},
        Figure,
    },
    world::{AT_ITS_LIMIT, Service, World},
    wrk::{Load, round},
};

/// More than can be in work: a request hardly ever waits for a connection.
const CONNECTIONS: usize = 2_000;

const VIDEOS: u32 = 1_000;

/// Of what the machine can do: what is asked, and with how much less it wasn't overload.
const TIMES: f64 = 2.0;
const ENOUGH: f64 = 1.8;

/// Videos in one GET.
const AT_ONCE: usize = 100;

/// Beats in one request of a gateway.
const BEATS: usize = 200;

/// Programs on Redis's core while there are too many plays.
const NEIGHBOURS: usize = 6;

/// What there is too much of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plays,
    Gateways,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Plays => "plays",
            Self::Gateways => "requests of gateways",
        }
    }

    /// How many programs share the core of those that are kept apart, and whether the service is one of these.
    fn crowd(self) -> (usize, bool) {
        match self {
            Self::Plays => (NEIGHBOURS, false),
            Self::Gateways => (0, true),
        }
    }

    /// The same for wrk.
    fn load(self, bench: &Bench, service: &Service) -> anyhow::Result<Load> {
        let (requests, path) = match self {
            Self::Plays => (bench.requests(Body::NewViewer)?, "/api/video/%s/play"),
            Self::Gateways => (bench.batches(BEATS)?, "/api/heartbeats"),
        };
        Ok(Load::new(service, None, requests, "POST", path).connections(256))
    }

    /// Makes the n-th request of a run.
    fn requests(self, run: u32) -> Box<dyn Fn(u64) -> Vec<u8>> {
        match self {
            Self::Plays => Box::new(move |number| {
                let (video, viewer) = over_play(run, number);
                post(&format!("/api/video/{video}/play"), &format!("{{\"userId\":\"{viewer}\"}}"))
            }),
            Self::Gateways => {
                // Made beforehand: that would take as long as sending them.
                let made = (0..2_000).map(|number| post("/api/heartbeats", &audience::batch(number, BEATS)));
                let made: Vec<Vec<u8>> = made.collect();
                Box::new(move |number| made[usize::try_from(number).unwrap_or(0) % made.len()].clone())
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct Overloaded {
    can_do: f64,
    asked: f64,
    asked_times: f64,
    due: usize,
    accepted: usize,
    refused: usize,
    refused_share: f64,
    without_retry_after: usize,
    /// Those that were given up while open, or never sent, are among them.
    unanswered: usize,
    open: usize,
    never_begun: usize,
    others: usize,
    /// Of those that were due in each second.
    seconds: Vec<Second>,
    accepted_p50: f64,
    accepted_p99: f64,
    accepted_p99_from_send: f64,
    refused_p99: f64,
    lag_p99: f64,
    /// The most in the second third of the time, and in the last: in the first each connection is used for the
    /// first time.
    memory_early: u64,
    memory_late: u64,
    lost: Option<Lost>,
}

#[derive(Debug, Serialize)]
struct Second {
    accepted: usize,
    refused: usize,
    accepted_p99: f64,
}

/// Plays that were acknowledged, and what else is known of them.
#[derive(Debug, Serialize)]
struct Lost {
    acknowledged: usize,
    /// Missing in the counts, of each video by itself: what another has too many hides nothing.
    missing: u64,
    /// Sent again to another instance, counted there as if they were new.
    new_again: usize,
}

impl Lost {
    /// A play may be among both.
    fn at_least(&self) -> u64 {
        self.missing.max(u64::try_from(self.new_again).unwrap_or(u64::MAX))
    }
}

pub(super) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let world = World::watched(bench, &[]).await?;
    for kind in [Kind::Plays, Kind::Gateways] {
        let (crowd, with_service) = kind.crowd();
        let neighbours = neighbours(crowd, &bench.log("neighbours"))?;
        let crowded = neighbours.iter().map(Process::id).chain([world.redis.id]);
        let crowded = crowded.chain(with_service.then(|| world.service.id()));
        let _apart = Apart::keep(&crowded.collect::<Vec<_>>())?;
        let what = kind.name();
        let overloaded = overload(bench, &world, kind).await?;
        let share = overloaded.refused_share * 100.0;
        let times = overloaded.asked_times;
        let name = format!("{what} really asked a second ({:.0}) ÷ what can be done", overloaded.asked);
        bench.figure(Figure::new(name, times, "").must(AtLeast(ENOUGH)));
        // With less, what is met says little. Nor what is missed by latencies: they count from when a request
        // was due, and it may have been this program that was late.
        let doubt = (times < ENOUGH).then(|| {
            let from_send = overloaded.accepted_p99_from_send;
            format!("only {times:.1} × asked; {from_send:.0} ms from when they were sent")
        });
        let name = format!("twice the {what} ({share:.0} % refused): p99 of those taken");
        let figure = Figure::new(name, overloaded.accepted_p99, "ms").must(AtMost(50.0));
        bench.figure(figure.doubted(doubt));
        #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
        let bad = (overloaded.without_retry_after + overloaded.unanswered + overloaded.others) as f64;
        bench.figure(
            Figure::new("answered otherwise than 200, or 503 with `Retry-After`", bad, "").must(AtMost(0.0)),
        );
        #[expect(clippy::cast_precision_loss, reason = "bytes of a process")]
        let grown = overloaded.memory_late as f64 / overloaded.memory_early as f64;
        let name = "largest memory of the service, last third ÷ second";
        let figure = Figure::new(name, grown, "").must(AtMost(1.1));
        let doubt = (times < ENOUGH && !figure.is_missed()).then(|| format!("only {times:.1} × asked"));
        bench.figure(figure.doubted(doubt));
        if let Some(lost) = &overloaded.lost {
            #[expect(clippy::cast_precision_loss, reason = "counts of plays")]
            let least = lost.at_least() as f64;
            let what = format!("of {} acknowledged plays, not counted", lost.acknowledged);
            bench.figure(Figure::new(what, least, "").must(AtMost(0.0)));
        }
        bench.raw(&format!("overload of {what}"), overloaded);
    }
    world.stop().await
}

async fn overload(bench: &Bench, world: &World, kind: Kind) -> anyhow::Result<Overloaded> {
    let service = &world.service;
    let load = kind.load(bench, service)?;
    round(bench, &load, WARM_UP).await?;
    let can_do = round(bench, &load, bench.round()).await?.requests_per_second;

    let run = bench.next_run();
    let request = kind.requests(run);
    let memory = Rc::new(RefCell::new(Vec::new()));
    let mut watching = JoinSet::new();
    watching.spawn_local(watch_memory(service.id(), Rc::clone(&memory)));
    let length = Duration::from_secs(if bench.options.quick { 5 } else { 12 });
    let traffic = Traffic { server: service.public, rate: TIMES * can_do, connections: CONNECTIONS, request };
    let Ended { sent, open, never_begun, asked } = traffic.run(length).await?;
    drop(watching);
    let memory = memory.take();
    let lost = if kind == Kind::Plays { Some(lost(bench, world, run, &sent).await?) } else { None };
    let third = memory.len() / 3;
    let most = |seen: &[u64]| seen.iter().copied().max().unwrap_or_default();
    let (memory_early, memory_late) = (most(&memory[third..2 * third]), most(&memory[2 * third..]));

    let part = |which: fn(&Sent) -> bool| -> Vec<Sent> { sent.iter().copied().filter(which).collect() };
    let p = |sent: &[Sent], share, figure: fn(&Sent) -> f64| {
        percentile(&mut sent.iter().map(figure).collect::<Vec<_>>(), share)
    };
    let (accepted, refused) = (part(|sent| sent.status == 200), part(|sent| sent.status == 503));
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    let refused_share = refused.len() as f64 / sent.len() as f64;
    Ok(Overloaded {
        can_do,
        asked,
        asked_times: asked / can_do,
        due: sent.len(),
        accepted: accepted.len(),
        refused: refused.len(),
        refused_share,
        without_retry_after: refused.iter().filter(|sent| !sent.has_retry_after).count(),
        unanswered: part(|sent| sent.status == UNANSWERED).len(),
        open,
        never_begun,
        others: part(|sent| ![UNANSWERED, 200, 503].contains(&sent.status)).len(),
        seconds: seconds(&sent),
        accepted_p50: p(&accepted, 0.5, |sent| sent.latency),
        accepted_p99: p(&accepted, 0.99, |sent| sent.latency),
        accepted_p99_from_send: p(&accepted, 0.99, |sent| sent.latency - sent.lag),
        refused_p99: p(&refused, 0.99, |sent| sent.latency),
        lag_p99: p(&sent, 0.99, |sent| sent.lag),
        memory_early,
        memory_late,
        lost,
    })
}

fn seconds(sent: &[Sent]) -> Vec<Second> {
    let last = sent.iter().map(|sent| sent.due).fold(0.0, f64::max);
    std::iter::successors(Some(0.0), |begin| Some(begin + 1e3).filter(|begin| *begin <= last))
        .map(|begin| {
            let of = |status| {
                let these = sent.iter().filter(move |sent| sent.due >= begin && sent.due < begin + 1e3);
                these.filter(move |sent| sent.status == status).map(|sent| sent.latency)
            };
            let mut accepted: Vec<f64> = of(200).collect();
            let accepted_p99 = if accepted.is_empty() { 0.0 } else { percentile(&mut accepted, 0.99) };
            Second { accepted: accepted.len(), refused: of(503).count(), accepted_p99 }
        })
        .collect()
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

/// The n-th play of a run: of a video, and its viewer.
fn over_play(run: u32, number: u64) -> (String, String) {
    (over_video(Dice::new(number).below(VIDEOS)), format!("{run}-{number}"))
}

/// What became of the acknowledged plays. A sum of all counts wouldn't tell: plays whose answer was lost are
/// counted as well, and would make up for others.
async fn lost(bench: &Bench, world: &World, run: u32, sent: &[Sent]) -> anyhow::Result<Lost> {
    let acknowledged: Vec<(String, String)> =
        sent.iter().filter(|sent| sent.status == 200).map(|sent| over_play(run, sent.number)).collect();
    let mut of_video: HashMap<&str, u64> = HashMap::new();
    for (video, _) in &acknowledged {
        *of_video.entry(video).or_default() += 1;
    }
    let counted = counted(&world.service).await?;
    let missing = of_video.iter().map(|(video, plays)| {
        let counted = counted.get(*video).copied().unwrap_or_default();
        plays.saturating_sub(counted)
    });
    let missing = missing.sum();
    // It refuses none: one that is refused and sent once more would no longer be new.
    let another = world.another(bench, &[AT_ITS_LIMIT]).await?;
    let acknowledged_plays = acknowledged.len();
    let new_again = bulk::play(another.public, "userId", acknowledged).await?;
    another.stop().await?;
    Ok(Lost { acknowledged: acknowledged_plays, missing, new_again })
}

/// All plays of each of these videos, as the service tells them.
async fn counted(service: &Service) -> anyhow::Result<HashMap<String, u64>> {
    // Beyond a second, for which a count is kept.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let videos: Vec<String> = (0..VIDEOS).map(over_video).collect();
    let mut counted = HashMap::new();
    for some in videos.chunks(AT_ONCE) {
        let path = format!("/api/videos/counts?ids={}", some.join(","));
        let (status, body) = http::ask(service.public, &path).await?;
        ensure!(status == 200, "no counts: {status} {body}");
        let answer: serde_json::Value = serde_json::from_str(&body)?;
        for count in answer["counts"].as_array().into_iter().flatten() {
            if let (Some(video), Some(plays)) = (count["videoId"].as_str(), count["plays"].as_u64()) {
                counted.insert(video.to_owned(), plays);
            }
        }
    }
    ensure!(counted.len() == videos.len(), "only {} of the videos have a count", counted.len());
    Ok(counted)
}
