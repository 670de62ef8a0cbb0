//! What holds of plays wherever they are counted. Ids in brackets are those of the seeds' defects and
//! of the reports the laws come from.

use std::{collections::HashSet, time::Duration};

use headcount::{
    config::Ack,
    error::StoreError,
    plays::{PlayCount, Recorded},
};

use crate::world::{World, a_play, eventually, secs, video_id};

on_every_backend!(
    a_play_is_counted_and_read_at_once,
    a_play_sent_again_counts_nothing,
    a_playback_sent_by_another_viewer_counts_nothing,
    a_second_playback_of_a_viewer_counts_nothing_within_the_window,
    a_viewer_counts_again_after_the_window,
    a_playback_without_a_viewer_is_counted_by_its_id,
    a_refused_duplicate_does_not_use_up_the_other_id,
    the_same_viewer_counts_for_each_video,
    two_hundred_plays_at_once_are_two_hundred,
    the_same_play_sent_ten_times_at_once_counts_once,
    a_total_is_the_same_before_during_and_after_a_flush,
    a_total_is_the_same_after_a_restart,
    unique_viewers_are_counted_within_two_percent,
    a_video_never_played_has_been_played_zero_times,
    reads_of_many_videos_answer_in_order,
    ids_that_look_alike_are_different,
);

