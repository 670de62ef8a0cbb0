//! What holds of presence wherever viewers are kept. Ids in brackets are those of the seeds'
//! defects and of the reports the laws come from.

use headcount::{
    clock::{Clock, Timestamp},
    presence::OnlineCount,
};

use crate::world::{NOON, World, beat, secs, video_id};

on_every_backend!(
    a_viewer_is_online_for_exactly_one_window,
    beating_again_counts_once,
    ten_beats_at_once_count_once,
    who_beats_is_counted_in_the_answer_and_in_the_next_read,
    a_zero_from_before_the_first_beat_is_not_kept,
    viewers_of_one_video_are_not_viewers_of_another,
    slow_beats_keep_a_viewer_online,
    a_video_watched_for_hours_is_swept_all_along,
    a_sweep_after_three_hours_finds_everything,
    without_a_sweep_who_left_is_never_counted_as_fresh,
    leaving_takes_one_viewer_off_and_leaves_the_others,
    leaving_twice_or_without_having_come_changes_nothing,
    who_comes_back_after_leaving_is_there,
    many_beats_are_taken_one_by_one,
    the_most_watched_come_first,
    a_ranking_before_any_viewer_is_empty,
    nobody_is_removed_for_two_beat_periods_after_the_clock_jumped_forward,
    after_the_clock_was_set_back_nobody_stays_for_longer_than_a_window,
    reads_of_many_videos_answer_in_order,
    a_restart_keeps_who_is_watching,
);

fn fresh(online: u64) -> impl Fn(OnlineCount) -> bool {
    move |count| count.online == Some(online) && !count.stale && count.as_of.is_some()
}

async fn a_viewer_is_online_for_exactly_one_window(world: World) {
    world.beat("film", "ann").await;
    // A sweep lets six seconds pass before it reads.
    world.pass(secs(600));
    world.sweep().await;
    assert_eq!(world.stores.presence.online(&[video_id("film")]).await[0].online, Some(1), "at 600 s");

    world.pass(secs(1));
    assert_eq!(world.swept_count("film").await, Some(0), "at 601 s");
}

async fn beating_again_counts_once(world: World) {
    for _ in 0..100 {
        world.beat("film", "ann").await;
        world.pass(secs(1));
    }
    assert_eq!(world.swept_count("film").await, Some(1));
}

async fn ten_beats_at_once_count_once(world: World) {
    let beats = (0..10).map(|_| world.beat("film", "ann"));
    for online in futures::future::join_all(beats).await {
        assert_eq!(online, 1);
    }
    assert_eq!(world.swept_count("film").await, Some(1));
}

/// [S5, PeerTube#4475]
async fn who_beats_is_counted_in_the_answer_and_in_the_next_read(world: World) {
    world.sweep().await;
    assert!(fresh(0)(world.online("film").await));
    assert_eq!(world.beat("film", "ann").await, 1);
    assert!(fresh(1)(world.online("film").await));
}

/// [S5]
async fn a_zero_from_before_the_first_beat_is_not_kept(world: World) {
    world.sweep().await;
    assert!(fresh(0)(world.online("film").await));
    world.beat("film", "ann").await;
    world.forget_what_was_read();
    assert!(fresh(1)(world.online("film").await));
}

async fn viewers_of_one_video_are_not_viewers_of_another(world: World) {
    world.beat("film", "ann").await;
    world.beat("song", "ann").await;
    world.beat("song", "bob").await;
    assert_eq!(world.swept_count("film").await, Some(1));
    assert_eq!(world.swept_count("song").await, Some(2));
}

/// [bento#522, presence-api#354] Hidden tabs beat once a minute, or once in two.
async fn slow_beats_keep_a_viewer_online(world: World) {
    for _ in 0..30 {
        world.beat("film", "ann").await;
        world.pass(secs(60));
        assert_eq!(world.swept_count("film").await, Some(1));
        world.pass(secs(54));
    }
}

/// [S1]
async fn a_video_watched_for_hours_is_swept_all_along(world: World) {
    for minute in 0..180 {
        world.beat("film", "ann").await;
        if minute < 60 {
            world.beat_all("film", 0..100).await;
        }
        world.pass(secs(60));
        world.sweep().await;
    }
    assert_eq!(world.swept_count("film").await, Some(1));
    assert_eq!(world.stores.presence.top(10).await.videos, [(video_id("film"), 1)], "still registered");
}

/// [S2]
async fn a_sweep_after_three_hours_finds_everything(world: World) {
    for video in ["film", "song", "talk"] {
        world.beat_all(video, 0..50).await;
    }
    world.pass(secs(3 * 3_600));
    world.sweep().await;
    world.sweep().await;
    assert_eq!(world.stores.presence.top(10).await.videos, []);
    if world.is_redis() {
        let left: Vec<String> = world.redis_keys().await;
        let presence = left.iter().filter(|key| {
            key.starts_with("video:online")
                || key.starts_with("video:active")
                || key.starts_with("video:rank")
        });
        assert_eq!(presence.count(), 0, "{left:?}");
    }
}

