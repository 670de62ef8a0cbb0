use futures::future::join_all;

use super::{
    super::{snapshot::encode, viewers::Copied},
    *,
};

#[tokio::test]
async fn after_a_short_restart_all_are_back_and_vouched_for() {
    let world = World::new().await;
    world.beat("film", "early").await;
    world.minutes(9).await;
    for number in 0..3_000 {
        world.beat(&format!("v{}", number % 100), &format!("u{number}")).await;
        world.beat("film", &format!("u{number}")).await;
    }
    world.run("snapshot").await;
    let world = world.restart(secs(61)).await;
    assert_eq!(world.online("film").await, world.fresh(3_000));
    assert_eq!(world.online("v42").await, world.fresh(30));
    assert_eq!(world.held(), (101, 6_000));
    assert_eq!(world.presence.top(1).await.videos, [(video("film"), 3_000)]);
    world.minutes(9).await;
    assert_eq!(world.online("film").await, world.fresh(0));
}

#[tokio::test]
async fn a_stop_saves_everybody() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    for job in world.presence.jobs(&world.sqlite) {
        job.finish().await;
    }
    let world = world.restart(secs(1)).await;
    assert_eq!(world.online("film").await, world.fresh(1));
}

#[tokio::test]
async fn a_first_start_vouches_for_zero() {
    let world = World::new().await;
    assert_eq!(world.online("film").await, world.fresh(0));
}

#[tokio::test]
async fn after_a_crash_who_came_since_the_last_save_is_not_counted_out() {
    let world = World::new().await;
    for number in 0..20 {
        world.beat("saved", &format!("u{number}")).await;
    }
    world.run("snapshot").await;
    for number in 0..20 {
        world.beat("unsaved", &format!("u{number}")).await;
    }
    let world = world.crash(secs(1)).await;
    assert_eq!(world.online("unsaved").await, OnlineCount::UNKNOWN);
    let saved = world.online("saved").await;
    assert_eq!((saved.online, saved.stale), (Some(20), true));
    for number in 0..20 {
        world.beat("unsaved", &format!("u{number}")).await;
    }
    world.minutes(2).await;
    assert_eq!(world.online("unsaved").await, world.fresh(20));

    let world = World::new().await;
    world.beat("film", "ann").await;
    let world = world.crash(secs(1)).await;
    assert_eq!(world.online("film").await, OnlineCount::UNKNOWN, "before the first save");
}

#[tokio::test]
async fn after_a_long_restart_the_old_number_stands_until_all_have_beaten_again() {
    let world = World::new().await;
    for number in 0..10 {
        world.beat("film", &format!("u{number}")).await;
        world.beat("show", &format!("u{number}")).await;
    }
    world.run("snapshot").await;
    let saved = world.clock.now();
    // Longer than 2.5 sweeps; all but those who beat again are gone by the window.
    world.presence.beat(beat("film", "unsaved")).await.unwrap();
    let world = world.crash(secs(599)).await;
    let before = OnlineCount { online: Some(10), as_of: Some(saved), stale: true };
    assert_eq!(world.online("film").await, before);
    assert_eq!(world.online("new").await, OnlineCount::UNKNOWN);
    assert!(world.presence.top(1).await.stale);
    world.clock.advance(secs(2));
    world.run("sweep").await;
    // Over a window ago, the old number says nothing any more.
    assert_eq!(world.online("show").await, OnlineCount::UNKNOWN);
    assert_eq!(world.beat("film", "u3").await, 1);
    assert_eq!(world.beat("film", "u4").await, 2);
    let live = OnlineCount { online: Some(2), as_of: Some(world.clock.now()), stale: true };
    assert_eq!(world.online("film").await, live);
    world.clock.advance(secs(118));
    world.run("sweep").await;
    assert_eq!(world.online("film").await, world.fresh(2));
    assert_eq!(world.online("show").await, world.fresh(0));
    assert!(!world.presence.top(1).await.stale);
}

#[tokio::test]
async fn after_a_long_restart_a_beat_is_answered_with_the_old_number_where_that_is_more() {
    let world = World::new().await;
    for number in 0..10 {
        world.beat("film", &format!("u{number}")).await;
    }
    world.run("snapshot").await;
    let world = world.restart(secs(400)).await;
    assert_eq!(world.beat("film", "u1").await, 10);
    assert_eq!(world.beat("film", "new").await, 11);
    assert_eq!(world.beat("other", "new").await, 1);
}

#[tokio::test]
async fn a_restart_does_not_end_the_doubt_of_the_one_before() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    world.run("snapshot").await;
    let world = world.restart(secs(300)).await;
    world.run("snapshot").await;
    let world = world.restart(secs(10)).await;
    assert!(world.online("film").await.stale);
    world.clock.advance(secs(109));
    world.run("sweep").await;
    assert!(world.online("film").await.stale);
    world.clock.advance(secs(1));
    assert_eq!(world.online("film").await, world.fresh(1));
}

