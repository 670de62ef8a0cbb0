//! Whatever befalls an audience and its instances in whatever order, nobody who watches is missing from the
//! shards that a count covers, and nobody is there twice: held against a plain map of viewers.
//!
//! `PROPTEST_CASES=200` for a long run.

use std::{cell::RefCell, collections::BTreeMap, ops::Range};

use headcount::{
    clock::Clock as _,
    config::{SecretUrl, Shards},
};
use headcount_support::{Proxy, Way};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use crate::{
    shards::Stored,
    world::{World, beat, eventually, secs, service},
};

const INSTANCES: usize = 3;
const WINDOW: i64 = 600;

/// What may happen.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes.
    Pass(u64),
    /// Viewers beat, by one instance.
    Beat(usize, Range<u32>),
    /// A viewer says goodbye, by one instance.
    Leave(usize, u32),
    /// An instance sweeps, and all are asked.
    Sweep(usize),
    /// An instance is stopped and started again.
    Restart(usize),
    /// An instance is started again with another number of shards, 2 to this power, or none of its own.
    Number(usize, Option<u32>),
    /// The way of an instance to Redis breaks once it has asked so many bytes more.
    Cut(usize, usize),
    /// A minute passes for everybody but one instance, which has stalled: twenty times, with beats by the
    /// others and a sweep in each.
    Stall(usize, Range<u32>),
}

fn viewers() -> impl Strategy<Value = Range<u32>> {
    // Few and many, so that shards come and go.
    let ends = [1_u32, 10, 40, 150];
    (0..60_u32, prop::sample::select(ends.to_vec())).prop_map(|(first, many)| first..first + many)
}

fn event() -> impl Strategy<Value = Event> {
    let instance = 0..INSTANCES;
    prop_oneof![
        4 => (1_u64..130).prop_map(Event::Pass),
        6 => (instance.clone(), viewers()).prop_map(|(instance, who)| Event::Beat(instance, who)),
        1 => (instance.clone(), 0..200_u32).prop_map(|(instance, who)| Event::Leave(instance, who)),
        6 => instance.clone().prop_map(Event::Sweep),
        1 => instance.clone().prop_map(Event::Restart),
        1 => (instance.clone(), prop::option::of(0..6_u32)).prop_map(|(at, power)| Event::Number(at, power)),
        1 => (instance.clone(), 0..6_000_usize).prop_map(|(instance, bytes)| Event::Cut(instance, bytes)),
        1 => (instance, viewers()).prop_map(|(instance, who)| Event::Stall(instance, who)),
    ]
}

/// The instances, which go on from case to case, each case on a video of its own.
struct Fleet {
    /// Past the ways that break, for looks at Redis.
    aside: World,
    instances: Vec<(Option<World>, Proxy)>,
    videos: u32,
}

impl Fleet {
    async fn start() -> Self {
        let aside = World::redis_with(|config| config.presence.viewers_per_shard = 10).await;
        let mut instances = Vec::new();
        for _ in 0..INSTANCES {
            let proxy = Proxy::to(&service("TEST_REDIS_URL")).await;
            let url = proxy.by(&service("TEST_REDIS_URL"));
            let world = aside.another_with(|config| config.redis.url = SecretUrl::new(url)).await;
            instances.push((Some(world), proxy));
        }
        Self { aside, instances, videos: 0 }
    }

    fn at(&self, instance: usize) -> &World {
        self.instances[instance].0.as_ref().unwrap()
    }

    async fn restart(&mut self, instance: usize, shards: Option<Shards>) {
        let world = self.instances[instance].0.take().unwrap();
        let change = |config: &mut headcount::config::Config| {
            config.presence.shards = shards.unwrap_or(config.presence.shards);
        };
        self.instances[instance].0 = Some(world.changed(change).await);
    }
}

/// One case: who watches, by the plain rules.
struct Case<'a> {
    fleet: &'a mut Fleet,
    video: String,
    /// Last beats.
    last: BTreeMap<u32, i64>,
}

