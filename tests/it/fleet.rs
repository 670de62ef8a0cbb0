//! Many instances: who sweeps and who flushes which partition, and when, while instances come, go, die and
//! stand still, and their clocks differ.
//!
//! Locks run out by Redis's own time, so these intervals are real ones, and short. What a busy machine
//! adds is measured beside them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use headcount::{
    backend::{self, Stores},
    clock::{Clock, SystemClock, Timestamp},
    config::{Config, SecretUrl},
    error::StoreError,
    jobs::{self, Job, Watch},
    lifecycle::Lifecycle,
};
use headcount_support::{Proxy, Way};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{sync::watch, task::JoinSet};
use uuid::Uuid;

use crate::world::{World, a_play, eventually, secs, service, video_id};

const SWEEP_EVERY: Duration = Duration::from_secs(2);
const FLUSH_EVERY: Duration = Duration::from_secs(2);
const LASTS: Duration = Duration::from_secs(26);
const INSTANCES: usize = 5;

/// Instances that run at any moment: the others may all be gone or stand still.
const AT_LEAST: usize = 2;

/// Who has run for so many intervals has had its part of the work.
const SETTLED_IN: u32 = 4;

/// A host whose clock is wrong.
struct Skewed {
    host: Arc<SystemClock>,
    by: i64,
}

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.host.now().millis() + self.by * 1_000)
    }

    fn monotonic(&self) -> Duration {
        self.host.monotonic()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    StandsStill,
    IsDead,
}

/// One pass, by whom.
#[derive(Clone, Copy, Debug)]
struct Pass {
    instance: usize,
    partition: usize,
    began: Instant,
    ended: Instant,
}

type Passes = Arc<Mutex<Vec<Pass>>>;

/// A job whose instance can be stopped between any two runs, and that is written down.
struct Watched {
    job: Arc<dyn Job>,
    instance: usize,
    partition: usize,
    state: watch::Receiver<State>,
    passes: Passes,
}

impl Watched {
    async fn awake(&self) {
        let mut state = self.state.clone();
        // An instance that is dropped never wakes again.
        if state.wait_for(|state| *state == State::Runs).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Job for Watched {
    fn name(&self) -> &'static str {
        self.job.name()
    }

    fn first_in(&self) -> Duration {
        self.job.first_in()
    }

    fn every(&self) -> Duration {
        self.job.every()
    }

    fn retry_in(&self) -> Duration {
        self.job.retry_in()
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        self.awake().await;
        let began = Instant::now();
        let ran = self.job.run().await;
        // Whoever found it done says when to come again.
        if matches!(ran, Ok(None)) {
            let (instance, partition) = (self.instance, self.partition);
            self.passes.lock().push(Pass { instance, partition, began, ended: Instant::now() });
        }
        self.awake().await;
        ran
    }

    async fn finish(&self) {
        self.job.finish().await;
    }
}

struct Instance {
    lifecycle: Lifecycle,
    state: watch::Sender<State>,
    /// When it began to run, if it runs.
    since: Instant,
}

/// A fleet over one deployment.
struct Fleet {
    config: Config,
    sweeps: Passes,
    flushes: Passes,
    slots: Vec<Option<Instance>>,
    started: usize,
    /// Which instance ran from when to when.
    ran: Vec<(usize, Instant, Instant)>,
    numbers: Vec<usize>,
}

impl Fleet {
    fn new(config: Config) -> Self {
        let slots = (0..INSTANCES).map(|_| None).collect();
        let (sweeps, flushes) = (Passes::default(), Passes::default());
        Self { config, sweeps, flushes, slots, started: 0, ran: Vec::new(), numbers: vec![0; INSTANCES] }
    }

    async fn open(&self, lifecycle: &Lifecycle, skew: i64) -> Stores {
        let clock = Arc::new(Skewed { host: SystemClock::start(), by: skew });
        let stores = backend::open(&self.config, lifecycle, clock).await.unwrap();
        eventually("the stores are there", async || {
            let health = stores.health.check().await;
            health.failed.is_empty() && health.degraded.is_empty()
        })
        .await;
        stores
    }

