//! The database grows by each play once, whatever step of a flush is repeated, interleaved or lost.

use std::time::Duration;

use futures::future::join_all;

use super::{Plays, World, play, video};
use crate::{
    ids::{Partition, VideoId},
    plays::{
        flush::Flushed,
        postgres::{Applied, Batch},
    },
};

impl World {
    /// Adds `plays` plays by viewers nobody else is.
    pub(super) async fn played(&self, id: &str, plays: usize) {
        let sent: Vec<_> =
            (0..plays).map(|_| play(id, &uuid::Uuid::now_v7().simple().to_string(), "")).collect();
        for result in self.plays.writer.write(&sent).await {
            result.unwrap();
        }
    }

    pub(super) async fn claim(&self, id: &str) -> Option<Batch> {
        let partition = video(id).partition();
        let claim = self.plays.flusher().claim(&self.connection(), partition).await.unwrap();
        claim.map(|claim| claim.batch)
    }

    pub(super) async fn apply(&self, batch: &Batch) -> Applied {
        self.plays.flusher().ledger().apply(batch).await.unwrap()
    }

    pub(super) async fn settle(&self, batch: &Batch, applied: &Applied) {
        self.plays.flusher().settle(&self.connection(), batch, applied).await.unwrap();
    }

    /// Flushes until nothing is left to flush.
    pub(super) async fn flush_all(&self) {
        for partition in Partition::all() {
            while self.plays.flusher().flush_once(&self.connection(), partition).await.unwrap()
                != Flushed::Nothing
            {}
        }
    }

    pub(super) async fn delta(&self, id: &str) -> i64 {
        let key = self.direct.keys().delta(video(id).partition(), &video(id));
        self.ask::<Option<i64>>(&format!("GET {key}")).await.unwrap_or(0)
    }

    /// Neither a play nor a mark nor a batch waits.
    pub(super) async fn assert_nothing_waits(&self) {
        let kept = ["delta", "dirty", "batch", "refused"];
        let waiting = self.keys().await.into_iter();
        let waiting = waiting.filter(|key| kept.iter().any(|kept| key.contains(&format!("views:{kept}"))));
        assert_eq!(waiting.collect::<Vec<_>>(), [""; 0]);
    }
}

/// S10
#[tokio::test]
async fn a_crash_between_commit_and_settle_adds_nothing_twice() {
    let world = World::new().await;
    world.played("1", 50).await;
    let batch = world.claim("1").await.unwrap();
    assert!(world.apply(&batch).await.by_this_call);
    // Here it crashes; another instance starts.
    let flushed = world.flush(&video("1")).await.unwrap();
    assert!(matches!(flushed, Flushed::Batch { plays: 0, retaken: true, .. }), "{flushed:?}");
    assert_eq!(world.views(&video("1")).await, 50);
    world.assert_nothing_waits().await;
}

#[tokio::test]
async fn a_crash_after_the_claim_loses_nothing() {
    let world = World::new().await;
    world.played("1", 50).await;
    world.claim("1").await.unwrap();
    world.played("1", 7).await;
    world.flush_all().await;
    assert_eq!(world.views(&video("1")).await, 57);
    world.assert_nothing_waits().await;
}

/// S11
#[tokio::test]
async fn two_flushers_at_one_delta_add_it_once_in_whatever_order_they_step() {
    // Each letter is the next step of one of the two: claim, apply, settle.
    for order in ["aabbab", "ababab", "abbaab", "abbbaa", "aabbba", "baabab", "abaabb", "ababba"] {
        let world = World::new().await;
        world.played("1", 50).await;
        let mut at = [(None, None), (None, None)];
        for (turn, who) in order.bytes().enumerate() {
            let (batch, applied) = &mut at[usize::from(who - b'a')];
            match (&batch, &applied) {
                (None, _) => *batch = world.claim("1").await,
                (Some(claimed), None) => *applied = Some(world.apply(claimed).await),
                (Some(claimed), Some(applied)) => world.settle(claimed, applied).await,
            }
            if turn == 2 {
                world.played("1", 3).await;
            }
        }
        assert!(world.delta("1").await >= 0, "{order}");
        world.flush_all().await;
        assert_eq!(world.views(&video("1")).await, 53, "{order}");
        world.assert_nothing_waits().await;
    }
}

