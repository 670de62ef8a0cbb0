//! The way to a real Postgres: `TEST_POSTGRES_URL` says where.

use std::{collections::BTreeMap, time::Duration};

use sqlx::Connection;
use uuid::Uuid;

use super::{Failure, Lane, Postgres, migrations};
use crate::{
    config::{self, SecretUrl},
    error::StoreError,
};

/// The way to an empty database of a test's own.
pub(crate) async fn settings() -> config::Postgres {
    let server = headcount_support::service("TEST_POSTGRES_URL");
    let name = format!("test_{}", Uuid::now_v7().simple());
    let create = sqlx::AssertSqlSafe(format!("create database {name}"));
    let mut connection = sqlx::PgConnection::connect(&server).await.unwrap();
    sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
    let mut url = url::Url::parse(&server).unwrap();
    url.set_path(&name);
    config::Postgres {
        url: SecretUrl::new(url.to_string()),
        max_connections: 4,
        deadline: Duration::from_secs(10),
        migrate: true,
        prepared_statements: true,
    }
}

async fn with(change: impl FnOnce(&mut config::Postgres)) -> Postgres {
    let mut settings = settings().await;
    change(&mut settings);
    Postgres::new(&settings).unwrap()
}

#[tokio::test]
async fn several_may_bring_the_schema_up_to_date_at_once_and_again() {
    for prepared in [true, false] {
        let postgres = with(|settings| settings.prepared_statements = prepared).await;
        let all = futures::future::join_all((0..8).map(|_| postgres.migrate())).await;
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        postgres.migrate().await.unwrap();
        let applied = "select version, success from _sqlx_migrations order by version";
        let applied: Vec<(i64, bool)> =
            postgres.fetch_all(Lane::Reads, sqlx::query_as(applied)).await.unwrap();
        let steps: Vec<(i64, bool)> = migrations().iter().map(|step| (step.version, true)).collect();
        assert_eq!(applied, steps);
    }
}

#[test]
fn every_file_of_the_schema_is_a_step() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres");
    let files: BTreeMap<String, String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    let steps = migrations();
    let steps: Vec<_> = steps.iter().collect();
    assert_eq!(files.len(), steps.len());
    for ((name, text), step) in files.iter().zip(steps) {
        assert_eq!(*name, format!("{:04}_{}.sql", step.version, step.description.replace(' ', "_")));
        assert_eq!(text, step.sql.as_str());
    }
}

#[tokio::test]
async fn without_prepared_statements_none_is_left_on_the_server_and_each_is_in_a_transaction() {
    let postgres = with(|settings| settings.prepared_statements = false).await;
    postgres.migrate().await.unwrap();
    let mut session = postgres.session(Lane::Reads).await.unwrap();
    session
        .execute(sqlx::query("insert into play_batch (id, partition) values ($1, 1)").bind(Uuid::now_v7()))
        .await
        .unwrap();
    let left = "select name from pg_prepared_statements where name <> ''";
    assert_eq!(session.fetch_all::<(String,)>(sqlx::query_as(left)).await.unwrap(), []);
    let open =
        "select (now() = statement_timestamp()), current_setting('statement_timeout') from pg_class limit 1";
    let open: Vec<(bool, String)> = session.fetch_all(sqlx::query_as(open)).await.unwrap();
    assert_eq!(open, [(false, "10s".to_owned())], "an earlier statement began the transaction");
    session.end().await.unwrap();
    let kept: Vec<(i64,)> =
        postgres.fetch_all(Lane::Flush, sqlx::query_as("select count(*) from play_batch")).await.unwrap();
    assert_eq!(kept, [(1,)]);
}

#[tokio::test]
async fn a_transaction_that_isnt_ended_changes_nothing() {
    let postgres = with(|_| {}).await;
    postgres.migrate().await.unwrap();
    let insert = "insert into videos (video_id, views) values ('1', 1)";
    let mut dropped = postgres.transaction(Lane::Flush).await.unwrap();
    dropped.execute(sqlx::query(insert)).await.unwrap();
    drop(dropped);
    let mut undone = postgres.transaction(Lane::Flush).await.unwrap();
    undone.execute(sqlx::query(insert)).await.unwrap();
    undone.roll_back().await;
    let mut ended = postgres.transaction(Lane::Flush).await.unwrap();
    ended.execute(sqlx::query(insert)).await.unwrap();
    ended.end().await.unwrap();
}

#[tokio::test]
async fn what_fails_is_told_apart() {
    let postgres = with(|settings| settings.deadline = Duration::from_millis(200)).await;
    postgres.migrate().await.unwrap();
    let fail = async |sql: &'static str| {
        let mut session = postgres.transaction(Lane::Flush).await.unwrap();
        let failure = session.raw(sql).await.unwrap_err();
        session.roll_back().await;
        failure
    };
    let row = fail("insert into videos (video_id, views) values ('1', -1)").await;
    assert!(matches!(row, Failure::Row(StoreError::Unexpected { .. })), "{row:?}");
    let range = fail("select 9223372036854775807 + 1::bigint").await;
    assert!(matches!(range, Failure::Row(_)), "{range:?}");
    let slow = fail("select pg_sleep(20)").await;
    assert!(matches!(slow, Failure::Store(StoreError::Unavailable { .. })), "{slow:?}");
    let missing = fail("select * from nowhere").await;
    assert!(matches!(missing, Failure::Store(StoreError::Unavailable { .. })), "{missing:?}");
    let wrong = fail("select nothing").await;
    assert!(matches!(wrong, Failure::Store(StoreError::Unexpected { .. })), "{wrong:?}");
    let conflict = fail("do $$ begin raise sqlstate '40P01'; end $$").await;
    assert!(matches!(conflict, Failure::Conflict(StoreError::Unavailable { .. })), "{conflict:?}");
}

/// A32
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_go_away_leave_the_pools_whole() {
    let postgres = with(|_| {}).await;
    let asked: Vec<_> = (0..1_000)
        .map(|number| {
            let postgres = postgres.clone();
            async move {
                let sleep = sqlx::query_as::<_, (i32,)>("select 1 from pg_sleep(0.05)");
                let asking = postgres.fetch_all(Lane::Reads, sleep);
                let _ = tokio::time::timeout(Duration::from_micros(number * 100), asking).await;
            }
        })
        .collect();
    futures::future::join_all(asked).await;
    let at_once = futures::future::join_all((0..8).map(|_| postgres.probe())).await;
    assert!(at_once.iter().all(Result::is_ok), "{at_once:?}");
}

#[test]
fn an_address_that_cant_be_read_is_told_without_its_password() {
    let settings = config::Postgres {
        url: SecretUrl::new("postgres://me:hunter2@host:port/db"),
        max_connections: 2,
        deadline: Duration::from_secs(1),
        migrate: false,
        prepared_statements: true,
    };
    let Err(error) = Postgres::new(&settings) else { panic!("it was read") };
    assert!(error.to_string().contains("postgres.url") && !error.to_string().contains("hunter2"), "{error}");
}
