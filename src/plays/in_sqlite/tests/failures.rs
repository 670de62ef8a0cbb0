use super::*;

#[tokio::test]
async fn a_play_that_its_row_refuses_fails_alone() {
    let world = World::new().await;
    world.plays.record(play("full", "ann", "")).await.unwrap();
    execute(&mut world.intruder().await, "update videos set views = 9223372036854775807").await;
    let plays =
        (0..9).map(|number| play(if number == 4 { "full" } else { "film" }, &format!("u{number}"), ""));
    let results = world.plays.books.record(&timed(plays, world.clock.now())).await;
    for (number, result) in results.iter().enumerate() {
        match result {
            Ok(counted) => assert!(*counted && number != 4),
            Err(error) => assert!(number == 4 && !error.is_transient(), "{number}: {error}"),
        }
    }
    assert_eq!(world.plays_of("film").await, Some(8));
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(world.plays_of("full").await, Some(9_223_372_036_854_775_807));
}

/// S15.
#[tokio::test]
async fn a_play_whose_count_failed_counts_when_it_is_sent_again() {
    let world = World::new().await;
    let mut intruder = world.intruder().await;
    let fail = "create trigger fail before insert on videos begin select raise(abort, 'no'); end";
    execute(&mut intruder, fail).await;
    assert!(world.plays.record(play("film", "ann", "p1")).await.is_err());
    assert_eq!(world.rows("play_seen").await, 0);
    execute(&mut intruder, "drop trigger fail").await;
    assert_eq!(world.plays.record(play("film", "ann", "p1")).await.unwrap(), Recorded::Counted);
    assert_eq!(world.plays_of("film").await, Some(1));
}

#[tokio::test]
async fn while_the_file_is_held_plays_fail_and_the_last_good_total_is_stale() {
    let world = World::new().await;
    world.plays.record(play("film", "ann", "")).await.unwrap();
    let good = world.count("film").await;
    let mut intruder = world.intruder().await;
    execute(&mut intruder, "begin exclusive").await;
    let recorded =
        join_all((0..3).map(|number| world.plays.record(play("film", &format!("u{number}"), "")))).await;
    for error in recorded.into_iter().map(Result::unwrap_err) {
        assert!(error.is_transient(), "{error}");
    }
    execute(&mut intruder, "rollback").await;
    for number in 0..3 {
        let again = world.plays.record(play("film", &format!("u{number}"), "")).await.unwrap();
        assert_eq!(again, Recorded::Counted);
    }
    assert_eq!(world.plays_of("film").await, Some(4));
    assert_eq!(good.plays, Some(1));
}

#[tokio::test]
async fn without_sqlite_the_last_good_total_is_stale_and_what_was_never_read_is_unknown() {
    let world = World::new().await;
    for (video, viewer) in [("film", "ann"), ("show", "ann")] {
        world.plays.record(play(video, viewer, "")).await.unwrap();
    }
    let good = world.count("film").await;
    world.sqlite.close().await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.count("film").await, PlayCount { stale: true, ..good });
    assert_eq!(world.count("show").await, PlayCount::UNKNOWN);
    assert!(world.plays.record(play("film", "bob", "")).await.unwrap_err().is_transient());
}

#[tokio::test]
async fn more_plays_than_may_wait_are_refused_at_once() {
    let world = World::with(config::Plays { max_pending: 2, ..settings() }).await;
    let sent = (0..5).map(|number| world.plays.record(play("film", &format!("u{number}"), "")));
    let refused = join_all(sent).await.into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused.len(), 3);
    assert!(refused.iter().all(|error| matches!(error, StoreError::Full { queue: "plays", .. })));
    assert_eq!(world.plays_of("film").await, Some(2));
}

#[tokio::test]
async fn a_drain_under_load_loses_no_acknowledged_play() {
    let world = World::new().await;
    let mut acknowledged = 0;
    let sent = join_all((0..2_000).map(|number| world.plays.record(play("film", &format!("u{number}"), ""))));
    let stop = async {
        tokio::task::yield_now().await;
        world.lifecycle.stop();
        world.lifecycle.run().await
    };
    let (recorded, stopped) = tokio::join!(sent, stop);
    for recorded in recorded {
        acknowledged += u64::from(recorded.is_ok());
    }
    assert_eq!(stopped, Stopped::Drained);
    assert!(world.lifecycle.stopping(Phase::Links).is_cancelled());
    let World { folder, clock, .. } = world;
    let restarted = World::open(folder, settings(), clock).await;
    assert_eq!(restarted.plays_of("film").await, Some(acknowledged));
}

#[tokio::test]
async fn a_file_whose_users_are_gone_without_a_stop_can_be_opened_again() {
    let World { folder, clock, plays, sqlite, prune, lifecycle } = World::new().await;
    plays.record(play("film", "ann", "")).await.unwrap();
    drop((plays, sqlite, prune));
    let restarted = World::open(folder, settings(), clock).await;
    assert_eq!(restarted.plays_of("film").await, Some(1));
    drop(lifecycle);
}

#[tokio::test]
async fn one_file_has_one_headcount_at_a_time() {
    let world = World::new().await;
    let refusal = Sqlite::open(world.folder.path()).await.unwrap_err().to_string();
    assert!(refusal.contains("embedded.path") && refusal.contains("in use"), "{refusal}");
    // However it is named.
    let link = world.folder.path().join("link.db");
    std::os::unix::fs::symlink(world.folder.path().join("headcount.db"), &link).unwrap();
    assert!(Sqlite::open(&link).await.is_err());
    world.sqlite.close().await;
    assert!(Sqlite::open(world.folder.path()).await.is_ok());
    assert!(Path::new(&world.folder.path().join("headcount.db")).exists());
}
