//! Plays while the database works and yet doesn't: busy, read-only, in conflict, interrupted by an
//! operator. Which of its servers' troubles is which stands in docs/trouble.md.

use std::time::Duration;

use headcount_support::service;

use super::{Plays, World, eventually, sibling, video};
use crate::{error::StoreError, plays::Recorded, store::postgres::Lane};

impl World {
    /// Runs a statement about this world's database, whose name stands for `{}` in it, from another.
    async fn operate_from_outside(&self, sql: &str) {
        let mut server =
            <sqlx::PgConnection as sqlx::Connection>::connect(&service("TEST_POSTGRES_URL")).await.unwrap();
        let url = url::Url::parse(self.config.postgres.url.expose()).unwrap();
        let sql = sql.replace("{}", url.path().trim_start_matches('/'));
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut server).await.unwrap();
    }

    /// Changes what new connections begin with, and ends those that are there.
    async fn set_for_connections(&self, setting: &str) {
        self.operate_from_outside(&format!("alter database {{}} set {setting}")).await;
        let end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = '{}'";
        self.operate_from_outside(end).await;
    }

    /// Flushes until nothing waits; what fails on the way is tried again, as the job does.
    async fn flush_until_done(&self, id: &str, views: i64) {
        eventually("it is flushed", async || {
            let _ = self.flush(&video(id)).await;
            self.views(&video(id)).await == views && self.delta(id).await == 0
        })
        .await;
        self.assert_nothing_waits().await;
    }
}

#[tokio::test]
async fn with_all_connections_for_reads_in_use_the_last_good_total_is_told_and_the_flush_goes_on() {
    let world = World::with(|config| {
        config.postgres.max_connections = 4;
        config.postgres.deadline = Duration::from_secs(2);
    })
    .await;
    world.played("1", 5).await;
    world.flush_all().await;
    let good = world.count(&video("1")).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(world.postgres.session(Lane::Reads).await.unwrap());
    }
    world.lose_total("1").await;
    world.played("1", 1).await;
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.stale), (good.plays, true), "{count:?}");
    assert_eq!(world.fresh_count("1").await.plays, None, "it never knew");
    assert!(world.postgres.probe().await.is_err());
    assert!(!world.postgres.is_down(), "it is only busy");
    assert_eq!(world.flush(&video("1")).await.unwrap().plays(), 1);
    held.clear();
    eventually("it is read again", async || world.fresh_count("1").await.plays == Some(6)).await;
}

/// The operator's transaction and the flush each hold a row that the other wants.
#[tokio::test]
async fn a_flush_that_a_deadlock_ends_is_tried_again_and_adds_once() {
    let world = World::new().await;
    let mut ids = ["1".to_owned(), sibling("1")];
    ids.sort();
    let [first, last] = ids;
    for id in [&first, &last] {
        world.played(id, 1).await;
    }
    world.flush_all().await;
    for id in [&first, &last] {
        world.played(id, 2).await;
    }
    let touch = "update videos set updated_at = now() where video_id = $1";
    let mut operator = world.rows.transaction(Lane::Flush).await.unwrap();
    // The other one looks for deadlocks first, and is the one that gives way.
    operator.raw("set local deadlock_timeout = '1h'").await.unwrap();
    operator.execute(sqlx::query(touch).bind(last.clone())).await.unwrap();
    let of_first = video(&first);
    let flush = world.flush(&of_first);
    let operate = async {
        eventually("the flush waits for the operator", async || {
            let waiting = "select count(*) from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock'";
            world.select::<(i64,)>(sqlx::query_as(waiting)).await == [(1,)]
        })
        .await;
        operator.execute(sqlx::query(touch).bind(first.clone())).await.unwrap();
        operator.end().await.unwrap();
    };
    let (flushed, ()) = tokio::join!(flush, operate);
    assert_eq!(flushed.unwrap().plays(), 4);
    assert_eq!((world.views(&video(&first)).await, world.views(&video(&last)).await), (3, 3));
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    eventually("there was one", async || world.select::<(i64,)>(sqlx::query_as(deadlocks)).await == [(1,)])
        .await;
    world.assert_nothing_waits().await;
}

