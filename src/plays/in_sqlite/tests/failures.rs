use super::*;
use crate::health::HealthCheck as _;

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
    assert_eq!(world.seen().await, 0);
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

impl World {
    /// Changes how the service's own connection may write.
    async fn on_the_writer(&self, pragma: &'static str) {
        let mut writer = self.sqlite.write().await.unwrap();
        execute(&mut writer, pragma).await;
        writer.commit().await.unwrap();
    }

    /// Plays until one is refused, and tells who that was and what was said.
    async fn refused(&self) -> (String, StoreError) {
        for viewer in 0..10_000 {
            let viewer = format!("viewer-{viewer}");
            if let Err(error) = self.plays.record(play("film", &viewer, "")).await {
                return (viewer, error);
            }
        }
        panic!("nothing is refused");
    }
}

#[tokio::test]
async fn with_the_disk_full_plays_are_refused_and_count_when_there_is_room_again() {
    let world = World::new().await;
    world.plays.record(play("film", "ann", "")).await.unwrap();
    world.on_the_writer("pragma max_page_count = 1").await;
    // A page that is there has room for a few more.
    let (viewer, error) = world.refused().await;
    assert!(error.is_transient() && error.to_string().contains("disk is full"), "{error}");
    let counted = world.plays_of("film").await.unwrap();
    world.on_the_writer("pragma max_page_count = 1000000").await;
    let again = world.plays.record(play("film", &viewer, "")).await.unwrap();
    assert_eq!(again, Recorded::Counted);
    assert_eq!(world.plays_of("film").await, Some(counted + 1));
    assert!(world.sqlite.check().await.failed.is_empty());
}

#[tokio::test]
async fn a_file_that_is_read_only_refuses_plays_and_is_not_healthy() {
    let world = World::new().await;
    world.plays.record(play("film", "ann", "")).await.unwrap();
    world.on_the_writer("pragma query_only = on").await;
    let (_, error) = world.refused().await;
    assert!(error.is_transient() && error.to_string().contains("readonly"), "{error}");
    let failed = world.sqlite.check().await.failed;
    assert!(failed.iter().any(|error| error.to_string().contains("readonly")), "{failed:?}");
    assert_eq!(world.plays_of("film").await, Some(1));
    let restarted = world.after_a_kill(settings()).await;
    assert_eq!(restarted.plays.record(play("film", "viewer-0", "")).await.unwrap(), Recorded::Counted);
    assert_eq!(restarted.plays_of("film").await, Some(2));
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