#[tokio::test]
async fn a_snapshot_from_the_future_is_not_vouched_for() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    world.run("snapshot").await;
    world.clock.jump(-7_200_000);
    let world = world.crash(secs(1)).await;
    let online = world.online("film").await;
    assert_eq!((online.online, online.stale), (Some(1), true));
    world.minutes(10).await;
    assert_eq!(world.online("film").await, world.fresh(1));
    world.minutes(1).await;
    assert_eq!(world.online("film").await, world.fresh(0));
}

#[tokio::test]
async fn a_damaged_snapshot_is_lost_data_and_the_rest_is_used() {
    for damage in [
        "update viewer_snapshot set viewers = x'09' where shard = (select min(shard) from viewer_snapshot)",
        "delete from viewer_snapshot_saved",
    ] {
        let world = World::new().await;
        for number in 0..50 {
            world.beat(&format!("v{number}"), "ann").await;
        }
        world.run("snapshot").await;
        let mut transaction = world.sqlite.write().await.unwrap();
        sqlx::raw_sql(damage).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
        let world = world.crash(secs(1)).await;
        assert!(world.held().0 >= 40);
        for number in 0..50 {
            let online = world.online(&format!("v{number}")).await;
            assert!(online.stale && online.online != Some(0), "{online:?}");
        }
        world.minutes(2).await;
        assert_eq!(world.online("other").await, world.fresh(0));
    }
}

#[tokio::test]
async fn only_shards_that_changed_are_written_again() {
    let world = World::new().await;
    for number in 0..50 {
        world.beat(&format!("v{number}"), "ann").await;
    }
    let jobs = world.presence.jobs(&world.sqlite);
    let saver = jobs.iter().find(|job| job.name() == "snapshot").unwrap();
    saver.run().await.unwrap();
    let marked = "update viewer_snapshot set viewers = x'00'";
    let left = "select count(*) from viewer_snapshot where viewers = x'00'";
    let mut transaction = world.sqlite.write().await.unwrap();
    let rows = sqlx::raw_sql(marked).execute(&mut *transaction).await.unwrap().rows_affected();
    transaction.commit().await.unwrap();
    saver.run().await.unwrap();
    let unwritten: i64 = sqlx::query_scalar(left).fetch_one(world.sqlite.readers()).await.unwrap();
    assert_eq!(unwritten.unsigned_abs(), rows);
    world.clock.advance(secs(1));
    world.beat("v7", "ann").await;
    saver.run().await.unwrap();
    let unwritten: i64 = sqlx::query_scalar(left).fetch_one(world.sqlite.readers()).await.unwrap();
    assert_eq!(unwritten.unsigned_abs(), rows - 1);
}

#[tokio::test]
async fn a_snapshot_that_failed_is_made_up_for_by_the_next() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    let mut transaction = world.sqlite.write().await.unwrap();
    sqlx::raw_sql("alter table viewer_snapshot rename to away").execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    let jobs = world.presence.jobs(&world.sqlite);
    let saver = jobs.iter().find(|job| job.name() == "snapshot").unwrap();
    assert!(saver.run().await.is_err());
    let mut transaction = world.sqlite.write().await.unwrap();
    sqlx::raw_sql("alter table away rename to viewer_snapshot").execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    saver.run().await.unwrap();
    let world = world.restart(secs(1)).await;
    assert_eq!(world.online("film").await, world.fresh(1));
}

#[tokio::test]
async fn beats_sweeps_and_snapshots_at_the_same_time_agree_in_the_end() {
    let world = World::new().await;
    let beating = join_all((0..8).map(|task| {
        let world = &world;
        async move {
            for number in 0..1_000 {
                world.beat(&format!("v{}", number % 5), &format!("u{task}-{number}")).await;
                if number % 3 == 0 {
                    world
                        .presence
                        .leave(beat(&format!("v{}", number % 5), &format!("u{task}-{number}")))
                        .await
                        .unwrap();
                }
                tokio::task::yield_now().await;
            }
        }
    }));
    let upkeep = async {
        for _ in 0..20 {
            world.run("sweep").await;
            world.run("snapshot").await;
        }
    };
    tokio::join!(beating, upkeep);
    let mut online = 0;
    for number in 0..5 {
        online += world.online(&format!("v{number}")).await.online.unwrap();
    }
    assert_eq!(online, 8 * 666);
    assert_eq!(world.held(), (5, 8 * 666));
    world.run("snapshot").await;
    let world = world.restart(secs(1)).await;
    assert_eq!(world.held(), (5, 8 * 666));
}

#[test]
fn a_snapshot_takes_few_bytes_a_viewer() {
    let viewer = |number: i64| {
        (
            ViewerId::from_stored(&format!("{}", 100_000_000 + number)),
            Timestamp::from_millis(1_800_000_000_000 + number),
        )
    };
    let copied: Copied = vec![(video("film"), (0..100_000).map(viewer).collect())];
    assert!(encode(&copied).len() < 1_400_000);
}
