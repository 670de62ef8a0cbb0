//! The doctor before real servers: one as `scripts/with-services` sets it up, and others set up badly.

use headcount::{
    clock::SystemClock,
    config::{BackendKind, Config, SecretUrl, load::load},
    doctor::{Report, Verdict, examine},
};

use headcount_support::OwnRedis;

use crate::world::service;

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
        "redis scripts",
        "redis eviction",
        "redis memory",
        "redis durability",
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

#[tokio::test]
async fn what_a_redis_hides_is_unknown_whether_renamed_or_kept_by_an_acl() {
    let renamed = OwnRedis::start(&["--appendonly", "yes", "--rename-command", "CONFIG", ""]).await;
    let kept = OwnRedis::start(&["--appendonly", "yes"]).await;
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-@admin", "-info"]);
    kept.query::<()>(user).await.unwrap();

    let report = examined(&settings(&renamed.url(""))).await;
    assert_eq!(verdict_of(&report, "redis durability"), Verdict::Unknown, "{}", report.table());
    assert_eq!(verdict_of(&report, "redis eviction"), Verdict::Ok, "INFO tells it:\n{}", report.table());

    let report = examined(&settings(&kept.url("?user=limited&pass=secret"))).await;
    for check in
        ["redis version", "redis role", "redis eviction", "redis memory", "redis durability", "redis disk"]
    {
        assert_eq!(verdict_of(&report, check), Verdict::Unknown, "{}", report.table());
    }
    assert!(!report.table().contains("secret") && !report.json().contains("secret"));
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