    async fn start(&mut self, slot: usize) {
        let lifecycle = Lifecycle::new(Duration::ZERO, secs(20));
        // One slot is a minute ahead, one a minute behind.
        let skew = 30 * (i64::try_from(slot).unwrap() - 2);
        let stores = self.open(&lifecycle, skew).await;
        let state = watch::Sender::new(State::Runs);
        let (instance, watching) = (self.started, Watch::default());
        self.started += 1;
        for (name, passes) in [("sweep", &self.sweeps), ("flush", &self.flushes)] {
            let of_this_name = stores.jobs.iter().filter(|job| job.name() == name);
            for (partition, job) in of_this_name.enumerate() {
                let (job, state, passes) = (job.clone(), state.subscribe(), passes.clone());
                let watched = Watched { job, instance, partition, state, passes };
                jobs::start(&lifecycle, &watching, Arc::new(watched));
            }
        }
        self.numbers[slot] = instance;
        self.slots[slot] = Some(Instance { lifecycle, state, since: Instant::now() });
    }

    fn running(&self) -> Vec<usize> {
        let runs = |slot: &Option<Instance>| {
            slot.as_ref().is_some_and(|instance| *instance.state.borrow() == State::Runs)
        };
        (0..INSTANCES).filter(|slot| runs(&self.slots[*slot])).collect()
    }

    /// It runs no more, from now on or for a while.
    fn note_end_of_run(&mut self, slot: usize) {
        let since = self.slots[slot].as_ref().unwrap().since;
        self.ran.push((self.numbers[slot], since, Instant::now()));
    }

    /// Does to some instance what comes next.
    async fn happen(&mut self, random: &mut StdRng, ended: &mut Vec<Instance>) {
        let slot = random.random_range(0..INSTANCES);
        let state = self.slots[slot].as_ref().map(|instance| *instance.state.borrow());
        match state {
            None => self.start(slot).await,
            Some(State::StandsStill) => {
                let instance = self.slots[slot].as_mut().unwrap();
                instance.since = Instant::now();
                instance.state.send_replace(State::Runs);
            }
            Some(_) if self.running().len() > AT_LEAST => {
                self.note_end_of_run(slot);
                match random.random_range(0..3) {
                    0 => drop(self.slots[slot].as_ref().unwrap().state.send_replace(State::StandsStill)),
                    1 => {
                        let dead = self.slots[slot].take().unwrap();
                        dead.state.send_replace(State::IsDead);
                        ended.push(dead);
                    }
                    _ => {
                        let stopped = self.slots[slot].take().unwrap();
                        stopped.lifecycle.stop();
                        stopped.lifecycle.run().await;
                    }
                }
            }
            Some(_) => {}
        }
    }
}

/// By how much the machine was behind, in all, since this was started.
fn behind(tasks: &mut JoinSet<()>) -> Arc<Mutex<Duration>> {
    const TICK: Duration = Duration::from_millis(20);
    let behind = Arc::new(Mutex::new(Duration::ZERO));
    let noted = behind.clone();
    tasks.spawn(async move {
        loop {
            let began = Instant::now();
            tokio::time::sleep(TICK).await;
            *noted.lock() += began.elapsed().saturating_sub(TICK);
        }
    });
    behind
}

/// One video of each partition.
fn one_a_partition() -> Vec<String> {
    let mut videos = vec![None; 16];
    for name in (0..).map(|number| format!("film-{number}")) {
        videos[video_id(&name).partition().index()].get_or_insert(name);
        if videos.iter().all(Option::is_some) {
            break;
        }
    }
    videos.into_iter().flatten().collect()
}

/// Passes of each partition, in their order.
fn by_partition(passes: &Passes) -> Vec<Vec<Pass>> {
    let mut of = vec![Vec::new(); 16];
    for pass in passes.lock().iter() {
        of[pass.partition].push(*pass);
    }
    for passes in &mut of {
        passes.sort_by_key(|pass| pass.ended);
    }
    of
}

/// [89, 90; 88: all of them are on one host]
#[tokio::test]
async fn a_fleet_sweeps_and_flushes_each_partition_once_an_interval_whoever_comes_goes_or_stalls() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = World::redis().await;
    world.config.jobs.sweep_every = SWEEP_EVERY;
    world.config.jobs.flush_every = FLUSH_EVERY;
    // The world's own instance has another time.
    world.config.redis.prefix = format!("{}:", Uuid::now_v7().simple());
    let mut fleet = Fleet::new(world.config.clone());
    for slot in 0..INSTANCES {
        fleet.start(slot).await;
    }
    let lifecycle = Lifecycle::new(Duration::ZERO, secs(20));
    let front = fleet.open(&lifecycle, 0).await;
    let mut tasks = JoinSet::new();
    let behind = behind(&mut tasks);
    let (videos, plays) = (one_a_partition(), front.plays.clone());
    let counted = Arc::new(Mutex::new(0_i64));
    let counting = counted.clone();
    let (stop_plays, mut stopped) = watch::channel(false);
    tasks.spawn(async move {
        for play in 0.. {
            for video in &videos {
                plays.record(a_play(video, None, Some(&format!("play-{play}")))).await.unwrap();
                *counting.lock() += 1;
            }
            if tokio::time::timeout(Duration::from_millis(50), stopped.changed()).await.is_ok() {
                return;
            }
        }
    });