#[tokio::test]
async fn a_flusher_that_wakes_late_takes_nothing_off_the_next_batch() {
    let world = World::new().await;
    world.played("1", 50).await;
    let late = world.claim("1").await.unwrap();
    let applied = world.apply(&late).await;
    world.flush_all().await;
    world.played("1", 60).await;
    let next = world.claim("1").await.unwrap();
    world.settle(&late, &applied).await;
    assert!(!world.apply(&late).await.by_this_call);
    assert_eq!(world.delta("1").await, 60);
    let applied = world.apply(&next).await;
    world.settle(&next, &applied).await;
    assert_eq!(world.views(&video("1")).await, 110);
    world.assert_nothing_waits().await;
}

/// S12
#[tokio::test]
async fn a_play_between_any_two_steps_reaches_the_database_without_another() {
    for gap in 0..3 {
        let world = World::new().await;
        world.played("1", 5).await;
        let between = async |step| {
            if step == gap {
                world.played("1", 1).await;
            }
        };
        let batch = world.claim("1").await.unwrap();
        between(0).await;
        let applied = world.apply(&batch).await;
        between(1).await;
        world.settle(&batch, &applied).await;
        between(2).await;
        world.flush_all().await;
        assert_eq!(world.views(&video("1")).await, 6, "after step {gap}");
        world.assert_nothing_waits().await;
    }
}

/// S14
#[tokio::test(flavor = "multi_thread")]
async fn after_a_flush_of_100_000_videos_nothing_of_them_waits() {
    let world = World::new().await;
    let videos: Vec<VideoId> = (0..100_000).map(|number| video(&format!("v{number}"))).collect();
    for chunk in videos.chunks(2_000) {
        let plays: Vec<_> = chunk.iter().map(|video| play(video.as_str(), "ann", "")).collect();
        assert!(world.plays.writer.write(&plays).await.iter().all(Result::is_ok));
    }
    world.flush_all().await;
    world.assert_nothing_waits().await;
    let rows = "select count(*), sum(views)::bigint, min(views), max(views) from videos";
    assert_eq!(world.select::<(i64, i64, i64, i64)>(sqlx::query_as(rows)).await, [(100_000, 100_000, 1, 1)]);
    let days = "select count(*), sum(views)::bigint from video_daily";
    assert_eq!(world.select::<(i64, i64)>(sqlx::query_as(days)).await, [(100_000, 100_000)]);
}

/// A5, A6
#[tokio::test(flavor = "multi_thread")]
async fn four_flushers_at_the_same_videos_add_each_play_once_and_never_deadlock() {
    const ROUNDS: usize = 30;
    let world = World::new().await;
    let flushers = join_all((0..4).map(|_| async { world.instance() })).await;
    for round in 0..ROUNDS {
        // Each round marks the videos in another order.
        let plays: Vec<_> = (0..500)
            .map(|number| play(&format!("v{}", (number * 7 + round * 131) % 500), "", &format!("{round}")))
            .collect();
        assert!(world.plays.writer.write(&plays).await.iter().all(Result::is_ok));
        let mut runs = Vec::new();
        for instance in &flushers {
            for partition in Partition::all() {
                let connection = world.redis.connection().unwrap();
                runs.push(
                    async move { instance.flusher().flush_once(&connection, partition).await.unwrap() },
                );
            }
        }
        let added: i64 = join_all(runs).await.iter().map(Flushed::plays).sum();
        assert!(added <= 500, "{added}");
    }
    world.flush_all().await;
    let rows = "select count(*), min(views), max(views) from videos";
    let each = i64::try_from(ROUNDS).unwrap();
    assert_eq!(world.select::<(i64, i64, i64)>(sqlx::query_as(rows)).await, [(500, each, each)]);
    world.assert_nothing_waits().await;
}

/// A15
#[tokio::test]
async fn a_flush_only_ever_adds() {
    let world = World::new().await;
    world.played("1", 5).await;
    world.flush_all().await;
    world.played("1", 5).await;
    let batch = world.claim("1").await.unwrap();
    world.operate("update videos set views = views + 1000").await;
    let applied = world.apply(&batch).await;
    world.settle(&batch, &applied).await;
    assert_eq!(world.views(&video("1")).await, 1_010);
    assert_eq!(world.count(&video("1")).await.plays, Some(1_010));
}

