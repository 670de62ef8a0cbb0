//! What was counted is told apart from what is there, and the difference is exactly what is wrong.

use std::{sync::Arc, time::Duration};

use super::{OwnRedis, RedisPlays, World, eventually, play, sibling, video};
use crate::{
    config::SecretUrl,
    ids::{PARTITIONS, Partition},
    plays::{
        audit::{Accepted, Audited, Books, Terms, accept},
        flush::Flushed,
    },
};

impl World {
    /// What a reading finds, told by this world's instance.
    pub(super) async fn audited(&self) -> Audited {
        let partitions = self.plays.books().read().await.unwrap();
        Audited { partitions, as_of: self.now() }
    }

    async fn terms(&self, id: &str) -> Terms {
        self.audited().await.partitions[video(id).partition().index()].expect("nothing moves")
    }

    /// Every partition is verified and nothing is lost or unreported.
    pub(super) async fn assert_nothing_is_amiss(&self, when: &str) {
        let audited = self.audited().await;
        let totals = audited.totals().unwrap_or_else(|| panic!("{when}: not verified: {audited:?}"));
        assert_eq!((audited.lost(), audited.unreported()), (0, 0), "{when}: {totals:?}");
    }

    pub(super) async fn report(&self) {
        self.plays.witness.tell().await.unwrap();
    }
}

#[tokio::test]
async fn the_equation_holds_between_any_two_steps_of_a_flush() {
    let world = World::new().await;
    world.assert_nothing_is_amiss("at first").await;
    world.played("1", 50).await;
    world.played(&sibling("1"), 4).await;
    world.played("2", 3).await;
    world.assert_nothing_is_amiss("counted").await;
    let batch = world.claim("1").await.unwrap();
    world.played("1", 7).await;
    world.assert_nothing_is_amiss("claimed").await;
    let applied = world.apply(&batch).await;
    world.assert_nothing_is_amiss("applied").await;
    let terms = world.terms("1").await;
    assert_eq!((terms.witnessed, terms.views, terms.pending), (61, 54, 7), "the batch is in both");
    world.settle(&batch, &applied).await;
    world.assert_nothing_is_amiss("settled").await;
    world.flush_all().await;
    world.assert_nothing_is_amiss("flushed").await;
    assert_eq!(world.audited().await.totals().unwrap().views, 64);
}

#[tokio::test]
async fn plays_that_the_database_refused_are_not_lost() {
    let world = World::new().await;
    let (full, other) = ("1".to_owned(), sibling("1"));
    world.operate(&format!("insert into videos (video_id, views) values ('1', {})", i64::MAX - 1)).await;
    world.played(&full, 2).await;
    world.played(&other, 3).await;
    let batch = world.claim("1").await.unwrap();
    let applied = world.apply(&batch).await;
    world.assert_nothing_is_amiss("applied").await;
    world.settle(&batch, &applied).await;
    world.assert_nothing_is_amiss("settled").await;
    assert_eq!(world.terms("1").await.refused, 2);
    while world.plays.upkeep.adopt().await.unwrap() {}
    assert_eq!(world.terms("1").await.imported, i128::from(i64::MAX - 1));
    world.assert_nothing_is_amiss("its row is taken in").await;
    // In both sets it counts once.
    world.played(&full, 1).await;
    world.assert_nothing_is_amiss("played again").await;
    world.operate("update videos set views = 100 where video_id = '1'").await;
    assert_eq!(world.terms("1").await.difference(), i128::from(i64::MAX - 101), "that is what it shows");
    world.flush_all().await;
    assert_eq!(world.terms("1").await.difference(), i128::from(i64::MAX - 101));
}

#[tokio::test]
async fn rows_that_no_flush_made_are_taken_in_with_what_they_held_before() {
    let world = World::new().await;
    let (flushed, idle, empty) = ("1".to_owned(), sibling("1"), "2".to_owned());
    world
        .operate(&format!(
            "insert into videos (video_id, views) values ('{flushed}', 1000), ('{idle}', 200), ('{empty}', 0)"
        ))
        .await;
    world.assert_nothing_is_amiss("before they are taken in").await;
    world.played(&flushed, 5).await;
    world.played(&empty, 1).await;
    world.flush_all().await;
    world.assert_nothing_is_amiss("those that were played are").await;
    let terms = world.terms("1").await;
    assert_eq!((terms.imported, terms.views), (1_000, 1_005));
    while world.plays.upkeep.adopt().await.unwrap() {}
    world.assert_nothing_is_amiss("all are").await;
    assert_eq!(world.terms("1").await.imported, 1_200);
    let left: Vec<(i64,)> =
        world.select(sqlx::query_as("select count(*) from videos where partition is null")).await;
    assert_eq!(left, [(0,)]);
    let placed = "select video_id, partition from videos";
    for (id, partition) in world.select::<(String, i16)>(sqlx::query_as(placed)).await {
        assert_eq!(partition, video(&id).partition().number(), "{id}");
    }
}