    let (began, mut ended) = (Instant::now(), Vec::new());
    while began.elapsed() < LASTS {
        tokio::time::sleep(Duration::from_millis(random.random_range(100..900))).await;
        fleet.happen(&mut random, &mut ended).await;
    }
    for slot in fleet.running() {
        fleet.note_end_of_run(slot);
    }
    let over = Instant::now();
    stop_plays.send_replace(true);
    let late = *behind.lock();
    println!("{} instances in all; the machine was {late:?} behind", fleet.started);

    once_an_interval(&fleet.sweeps, SWEEP_EVERY, began, over, late);
    once_an_interval(&fleet.flushes, FLUSH_EVERY, began, over, late);
    everybody_has_a_part(&fleet);

    let flushed = "select count(*) from play_batch group by partition";
    let batches: Vec<i64> = sqlx::query_scalar(flushed).fetch_all(&mut world.database().await).await.unwrap();
    assert_eq!(batches.len(), 16);
    for slot in fleet.slots.iter().flatten() {
        slot.state.send_replace(State::IsDead);
    }
    eventually("all plays are in the database", async || {
        for job in front.jobs.iter().filter(|job| job.name() == "flush") {
            drop(job.run().await);
        }
        let sum = "select coalesce(sum(views), 0)::bigint from videos";
        let views: i64 = sqlx::query_scalar(sum).fetch_one(&mut world.database().await).await.unwrap();
        views == *counted.lock()
    })
    .await;
}

/// No partition twice an interval, and none forgotten for more than two.
fn once_an_interval(passes: &Passes, every: Duration, began: Instant, over: Instant, late: Duration) {
    for (partition, passes) in by_partition(passes).into_iter().enumerate() {
        for pair in passes.windows(2) {
            // The lock, or the claim, of the first lies after it began, that of the second before it ended.
            let apart = pair[1].ended.duration_since(pair[0].began);
            assert!(apart >= every.mul_f64(0.9) - secs(1) / 10, "partition {partition}: {pair:?}");
        }
        let starts = passes.iter().map(|pass| pass.began.max(began)).filter(|start| *start <= over);
        let moments: Vec<Instant> = [began].into_iter().chain(starts).chain([over]).collect();
        for pair in moments.windows(2) {
            let forgotten = pair[1].duration_since(pair[0]);
            assert!(forgotten <= every * 2 + late, "partition {partition}: {forgotten:?} of {every:?}");
        }
    }
}

