use super::*;

#[tokio::test]
async fn plays_at_the_same_time_are_all_counted() {
    let world = World::new().await;
    let plays = (0..200).map(|number| world.plays.record(play("film", &format!("u{number}"), "")));
    for recorded in join_all(plays).await {
        assert_eq!(recorded.unwrap(), Recorded::Counted);
    }
    let count = world.count("film").await;
    assert_eq!((count.plays, count.unique_viewers, count.stale), (Some(200), Some(200), false));
    assert_eq!(count.as_of, Some(world.clock.now()));
}

#[tokio::test]
async fn a_play_id_sent_ten_times_at_once_counts_once() {
    let world = World::new().await;
    let sent = (0..10).map(|_| world.plays.record(play("film", "", "p1")));
    let recorded = join_all(sent).await;
    let counted = recorded.iter().filter(|recorded| matches!(recorded, Ok(Recorded::Counted))).count();
    let duplicates = recorded.iter().filter(|recorded| matches!(recorded, Ok(Recorded::Duplicate))).count();
    assert_eq!((counted, duplicates), (1, 9));
    assert_eq!(world.plays_of("film").await, Some(1));
    // Who they were isn't known.
    assert_eq!(world.count("film").await.unique_viewers, None);
}

#[tokio::test]
async fn a_play_twice_in_one_batch_counts_once() {
    let world = World::new().await;
    let plays = [
        play("film", "ann", ""),
        play("film", "bob", "p"),
        play("film", "ann", ""),
        play("film", "cid", "p"),
    ];
    let results = world.plays.books.record(&timed(plays, world.clock.now())).await;
    let counts: Vec<bool> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(counts, [true, true, false, false]);
    assert_eq!(world.plays_of("film").await, Some(2));
    assert_eq!(world.seen().await, 3);
}

#[tokio::test]
async fn viewer_and_play_id_must_both_be_new_and_a_duplicate_leaves_no_trace() {
    let world = World::new().await;
    assert_eq!(world.plays.record(play("film", "ann", "p1")).await.unwrap(), Recorded::Counted);
    assert_eq!(world.plays.record(play("film", "ann", "p2")).await.unwrap(), Recorded::Duplicate);
    assert_eq!(world.plays.record(play("film", "bob", "p1")).await.unwrap(), Recorded::Duplicate);
    assert_eq!(world.plays.record(play("film", "bob", "p2")).await.unwrap(), Recorded::Counted);
    assert_eq!(world.plays.record(play("show", "ann", "p1")).await.unwrap(), Recorded::Counted);
    assert_eq!(world.plays_of("film").await, Some(2));
}

#[tokio::test]
async fn a_second_play_counts_again_when_the_window_is_over() {
    let world = World::new().await;
    world.plays.record(play("film", "ann", "p1")).await.unwrap();
    world.clock.advance(JUST_WITHIN);
    let restarted = world.after_a_kill(settings()).await;
    for world in [&world, &restarted] {
        assert_eq!(world.plays.record(play("film", "ann", "")).await.unwrap(), Recorded::Duplicate);
        assert_eq!(world.plays.record(play("film", "", "p1")).await.unwrap(), Recorded::Duplicate);
    }
    world.clock.advance(Duration::from_millis(1));
    for world in [&world, &restarted] {
        assert_eq!(world.plays.record(play("film", "ann", "")).await.unwrap(), Recorded::Counted);
        assert_eq!(world.plays.record(play("film", "", "p1")).await.unwrap(), Recorded::Counted);
        // The window begins anew with what counted.
        assert_eq!(world.plays.record(play("film", "ann", "p2")).await.unwrap(), Recorded::Duplicate);
        assert_eq!(world.plays_of("film").await, Some(3));
    }
}

#[tokio::test]
async fn a_clock_that_was_set_back_bars_nobody_for_longer_than_the_window() {
    let world = World::new().await;
    world.clock.jump(86_400_000);
    world.plays.record(play("film", "ann", "")).await.unwrap();
    world.clock.jump(-86_400_000);
    assert_eq!(world.plays.record(play("film", "ann", "")).await.unwrap(), Recorded::Counted);
}

#[tokio::test]
async fn an_acknowledged_play_is_there_once_after_a_kill() {
    let world = World::new().await;
    for number in 0..20 {
        world.plays.record(play("film", &format!("u{number}"), &format!("p{number}"))).await.unwrap();
    }
    let restarted = world.after_a_kill(settings()).await;
    assert_eq!(restarted.plays_of("film").await, Some(20));
    let again = restarted.plays.record(play("film", "u7", "p7")).await.unwrap();
    assert_eq!(again, Recorded::Duplicate);
    assert_eq!(restarted.plays.record(play("film", "u20", "p20")).await.unwrap(), Recorded::Counted);
    let count = restarted.count("film").await;
    assert_eq!((count.plays, count.unique_viewers), (Some(21), Some(21)));
}

#[tokio::test]
async fn a_video_nobody_played_has_zero_plays_and_gets_no_row() {
    let world = World::new().await;
    let count = world.count("film").await;
    assert_eq!((count.plays, count.unique_viewers, count.stale), (Some(0), Some(0), false));
    assert_eq!(world.rows("videos").await, 0);
    // S5, for plays: what was read before is not served after.
    world.plays.record(play("film", "ann", "")).await.unwrap();
    assert_eq!(world.plays_of("film").await, Some(1));
}

#[tokio::test]
async fn a_row_made_from_an_id_alone_is_a_video_without_plays() {
    let world = World::new().await;
    execute(&mut world.intruder().await, "insert into videos (video_id) values ('film')").await;
    assert_eq!(world.plays_of("film").await, Some(0));
    world.plays.record(play("film", "ann", "")).await.unwrap();
    assert_eq!((world.plays_of("film").await, world.unique_viewers("film").await), (Some(1), 1));
}