/// Several instances take rows in, flush and audit at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_taken_in_once_whoever_takes_them() {
    let world = World::new().await;
    let rows = "insert into videos (video_id, views) select 'v' || n, n from generate_series(1, 5000) n";
    world.operate(rows).await;
    for number in (1..5_000).step_by(7) {
        world.played(&format!("v{number}"), 1).await;
    }
    let others: Vec<Arc<RedisPlays>> = (0..3).map(|_| world.instance()).collect();
    let adopt = futures::future::join_all(others.iter().map(
        async |other| {
            while other.upkeep.adopt().await.unwrap() {}
        },
    ));
    futures::future::join(adopt, world.flush_all()).await;
    while world.plays.upkeep.adopt().await.unwrap() {}
    world.assert_nothing_is_amiss("after all").await;
    assert_eq!(world.audited().await.totals().unwrap().imported, 5_000 * 5_001 / 2);
}

#[tokio::test]
async fn what_an_operator_takes_off_is_shown_until_it_is_accepted() {
    let world = World::new().await;
    world.played("1", 20).await;
    world.flush_all().await;
    world.operate("update videos set views = views - 5 where video_id = '1'").await;
    let audited = world.audited().await;
    assert_eq!((audited.lost(), audited.unreported()), (5, 0));
    assert_eq!(world.terms("1").await.difference(), 5);

    let partition = video("1").partition();
    let accepted = accept(world.plays.books().as_ref(), "a test", Duration::ZERO).await.unwrap();
    assert_eq!(accepted, Accepted { written: vec![(partition, 5)], moving: vec![] });
    world.assert_nothing_is_amiss("accepted").await;
    assert_eq!(world.terms("1").await.adjustments, 5);
    let noted: Vec<(i16, String, String, String)> = world
        .select(sqlx::query_as("select partition, plays::text, kind, reason from play_adjustment"))
        .await;
    assert_eq!(noted, [(partition.number(), "5".to_owned(), "adjusted".to_owned(), "a test".to_owned())]);
    // The next one shows, and too many as well.
    world.operate("update videos set views = views + 8 where video_id = '1'").await;
    let audited = world.audited().await;
    assert_eq!((audited.lost(), audited.unreported()), (0, 8));
    accept(world.plays.books().as_ref(), "another", Duration::ZERO).await.unwrap();
    world.assert_nothing_is_amiss("accepted again").await;
}

#[tokio::test]
async fn a_killed_instance_leaves_what_it_had_not_reported() {
    let world = World::new().await;
    let killed = World::beside(&world).await;
    killed.played("1", 10).await;
    killed.report().await;
    killed.played("1", 7).await;
    drop(killed);
    world.flush_all().await;
    let audited = world.audited().await;
    assert_eq!((audited.lost(), audited.unreported()), (0, 7));
    // One that is stopped leaves nothing.
    let stopped = World::beside(&world).await;
    stopped.played("1", 9).await;
    for job in stopped.plays.jobs() {
        job.finish().await;
    }
    drop(stopped);
    assert_eq!(world.audited().await.unreported(), 7);
}

/// A batch that comes and goes between two looks leaves no batch, as before.
#[tokio::test]
async fn plays_that_move_under_a_reading_are_noticed() {
    let world = World::new().await;
    let books = world.plays.books();
    let connection = world.connection();
    let partition = video("1").partition();
    world.played("1", 5).await;
    let before = books.look(&connection, partition).await.unwrap();
    assert!(books.is_unmoved(&connection, &before).await.unwrap());
    assert!(matches!(world.flush(&video("1")).await.unwrap(), Flushed::Batch { plays: 5, .. }));
    assert!(!books.is_unmoved(&connection, &before).await.unwrap());
    let settled = books.look(&connection, partition).await.unwrap();
    world.played("1", 5).await;
    assert!(books.is_unmoved(&connection, &settled).await.unwrap(), "only batches matter");
    world.claim("1").await.unwrap();
    assert!(!books.is_unmoved(&connection, &settled).await.unwrap());
}

