use std::{path::Path, time::Duration};

use futures::future::join_all;
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::*;
use crate::{
    clock::{ManualClock, Timestamp},
    ids::{PlayId, ViewerId},
    lifecycle::{Phase, Stopped},
};

const WINDOW: Duration = Duration::from_secs(1_800);
const JUST_WITHIN: Duration = Duration::from_millis(1_799_999);

struct World {
    folder: TempDir,
    clock: Arc<ManualClock>,
    lifecycle: Lifecycle,
    sqlite: Sqlite,
    plays: SqlitePlays,
    prune: Arc<dyn Job>,
}

fn settings() -> config::Plays {
    config::Plays {
        ack: Ack::Stored,
        linger: Duration::from_secs(1),
        dedupe_window: WINDOW,
        max_pending: 10_000,
        cached_videos: 1_000,
        timezone: chrono_tz::Tz::UTC,
    }
}

impl World {
    async fn new() -> Self {
        Self::with(settings()).await
    }

    async fn with(settings: config::Plays) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        Self::open(tempfile::tempdir().unwrap(), settings, clock).await
    }

    async fn open(folder: TempDir, settings: config::Plays, clock: Arc<ManualClock>) -> Self {
        let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
        let sqlite = Sqlite::open(folder.path()).await.unwrap();
        let plays = SqlitePlays::start(&sqlite, &settings, &lifecycle, clock.clone());
        let prune = SqlitePlays::prune_job(&sqlite, &settings, clock.clone());
        sqlite.close_at_stop(&lifecycle);
        Self { folder, clock, lifecycle, sqlite, plays, prune }
    }

    /// What a process finds that is started after this one was killed now.
    async fn after_a_kill(&self, settings: config::Plays) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["headcount.db", "headcount.db-wal"] {
            std::fs::copy(self.folder.path().join(name), folder.path().join(name)).unwrap();
        }
        Self::open(folder, settings, self.clock.clone()).await
    }

    async fn plays_of(&self, video: &str) -> Option<u64> {
        self.count(video).await.plays
    }

    async fn count(&self, video: &str) -> PlayCount {
        self.plays.counts(&[VideoId::parse(video).unwrap()]).await[0]
    }

    /// A connection of somebody else to the same file.
    async fn intruder(&self) -> SqliteConnection {
        let file = self.folder.path().join("headcount.db");
        let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(20));
        SqliteConnection::connect_with(&options).await.unwrap()
    }

    async fn rows(&self, table: &'static str) -> i64 {
        let count = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
        sqlx::query_scalar(count).fetch_one(self.sqlite.readers()).await.unwrap()
    }

    async fn until_plays_are(&self, video: &str, wanted: u64) {
        let limit = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.plays_of(video).await != Some(wanted) {
            assert!(tokio::time::Instant::now() < limit, "never {wanted} plays of {video}");
            self.clock.advance(Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn play(video: &str, viewer: &str, play_id: &str) -> Play {
    Play {
        video: VideoId::parse(video).unwrap(),
        viewer: (!viewer.is_empty()).then(|| ViewerId::from_stored(viewer)),
        play_id: (!play_id.is_empty()).then(|| PlayId::parse(play_id).unwrap()),
    }
}

fn timed(plays: impl IntoIterator<Item = Play>, at: Timestamp) -> Vec<TimedPlay> {
    plays.into_iter().map(|play| TimedPlay { play, at }).collect()
}

async fn execute(connection: &mut SqliteConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.unwrap();
}

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
    // Nobody is known to have watched.
    assert_eq!(world.count("film").await.unique_viewers, Some(0));
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
    assert_eq!(world.rows("play_seen").await, 3);
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
    assert_eq!(days, [day("2027-01-15", 1), day("2027-01-16", 2)]);
}

/// S16.
#[tokio::test]
async fn every_one_of_200_000_viewers_counts_and_unique_viewers_are_within_two_percent() {
    let world = World::new().await;
    for batch in 0..20_u32 {
        let plays =
            (0..10_000).map(|number| play("film", &format!("viewer-{}", batch * 10_000 + number), ""));
        let results = world.plays.books.record(&timed(plays, world.clock.now())).await;
        assert!(results.into_iter().all(|result| result.unwrap()));
    }
    let count = world.count("film").await;
    assert_eq!(count.plays, Some(200_000));
    let unique = count.unique_viewers.unwrap();
    assert!(unique.abs_diff(200_000) <= 4_000, "{unique}");
    // The sketch is on disk: those who come back after a restart are no new viewers.
    world.clock.advance(WINDOW);
    let restarted = world.after_a_kill(settings()).await;
    let again = (0..10_000).map(|number| play("film", &format!("viewer-{number}"), ""));
    let results = restarted.plays.books.record(&timed(again, world.clock.now())).await;
    assert!(results.into_iter().all(|result| result.unwrap()));
    let count = restarted.count("film").await;
    assert_eq!((count.plays, count.unique_viewers), (Some(210_000), Some(unique)));
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
    assert_eq!(world.rows("play_seen").await, 12_002);
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(world.prune.run().await.unwrap(), None);
    assert_eq!(world.rows("play_seen").await, 2);
    assert_eq!(world.plays.record(play("film", "bob", "p")).await.unwrap(), Recorded::Duplicate);
}

fn received() -> config::Plays {
    config::Plays { ack: Ack::Received, linger: Duration::from_millis(200), ..settings() }
}

#[tokio::test]
async fn a_received_play_is_answered_at_once_and_counted_once_soon() {
    let world = World::with(received()).await;
    for _ in 0..3 {
        assert_eq!(world.plays.record(play("film", "ann", "p1")).await.unwrap(), Recorded::Accepted);
    }
    world.until_plays_are("film", 1).await;
    assert_eq!(world.plays.record(play("film", "ann", "p1")).await.unwrap(), Recorded::Accepted);
    assert_eq!(world.plays.record(play("film", "bob", "p2")).await.unwrap(), Recorded::Accepted);
    world.until_plays_are("film", 2).await;
}

#[tokio::test]
async fn received_plays_are_on_disk_after_a_stop() {
    let world = World::with(config::Plays { linger: Duration::from_secs(3_600), ..received() }).await;
    for number in 0..5_000 {
        world.plays.record(play("film", &format!("u{number}"), "")).await.unwrap();
    }
    world.lifecycle.stop();
    assert_eq!(world.lifecycle.run().await, Stopped::Drained);
    let World { folder, clock, .. } = world;
    let restarted = World::open(folder, received(), clock).await;
    assert_eq!(restarted.plays_of("film").await, Some(5_000));
}

#[tokio::test]
async fn received_plays_are_refused_once_one_has_waited_too_long_and_none_is_lost() {
    let world = World::with(received()).await;
    let mut intruder = world.intruder().await;
    execute(&mut intruder, "begin immediate").await;
    let limit = tokio::time::Instant::now() + Duration::from_secs(30);
    let mut taken = 0;
    let refusal = loop {
        match world.plays.record(play("film", &format!("u{taken}"), "")).await {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(tokio::time::Instant::now() < limit, "never refused");
        world.clock.advance(Duration::from_millis(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(matches!(refusal, StoreError::Unavailable { .. }), "{refusal}");
    assert!(taken > 0);
    execute(&mut intruder, "rollback").await;
    world.until_plays_are("film", taken).await;
    let again = world.plays.record(play("film", &format!("u{taken}"), "")).await;
    assert_eq!(again.unwrap(), Recorded::Accepted);
    world.until_plays_are("film", taken + 1).await;
}

#[tokio::test]
async fn more_received_plays_than_may_wait_are_refused() {
    let world = World::with(config::Plays { max_pending: 100, ..received() }).await;
    for number in 0..100 {
        world.plays.record(play("film", &format!("u{number}"), "")).await.unwrap();
    }
    let refusal = world.plays.record(play("film", "u100", "")).await.unwrap_err();
    assert!(matches!(refusal, StoreError::Full { queue: "plays", .. }), "{refusal}");
    world.until_plays_are("film", 100).await;
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