/// A25
#[tokio::test]
async fn totals_go_on_past_the_limits_of_smaller_numbers() {
    for limit in [u64::from(u32::MAX) - 2, (1 << 53) - 2] {
        let world = World::new().await;
        world.played("1", 1).await;
        world.flush_all().await;
        world.operate(&format!("update videos set views = {limit}")).await;
        world
            .ask::<i64>(&format!("DEL {}", world.direct.keys().total(video("1").partition(), &video("1"))))
            .await;
        for plays in [2, 3] {
            world.played("1", plays).await;
            world.flush_all().await;
        }
        assert_eq!(world.instance().counts(&[video("1")]).await[0].plays, Some(limit + 5));
    }
}

/// A27
#[tokio::test]
async fn ids_that_differ_in_case_only_are_two_videos_in_one_batch() {
    let world = World::new().await;
    let twins = (0..1_000).map(|number| (format!("a{number}"), format!("A{number}")));
    let of_one_partition =
        |(small, large): &(String, String)| video(small).partition() == video(large).partition();
    let (small, large) = twins.into_iter().find(of_one_partition).unwrap();
    world.played(&small, 2).await;
    world.played(&large, 3).await;
    assert!(matches!(world.flush(&video(&small)).await.unwrap(), Flushed::Batch { videos: 2, plays: 5, .. }));
    assert_eq!((world.views(&video(&small)).await, world.views(&video(&large)).await), (2, 3));
}

#[tokio::test]
async fn a_batch_too_young_is_left_until_it_is_old_enough_and_blocks_no_other_partition() {
    let now = crate::clock::Timestamp::from_secs(1_000_000);
    let (world, clock) = World::at(now, |config| config.redis.batch_min_age = Duration::from_secs(2)).await;
    let other = (0..100).map(|number| format!("v{number}"));
    let other = other.into_iter().find(|id| video(id).partition() != video("1").partition()).unwrap();
    world.played("1", 1).await;
    assert_eq!(world.flush(&video("1")).await.unwrap(), Flushed::TooYoung(Duration::from_secs(2)));
    clock.advance(Duration::from_millis(1_500));
    world.played(&other, 1).await;
    assert_eq!(world.flush(&video("1")).await.unwrap(), Flushed::TooYoung(Duration::from_millis(500)));
    assert_eq!(world.flush(&video(&other)).await.unwrap(), Flushed::TooYoung(Duration::from_secs(2)));
    clock.advance(Duration::from_millis(500));
    assert_eq!(world.flush(&video("1")).await.unwrap().plays(), 1);
    assert_eq!(world.views(&video("1")).await, 1);
    assert_eq!(world.views(&video(&other)).await, 0);
}

#[tokio::test]
async fn a_clock_of_redis_that_was_set_neither_holds_a_batch_up_nor_lets_one_through() {
    let now = crate::clock::Timestamp::from_secs(1_000_000);
    for jump in [-3_600_000, 3_600_000] {
        let (world, clock) =
            World::at(now, |config| config.redis.batch_min_age = Duration::from_secs(2)).await;
        let other = world.instance();
        world.played("1", 1).await;
        assert_eq!(world.flush(&video("1")).await.unwrap(), Flushed::TooYoung(Duration::from_secs(2)));
        clock.jump(jump);
        let young = world.flush(&video("1")).await.unwrap();
        assert_eq!(young, Flushed::TooYoung(Duration::from_secs(2)), "{jump}");
        if jump < 0 {
            // One that didn't claim it goes by how long it has known of it.
            let partition = video("1").partition();
            let young = other.flusher().flush_once(&world.connection(), partition).await.unwrap();
            assert_eq!(young, Flushed::TooYoung(Duration::from_secs(2)));
            clock.advance(Duration::from_secs(2));
            let flushed = other.flusher().flush_once(&world.connection(), partition).await.unwrap();
            assert_eq!(flushed.plays(), 1);
        } else {
            clock.advance(Duration::from_secs(2));
            assert_eq!(world.flush(&video("1")).await.unwrap().plays(), 1);
        }
    }
}