/// On a large site the videos take long to be added up, and flushes go on.
#[tokio::test]
async fn a_flush_while_all_videos_are_added_up_makes_no_difference() {
    let world = World::new().await;
    let books = world.plays.books();
    world.played("1", 5).await;
    world.flush_all().await;
    world.played("1", 3).await;
    world.report().await;
    let mut reading = [None; PARTITIONS as usize];
    let stand = books.stand(&reading).await.unwrap();
    world.flush_all().await;
    world.played("1", 2).await;
    world.report().await;
    stand.finish(&mut reading).await.unwrap();
    let terms = reading[video("1").partition().index()].expect("it didn't move before");
    assert_eq!(terms, Terms { witnessed: 8, views: 5, pending: 3, ..Terms::default() });
    assert!(reading.iter().all(Option::is_some));
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_no_reading_shows_a_loss_and_when_it_is_quiet_nothing_is_amiss() {
    let world = Arc::new(World::new().await);
    let other = Arc::new(World::beside(&world).await);
    let mut load = tokio::task::JoinSet::new();
    let stop = tokio_util::sync::CancellationToken::new();
    for playing in [world.clone(), other.clone()] {
        let stop = stop.clone();
        load.spawn(async move {
            let mut round = 0;
            while !stop.is_cancelled() {
                round += 1;
                for id in 0..40 {
                    playing.played(&format!("v{}", (id * 7 + round) % 200), 3).await;
                }
                if round % 5 == 0 {
                    playing.report().await;
                }
            }
        });
    }
    for flushing in [world.clone(), other.clone()] {
        let stop = stop.clone();
        load.spawn(async move {
            while !stop.is_cancelled() {
                for partition in Partition::all() {
                    let connection = flushing.connection();
                    flushing.plays.flusher().flush_once(&connection, partition).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }
    let mut verified = 0;
    let mut readings = 0;
    while verified < 200 {
        readings += 1;
        let audited = world.audited().await;
        assert_eq!(audited.lost(), 0, "{audited:?}");
        verified += audited.partitions.iter().flatten().count();
        assert!(readings < 1_000, "only {verified} partitions could be verified");
    }
    stop.cancel();
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
    other.report().await;
    world.assert_nothing_is_amiss("quiet").await;
    world.flush_all().await;
    world.assert_nothing_is_amiss("flushed").await;
}

#[tokio::test]
async fn a_redis_that_came_back_older_shows_exactly_what_it_forgot() {
    let mut server = OwnRedis::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let world = World::with(|config| config.redis.url = SecretUrl::new(server.url(""))).await;
    world.played("1", 20).await;
    world.flush_all().await;
    world.played("1", 5).await;
    world.played("2", 4).await;
    let copy = server.copy_of_data();
    world.played("1", 3).await;
    world.played("2", 6).await;
    world.assert_nothing_is_amiss("before").await;
    server.kill().await;
    server.put_back(&copy);
    server.start_again().await;
    // A connection to the one that was killed looks good until somebody uses it.
    eventually("both are connected", async || {
        let asked = world
            .direct
            .connection()
            .map(|connection| async move { connection.query::<String>(redis::cmd("PING")).await.is_ok() });
        let asked = if let Ok(asked) = asked { asked.await } else { false };
        asked && world.plays.books().read().await.is_ok()
    })
    .await;
    let lost = [("1", 3), ("2", 6)];
    for when in ["put back", "flushed"] {
        for (id, plays) in lost {
            assert_eq!(world.terms(id).await.difference(), plays, "{when} {id}");
        }
        assert_eq!(world.audited().await.lost(), 9, "{when}");
        world.flush_all().await;
    }
    world.played("1", 2).await;
    assert_eq!((world.audited().await.lost(), world.audited().await.unreported()), (9, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_videos_are_read_in_small_steps() {
    const VIDEOS: usize = 100_000;
    let server = OwnRedis::start(&[]).await;
    let world = World::with(|config| config.redis.url = SecretUrl::new(server.url(""))).await;
    for first in (0..VIDEOS).step_by(2_000) {
        let plays: Vec<_> = (first..first + 2_000).map(|n| play(&format!("v{n}"), "ann", "")).collect();
        assert!(world.plays.writer.write(&plays).await.iter().all(Result::is_ok));
    }
    world.ask::<String>("CONFIG RESETSTAT").await;
    world.assert_nothing_is_amiss("all wait").await;
    let stats: String = world.ask("INFO commandstats").await;
    let calls = |command: &str| -> usize {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    assert!(calls("sscan") >= VIDEOS / 1_000 && calls("mget") >= VIDEOS / 1_000, "{stats}");
    assert_eq!(calls("smembers") + calls("evalsha") + calls("keys"), 0, "{stats}");
    world.flush_all().await;
    world.assert_nothing_is_amiss("all are in the database").await;
    assert_eq!(world.audited().await.totals().unwrap().views, VIDEOS as i128);
    assert_eq!(world.audited().await.partitions.iter().flatten().count(), usize::from(PARTITIONS));
}
