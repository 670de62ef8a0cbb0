//! What the database refuses, when it is away, and how it counts days.

use std::time::Duration;

use chrono::NaiveDate;

use super::{Plays, Proxy, Way, World, eventually, play, sibling, video, world};
use crate::{
    clock::{SystemClock, Timestamp},
    config::SecretUrl,
    error::StoreError,
    plays::{Recorded, flush::Flushed, postgres::Facts},
};

impl World {
    async fn members(&self, set: &str) -> Vec<String> {
        let (keys, partition) = (self.direct.keys(), video("1").partition());
        let key = if set == "dirty" { keys.dirty(partition) } else { keys.refused(partition) };
        self.ask(&format!("SMEMBERS {key}")).await
    }
}

/// A1, A17
#[tokio::test]
async fn a_row_that_cant_take_its_plays_is_left_out_and_the_others_are_counted() {
    let world = World::new().await;
    let (full, other) = ("1".to_owned(), sibling("1"));
    world.operate(&format!("insert into videos (video_id, views) values ('1', {})", i64::MAX - 1)).await;
    world.played(&full, 2).await;
    world.played(&other, 3).await;
    let flushed = world.flush(&video("1")).await.unwrap();
    assert!(matches!(flushed, Flushed::Batch { videos: 2, plays: 3, refused: 1, .. }), "{flushed:?}");
    assert_eq!(world.views(&video(&other)).await, 3);
    assert_eq!(world.views(&video(&full)).await, i64::MAX - 1);
    assert_eq!(world.delta(&full).await, 2, "its plays wait");
    assert_eq!((world.members("dirty").await, world.members("refused").await), (vec![], vec![full.clone()]));
    let named: Vec<(Vec<String>,)> = world.select(sqlx::query_as("select refused from play_batch")).await;
    assert_eq!(named, [(vec![full.clone()],)]);
    assert_eq!(world.flush(&video("1")).await.unwrap(), Flushed::Nothing, "it isn't tried again by itself");
    let count = world.count(&video(&full)).await;
    assert_eq!(count.plays, Some(u64::MAX / 2 + 1), "the total counts what waits");

    // An operator mends the row; the next play brings all of it.
    world.operate("update videos set views = 100 where video_id = '1'").await;
    world.played(&full, 1).await;
    assert_eq!(world.flush(&video("1")).await.unwrap().plays(), 3);
    assert_eq!(world.views(&video(&full)).await, 103);
    world.assert_nothing_waits().await;
}

#[tokio::test]
async fn any_row_that_refuses_is_found_and_only_it() {
    let world = World::new().await;
    world.operate("alter table videos add constraint no_sevens check (video_id !~ '7')").await;
    world.operate("alter table video_daily add constraint no_threes check (video_id !~ '3')").await;
    for number in 0..300 {
        world.played(&format!("v{number}"), 1).await;
    }
    world.flush_all().await;
    let rows = "select count(*), (select count(*) from video_daily) from videos";
    let taken = i64::try_from((0..300).filter(|n| !format!("{n}").contains(['7', '3'])).count()).unwrap();
    assert_eq!(world.select::<(i64, i64)>(sqlx::query_as(rows)).await, [(taken, taken)]);
    for number in 0..300 {
        let waits = i64::from(format!("{number}").contains(['7', '3']));
        assert_eq!(world.delta(&format!("v{number}")).await, waits, "v{number}");
    }
}

/// A2, A17
#[tokio::test]
async fn a_flush_that_fails_leaves_plays_where_they_were_still_marked() {
    let world = World::new().await;
    world.played("1", 5).await;
    world.operate("alter table video_daily rename to elsewhere").await;
    assert!(world.flush(&video("1")).await.is_err());
    assert_eq!((world.delta("1").await, world.members("dirty").await), (5, vec!["1".to_owned()]));
    world.played("1", 2).await;
    assert_eq!(world.count(&video("1")).await.plays, Some(7));
    world.operate("alter table elsewhere rename to video_daily").await;
    world.flush_all().await;
    assert_eq!(world.views(&video("1")).await, 7);
    world.assert_nothing_waits().await;
}

