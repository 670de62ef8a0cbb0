//! Windows on a real Postgres: what is counted, by whom and when, and what a repeat does.

use std::time::Duration;

use futures::future::join_all;
use headcount_support::eventually;
use uuid::Uuid;

use super::window::{
    Window,
    tests::{NOON, received},
};
use crate::{
    clock::Timestamp,
    ids::VideoId,
    lifecycle::Lifecycle,
    plays::{
        in_kafka::record::Received,
        postgres::{
            Ledger,
            positions::{Place, Position},
            window::{Outcome, Rules, Tally},
        },
    },
    store::postgres::{Lane, Postgres, tests::settings},
};

const HOUR: i64 = 3_600;
const RULES: Rules = Rules { dedupe_window: Duration::from_secs(1_800), all_raised: true };

/// An empty database and one part of a topic.
struct World {
    postgres: Postgres,
    ledger: Ledger,
    place: Place,
    _lifecycle: Lifecycle,
}

impl World {
    async fn new() -> Self {
        let mut settings = settings().await;
        settings.max_connections = 20;
        let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
        let postgres = Postgres::new(&settings).unwrap();
        postgres.start(&lifecycle);
        eventually("the schema is there", async || postgres.is_migrated()).await;
        let ledger = Ledger::new(postgres.clone(), chrono_tz::UTC);
        let place = Place { topic: "plays".into(), topic_id: Uuid::now_v7(), partition: 0 };
        Self { postgres, ledger, place, _lifecycle: lifecycle }
    }

    async fn position(&self) -> Position {
        self.ledger.position(&self.place).await.unwrap()
    }

    /// Counts these from where the part of the topic is.
    async fn count(&self, plays: Vec<Received>) -> Tally {
        let position = self.position().await;
        let began = position.next_offset;
        let next = began + i64::try_from(plays.len()).unwrap();
        let counted = self.ledger.apply_window(&position, &Window { began, next, plays }, RULES).await;
        match counted.unwrap() {
            Outcome::Counted(tally) => tally,
            Outcome::Moved(at) => panic!("the position is {at}, not {began}"),
        }
    }

    async fn numbers(&self, sql: &'static str) -> Vec<i64> {
        let rows: Vec<(i64,)> = self.postgres.fetch_all(Lane::Reads, sqlx::query_as(sql)).await.unwrap();
        rows.into_iter().map(|(number,)| number).collect()
    }

    async fn number(&self, sql: &'static str) -> i64 {
        self.numbers(sql).await[0]
    }

    async fn views(&self) -> i64 {
        self.number("select coalesce(sum(views), 0)::bigint from videos").await
    }