/// Whoever ran for a while swept something, and nobody nearly everything while others ran.
fn everybody_has_a_part(fleet: &Fleet) {
    let sweeps = fleet.sweeps.lock();
    let mut looked_at = 0;
    for (instance, from, to) in &fleet.ran {
        if to.duration_since(*from) < SWEEP_EVERY * SETTLED_IN {
            continue;
        }
        let meanwhile = sweeps.iter().filter(|pass| (*from..*to).contains(&pass.began));
        let (mut all, mut own) = (0, 0);
        for pass in meanwhile {
            all += 1;
            own += usize::from(pass.instance == *instance);
        }
        println!("instance {instance} made {own} of {all} passes in {:?}", to.duration_since(*from));
        assert!(own > 0 && own * 5 < all * 4, "instance {instance} made {own} of {all} passes");
        looked_at += 1;
    }
    assert!(looked_at > 0, "some instance ran for {SETTLED_IN} intervals");
}

/// How long the lock of a partition's sweep is kept yet, in milliseconds.
async fn kept_for(config: &Config, partition: usize) -> i64 {
    let mut connection = headcount_support::redis_connection(&service("TEST_REDIS_URL")).await.unwrap();
    let mut left = redis::cmd("PTTL");
    left.arg(format!("{}task:lock:sweep:{{{partition}}}", config.redis.prefix));
    left.query_async(&mut connection).await.unwrap()
}

fn sweep_of(stores: &Stores, partition: usize) -> Arc<dyn Job> {
    stores.jobs.iter().filter(|job| job.name() == "sweep").nth(partition).unwrap().clone()
}

#[tokio::test]
async fn whoever_dies_over_a_sweep_keeps_the_others_from_it_for_a_third_of_an_interval() {
    let proxy = Proxy::to(&service("TEST_REDIS_URL")).await;
    let url = proxy.by(&service("TEST_REDIS_URL"));
    let world = World::redis_with(|config| {
        config.redis.url = SecretUrl::new(url);
        config.redis.deadline = secs(1);
    })
    .await;
    // Its pass goes no further, and it can't give the lock back either.
    proxy.set(Way::DeafAfter("ZSCAN"));
    assert!(sweep_of(&world.stores, 0).run().await.is_err());
    let left = kept_for(&world.config, 0).await;
    assert!((1..=18_000).contains(&left), "of a minute: {left}");
    proxy.set(Way::Open);
    eventually("it is well", async || world.stores.health.check().await.failed.is_empty()).await;
    // One that is done is kept until the next.
    assert_eq!(sweep_of(&world.stores, 1).run().await.unwrap(), None);
    let left = kept_for(&world.config, 1).await;
    assert!((40_000..=54_000).contains(&left), "{left}");
}

/// [86]
#[tokio::test]
async fn instances_with_different_intervals_go_by_the_lock_that_is_there() {
    let quick = World::redis_with(|config| config.jobs.sweep_every = secs(10)).await;
    let slow = quick.another_with(|config| config.jobs.sweep_every = secs(600)).await;
    assert_eq!(sweep_of(&slow.stores, 0).run().await.unwrap(), None);
    let wait = sweep_of(&quick.stores, 0).run().await.unwrap().unwrap();
    assert!(wait > secs(500) && wait < secs(542), "nobody's lock is taken away: {wait:?}");
    assert_eq!(sweep_of(&quick.stores, 1).run().await.unwrap(), None);
    let wait = sweep_of(&slow.stores, 1).run().await.unwrap().unwrap();
    assert!(wait < secs(9 + 90), "{wait:?}");
}

#[tokio::test]
async fn an_instance_that_is_alone_gives_its_locks_back_and_one_of_a_fleet_leaves_its_sweeps_done() {
    let one = World::redis().await;
    assert_eq!(sweep_of(&one.stores, 0).run().await.unwrap(), None);
    sweep_of(&one.stores, 0).finish().await;
    let two = one.another().await;
    assert_eq!(sweep_of(&two.stores, 0).run().await.unwrap(), None, "it was given back");
    assert!(sweep_of(&one.stores, 0).run().await.unwrap().is_some());
    assert_eq!(sweep_of(&one.stores, 1).run().await.unwrap(), None);
    sweep_of(&one.stores, 1).finish().await;
    assert!(sweep_of(&two.stores, 1).run().await.unwrap().is_some(), "it was done in this interval");
}
