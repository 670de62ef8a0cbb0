//! The doctor before real servers: one as `scripts/with-services` sets it up, and others set up badly.

use std::process::Stdio;

use headcount::{
    clock::{ManualClock, SystemClock, Timestamp},
    config::{BackendKind, Config, SecretUrl, load::load},
    doctor::{Report, Verdict, examine},
};

use headcount_support::OwnRedis;
use sqlx::{Connection as _, Executor as _};

use crate::world::{eventually, new_database, secs, service};

fn settings(redis: &str) -> Config {
    let mut config = load(None, Some(std::collections::HashMap::new())).unwrap().config;
    config.backend = BackendKind::Redis;
    config.redis.url = SecretUrl::new(redis);
    config.postgres.url = SecretUrl::new(service("TEST_POSTGRES_URL"));
    config
}

async fn examined(config: &Config) -> Report {
    examine(config, SystemClock::start().as_ref()).await
}

fn verdict_of(report: &Report, check: &str) -> Verdict {
    let finding = report.findings.iter().find(|finding| finding.check == check);
    finding.unwrap_or_else(|| panic!("{check} is missing:\n{}", report.table())).verdict
}

#[tokio::test]
async fn servers_set_up_well_are_fine() {
    let redis = OwnRedis::start(&["--appendonly", "yes", "--maxmemory", "1gb"]).await;
    let report = examined(&settings(&redis.url(""))).await;
    for check in [
        "redis version",
        "redis role",
        "redis commands",
        "redis scripts",
        "redis eviction",
        "redis memory",
        "redis durability",
        "redis replicas",
        "redis disk",
        "clocks",
        "postgres version",
        "postgres role",
        "postgres connections",
        "postgres schema",
        "postgres pooling",
    ] {
        assert_eq!(verdict_of(&report, check), Verdict::Ok, "{check}:\n{}", report.table());
    }
    // A server for tests is quick instead of safe, and the doctor says so.
    assert_eq!(verdict_of(&report, "postgres durability"), Verdict::Problem, "{}", report.table());
}

#[tokio::test]
async fn a_redis_that_evicts_and_only_snapshots_is_found_out() {
    let redis =
        OwnRedis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--save", "60 1"])
            .await;
    let report = examined(&settings(&redis.url(""))).await;
    assert_eq!(verdict_of(&report, "redis eviction"), Verdict::Problem, "{}", report.table());
    assert_eq!(verdict_of(&report, "redis durability"), Verdict::Warning, "{}", report.table());
}

#[tokio::test]
async fn a_replica_is_found_out() {
    let redis = OwnRedis::start(&["--replicaof", "127.0.0.1 1"]).await;
    let report = examined(&settings(&redis.url(""))).await;
    assert_eq!(verdict_of(&report, "redis role"), Verdict::Problem, "{}", report.table());
}

/// A user of this Redis who may do everything but these.
async fn user_without(redis: &OwnRedis, refused: &[&str]) -> String {
    let name = format!("without{}", refused.concat());
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", &name, "on", ">secret", "~*", "&*", "+@all"]);
    user.arg(refused.iter().map(|command| format!("-{command}")).collect::<Vec<_>>());
    redis.query::<()>(user).await.unwrap();
    redis.url(&format!("?user={name}&pass=secret"))
}

#[tokio::test]
async fn what_a_redis_hides_is_unknown_whether_renamed_or_kept_by_an_acl() {
    let renamed = OwnRedis::start(&["--appendonly", "yes", "--rename-command", "CONFIG", ""]).await;
    let kept = OwnRedis::start(&["--appendonly", "yes"]).await;
    for url in [renamed.url(""), user_without(&kept, &["config"]).await] {
        let report = examined(&settings(&url)).await;
        assert_eq!(verdict_of(&report, "redis durability"), Verdict::Unknown, "{}", report.table());
        assert_eq!(verdict_of(&report, "redis eviction"), Verdict::Ok, "INFO tells it:\n{}", report.table());
        assert_eq!(verdict_of(&report, "redis commands"), Verdict::Ok, "{}", report.table());
    }
    let report = examined(&settings(&user_without(&kept, &["config", "info"]).await)).await;
    for check in [
        "redis version",
        "redis role",
        "redis eviction",
        "redis memory",
        "redis durability",
        "redis replicas",
        "redis disk",
    ] {
        assert_eq!(verdict_of(&report, check), Verdict::Unknown, "{check}:\n{}", report.table());
    }
    assert!(!report.table().contains("secret") && !report.json().contains("secret"));
}