/// [S6]
async fn without_a_sweep_who_left_is_never_counted_as_fresh(world: World) {
    world.beat_all("film", 0..10).await;
    world.sweep().await;
    world.pass(secs(30 * 60));
    let count = world.online("film").await;
    assert!(count.stale, "{count:?}");
    assert_eq!(count.online, None, "a zero that nobody vouches for");

    world.beat("film", "ann").await;
    world.forget_what_was_read();
    let count = world.online("film").await;
    assert!(count.stale && count.online == Some(1), "{count:?}");
}

async fn leaving_takes_one_viewer_off_and_leaves_the_others(world: World) {
    world.beat_all("film", 0..3).await;
    world.leave("film", "viewer-1").await;
    assert_eq!(world.swept_count("film").await, Some(2));
}

/// [Ant-Media-Server#6761, owncast#323]
async fn leaving_twice_or_without_having_come_changes_nothing(world: World) {
    world.beat_all("film", 0..3).await;
    for _ in 0..2 {
        world.leave("film", "viewer-1").await;
    }
    world.leave("film", "stranger").await;
    world.leave("song", "stranger").await;
    assert_eq!(world.swept_count("film").await, Some(2));
    assert_eq!(world.swept_count("song").await, Some(0));
}

async fn who_comes_back_after_leaving_is_there(world: World) {
    world.beat("film", "ann").await;
    world.leave("film", "ann").await;
    world.pass(secs(1));
    assert_eq!(world.beat("film", "ann").await, 1);
    assert_eq!(world.swept_count("film").await, Some(1));
}

async fn many_beats_are_taken_one_by_one(world: World) {
    let beats = (0..1_000).map(|n| beat(&format!("film-{}", n % 7), &format!("viewer-{n}"))).collect();
    let results = world.stores.presence.beat_many(beats).await;
    assert_eq!(results.len(), 1_000);
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(world.swept_count("film-0").await, Some(143));
    assert_eq!(world.swept_count("film-6").await, Some(142));
}

async fn the_most_watched_come_first(world: World) {
    for (video, viewers) in [("few", 2), ("most", 9), ("some", 5), ("also-some", 5)] {
        world.beat_all(video, 0..viewers).await;
    }
    world.sweep().await;
    let ranking = world.stores.presence.top(3).await;
    let expected = [("most", 9), ("also-some", 5), ("some", 5)];
    assert_eq!(ranking.videos, expected.map(|(video, viewers)| (video_id(video), viewers)));
    assert!(!ranking.stale);
    assert_eq!(ranking.as_of.map(Timestamp::secs), Some(NOON.secs()));
}

async fn a_ranking_before_any_viewer_is_empty(world: World) {
    world.sweep().await;
    let ranking = world.stores.presence.top(3).await;
    assert_eq!(ranking.videos, []);
    assert!(!ranking.stale);
}

async fn nobody_is_removed_for_two_beat_periods_after_the_clock_jumped_forward(world: World) {
    world.beat_all("film", 0..20).await;
    assert_eq!(world.swept_count("film").await, Some(20));
    world.clock.jump(3_600_000);
    world.sweep().await;
    world.pass(secs(30));
    // Those who are still there beat again; nobody else is missing meanwhile.
    world.beat_all("film", 0..15).await;
    world.forget_what_was_read();
    world.sweep().await;
    let count = world.online("film").await;
    assert!(count.online.is_some_and(|online| online >= 15), "{count:?}");

    for _ in 0..14 {
        world.beat_all("film", 0..15).await;
        world.pass_swept(1).await;
    }
    assert_eq!(world.swept_count("film").await, Some(15));
}

async fn after_the_clock_was_set_back_nobody_stays_for_longer_than_a_window(world: World) {
    world.beat_all("film", 0..20).await;
    world.sweep().await;
    world.clock.jump(-3_600_000);
    world.sweep().await;
    for _ in 0..14 {
        world.pass(secs(60));
        world.beat_all("film", 0..5).await;
        world.sweep().await;
    }
    assert_eq!(world.swept_count("film").await, Some(5));
}

async fn reads_of_many_videos_answer_in_order(world: World) {
    world.beat_all("b", 0..2).await;
    world.beat_all("a", 0..1).await;
    world.sweep().await;
    let videos = ["b", "never", "a", "b"].map(video_id);
    let counts: Vec<_> =
        world.stores.presence.online(&videos).await.into_iter().map(|count| count.online).collect();
    assert_eq!(counts, [Some(2), Some(0), Some(1), Some(2)]);
}

async fn a_restart_keeps_who_is_watching(world: World) {
    world.beat_all("film", 0..30).await;
    world.sweep().await;
    let world = world.restarted().await;
    world.pass(secs(20));
    assert_eq!(world.swept_count("film").await, Some(30));
    assert_eq!(world.clock.now().secs(), NOON.secs() + 26);
}
