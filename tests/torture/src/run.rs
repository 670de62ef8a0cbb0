//! One run, from the first process to the verdict.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::{
    audience::{self, Watched},
    audit,
    clients::Players,
    kafka,
    killer::Killer,
    ledger::{VIDEOS, Video},
    readers::Readers,
    report::{self, Report},
    tails::Tails,
    tally::{Tally, Wrong},
    verdict,
    world::{INSTANCES, Kind, Programs, World},
};

/// How long the last plays may take to be answered once everything is well.
const PATIENCE: Duration = Duration::from_secs(60);

/// By how much an instance may grow in one life, in KiB: its caches, which are bounded, fill.
const GROWTH: u64 = 96 * 1_024;

/// What is to be done.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) lasts: Duration,
    /// Plays a second.
    pub(crate) rate: u32,
    pub(crate) kind: Kind,
}

/// Tortures, heals and judges.
///
/// # Errors
/// It could not be brought to its end, for a reason that isn't the service's.
pub(crate) async fn run(plan: &Plan, programs: &Programs, folder: &Path) -> anyhow::Result<Report> {
    let tally = Arc::new(Tally::new(folder)?);
    let world = World::start(plan.kind, programs, folder).await?;
    let tails = Arc::new(Tails::new());
    let videos: Arc<Vec<Video>> = Arc::new((0..VIDEOS).map(Video::new).collect());
    let killer = Arc::new(Killer { world: world.clone(), tally: tally.clone(), tails: tails.clone() });
    // Dropped at the end; these have no other.
    let mut looking = look(&world, &tally, &videos, &killer);
    let mut playing = JoinSet::new();
    for player in Players::new(world.clone(), tally.clone(), tails, videos.clone()).start(plan.rate) {
        playing.spawn(player);
    }

    let until = Instant::now() + plan.lasts;
    let rebalancing = async {
        match &world.kafka {
            Some(kafka) => kafka.rebalance(&tally, until).await.context("the consumer"),
            None => Ok(()),
        }
    };
    let striking = killer.clone().run(plan.seed, until);
    tokio::select! {
        struck = async { tokio::try_join!(striking, rebalancing) } => drop(struck?),
        ended = looking.join_next() => bail!("a part of the torture itself ended: {ended:?}"),
    }
    println!("torture: everything is healed; waiting until every play is in the database");
    for instance in 0..INSTANCES {
        killer.wait_until_well(instance).await;
    }
    tally.stop();
    let until = Instant::now() + PATIENCE;
    while let Ok(Some(ended)) = timeout_at(until, playing.join_next()).await {
        ended.context("a player failed")?;
    }
    let unanswered = tally.begun.get() - tally.acknowledged.get();
    if unanswered > 0 {
        tally
            .wrong(Wrong::Promise, &format!("{unanswered} plays are not answered though everything is well"));
    }
    verdict::settle(&world, &tally, &videos).await?;
    let off = verdict::pass(&world, &tally, &videos).await?;
    drop(looking);

    if let Some(kafka) = &world.kafka {
        kafka.drain(&tally).await?;
    }
    for (index, instance) in world.instances.iter().enumerate() {
        killer.drain(index, &mut *instance.lock().await, true).await?;
    }
    // Both have reported all they have counted; killed ones couldn't, nor those who never heard that
    // they had. What is counted from a log is reported as it is counted: nothing may be left there.
    let tail = killer.tails.left() + tally.silent.get();
    let [one, other] = &world.instances;
    let (one, other) = (one.lock().await, other.lock().await);
    audit::hold(&one, &tally, tail).await?;
    let lives = [one.lives.clone(), other.lives.clone()];
    for (index, life) in
        lives.iter().enumerate().flat_map(|(index, lives)| lives.iter().map(move |life| (index, life)))
    {
        if life.last > life.first + GROWTH {
            let (first, last) = (life.first / 1_024, life.last / 1_024);
            tally.wrong(Wrong::Promise, &format!("instance {index} grew from {first} to {last} MiB"));
        }
    }
    let taken_up = world.kafka.is_some().then(|| kafka::taken_up(folder));
    Ok(Report { tally, off, kind: plan.kind, taken_up, lives })
}

/// Starts whoever looks on and changes nothing.
fn look(
    world: &Arc<World>,
    tally: &Arc<Tally>,
    videos: &Arc<Vec<Video>>,
    killer: &Arc<Killer>,
) -> JoinSet<anyhow::Result<()>> {
    let watched = Arc::new(Watched::all());
    let mut looking = JoinSet::new();
    for viewer in audience::start(world, tally, &watched) {
        looking.spawn(viewer);
    }
    let readers =
        Arc::new(Readers { world: world.clone(), tally: tally.clone(), videos: videos.clone(), watched });
    for reader in readers.clone().start() {
        looking.spawn(reader);
    }
    looking.spawn(readers.turn());
    for instance in 0..INSTANCES {
        looking.spawn(killer.tails.clone().watch(world.clone(), instance));
    }
    looking.spawn(killer.clone().watch());
    looking.spawn(report::progress(tally.clone()));
    looking
}