#[tokio::test]
async fn counts_come_in_the_order_asked() {
    let world = World::new().await;
    for (video, plays) in [("a", 1), ("b", 2), ("c", 3)] {
        for number in 0..plays {
            world.plays.record(play(video, &number.to_string(), "")).await.unwrap();
        }
    }
    let asked: Vec<_> = ["c", "x", "a", "c", "b"].map(|id| VideoId::parse(id).unwrap()).into();
    for _ in 0..2 {
        let counts: Vec<_> =
            world.plays.counts(&asked).await.iter().map(|count| count.plays.unwrap()).collect();
        assert_eq!(counts, [3, 0, 1, 3, 2]);
    }
}

#[tokio::test]
async fn a_total_never_falls_while_plays_come_in() {
    let world = World::new().await;
    let film = [VideoId::parse("film").unwrap()];
    let playing = async {
        for number in 0..100 {
            world.plays.record(play("film", &format!("u{number}"), "")).await.unwrap();
            assert!(world.plays_of("film").await > Some(number));
        }
    };
    let watching = |_| async {
        let mut last = 0;
        while last < 100 {
            let plays = world.plays.counts(&film).await[0].plays.unwrap();
            assert!(plays >= last, "{plays} after {last}");
            last = plays;
            world.clock.advance(Duration::from_millis(300));
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(playing, join_all((0..4).map(watching)));
}

#[tokio::test]
async fn plays_by_day_are_counted_in_the_days_of_the_timezone() {
    let shanghai = chrono_tz::Tz::Asia__Shanghai;
    let world = World::with(config::Plays { timezone: shanghai, ..settings() }).await;
    // 2027-01-15 08:00 UTC is 16:00 there; the day ends in eight hours.
    for (hours, viewer) in [(0, "ann"), (7, "bob"), (1, "cid")] {
        world.clock.advance(Duration::from_secs(3_600 * hours));
        world.plays.record(play("film", viewer, "")).await.unwrap();
    }
    let days: Vec<(String, String, i64)> =
        sqlx::query_as("select video_id, day, views from video_daily order by day")
            .fetch_all(world.sqlite.readers())
            .await
            .unwrap();
    let day = |day: &str, views| ("film".to_owned(), day.to_owned(), views);
    assert_eq!(days, [day("2027-01-15", 2), day("2027-01-16", 1)]);
}

/// S16.
#[tokio::test]
async fn every_one_of_200_000_viewers_counts_and_unique_viewers_are_within_two_percent() {
    let world = World::new().await;
    for batch in 0..20_u32 {
        let plays =
            (0..10_000).map(|number| play("film", &format!("viewer-{}", batch * 10_000 + number), ""));
        let results = world.count_on_disk(plays).await;
        assert!(results.into_iter().all(|result| result.unwrap()));
    }
    let count = world.count("film").await;
    assert_eq!(count.plays, Some(200_000));
    let unique = world.unique_viewers("film").await;
    assert!(unique.abs_diff(200_000) <= 4_000, "{unique}");
    // There can't be more viewers than plays, whatever the estimate is.
    assert_eq!(count.unique_viewers, Some(unique.min(200_000)));
    // The sketch is on disk: those who come back after a restart are no new viewers.
    world.clock.advance(WINDOW);
    let restarted = world.after_a_kill(settings()).await;
    let again = (0..10_000).map(|number| play("film", &format!("viewer-{number}"), ""));
    let results = restarted.count_on_disk(again).await;
    assert!(results.into_iter().all(|result| result.unwrap()));
    assert_eq!(restarted.plays_of("film").await, Some(210_000));
    assert_eq!(restarted.unique_viewers("film").await, unique);
}

/// S14.
#[tokio::test]
async fn what_was_seen_is_forgotten_after_the_window_and_not_before() {
    let world = World::new().await;
    let old = (0..12_000).map(|number| play(&format!("v{number}"), "ann", ""));
    world.plays.books.record(&timed(old, world.clock.now())).await;
    world.clock.advance(JUST_WITHIN);
    world.plays.record(play("film", "bob", "p")).await.unwrap();
    world.prune.run().await.unwrap();
    assert_eq!(world.seen().await, 12_002);
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(world.prune.run().await.unwrap(), None);
    assert_eq!(world.seen().await, 2);
    assert_eq!(world.plays.record(play("film", "bob", "p")).await.unwrap(), Recorded::Duplicate);
}

#[tokio::test]
async fn keys_that_were_moved_to_the_big_table_bar_as_before_and_their_last_time_holds() {
    let world = World::new().await;
    world.plays.record(play("film", "ann", "p1")).await.unwrap();
    world.clock.advance(WINDOW);
    assert_eq!(world.plays.record(play("film", "ann", "p1")).await.unwrap(), Recorded::Counted);
    assert_eq!(world.rows("play_seen").await, 0);
    let others = (0..5_000).map(|number| play("film", "", &format!("other-{number}")));
    assert!(world.count_on_disk(others).await.into_iter().all(|result| result.unwrap()));
    assert_eq!((world.rows("play_seen").await, world.rows("play_seen_lately").await), (5_002, 0));
    world.clock.advance(JUST_WITHIN);
    let restarted = world.after_a_kill(settings()).await;
    for world in [&world, &restarted] {
        for (viewer, play_id) in [("ann", ""), ("", "p1"), ("", "other-0"), ("", "other-4999")] {
            let again = world.plays.record(play("film", viewer, play_id)).await.unwrap();
            assert_eq!(again, Recorded::Duplicate, "{viewer}{play_id}");
        }
        assert_eq!(world.plays_of("film").await, Some(5_002));
    }
}
