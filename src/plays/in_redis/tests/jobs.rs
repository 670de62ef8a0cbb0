//! When plays are flushed, by whom, and how it ends.

use std::{sync::Arc, time::Duration};

use super::{World, eventually, play, video};
use crate::{
    jobs::{self, Job, Watch},
    lifecycle::Stopped,
    plays::Recorded,
    store::lock::{Lock, Taken},
};

impl World {
    fn job(&self, id: &str) -> Arc<dyn Job> {
        self.plays.jobs().swap_remove(video(id).partition().index())
    }
}

#[tokio::test]
async fn there_is_one_flush_a_partition_spread_over_the_period() {
    let world = World::new().await;
    let jobs = world.plays.jobs();
    let flushes: Vec<_> = jobs.iter().filter(|job| job.name() == "flush").collect();
    assert_eq!((flushes.len(), jobs.len()), (16, 18));
    let period = world.config.jobs.flush_every;
    for pair in flushes.windows(2) {
        let apart = pair[1].first_in().abs_diff(pair[0].first_in());
        assert!(apart.abs_diff(period / 16) < Duration::from_millis(1), "{apart:?}");
    }
    assert!(flushes[15].first_in() < period);
}

/// A6
#[tokio::test]
async fn while_another_flushes_a_partition_it_is_left_until_its_lock_runs_out() {
    let world = World::new().await;
    world.played("1", 5).await;
    let key = world.direct.keys().flush_lock(video("1").partition());
    let taken = Lock::take(&world.connection(), key, Duration::from_secs(7)).await.unwrap();
    let Taken::Mine(lock) = taken else { panic!("{taken:?}") };
    let wait = world.job("1").run().await.unwrap().unwrap();
    assert!(wait <= Duration::from_secs(7) && wait > Duration::from_secs(1), "{wait:?}");
    assert_eq!(world.views(&video("1")).await, 0);
    lock.release(&world.connection()).await.unwrap();
    assert_eq!(world.job("1").run().await.unwrap(), None);
    assert_eq!(world.views(&video("1")).await, 5);
    let locks: Vec<_> = world.keys().await.into_iter().filter(|key| key.contains("lock")).collect();
    assert_eq!(locks, [""; 0], "it is given back");
}

#[tokio::test]
async fn a_period_runs_from_claim_to_claim() {
    let now = crate::clock::Timestamp::from_secs(1_000_000);
    let (world, clock) = World::at(now, |config| config.redis.batch_min_age = Duration::from_secs(2)).await;
    world.played("1", 5).await;
    let job = world.job("1");
    assert_eq!(job.run().await.unwrap(), Some(Duration::from_secs(2)));
    clock.advance(Duration::from_secs(2));
    // More plays have come, for the next period.
    world.played("1", 1).await;
    assert_eq!(job.run().await.unwrap(), Some(Duration::from_secs(3)));
    assert_eq!((world.views(&video("1")).await, world.delta("1").await), (5, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_waits_at_the_beginning_of_a_run_is_flushed_by_it() {
    let world = World::new().await;
    let of_one = (0..).map(|number| format!("v{number}"));
    let of_one = of_one.filter(|id| video(id).partition() == video("1").partition());
    let plays: Vec<_> = of_one.take(2_500).map(|id| play(&id, "ann", "")).collect();
    assert!(world.plays.writer.write(&plays).await.iter().all(Result::is_ok));
    assert_eq!(world.job("1").run().await.unwrap(), None);
    world.assert_nothing_waits().await;
    let batches = world.select::<(i64,)>(sqlx::query_as("select count(*) from play_batch")).await;
    assert_eq!(batches, [(5,)], "of 500 each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_stops_flushes_what_it_took() {
    let world = World::with(|config| {
        config.redis.batch_min_age = Duration::from_secs(1);
        // No run but the last.
        config.jobs.flush_every = Duration::from_secs(600);
    })
    .await;
    let watch = Watch::default();
    for job in world.plays.jobs() {
        jobs::start(&world.lifecycle, &watch, job);
    }
    for number in 0..100 {
        let recorded = world.record(play(&format!("v{number}"), "ann", "")).await.unwrap();
        assert_eq!(recorded, Recorded::Counted);
    }
    world.lifecycle.stop();
    assert_eq!(world.lifecycle.run().await, Stopped::Drained);
    let rows = "select count(*), sum(views)::bigint from videos";
    assert_eq!(world.select::<(i64, i64)>(sqlx::query_as(rows)).await, [(100, 100)]);
    let sketches = "select count(*) from videos where unique_viewers = 1 and viewer_sketch is not null";
    assert_eq!(world.select::<(i64,)>(sqlx::query_as(sketches)).await, [(100,)]);
}

#[tokio::test]
async fn the_last_flush_waits_no_longer_than_2_seconds_for_a_young_batch() {
    let world = World::with(|config| config.redis.batch_min_age = Duration::from_secs(60)).await;
    world.played("1", 5).await;
    let finished = tokio::time::timeout(Duration::from_secs(30), world.job("1").finish()).await;
    assert!(finished.is_ok());
    assert_eq!((world.views(&video("1")).await, world.delta("1").await), (0, 5));
}

#[tokio::test]
async fn the_jobs_flush_by_themselves() {
    let world = World::with(|config| config.jobs.flush_every = Duration::from_millis(100)).await;
    let watch = Watch::default();
    for job in world.plays.jobs() {
        jobs::start(&world.lifecycle, &watch, job);
    }
    for id in ["1", "2", "3"] {
        world.played(id, 2).await;
        eventually("it is flushed", async || world.views(&video(id)).await == 2).await;
    }
    assert_eq!(watch.stuck(), [""; 0]);
}