async fn behind_a_proxy() -> (World, Proxy) {
    behind_a_proxy_for(Duration::from_secs(10)).await
}

async fn behind_a_proxy_for(deadline: Duration) -> (World, Proxy) {
    let direct = world::settings().await;
    let proxy = Proxy::to(direct.postgres.url.expose()).await;
    let mut config = direct.clone();
    config.postgres.url = SecretUrl::new(proxy.by(direct.postgres.url.expose()));
    config.postgres.deadline = deadline;
    (World::open(direct, config, SystemClock::start()).await, proxy)
}

/// A8
#[tokio::test]
async fn while_the_database_is_away_plays_are_taken_and_totals_read_and_all_of_it_drains_after() {
    let (world, proxy) = behind_a_proxy().await;
    world.played("1", 5).await;
    world.flush_all().await;
    assert_eq!(world.count(&video("1")).await.plays, Some(5));
    proxy.set(Way::Cut);
    eventually("it is missed", async || world.postgres.is_down()).await;
    for viewer in 0..20 {
        let recorded = world.record(play("1", &format!("v{viewer}"), "")).await;
        assert!(matches!(recorded, Ok(Recorded::Counted)), "{recorded:?}");
        let count = world.count(&video("1")).await;
        assert_eq!((count.plays, count.stale), (Some(6 + viewer), false));
    }
    assert!(matches!(world.flush(&video("1")).await, Err(StoreError::Unavailable { .. })));
    let (pending, refused) = world.plays.upkeep.count_waiting(&world.connection()).await.unwrap();
    assert_eq!((pending, refused), (20.0, 0));
    proxy.set(Way::Open);
    eventually("it is back", async || !world.postgres.is_down()).await;
    world.flush_all().await;
    assert_eq!(world.views(&video("1")).await, 25);
    assert_eq!(world.plays.upkeep.count_waiting(&world.connection()).await.unwrap(), (0.0, 0));
    world.assert_nothing_waits().await;
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_by_its_id() {
    for lost in [Way::CutAfter("commit\0"), Way::DeafAfter("commit\0")] {
        a_commit_whose_answer_is(lost).await;
    }
}

async fn a_commit_whose_answer_is(lost: Way) {
    let (world, proxy) = behind_a_proxy_for(Duration::from_secs(3)).await;
    world.played("1", 5).await;
    proxy.set(lost);
    assert!(matches!(world.flush(&video("1")).await, Err(StoreError::Unavailable { .. })));
    assert_eq!(world.views(&video("1")).await, 5, "it was committed");
    assert_eq!(world.delta("1").await, 5, "and nobody knows");
    assert_eq!(world.instance().counts(&[video("1")]).await[0].plays, Some(5), "but reads find out");
    proxy.set(Way::Open);
    eventually("it is flushed", async || world.flush(&video("1")).await.is_ok()).await;
    assert_eq!(world.views(&video("1")).await, 5);
    world.assert_nothing_waits().await;
}

/// A7
#[tokio::test]
async fn a_flush_that_waits_for_a_row_blocks_neither_plays_nor_reads() {
    let world = World::new().await;
    world.played("1", 5).await;
    world.flush_all().await;
    world.played("1", 5).await;
    let mut operator = world.rows.transaction(crate::store::postgres::Lane::Flush).await.unwrap();
    operator.execute(sqlx::query("update videos set views = views + 1")).await.unwrap();
    let one = video("1");
    let flush = world.flush(&one);
    let meanwhile = async {
        world.record(play("1", "ann", "")).await.unwrap();
        assert_eq!(world.count(&video("1")).await.plays, Some(11));
        operator.end().await.unwrap();
    };
    let (flushed, ()) = tokio::join!(flush, meanwhile);
    assert!(flushed.unwrap().plays() >= 5);
    world.flush_all().await;
    assert_eq!(world.views(&video("1")).await, 12);
}

#[tokio::test]
async fn plays_count_on_the_day_of_their_claim_in_the_configured_timezone() {
    // 2024-02-29, a quarter to midnight in UTC: the next day in Shanghai.
    let now = Timestamp::from_secs(1_709_250_300);
    for (timezone, days) in [("UTC", [(29, 2), (1, 3)]), ("Asia/Shanghai", [(1, 3), (1, 3)])] {
        let (world, clock) = World::at(now, |config| config.plays.timezone = timezone.parse().unwrap()).await;
        world.played("1", 5).await;
        world.flush_all().await;
        clock.advance(Duration::from_secs(1_800));
        world.played("1", 2).await;
        world.flush_all().await;
        let rows = "select day, views from video_daily order by day";
        let rows: Vec<(NaiveDate, i64)> = world.select(sqlx::query_as(rows)).await;
        let mut wanted = Vec::new();
        for ((day, month), plays) in days.into_iter().zip([5, 2]) {
            let day = NaiveDate::from_ymd_opt(2024, month, day).unwrap();
            match wanted.last_mut() {
                Some((last, views)) if *last == day => *views += plays,
                _ => wanted.push((day, plays)),
            }
        }
        assert_eq!(rows, wanted, "{timezone}");
    }
}

#[tokio::test]
async fn old_batch_ids_are_forgotten_but_the_newest_of_each_partition() {
    let world = World::new().await;
    world
        .operate(
            "insert into play_batch (id, partition, applied_at)
                select gen_random_uuid(), number % 4, now() - interval '8 days' - number * interval '1 minute'
                from generate_series(0, 2499) as number;
            insert into play_batch (id, partition, applied_at)
                select gen_random_uuid(), 3, now() - number * interval '1 day' from generate_series(0, 6) as number",
        )
        .await;
    assert_eq!(world.plays.flusher().ledger().forget_batches().await.unwrap(), 2_497);
    let left = "select partition, count(*) from play_batch group by partition order by partition";
    let left: Vec<(i16, i64)> = world.select(sqlx::query_as(left)).await;
    assert_eq!(left, [(0, 1), (1, 1), (2, 1), (3, 7)]);
    let newest = "select count(*) from play_batch where applied_at > now() - interval '8 days 3 minutes'";
    assert_eq!(world.select::<(i64,)>(sqlx::query_as(newest)).await, [(10,)]);
}

#[tokio::test]
async fn facts_come_in_the_order_asked_for_and_tell_whether_a_batch_is_in() {
    let world = World::new().await;
    let (one, other) = ("1".to_owned(), sibling("1"));
    world.operate(&format!("insert into videos (video_id, views) values ('1', {})", i64::MAX)).await;
    world.played(&one, 2).await;
    world.played(&other, 3).await;
    let batch = world.claim("1").await.unwrap();
    world.apply(&batch).await;
    let stranger = uuid::Uuid::now_v7();
    let wanted = [
        (video(&other), Some(batch.id)),
        (video("unknown"), None),
        (video(&one), Some(batch.id)),
        (video(&other), Some(stranger)),
        (video(&other), None),
    ];
    let facts = world.plays.flusher().ledger().facts(&wanted).await.unwrap();
    let told = facts.iter().map(|Facts { views, batch_counted, .. }| (*views, *batch_counted));
    let wanted = [(3, true), (0, false), (i64::MAX, false), (3, false), (3, false)];
    assert_eq!(told.collect::<Vec<_>>(), wanted);
}

/// A31
#[tokio::test]
async fn all_of_it_works_without_prepared_statements() {
    let world = World::with(|config| config.postgres.prepared_statements = false).await;
    world.operate("insert into videos (video_id, views) values ('1', 9223372036854775807)").await;
    for id in ["1", "2", "3"] {
        world.played(id, 2).await;
    }
    world.flush_all().await;
    world.lose_total("2").await;
    let counts = world.instance().counts(&["1", "2", "3"].map(video)).await;
    let counts = counts.iter().map(|count| (count.plays, count.unique_viewers)).collect::<Vec<_>>();
    assert_eq!(counts, [(Some(u64::MAX / 2 + 2), Some(2)), (Some(2), Some(2)), (Some(2), Some(2))]);
    world.plays.flusher().ledger().forget_batches().await.unwrap();
}
