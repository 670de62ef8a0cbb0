use super::*;

#[tokio::test]
async fn a_viewer_is_online_for_exactly_one_window() {
    let world = World::new().await;
    assert_eq!(world.online("film").await, world.fresh(0));
    assert_eq!(world.beat("film", "ann").await, 1);
    world.minutes(10).await;
    assert_eq!(world.online("film").await, world.fresh(1));
    world.clock.advance(secs(1));
    world.run("sweep").await;
    assert_eq!(world.online("film").await, world.fresh(0));
    assert_eq!(world.held(), (0, 0));
}

#[tokio::test]
async fn viewers_count_once_each_and_a_read_stores_nothing() {
    let world = World::new().await;
    for _ in 0..3 {
        for viewer in ["ann", "bob", "tv:ann"] {
            world.beat("film", viewer).await;
        }
    }
    let asked = ["show", "film", "x", "film"].map(video);
    let counts: Vec<_> =
        world.presence.online(&asked).await.iter().map(|count| count.online.unwrap()).collect();
    assert_eq!(counts, [0, 3, 0, 3]);
    assert_eq!(world.held(), (1, 3));
}

#[tokio::test]
async fn leaving_twice_or_without_having_come_harms_nobody() {
    let world = World::new().await;
    for viewer in ["ann", "bob"] {
        world.beat("film", viewer).await;
    }
    for (viewer, left) in [("cid", 2), ("ann", 1), ("ann", 1), ("bob", 0), ("bob", 0)] {
        assert_eq!(world.presence.leave(beat("film", viewer)).await.unwrap(), world.fresh(left));
    }
    assert_eq!(world.presence.leave(beat("show", "ann")).await.unwrap(), world.fresh(0));
    assert_eq!(world.held(), (0, 0));
}

/// S1.
#[tokio::test]
async fn a_video_watched_for_hours_is_still_swept() {
    let world = World::new().await;
    for minute in 0..180 {
        world.beat("film", "ann").await;
        if minute < 60 {
            let beats = (0..100).map(|number| beat("film", &format!("u{number}"))).collect();
            assert!(world.presence.beat_many(beats).await.iter().all(Result::is_ok));
        }
        world.minutes(1).await;
    }
    assert_eq!(world.online("film").await, world.fresh(1));
    assert_eq!(world.held(), (1, 1));
}

/// S2 and S6.
#[tokio::test]
async fn without_sweeps_no_number_is_given_as_fresh_and_the_first_one_clears_up() {
    let world = World::new().await;
    for number in 0..2_500 {
        world.beat(&format!("v{}", number % 7), &format!("u{number}")).await;
    }
    world.beat("film", "ann").await;
    world.clock.advance(2 * MINUTE);
    assert!(!world.online("film").await.stale);
    world.clock.advance(secs(1));
    let stale = OnlineCount { online: Some(1), as_of: Some(world.clock.now()), stale: true };
    assert_eq!(world.online("film").await, stale);
    assert!(world.presence.top(1).await.stale);
    world.clock.advance(30 * MINUTE);
    // The right number would be 0, and nothing vouches for that.
    assert_eq!(world.online("film").await, OnlineCount::UNKNOWN);
    assert_eq!(world.beat("film", "bob").await, 1);
    assert_eq!(world.online("film").await.online, Some(1));
    world.clock.advance(180 * MINUTE);
    world.run("sweep").await;
    assert_eq!(world.held(), (0, 0));
    assert_eq!(world.online("film").await, world.fresh(0));
}

/// S5.
#[tokio::test]
async fn who_beats_is_seen_at_once() {
    let world = World::new().await;
    assert_eq!(world.online("film").await.online, Some(0));
    assert_eq!(world.beat("film", "ann").await, 1);
    assert_eq!(world.online("film").await.online, Some(1));
}

#[tokio::test]
async fn at_the_limit_new_viewers_are_refused_and_known_ones_go_on() {
    let world = World::with(Settings { max_viewers: 2, ..settings() }).await;
    world.beat("film", "ann").await;
    world.beat("show", "ann").await;
    let full = world.presence.beat(beat("film", "bob")).await.unwrap_err();
    assert!(matches!(full, StoreError::Full { part: Part::Memory, queue: "viewers" }), "{full}");
    let many = vec![beat("film", "cid"), beat("film", "ann"), beat("show", "ann"), beat("new", "ann")];
    let results: Vec<bool> = world.presence.beat_many(many).await.iter().map(Result::is_ok).collect();
    assert_eq!(results, [false, true, true, false]);
    assert_eq!(world.held(), (2, 2));
    world.presence.leave(beat("show", "ann")).await.unwrap();
    assert_eq!(world.beat("film", "bob").await, 2);
}

#[tokio::test]
async fn the_most_watched_are_ranked_by_the_sweep() {
    let world = World::new().await;
    assert_eq!(world.presence.top(5).await.videos, []);
    for number in 0..300_u32 {
        for viewer in 0..=(number % 250) {
            world.beat(&format!("v{number:03}"), &format!("u{viewer}")).await;
        }
    }
    assert_eq!(world.presence.top(5).await.videos, []);
    world.minutes(1).await;
    let at = world.clock.now();
    world.clock.advance(secs(30));
    let top = world.presence.top(3).await;
    assert_eq!(top.videos, [(video("v249"), 250), (video("v248"), 249), (video("v247"), 248)]);
    assert_eq!((top.as_of, top.stale), (Some(at), false));
    let all = world.presence.top(1_000).await.videos;
    assert_eq!(all.len(), 200);
    assert!(all.is_sorted_by(|one, next| one.1 > next.1 || (one.1 == next.1 && one.0 < next.0)));
}

#[tokio::test]
async fn a_clock_that_jumps_removes_nobody_for_two_beat_periods() {
    for jump in [3_600_000, -3_600_000] {
        let world = World::new().await;
        world.beat("film", "stays").await;
        world.beat("film", "goes").await;
        world.clock.advance(secs(30));
        world.clock.jump(jump);
        world.run("sweep").await;
        assert_eq!(world.online("film").await, world.fresh(2), "{jump}");
        for _ in 0..2 {
            world.clock.advance(secs(29));
            world.beat("film", "stays").await;
            world.run("sweep").await;
            assert_eq!(world.online("film").await, world.fresh(2), "{jump}");
        }
        // Whoever has not beaten by then goes a window after the jump at the latest.
        for _ in 0..10 {
            world.beat("film", "stays").await;
            world.minutes(1).await;
        }
        assert_eq!(world.online("film").await, world.fresh(1), "{jump}");
    }
}

#[tokio::test]
async fn a_jump_just_before_a_read_that_no_sweep_vouches_for_loses_nobody() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    world.clock.advance(3 * MINUTE);
    world.clock.jump(3_600_000);
    assert_eq!(world.online("film").await.online, Some(1));
}