/// Each by itself: what plays at once come to there is in `kafka/counting.rs`.
#[cfg(feature = "kafka")]
mod kafka {
    macro_rules! laws {
        ($($law:ident),+ $(,)?) => {
            $(#[tokio::test] async fn $law() { super::$law(crate::kafka::counting::world().await).await })+
        };
    }

    laws!(
        a_play_is_counted_and_read_at_once,
        a_play_sent_again_counts_nothing,
        a_playback_sent_by_another_viewer_counts_nothing,
        a_second_playback_of_a_viewer_counts_nothing_within_the_window,
        a_viewer_counts_again_after_the_window,
        a_playback_without_a_viewer_is_counted_by_its_id,
        a_refused_duplicate_does_not_use_up_the_other_id,
        the_same_viewer_counts_for_each_video,
        the_same_play_sent_ten_times_at_once_counts_once,
        a_total_is_the_same_before_during_and_after_a_flush,
        a_total_is_the_same_after_a_restart,
        a_video_never_played_has_been_played_zero_times,
        reads_of_many_videos_answer_in_order,
        ids_that_look_alike_are_different,
    );
}

fn fresh(plays: u64) -> impl Fn(PlayCount) -> bool {
    move |count| count.plays == Some(plays) && !count.stale && count.as_of.is_some()
}

async fn a_play_is_counted_and_read_at_once(world: World) {
    assert!(fresh(0)(world.plays("film").await));
    assert_eq!(world.play("film", Some("ann"), Some("p1")).await, Recorded::Counted);
    let count = world.plays("film").await;
    assert!(fresh(1)(count), "{count:?}");
    assert_eq!(count.unique_viewers, Some(1));
}

/// [valkey#1087, outpost#670]
async fn a_play_sent_again_counts_nothing(world: World) {
    assert_eq!(world.play("film", Some("ann"), Some("p1")).await, Recorded::Counted);
    for wait in [0, 1, 600] {
        world.pass(secs(wait));
        assert_eq!(world.play("film", Some("ann"), Some("p1")).await, Recorded::Duplicate);
    }
    assert!(fresh(1)(world.plays("film").await));
}

async fn a_playback_sent_by_another_viewer_counts_nothing(world: World) {
    assert_eq!(world.play("film", Some("ann"), Some("p1")).await, Recorded::Counted);
    assert_eq!(world.play("film", Some("bob"), Some("p1")).await, Recorded::Duplicate);
    assert!(fresh(1)(world.plays("film").await));
}

/// [AVideo#7165]
async fn a_second_playback_of_a_viewer_counts_nothing_within_the_window(world: World) {
    assert_eq!(world.play("film", Some("ann"), Some("p1")).await, Recorded::Counted);
    assert_eq!(world.play("film", Some("ann"), Some("p2")).await, Recorded::Duplicate);
    assert_eq!(world.play("film", Some("ann"), None).await, Recorded::Duplicate);
    assert!(fresh(1)(world.plays("film").await));
}

/// [outpost#670] Redis forgets by its own clock, so its window is a short one here.
async fn a_viewer_counts_again_after_the_window(world: World) {
    let world = world.changed(|config| config.plays.dedupe_window = secs(1)).await;
    assert_eq!(world.play("film", Some("ann"), Some("p1")).await, Recorded::Counted);
    eventually("the viewer counts again", async || {
        world.pass(secs(1));
        world.play("film", Some("ann"), None).await == Recorded::Counted
    })
    .await;
    assert_eq!(world.plays("film").await.plays, Some(2));
}

async fn a_playback_without_a_viewer_is_counted_by_its_id(world: World) {
    assert_eq!(world.play("film", None, Some("p1")).await, Recorded::Counted);
    assert_eq!(world.play("film", None, Some("p1")).await, Recorded::Duplicate);
    assert_eq!(world.play("film", None, Some("p2")).await, Recorded::Counted);
    let count = world.plays("film").await;
    assert!(fresh(2)(count), "{count:?}");
    assert_eq!(count.unique_viewers, None, "who they were is not known");
}

/// Bob's refused play must leave Bob free to play, and the refused playback free to be counted.
async fn a_refused_duplicate_does_not_use_up_the_other_id(world: World) {
    world.play("film", Some("ann"), Some("p1")).await;
    assert_eq!(world.play("film", Some("bob"), Some("p1")).await, Recorded::Duplicate);
    assert_eq!(world.play("film", Some("bob"), Some("p2")).await, Recorded::Counted);
    assert_eq!(world.play("film", Some("ann"), Some("p3")).await, Recorded::Duplicate);
    assert_eq!(world.play("film", Some("eve"), Some("p3")).await, Recorded::Counted);
    assert!(fresh(3)(world.plays("film").await));
}

async fn the_same_viewer_counts_for_each_video(world: World) {
    for video in ["film", "song", "talk"] {
        assert_eq!(world.play(video, Some("ann"), Some("p1")).await, Recorded::Counted);
    }
    assert!(fresh(1)(world.plays("song").await));
}

/// [kellnr#1098]
async fn two_hundred_plays_at_once_are_two_hundred(world: World) {
    let plays = (0..200).map(async |n| world.play("film", Some(&format!("viewer-{n}")), None).await);
    let results = futures::future::join_all(plays).await;
    assert!(results.iter().all(|result| *result == Recorded::Counted));
    assert!(fresh(200)(world.plays("film").await));
}

/// [matomo-tracker#54]
async fn the_same_play_sent_ten_times_at_once_counts_once(world: World) {
    let plays = (0..10).map(|_| world.play("film", Some("ann"), Some("p1")));
    let results = futures::future::join_all(plays).await;
    assert_eq!(results.iter().filter(|result| **result == Recorded::Counted).count(), 1);
    assert!(fresh(1)(world.plays("film").await));
}

/// [S17, Moe-Counter#27]
async fn a_total_is_the_same_before_during_and_after_a_flush(world: World) {
    for n in 0..50 {
        world.play("film", Some(&format!("viewer-{n}")), None).await;
    }
    let flush = async {
        for _ in 0..5 {
            world.flush().await;
        }
    };
    let reads = async {
        let mut seen = HashSet::new();
        for _ in 0..300 {
            // Past what is at hand, so that each read is one of the store.
            world.pass(secs(2));
            seen.insert(world.plays("film").await.plays);
        }
        seen
    };
    let ((), seen) = futures::future::join(flush, reads).await;
    assert_eq!(seen, HashSet::from([Some(50)]));
    assert!(fresh(50)(world.plays("film").await));
}

async fn a_total_is_the_same_after_a_restart(world: World) {
    for n in 0..20 {
        world.play("film", Some(&format!("viewer-{n}")), None).await;
    }
    let world = world.restarted().await;
    let count = world.plays("film").await;
    assert!(fresh(20)(count), "{count:?}");
    assert_eq!(count.unique_viewers, Some(20));
    assert_eq!(world.play("film", Some("viewer-3"), None).await, Recorded::Duplicate);
}

/// [S16, yorkie#1733] Each of them is counted: the estimate decides nothing.
async fn unique_viewers_are_counted_within_two_percent(world: World) {
    const VIEWERS: u64 = 20_000;
    for first in (0..VIEWERS).step_by(2_000) {
        let plays = (first..first + 2_000).map(async |n| {
            let viewer = format!("viewer-{n}");
            // So many at once may be more than a busy machine takes; who is refused sends again.
            loop {
                match world.stores.plays.record(a_play("film", Some(&viewer), None)).await {
                    Err(StoreError::Full { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                    recorded => return recorded.unwrap(),
                }
            }
        });
        let recorded = futures::future::join_all(plays).await;
        assert!(recorded.into_iter().all(|recorded| recorded == Recorded::Counted));
    }
    world.flush().await;
    let count = world.plays("film").await;
    assert!(fresh(VIEWERS)(count), "{count:?}");
    let unique = count.unique_viewers.unwrap();
    assert!(unique.abs_diff(VIEWERS) * 50 <= VIEWERS, "{unique}");
}

async fn a_video_never_played_has_been_played_zero_times(world: World) {
    let count = world.plays("never").await;
    assert!(fresh(0)(count), "{count:?}");
    assert_eq!(count.unique_viewers, Some(0));
}

async fn reads_of_many_videos_answer_in_order(world: World) {
    world.play("b", Some("ann"), None).await;
    world.play("b", Some("bob"), None).await;
    world.play("a", Some("ann"), None).await;
    let videos = ["b", "never", "a", "b"].map(video_id);
    let counts: Vec<_> =
        world.stores.plays.counts(&videos).await.into_iter().map(|count| count.plays).collect();
    assert_eq!(counts, [Some(2), Some(0), Some(1), Some(2)]);
}

/// A viewer called like a playback is not it.
async fn ids_that_look_alike_are_different(world: World) {
    assert_eq!(world.play("film", Some("x"), None).await, Recorded::Counted);
    assert_eq!(world.play("film", None, Some("x")).await, Recorded::Counted);
    assert_eq!(world.play("Film", Some("x"), None).await, Recorded::Counted);
    assert_eq!(world.play("film", Some("p:x"), None).await, Recorded::Counted);
    assert!(fresh(3)(world.plays("film").await));
}

mod received {
    use super::{Ack, Recorded, World, eventually};

    async fn every_play_that_was_accepted_is_counted_once(world: World) {
        for n in 0..500 {
            let viewer = format!("viewer-{}", n % 250);
            let recorded = world.play("film", Some(&viewer), None).await;
            assert!(matches!(recorded, Recorded::Accepted | Recorded::Duplicate), "{recorded:?}");
        }
        eventually("all are counted", async || {
            world.pass(super::secs(2));
            world.plays("film").await.plays == Some(250)
        })
        .await;
    }

    async fn a_stop_counts_what_was_accepted(world: World) {
        for n in 0..300 {
            world.play("film", Some(&format!("viewer-{n}")), None).await;
        }
        let world = world.restarted().await;
        assert_eq!(world.plays("film").await.plays, Some(300));
    }

    macro_rules! received_laws {
        ($($law:ident),+) => {
            mod embedded { $(#[tokio::test] async fn $law() {
                super::$law(super::World::embedded_with(|config| config.plays.ack = super::Ack::Received).await).await
            })+ }
            mod redis { $(#[tokio::test] async fn $law() {
                super::$law(super::World::redis_with(|config| config.plays.ack = super::Ack::Received).await).await
            })+ }
        };
    }

    received_laws!(every_play_that_was_accepted_is_counted_once, a_stop_counts_what_was_accepted);
}