#[tokio::test]
async fn a_flush_that_meets_another_transaction_is_tried_again_and_adds_once() {
    for code in ["40001", "40P01"] {
        let world = World::new().await;
        world
            .operate(&format!(
                "create sequence tries;
                create function meet() returns trigger as $$ begin
                    if nextval('tries') <= 3 then raise sqlstate '{code}'; end if;
                    return new;
                end $$ language plpgsql;
                create trigger meet before insert on video_daily for each row execute function meet()"
            ))
            .await;
        world.played("1", 5).await;
        assert_eq!(world.flush(&video("1")).await.unwrap().plays(), 5, "{code}");
        assert_eq!(world.views(&video("1")).await, 5, "{code}");
        world.assert_nothing_waits().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_transactions_are_serializable_by_default_is_used_as_any_other() {
    let world = World::new().await;
    world.set_for_connections("default_transaction_isolation = 'serializable'").await;
    eventually("postgres is back", async || world.postgres.probe().await.is_ok()).await;
    let isolation = "select current_setting('transaction_isolation')";
    let isolation = world.postgres.fetch_all::<(String,)>(Lane::Reads, sqlx::query_as(isolation)).await;
    assert_eq!(isolation.unwrap(), [("read committed".to_owned(),)]);
    let flushers = [world.instance(), world.instance(), world.instance()];
    for round in 1..=10 {
        world.played("1", 2).await;
        let connection = world.connection();
        let runs = flushers.iter().map(|instance| {
            let connection = connection.clone();
            async move {
                instance.flusher().flush_once(&connection, video("1").partition()).await.unwrap();
                instance.counts(&[video("1")]).await[0]
            }
        });
        for count in futures::future::join_all(runs).await {
            assert!(!count.stale, "{count:?}");
        }
        world.flush_until_done("1", round * 2).await;
    }
}

/// As a standby, or a disk that an operator saved from filling up.
#[tokio::test]
async fn while_the_database_is_read_only_plays_are_taken_and_drain_without_a_restart_when_it_isnt() {
    let world = World::new().await;
    world.played("1", 5).await;
    world.flush_all().await;
    world.set_for_connections("default_transaction_read_only = on").await;
    eventually("it is seen", async || {
        world.postgres.probe().await.is_err_and(|error| error.to_string().contains("read-only"))
    })
    .await;
    assert_eq!(world.record(super::play("1", "ann", "")).await.unwrap(), Recorded::Counted);
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.stale), (Some(6), false));
    let refused = world.flush(&video("1")).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains("25006"), "{refused}");
    assert!(!world.postgres.is_down(), "it is still read");
    // What is connected by now was told to be read-only, and stays so.
    world.operate_from_outside("alter database {} reset default_transaction_read_only").await;
    assert_eq!(world.flush(&video("1")).await.unwrap().plays(), 1, "at once, on a new connection");
    eventually("it is well", async || world.postgres.probe().await.is_ok()).await;
    assert_eq!(world.views(&video("1")).await, 6);
    world.assert_nothing_waits().await;
}

#[tokio::test]
async fn a_flush_that_an_operator_cancels_or_ends_adds_nothing_and_the_next_adds_all() {
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        let world = World::new().await;
        world.played("1", 1).await;
        world.flush_all().await;
        world.played("1", 5).await;
        let mut operator = world.rows.transaction(Lane::Flush).await.unwrap();
        operator.execute(sqlx::query("update videos set updated_at = now()")).await.unwrap();
        let one = video("1");
        let flush = world.flush(&one);
        let cancel = async {
            eventually("the flush is ended", async || {
                let end = format!(
                    "select {end}(pid) from pg_stat_activity
                        where datname = current_database() and wait_event_type = 'Lock'"
                );
                let end = sqlx::query_as(sqlx::AssertSqlSafe(end));
                world.select::<(bool,)>(end).await == [(true,)]
            })
            .await;
        };
        let (flushed, ()) = tokio::join!(flush, cancel);
        assert!(matches!(flushed, Err(StoreError::Unavailable { .. })), "{end}: {flushed:?}");
        operator.end().await.unwrap();
        assert_eq!((world.views(&one).await, world.delta("1").await), (1, 5), "{end}");
        world.flush_until_done("1", 6).await;
    }
}

/// The command is the one of docs/trouble.md.
#[tokio::test]
async fn a_refused_row_that_was_mended_drains_by_the_documented_command_without_another_play() {
    let world = World::new().await;
    world.operate("insert into videos (video_id, views) values ('1', 9223372036854775807)").await;
    world.played("1", 2).await;
    world.flush_all().await;
    assert_eq!(world.plays.upkeep.count_waiting(&world.connection()).await.unwrap(), (0.0, 1));
    world.operate("update videos set views = 100 where video_id = '1'").await;
    let partition = video("1").partition();
    let (refused, dirty) = (world.direct.keys().refused(partition), world.direct.keys().dirty(partition));
    assert_eq!(world.ask::<i64>(&format!("SMOVE {refused} {dirty} 1")).await, 1);
    world.flush_until_done("1", 102).await;
    assert_eq!(world.plays.upkeep.count_waiting(&world.connection()).await.unwrap(), (0.0, 0));
}