impl Case<'_> {
    fn now(&self) -> i64 {
        self.fleet.aside.clock.now().secs()
    }

    fn online_at(&self, now: i64) -> u64 {
        self.last.values().filter(|at| now - **at <= WINDOW).count() as u64
    }

    async fn beats(&mut self, instance: usize, viewers: Range<u32>) {
        // Nobody beats twice in a second: of two beats of one second by different maps both stay, until the
        // next one.
        self.fleet.aside.pass(secs(1));
        let beats = || -> Vec<_> {
            viewers.clone().map(|viewer| beat(&self.video, &format!("viewer-{viewer}"))).collect()
        };
        let world = self.fleet.at(instance);
        // Where the way breaks they are refused, and players try again.
        eventually("beats are taken", async || {
            world.stores.presence.beat_many(beats()).await.iter().all(Result::is_ok)
        })
        .await;
        let now = self.now();
        self.last.extend(viewers.map(|viewer| (viewer, now)));
    }

    async fn befall(&mut self, event: Event) {
        match event {
            Event::Pass(time) => self.fleet.aside.pass(secs(time)),
            Event::Beat(instance, viewers) => self.beats(instance, viewers).await,
            Event::Leave(instance, viewer) => {
                let beat = beat(&self.video, &format!("viewer-{viewer}"));
                let presence = &self.fleet.at(instance).stores.presence;
                eventually("a goodbye is taken", async || presence.leave(beat.clone()).await.is_ok()).await;
                self.last.remove(&viewer);
            }
            Event::Sweep(instance) => self.sweep(instance).await,
            Event::Restart(instance) => self.fleet.restart(instance, None).await,
            Event::Number(instance, power) => {
                let shards = power.map_or(Shards::Auto, |power| Shards::Fixed(1 << power));
                self.fleet.restart(instance, Some(shards)).await;
            }
            Event::Cut(instance, bytes) => self.fleet.instances[instance].1.set(Way::CutAsked(bytes)),
            Event::Stall(stalled, viewers) => {
                for minute in 0..20 {
                    let other = (stalled + 1 + minute % 2) % INSTANCES;
                    self.fleet.aside.pass(secs(54));
                    if minute % 2 == 0 {
                        self.beats(other, viewers.clone()).await;
                    }
                    self.sweep(other).await;
                }
            }
        }
    }

    /// Sweeps and sees to it that what is told as fresh is right.
    async fn sweep(&mut self, instance: usize) {
        let swept = self.now();
        // The way may break in the middle: the next pass makes up for it.
        let world = self.fleet.at(instance);
        eventually("it is swept", async || {
            let locks: Vec<String> =
                (0..16).map(|p| self.fleet.aside.key(&format!("task:lock:sweep:{{{p}}}"))).collect();
            self.fleet.aside.redis_command::<i64>(redis::cmd("DEL").arg(locks)).await;
            let mut all = true;
            for job in world.stores.jobs.iter().filter(|job| job.name() == "sweep") {
                all &= job.run().await.is_ok_and(|next| next.is_none());
            }
            all
        })
        .await;
        self.fleet.aside.forget_what_was_read();
        for instance in 0..INSTANCES {
            let count = self.fleet.at(instance).online(&self.video).await;
            let right = self.online_at(self.now())..=self.online_at(swept);
            let online = count.online.unwrap_or(0);
            assert!(count.stale || right.contains(&online), "{count:?} at {instance}, not {right:?}");
        }
    }

    /// Everybody who watches is at exactly one place that a count covers.
    async fn is_right(&self, after: &Event) {
        let stored = Stored::of(&self.fleet.aside, &self.video).await;
        let since = self.now() - WINDOW;
        for (viewer, at) in &self.last {
            let places = stored.places_of(&format!("viewer-{viewer}"), *at);
            assert!(*at < since || places > 0, "viewer-{viewer} is missing after {after:?}");
        }
        let mut held = BTreeMap::new();
        for (shard, viewers) in stored.shards.range(..stored.covered) {
            for (viewer, _) in viewers.iter().filter(|(_, at)| **at >= since) {
                let other = held.insert(viewer, shard);
                assert_eq!(other, None, "{viewer} is in {shard} as well, after {after:?}");
                let known = viewer.trim_start_matches("viewer-").parse().unwrap();
                assert!(self.last.contains_key(&known), "{viewer} has left, after {after:?}");
            }
        }
    }
}

#[test]
fn nobody_is_lost_or_counted_twice_whatever_happens_while_shards_follow_the_audience() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let fleet = RefCell::new(runtime.block_on(Fleet::start()));
    let asked = Config::default();
    let cases = if asked.cases == 256 { 12 } else { asked.cases };
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..asked });
    let events = prop::collection::vec(event(), 10..50);
    let outcome = runner.run(&events, |events| {
        let mut fleet = fleet.borrow_mut();
        fleet.videos += 1;
        let video = format!("film-{}", fleet.videos);
        let mut case = Case { fleet: &mut fleet, video, last: BTreeMap::new() };
        runtime.block_on(async {
            for event in events {
                case.befall(event.clone()).await;
                eventually("nothing waits to be written again", async || is_settled(case.fleet).await).await;
                case.is_right(&event).await;
            }
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

/// Whether what was written by an older map is written again: each instance has written a batch since.
async fn is_settled(fleet: &Fleet) -> bool {
    for (world, _) in &fleet.instances {
        if world.as_ref().unwrap().try_beat("witness", "witness").await.is_err() {
            return false;
        }
    }
    true
}
