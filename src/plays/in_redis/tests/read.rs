//! A total is right, or said not to be: whatever the flush is doing, and whatever is missing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{Plays, RedisPlays, World, play, sibling, video};
use crate::{
    clock::{ManualClock, Timestamp},
    ids::VideoId,
    plays::{PlayCount, Recorded},
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

impl World {
    /// Redis no longer keeps what the database holds of a video.
    pub(super) async fn lose_total(&self, id: &str) {
        let key = self.direct.keys().total(video(id).partition(), &video(id));
        self.ask::<i64>(&format!("DEL {key}")).await;
    }

    /// What an instance that knows nothing yet says.
    pub(super) async fn fresh_count(&self, id: &str) -> PlayCount {
        count_by(&self.instance(), &video(id)).await
    }
}

async fn count_by(plays: &RedisPlays, video: &VideoId) -> PlayCount {
    plays.counts(std::slice::from_ref(video)).await[0]
}

#[tokio::test]
async fn a_video_that_was_never_played_has_0_and_reading_it_leaves_no_trace() {
    let world = World::new().await;
    let count = world.count(&video("nobody")).await;
    assert_eq!((count.plays, count.unique_viewers, count.stale), (Some(0), Some(0), false));
    assert!(count.as_of.is_some());
    assert_eq!(world.keys().await, [""; 0]);
    assert_eq!(world.select::<(i64,)>(sqlx::query_as("select count(*) from videos")).await, [(0,)]);
}

#[tokio::test]
async fn a_play_is_in_the_next_read_of_the_instance_that_took_it() {
    let world = World::new().await;
    for viewer in 0..20 {
        let recorded = world.record(play("1", &format!("v{viewer}"), "")).await.unwrap();
        assert_eq!(recorded, Recorded::Counted);
        let count = world.count(&video("1")).await;
        assert_eq!((count.plays, count.unique_viewers), (Some(viewer + 1), Some(viewer + 1)));
        if viewer % 7 == 0 {
            world.flush_all().await;
        }
    }
}

#[tokio::test]
async fn within_a_second_a_read_is_answered_from_here() {
    let (world, clock) = World::at(NOW, |_| {}).await;
    world.played("1", 5).await;
    assert_eq!(world.count(&video("1")).await.plays, Some(5));
    // Another instance takes one.
    world.instance().record(play("1", "ann", "")).await.unwrap();
    clock.advance(Duration::from_millis(999));
    assert_eq!(world.count(&video("1")).await.plays, Some(5));
    clock.advance(Duration::from_millis(1));
    assert_eq!(world.count(&video("1")).await.plays, Some(6));
}

#[tokio::test]
async fn counts_come_in_the_order_asked_for_however_often_a_video_is_in_it() {
    let world = World::new().await;
    world.played("1", 1).await;
    world.flush_all().await;
    world.played("2", 2).await;
    let ids: Vec<VideoId> = ["2", "nobody", "1", "2"].map(video).into();
    let counts = world.plays.counts(&ids).await;
    assert_eq!(
        counts.iter().map(|count| count.plays).collect::<Vec<_>>(),
        [Some(2), Some(0), Some(1), Some(2)]
    );
}

#[tokio::test]
async fn five_hundred_videos_are_read_in_one_go() {
    let world = World::new().await;
    let ids: Vec<VideoId> = (0..500).map(|number| video(&format!("v{number}"))).collect();
    for (number, id) in ids.iter().enumerate() {
        world.played(id.as_str(), number % 3).await;
    }
    world.flush_all().await;
    for id in ids.iter().step_by(2) {
        world.lose_total(id.as_str()).await;
    }
    let counts = world.instance().counts(&ids).await;
    for (number, count) in counts.iter().enumerate() {
        assert_eq!((count.plays, count.stale), (Some(number as u64 % 3), false), "v{number}");
    }
}

#[tokio::test]
async fn a_missing_total_is_found_out_at_every_step_of_a_flush() {
    let world = World::new().await;
    let look = async |plays, when: &str| {
        world.lose_total("1").await;
        let count = world.fresh_count("1").await;
        assert_eq!((count.plays, count.stale), (Some(plays), false), "{when}");
        assert_eq!(world.fresh_count("1").await.plays, Some(plays), "{when}, as it is kept");
    };
    world.played("1", 5).await;
    look(5, "before").await;
    let batch = world.claim("1").await.unwrap();
    look(5, "claimed").await;
    world.played("1", 2).await;
    look(7, "played on").await;
    let applied = world.apply(&batch).await;
    look(7, "applied").await;
    world.settle(&batch, &applied).await;
    look(7, "settled").await;
    world.flush_all().await;
    look(7, "flushed").await;
}

#[tokio::test]
async fn a_missing_total_of_a_video_whose_plays_were_refused_still_counts_them() {
    let world = World::new().await;
    world.operate("insert into videos (video_id, views) values ('1', 9223372036854775805)").await;
    world.played("1", 4).await;
    let batch = world.claim("1").await.unwrap();
    let applied = world.apply(&batch).await;
    assert!(applied.refused.contains(&video("1")));
    assert_eq!(world.fresh_count("1").await.plays, Some(9_223_372_036_854_775_809));
    world.settle(&batch, &applied).await;
    world.lose_total("1").await;
    assert_eq!(world.fresh_count("1").await.plays, Some(9_223_372_036_854_775_809));
}

/// S17, A14: with totals that are lost all the time on top of it.
#[tokio::test(flavor = "multi_thread")]
async fn while_plays_are_flushed_a_total_has_one_value() {
    const POLLS: usize = 1_000;
    let (world, clock) = World::at(NOW, |_| {}).await;
    let world = Arc::new(world);
    let ended = AtomicBool::new(false);
    // Two videos of one partition: one is polled, the other keeps its batches moving.
    let mover = sibling("1");
    world.played("1", 50).await;
    let flusher = async {
        while !ended.load(Ordering::Relaxed) {
            world.played(&mover, 1).await;
            world.flush(&video("1")).await.unwrap();
        }
    };
    let poller = async {
        let elsewhere = world.instance();
        for poll in 0..POLLS {
            clock.advance(Duration::from_secs(1));
            if poll % 3 == 0 {
                world.lose_total("1").await;
            }
            for count in [world.count(&video("1")).await, count_by(&elsewhere, &video("1")).await] {
                assert_eq!(count.plays, Some(50), "poll {poll}");
            }
        }
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(flusher, poller);
    assert_eq!(world.views(&video("1")).await, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_video_is_played_and_flushed_its_total_never_goes_back_and_ends_right() {
    const PLAYS: u64 = 400;
    let (world, clock) = World::at(NOW, |_| {}).await;
    let ended = AtomicBool::new(false);
    let player = async {
        for viewer in 0..PLAYS {
            world.record(play("1", &format!("v{viewer}"), "")).await.unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    };
    let flusher = async {
        while !ended.load(Ordering::Relaxed) {
            world.flush(&video("1")).await.unwrap();
            world.lose_total("1").await;
        }
    };
    let poller = async {
        let mut last = (0, 0);
        while !ended.load(Ordering::Relaxed) {
            clock.advance(Duration::from_millis(400));
            let count = world.count(&video("1")).await;
            // None only where batches moved under all three looks, before any number was good.
            let now = (count.plays.unwrap_or(last.0), count.unique_viewers.unwrap_or(last.1));
            assert!(now.0 >= last.0 && now.1 >= last.1, "{last:?} -> {now:?}");
            last = now;
        }
    };
    tokio::join!(player, flusher, poller);
    assert_eq!(world.count(&video("1")).await.plays, Some(PLAYS));
    assert_eq!(world.fresh_count("1").await.plays, Some(PLAYS));
    world.flush_all().await;
    assert_eq!(world.views(&video("1")).await, i64::try_from(PLAYS).unwrap());
}

#[tokio::test]
async fn a_smaller_total_is_not_believed_before_the_window_is_over() {
    let (world, clock): (World, Arc<ManualClock>) = World::at(NOW, |_| {}).await;
    world.played("1", 9).await;
    assert_eq!(world.count(&video("1")).await.plays, Some(9));
    // Redis comes back older than it was.
    let delta = world.direct.keys().delta(video("1").partition(), &video("1"));
    world.ask::<String>(&format!("SET {delta} 4")).await;
    for passed in [1, 300, 299] {
        clock.advance(Duration::from_secs(passed));
        let count = world.count(&video("1")).await;
        assert_eq!((count.plays, count.as_of, count.stale), (Some(9), Some(NOW), true));
    }
    clock.advance(Duration::from_secs(1));
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.stale), (Some(4), false), "the store has been saying so for the window");
}

#[tokio::test]
async fn a_count_that_is_no_number_is_not_shown() {
    let world = World::new().await;
    world.played("1", 9).await;
    let delta = world.direct.keys().delta(video("1").partition(), &video("1"));
    world.ask::<String>(&format!("SET {delta} -3")).await;
    let counts = world.instance().counts(&[video("1"), video("2")]).await;
    assert_eq!((counts[0], counts[1].plays), (PlayCount::UNKNOWN, Some(0)));
}