#[tokio::test]
async fn what_the_service_cannot_do_without_is_a_problem_where_it_is_forbidden() {
    let redis = OwnRedis::start(&["--appendonly", "yes"]).await;
    for (refused, check, unknown) in [
        ("info", "redis commands", Some("redis role")),
        ("time", "redis commands", Some("clocks")),
        ("wait", "redis commands", None),
        ("script", "redis scripts", None),
        ("evalsha", "redis scripts", None),
    ] {
        let mut config = settings(&user_without(&redis, &[refused]).await);
        config.redis.wait_replicas = 1;
        let report = examined(&config).await;
        assert_eq!(verdict_of(&report, check), Verdict::Problem, "{refused}:\n{}", report.table());
        if let Some(unknown) = unknown {
            assert_eq!(verdict_of(&report, unknown), Verdict::Unknown, "{refused}:\n{}", report.table());
        }
    }
    // Who doesn't wait for replicas needs no WAIT.
    let report = examined(&settings(&user_without(&redis, &["wait"]).await)).await;
    assert_eq!(verdict_of(&report, "redis commands"), Verdict::Ok, "{}", report.table());
}

#[tokio::test]
async fn a_redis_that_is_full_or_cannot_save_is_found_out() {
    let redis = OwnRedis::start(&["--save", "3600 1", "--dbfilename", "dump.rdb"]).await;
    std::fs::create_dir_all(redis.folder().join("dump.rdb/occupied")).unwrap();
    let _ = redis.query::<String>(redis::cmd("BGSAVE")).await;
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory").arg("1mb");
    redis.query::<String>(set).await.unwrap();
    let config = settings(&redis.url(""));
    eventually("the save has failed", async || {
        verdict_of(&examined(&config).await, "redis disk") == Verdict::Problem
    })
    .await;
    let report = examined(&config).await;
    assert_eq!(verdict_of(&report, "redis memory"), Verdict::Problem, "{}", report.table());
    assert!(report.table().contains("may be lost or counted twice"), "{}", report.table());
}

#[tokio::test]
async fn a_batch_applied_before_it_is_on_disk_is_found_out() {
    let everysec = OwnRedis::start(&["--appendonly", "yes", "--appendfsync", "everysec"]).await;
    let always = OwnRedis::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    for (redis, age, verdict) in [
        (&everysec, 0, Verdict::Problem),
        (&everysec, 2, Verdict::Ok),
        (&always, 0, Verdict::Ok),
        (&always, 2, Verdict::Ok),
    ] {
        let mut config = settings(&redis.url(""));
        config.redis.batch_min_age = secs(age);
        let report = examined(&config).await;
        assert_eq!(verdict_of(&report, "redis durability"), verdict, "{age}:\n{}", report.table());
    }
}

#[tokio::test]
async fn replicas_that_are_not_waited_for_or_not_there_are_found_out() {
    let primary = OwnRedis::start_primary(&[]).await;
    let _replica = OwnRedis::start_replica(primary.port(), &[]).await;
    let mut config = settings(&primary.url(""));
    eventually("the primary counts it", async || {
        verdict_of(&examined(&config).await, "redis replicas") == Verdict::Warning
    })
    .await;
    for (wait_replicas, wait, verdict) in [
        (1, false, Verdict::Ok),
        (1, true, Verdict::Ok),
        (2, false, Verdict::Problem),
        (2, true, Verdict::Problem),
    ] {
        config.redis.wait_replicas = wait_replicas;
        config.plays.wait = wait;
        let report = examined(&config).await;
        assert_eq!(verdict_of(&report, "redis replicas"), verdict, "{wait_replicas}:\n{}", report.table());
    }
}

#[tokio::test]
async fn a_clock_that_differs_is_found_out() {
    let redis = OwnRedis::start(&[]).await;
    let config = settings(&redis.url(""));
    let report = examine(&config, ManualClock::at(Timestamp::from_secs(1_700_000_000)).as_ref()).await;
    assert_eq!(verdict_of(&report, "clocks"), Verdict::Warning, "{}", report.table());
}