    async fn operate(&self, sql: &'static str) {
        let mut session = self.postgres.session(Lane::Flush).await.unwrap();
        session.raw(sql).await.unwrap();
        session.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_window_counts_its_plays_their_days_their_viewers_and_how_far_it_came() {
    let world = World::new().await;
    let tally = world
        .count(vec![
            received("film", "ann", "p1", 0),
            received("film", "bob", "", 1),
            received("song", "ann", "p2", 2),
            received("film", "ann", "p1", 3),
            received("film", "", "p3", 13 * HOUR),
        ])
        .await;
    assert_eq!((tally.counted, tally.duplicates), (4, 1));
    assert_eq!(world.numbers("select views from videos order by video_id").await, [3, 1]);
    let days = "select views from video_daily order by video_id, day";
    assert_eq!(world.numbers(days).await, [2, 1, 1]);
    let viewers = "select unique_viewers from videos order by video_id";
    assert_eq!(world.numbers(viewers).await, [2, 1]);
    assert_eq!(world.number("select sum(plays)::bigint from play_witness").await, 4);
    assert_eq!(world.number("select count(*) from videos where partition is null").await, 0);
    assert_eq!(world.number("select count(*) from play_seen").await, 6);
    assert_eq!(world.position().await.next_offset, 5);
    let told: Vec<(&str, i64)> =
        tally.videos.iter().map(|counted| (counted.video.as_str(), counted.views)).collect();
    assert!(told.contains(&("film", 3)) && told.contains(&("song", 1)) && told.len() == 2, "{told:?}");
}

#[tokio::test]
async fn a_window_that_is_brought_again_changes_nothing_and_is_told_where_counting_is() {
    let world = World::new().await;
    let before = world.position().await;
    let window = Window { began: 0, next: 7, plays: vec![received("film", "", "p1", 0)] };
    let counted = world.ledger.apply_window(&before, &window, RULES).await.unwrap();
    assert!(matches!(counted, Outcome::Counted(Tally { counted: 1, .. })), "{counted:?}");
    assert_eq!(world.ledger.apply_window(&before, &window, RULES).await.unwrap(), Outcome::Moved(7));
    // Nor one that has less or more in it, as another consumer may have gathered it.
    let more = Window { began: 0, next: 9, plays: vec![received("film", "", "p9", 0)] };
    assert_eq!(world.ledger.apply_window(&before, &more, RULES).await.unwrap(), Outcome::Moved(7));
    assert_eq!(world.views().await, 1);
}

/// [rindexer#469]
#[tokio::test]
async fn of_many_that_bring_one_window_at_once_one_counts_it() {
    let world = World::new().await;
    let position = world.position().await;
    for round in 0..5 {
        let plays = (0..50).map(|n| received("film", "", &format!("p{round}-{n}"), 0)).collect();
        let window = Window { began: 50 * round, next: 50 * (round + 1), plays };
        let all = join_all((0..4).map(|_| world.ledger.apply_window(&position, &window, RULES))).await;
        let counted = all.iter().filter(|outcome| matches!(outcome, Ok(Outcome::Counted(_)))).count();
        assert_eq!(counted, 1, "{all:?}");
        assert_eq!(world.views().await, window.next);
    }
}

#[tokio::test]
async fn a_topic_made_anew_begins_at_0_and_what_was_seen_before_still_is() {
    let mut world = World::new().await;
    world.count(vec![received("film", "ann", "", 0), received("film", "bob", "", 0)]).await;
    let old = std::mem::replace(&mut world.place.topic_id, Uuid::now_v7());
    let position = world.position().await;
    assert_eq!(position.next_offset, 0);
    // Nothing of it says yet that time has passed.
    assert_eq!(world.ledger.forget_seen(&position, RULES.dedupe_window, 0).await.unwrap(), 0);
    let tally = world.count(vec![received("film", "ann", "", 5), received("film", "eve", "", 5)]).await;
    assert_eq!((tally.counted, tally.duplicates), (1, 1));
    world.place.topic_id = old;
    assert_eq!(world.position().await.next_offset, 2);
    world.place.topic = "other".into();
    assert_eq!(
        world.position().await.next_offset,
        0,
        "two topics' records have nothing to do with each other"
    );
}

#[tokio::test]
async fn two_parts_that_count_one_video_at_once_count_each_viewer_once() {
    let world = World::new().await;
    let mut positions = Vec::new();
    for partition in 0..4 {
        positions.push(world.ledger.position(&Place { partition, ..world.place.clone() }).await.unwrap());
    }
    for round in 0..5 {
        let windows = positions.iter().map(async |position| {
            let plays = (0..100).map(|n| received("film", &format!("viewer-{round}-{n}"), "", 0)).collect();
            let window = Window { began: 100 * round, next: 100 * (round + 1), plays };
            // Each try is one of a few: so many at once may be told to come again.
            loop {
                match world.ledger.apply_window(position, &window, RULES).await {
                    Ok(Outcome::Counted(tally)) => return tally.counted,
                    Ok(Outcome::Moved(at)) => panic!("moved to {at}"),
                    Err(error) => assert!(error.is_transient(), "{error}"),
                }
            }
        });
        assert_eq!(join_all(windows).await.into_iter().sum::<u64>(), 100);
        assert_eq!(world.views().await, 100 * (round + 1));
    }
}

#[tokio::test]
async fn a_row_that_cant_take_its_plays_holds_nothing_up_and_gets_them_once_it_can() {
    let world = World::new().await;
    world
        .operate("insert into videos (video_id, views, partition) values ('full', 9223372036854775807, 0)")
        .await;
    let plays = vec![
        received("full", "", "p1", 0),
        received("film", "", "p1", 0),
        received("full", "", "p2", 13 * HOUR),
        received("song", "", "p1", 0),
    ];
    let tally = world.count(plays).await;
    assert_eq!(tally.counted, 4, "they are counted, if not where they belong");
    assert_eq!(tally.refused.len(), 2, "{tally:?}");
    assert_eq!(world.position().await.next_offset, 4);
    let kept = "select plays from play_refused where video_id = 'full' order by day";
    assert_eq!(world.numbers(kept).await, [1, 1]);
    let others = "select views from videos where video_id <> 'full' order by video_id";
    assert_eq!(world.numbers(others).await, [1, 1]);

    let tally = world.count(vec![received("full", "", "p3", 13 * HOUR)]).await;
    assert_eq!((tally.counted, tally.refused.len()), (1, 2));
    assert_eq!(world.numbers(kept).await, [1, 2]);

    world.operate("update videos set views = 0 where video_id = 'full'").await;
    let tally = world.count(vec![received("full", "", "p4", 13 * HOUR)]).await;
    assert_eq!((tally.counted, tally.refused.len()), (1, 0));
    assert!(world.numbers(kept).await.is_empty());
    assert_eq!(world.number("select views from videos where video_id = 'full'").await, 4);
    let days = "select views from video_daily where video_id = 'full' order by day";
    assert_eq!(world.numbers(days).await, [1, 3]);
}

#[tokio::test]
async fn rows_that_were_there_before_are_noted_as_imported() {
    let world = World::new().await;
    world.operate("insert into videos (video_id, views) values ('film', 1000)").await;
    world.count(vec![received("film", "", "p1", 0), received("film", "", "p2", 13 * HOUR)]).await;
    assert_eq!(world.number("select views from videos").await, 1_002);
    let imported = "select sum(plays)::bigint from play_adjustment where kind = 'imported'";
    assert_eq!(world.number(imported).await, 1_000);
}

/// A day of plays by a few viewers, in an order of times that goes back a little now and then.
fn a_day() -> Vec<Received> {
    (0..2_000)
        .map(|n: i64| {
            let late = if n % 5 == 0 { 40 } else { 0 };
            received(
                &format!("film-{}", n % 3),
                &format!("viewer-{}", n % 41),
                &format!("p{}", n / 2),
                43 * n - late,
            )
        })
        .collect()
}

#[tokio::test]
async fn a_backlog_and_a_rebuild_decide_as_the_first_time_did() {
    let (live, rebuilt) = (World::new().await, World::new().await);
    for plays in a_day().chunks(37) {
        live.count(plays.to_vec()).await;
        // Forgetting goes on all the time.
        live.ledger.forget_seen(&live.position().await, RULES.dedupe_window, 0).await.unwrap();
    }
    rebuilt.count(a_day()).await;
    for sql in [
        "select views from videos order by video_id",
        "select views from video_daily order by video_id, day",
        "select unique_viewers from videos order by video_id",
        "select plays from play_witness order by partition",
    ] {
        assert_eq!(live.numbers(sql).await, rebuilt.numbers(sql).await, "{sql}");
    }
    let sketches = "select count(distinct viewer_sketch) from videos";
    assert_eq!(live.number(sketches).await, rebuilt.number(sketches).await);
    assert!(
        live.number("select count(*) from play_seen").await
            < rebuilt.number("select count(*) from play_seen").await
    );
}

#[tokio::test]
async fn forgetting_goes_by_the_records_and_never_far_in_one_step() {
    let world = World::new().await;
    let old: Vec<_> = (0..60_000).map(|n| received("film", "", &format!("p{n}"), 0)).collect();
    for plays in old.chunks(20_000) {
        world.count(plays.to_vec()).await;
    }
    let window = RULES.dedupe_window;
    let position = world.position().await;
    // However late it is by any clock, nothing in the log says that time has passed.
    assert_eq!(world.ledger.forget_seen(&position, window, 0).await.unwrap(), 0);
    world.count(vec![received("film", "", "next", 5_399)]).await;
    assert_eq!(world.ledger.forget_seen(&position, window, 0).await.unwrap(), 0);
    // What is behind in another part of the topic keeps what is its own.
    let other = Place { partition: 1, ..world.place.clone() };
    let other = world.ledger.position(&other).await.unwrap();
    let plays = vec![received("song", "ann", "", 0)];
    world.ledger.apply_window(&other, &Window { began: 0, next: 1, plays }, RULES).await.unwrap();
    world.count(vec![received("film", "", "last", 5_401)]).await;
    assert_eq!(world.ledger.forget_seen(&position, window, 0).await.unwrap(), 50_000, "one go is bounded");
    assert_eq!(world.ledger.forget_seen(&position, window, 0).await.unwrap(), 10_000);
    assert_eq!(world.number("select count(*) from play_seen").await, 3);
}

/// Its times would have all forgotten, and what is sent again counted again.
#[tokio::test]
async fn a_record_of_the_future_has_nothing_forgotten_that_is_needed() {
    let world = World::new().await;
    let (years, now) =
        (3_600 * 24 * 365 * 100, world.number("select extract(epoch from now())::bigint").await);
    world.count(vec![received("film", "ann", "", now - NOON)]).await;
    world.count(vec![received("film", "bob", "", years)]).await;
    let position = world.position().await;
    assert_eq!(world.ledger.forget_seen(&position, RULES.dedupe_window, 0).await.unwrap(), 0);
    let tally = world.count(vec![received("film", "ann", "", now - NOON + 1)]).await;
    assert_eq!((tally.counted, tally.duplicates), (0, 1));
}

/// A Redis that lost everything while all of it was restarted is doubted, also where Kafka is all there was.
#[tokio::test]
async fn a_database_that_counted_kafkas_log_is_not_new() {
    let world = World::new().await;
    let had = async |at: i64| {
        let at = Timestamp::from_secs(NOON + at);
        world.ledger.had_batches_before(at).await.unwrap()
    };
    assert!(!had(HOUR).await);
    world.count(vec![received("film", "ann", "", 0)]).await;
    assert!(!had(59).await);
    assert!(had(HOUR).await);
}

#[tokio::test]
async fn what_redis_wasnt_told_is_known_until_it_was() {
    let world = World::new().await;
    let not_raised = Rules { all_raised: false, ..RULES };
    let count = async |began: i64, at: i64, rules| {
        let position = world.position().await;
        let plays = vec![received(&format!("film-{began}"), "ann", "", at)];
        let window = Window { began, next: began + 1, plays };
        world.ledger.apply_window(&position, &window, rules).await.unwrap();
    };
    let since = |at: i64| Some(Timestamp::from_secs(NOON + at).to_utc());
    count(0, 0, RULES).await;
    count(1, 100, RULES).await;
    assert_eq!(world.position().await.unraised_since, since(100), "its own plays, which nobody has told yet");
    count(2, 200, not_raised).await;
    count(3, 50, not_raised).await;
    let position = world.position().await;
    assert_eq!(position.unraised_since, since(50));
    let told = async |after: Option<&VideoId>| {
        let told = world.ledger.unraised(&position, position.unraised_since.unwrap(), after).await.unwrap();
        told.into_iter().map(|counted| counted.video.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(told(None).await, ["film-1", "film-2", "film-3"]);
    assert_eq!(told(Some(&VideoId::parse("film-2").unwrap())).await, ["film-3"]);
    // Told too late: more was counted meanwhile.
    let late = Position { next_offset: 3, ..position.clone() };
    world.ledger.all_raised(&late).await.unwrap();
    assert_eq!(world.position().await.unraised_since, since(50));
    world.ledger.all_raised(&position).await.unwrap();
    assert_eq!(world.position().await.unraised_since, None);
}