#[tokio::test]
async fn a_postgres_that_takes_no_writes_or_lacks_the_schema_is_found_out() {
    let database = new_database().await;
    let mut config = settings(&service("TEST_REDIS_URL"));
    config.postgres.url = SecretUrl::new(&database);
    config.postgres.migrate = false;
    let name = database.rsplit('/').next().unwrap();
    operate(&database, &format!("alter database {name} set default_transaction_read_only = on")).await;
    let report = examined(&config).await;
    assert_eq!(verdict_of(&report, "postgres role"), Verdict::Problem, "{}", report.table());
    assert_eq!(verdict_of(&report, "postgres schema"), Verdict::Problem, "{}", report.table());
}

#[tokio::test]
async fn what_a_postgres_forbids_to_ask_is_unknown() {
    let database = new_database().await;
    let name = database.rsplit('/').next().unwrap();
    // Privileges on functions are those of one database, so that no other test is disturbed.
    operate(
        &database,
        &format!(
            "create role limited_{name} login; revoke execute on function pg_catalog.current_setting(text), \
             pg_catalog.pg_is_in_recovery(), pg_catalog.pg_backend_pid(), pg_catalog.to_regclass(text) from public"
        ),
    )
    .await;
    let mut url = url::Url::parse(&database).unwrap();
    url.set_username(&format!("limited_{name}")).unwrap();
    let mut config = settings(&service("TEST_REDIS_URL"));
    config.postgres.url = SecretUrl::new(url.as_str());
    let report = examined(&config).await;
    for check in [
        "postgres version",
        "postgres role",
        "postgres durability",
        "postgres connections",
        "postgres schema",
        "postgres pooling",
    ] {
        assert_eq!(verdict_of(&report, check), Verdict::Unknown, "{check}:\n{}", report.table());
    }
}

async fn operate(database: &str, sql: &str) {
    let mut connection = sqlx::PgConnection::connect(database).await.unwrap();
    connection.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))).await.unwrap();
    connection.close().await.unwrap();
}

/// What the command itself prints, by check, and its exit code.
async fn command(variables: &[(&str, &str)]) -> (Option<i32>, serde_json::Value) {
    let mut doctor = tokio::process::Command::new(env!("CARGO_BIN_EXE_headcount"));
    doctor.args(["doctor", "--json"]).env("HEADCOUNT_BACKEND", "redis").envs(variables.iter().copied());
    let output = doctor.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdicts = report["findings"].as_array().unwrap().iter();
    let by_check =
        verdicts.map(|finding| (finding["check"].as_str().unwrap().to_owned(), finding["verdict"].clone()));
    (output.status.code(), by_check.collect::<serde_json::Map<_, _>>().into())
}

#[tokio::test]
async fn the_command_tells_good_bad_and_unknown_apart() {
    let redis = OwnRedis::start(&["--appendonly", "yes", "--maxmemory", "1gb"]).await;
    let (all, some) = (redis.url(""), user_without(&redis, &["config"]).await);
    let postgres = service("TEST_POSTGRES_URL");
    for (url, replicas, verdicts) in [
        (&all, "0", [("redis durability", "ok"), ("redis replicas", "ok"), ("redis eviction", "ok")]),
        (&some, "0", [("redis durability", "unknown"), ("redis replicas", "ok"), ("redis eviction", "ok")]),
        (&all, "1", [("redis durability", "ok"), ("redis replicas", "problem"), ("redis commands", "ok")]),
    ] {
        let (code, report) = command(&[
            ("HEADCOUNT_REDIS__URL", url),
            ("HEADCOUNT_POSTGRES__URL", &postgres),
            ("HEADCOUNT_REDIS__WAIT_REPLICAS", replicas),
        ])
        .await;
        // The Postgres of tests is quick instead of safe, which is a problem.
        assert_eq!((code, &report["postgres durability"]), (Some(1), &"problem".into()), "{report:#}");
        for (check, verdict) in verdicts {
            assert_eq!(report[check], verdict, "{check}: {report:#}");
        }
    }
}

#[tokio::test]
async fn servers_that_are_not_there_are_a_problem_and_no_secret_is_told() {
    let mut config = settings("redis://user:secret@127.0.0.1:1/0");
    config.postgres.url = SecretUrl::new("postgres://user:secret@127.0.0.1:1/headcount");
    let report = examined(&config).await;
    assert_eq!(report.findings.len(), 2, "{}", report.table());
    assert_eq!(report.verdict(), Verdict::Problem);
    assert!(!report.table().contains("secret") && report.table().contains("127.0.0.1:1"));
}
