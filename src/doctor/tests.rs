//! Every answer a store can give to the doctor: good, bad, and none.

use std::{collections::HashMap, time::Duration};

use super::{Answer, Finding, Report, Verdict, postgres, redis};
use crate::config::{self, Config, load::load};

fn settings(variables: &[(&str, &str)]) -> Config {
    let variables: HashMap<_, _> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    load(None, Some(variables)).unwrap().config
}

fn forbidden<T>() -> Answer<T> {
    Err("NOPERM: this user may not".to_owned())
}

fn verdict_of(findings: &[Finding], check: &str) -> Verdict {
    let finding = findings.iter().find(|finding| finding.check == check);
    finding.unwrap_or_else(|| panic!("{check} is not among {findings:#?}")).verdict
}

const INFO: &str = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nused_memory:104857600\r\n\
    total_system_memory:8589934592\r\nmaxmemory:1073741824\r\nmaxmemory_policy:noeviction\r\n\
    # Persistence\r\naof_enabled:1\r\naof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\n\
    # Replication\r\nrole:master\r\nconnected_slaves:0\r\n# Cluster\r\ncluster_enabled:0\r\n";

fn good_redis() -> redis::Facts {
    redis::Facts {
        writes: Ok(()),
        info: Ok(INFO.to_owned()),
        policy: Ok("noeviction".to_owned()),
        fsync: Ok("everysec".to_owned()),
        lazy_rewrite: Ok("no".to_owned()),
        snapshots: Ok("3600 1 300 100".to_owned()),
        script: Ok(()),
        ahead: Ok((-3, Duration::from_millis(1))),
        wait: None,
    }
}

/// `INFO` with one line changed.
#[expect(clippy::unnecessary_wraps, reason = "it stands where an answer does")]
fn info(from: &str, to: &str) -> Answer<String> {
    assert!(INFO.contains(from), "{from}");
    Ok(INFO.replace(from, to))
}

fn judge_redis(change: impl FnOnce(&mut redis::Facts)) -> Vec<Finding> {
    let mut facts = good_redis();
    change(&mut facts);
    redis::judge(&facts, &settings(&[]))
}

#[expect(clippy::unnecessary_wraps, reason = "it stands where an answer does")]
fn text(value: &str) -> Answer<String> {
    Ok(value.to_owned())
}

#[test]
fn a_redis_set_up_well_is_ok_in_everything() {
    let findings = judge_redis(|_| {});
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{findings:#?}");
    assert!(findings.iter().all(|finding| finding.advice.is_empty() && !finding.found.is_empty()));
}

#[test]
fn each_fault_of_a_redis_is_found() {
    type Change = fn(&mut redis::Facts);
    let cases: &[(&str, Verdict, Change)] = &[
        ("redis version", Verdict::Problem, |facts| facts.info = info("7.0.15", "6.2.14")),
        ("redis version", Verdict::Problem, |facts| facts.info = info("7.0.15", "unstable")),
        ("redis version", Verdict::Ok, |facts| facts.info = info("7.0.15", "10.0.0")),
        ("redis version", Verdict::Ok, |facts| {
            facts.info = info("redis_version:7.0.15", "redis_version:5.0.0\r\nvalkey_version:8.1.0");
        }),
        ("redis role", Verdict::Problem, |facts| facts.info = info("role:master", "role:slave")),
        ("redis role", Verdict::Problem, |facts| {
            facts.info = info("cluster_enabled:0", "cluster_enabled:1");
        }),
        ("redis scripts", Verdict::Problem, |facts| facts.script = forbidden()),
        ("redis eviction", Verdict::Problem, |facts| facts.policy = text("allkeys-lru")),
        ("redis eviction", Verdict::Problem, |facts| facts.policy = text("volatile-ttl")),
        ("redis eviction", Verdict::Warning, |facts| {
            facts.policy = text("allkeys-lru");
            facts.info = info("maxmemory:1073741824", "maxmemory:0");
        }),
        ("redis eviction", Verdict::Problem, |facts| {
            facts.policy = forbidden();
            facts.info = info("maxmemory_policy:noeviction", "maxmemory_policy:volatile-lru");
        }),
        ("redis memory", Verdict::Warning, |facts| {
            facts.info = info("used_memory:104857600", "used_memory:900000000");
        }),
        ("redis memory", Verdict::Problem, |facts| {
            facts.info = info("used_memory:104857600", "used_memory:1070000000");
        }),
        ("redis memory", Verdict::Ok, |facts| {
            facts.info = info("maxmemory:1073741824", "maxmemory:0");
        }),
        ("redis memory", Verdict::Warning, |facts| {
            let full = INFO.replace("used_memory:104857600", "used_memory:8000000000");
            facts.info = Ok(full.replace("maxmemory:1073741824", "maxmemory:0"));
        }),
        ("redis durability", Verdict::Warning, |facts| facts.info = info("aof_enabled:1", "aof_enabled:0")),
        ("redis durability", Verdict::Warning, |facts| facts.fsync = text("no")),
        ("redis durability", Verdict::Warning, |facts| facts.lazy_rewrite = text("yes")),
        ("redis durability", Verdict::Ok, |facts| facts.fsync = text("always")),
        ("redis disk", Verdict::Problem, |facts| {
            facts.info = info("aof_last_write_status:ok", "aof_last_write_status:err");
        }),
        ("redis disk", Verdict::Warning, |facts| {
            facts.info = info("rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err");
        }),
        ("redis disk", Verdict::Problem, |facts| facts.writes = Err("MISCONF: it can't save".to_owned())),
        ("clocks", Verdict::Warning, |facts| facts.ahead = Ok((2_001, Duration::ZERO))),
        ("clocks", Verdict::Warning, |facts| facts.ahead = Ok((-60_000, Duration::ZERO))),
        ("clocks", Verdict::Ok, |facts| facts.ahead = Ok((2_400, Duration::from_secs(1)))),
    ];
    for (check, verdict, change) in cases {
        let findings = judge_redis(change);
        assert_eq!(verdict_of(&findings, check), *verdict, "{findings:#?}");
    }
}

#[test]
fn a_redis_that_only_snapshots_is_said_to_lose_or_double_plays() {
    for snapshots in ["3600 1", ""] {
        let findings = judge_redis(|facts| {
            facts.info = info("aof_enabled:1", "aof_enabled:0");
            facts.snapshots = text(snapshots);
        });
        let finding = findings.iter().find(|finding| finding.check == "redis durability").unwrap();
        assert!(finding.found.contains("may be lost or counted twice"), "{finding:?}");
    }
}

#[test]
fn a_batch_applied_before_it_can_be_on_disk_is_a_problem_with_everysec_only() {
    for (age, fsync, verdict) in [
        ("1999ms", "everysec", Verdict::Problem),
        ("2s", "everysec", Verdict::Ok),
        ("0s", "always", Verdict::Ok),
    ] {
        let settings = settings(&[("HEADCOUNT_REDIS__BATCH_MIN_AGE", age)]);
        let facts = redis::Facts { fsync: text(fsync), ..good_redis() };
        assert_eq!(
            verdict_of(&redis::judge(&facts, &settings), "redis durability"),
            verdict,
            "{age} {fsync}"
        );
    }
}

#[test]
fn replicas_are_held_against_how_many_are_waited_for() {
    for (online, waited_for, wait, verdict, said) in [
        (0, "0", "false", Verdict::Ok, "none"),
        (2, "2", "false", Verdict::Ok, "before it is applied"),
        (2, "2", "true", Verdict::Ok, "before they are answered"),
        (1, "2", "false", Verdict::Problem, "no play reaches the database"),
        (0, "1", "true", Verdict::Problem, "plays are answered 503"),
        (1, "0", "false", Verdict::Warning, "count others twice"),
        (3, "2", "true", Verdict::Warning, "forget acknowledged plays"),
    ] {
        let lines: Vec<String> = (0..online)
            .map(|number| format!("slave{number}:ip=10.0.0.{number},port=6379,state=online,offset=7,lag=0"))
            .collect();
        // One that is still being sent what is there is none to wait for.
        let syncing = "slave9:ip=10.0.0.9,port=6379,state=wait_bgsave,offset=0,lag=0";
        let replicas = format!("connected_slaves:{}\r\n{syncing}\r\n{}", online + 1, lines.join("\r\n"));
        let facts = redis::Facts { info: info("connected_slaves:0", &replicas), ..good_redis() };
        let settings =
            settings(&[("HEADCOUNT_REDIS__WAIT_REPLICAS", waited_for), ("HEADCOUNT_PLAYS__WAIT", wait)]);
        let findings = redis::judge(&facts, &settings);
        let finding = findings.iter().find(|finding| finding.check == "redis replicas").unwrap();
        assert_eq!(finding.verdict, verdict, "{finding:?}");
        assert!(finding.found.contains(said), "{finding:?}");
    }
}

#[test]
fn what_a_redis_forbids_to_ask_is_unknown_and_never_fine() {
    // CONFIG renamed away or kept from this user by an ACL; INFO still tells the policy.
    let findings = judge_redis(|facts| {
        facts.policy = forbidden();
        facts.fsync = forbidden();
        facts.lazy_rewrite = forbidden();
        facts.snapshots = forbidden();
    });
    assert_eq!(verdict_of(&findings, "redis durability"), Verdict::Unknown);
    assert_eq!(verdict_of(&findings, "redis eviction"), Verdict::Ok, "INFO tells it");

    let nothing = redis::Facts {
        writes: Ok(()),
        info: forbidden(),
        policy: forbidden(),
        fsync: forbidden(),
        lazy_rewrite: forbidden(),
        snapshots: forbidden(),
        script: Ok(()),
        ahead: forbidden(),
        wait: Some(forbidden()),
    };
    for finding in redis::judge(&nothing, &settings(&[])) {
        if finding.check == "redis commands" {
            // The service can't run like that, which is more than not to know.
            assert_eq!(finding.verdict, Verdict::Problem, "{finding:?}");
            for command in ["INFO", "TIME", "WAIT"] {
                assert!(finding.found.contains(command), "{finding:?}");
            }
        } else if finding.check != "redis scripts" {
            assert_eq!(finding.verdict, Verdict::Unknown, "{finding:?}");
            assert!(finding.found.contains("NOPERM") && !finding.advice.is_empty(), "{finding:?}");
        }
    }
}

fn good_postgres() -> postgres::Facts {
    postgres::Facts {
        version: Ok((150_006, "15.6".to_owned())),
        standby: Ok(false),
        read_only: Ok(false),
        commit: text("on"),
        fsync: Ok(true),
        connections: Ok(97),
        steps: Ok(Some(vec![(1, true), (2, true)])),
        known: vec![1, 2],
        backends: Ok(vec![vec![7, 7, 7], vec![8, 8, 8], vec![9, 9, 9]]),
        prepared: Some(Ok(())),
    }
}

fn judge_postgres(change: impl FnOnce(&mut postgres::Facts, &mut config::Postgres)) -> Vec<Finding> {
    let mut facts = good_postgres();
    let mut settings = settings(&[]).postgres;
    change(&mut facts, &mut settings);
    postgres::judge(&facts, &settings)
}

#[test]
fn a_postgres_set_up_well_is_ok_in_everything() {
    let findings = judge_postgres(|_, _| {});
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Ok), "{findings:#?}");
}

#[test]
fn each_fault_of_a_postgres_is_found() {
    type Change = fn(&mut postgres::Facts, &mut config::Postgres);
    let cases: &[(&str, Verdict, Change)] = &[
        ("postgres version", Verdict::Problem, |facts, _| facts.version = Ok((130_022, "13.22".to_owned()))),
        ("postgres version", Verdict::Ok, |facts, _| facts.version = Ok((140_000, "14.0".to_owned()))),
        ("postgres version", Verdict::Ok, |facts, _| facts.version = Ok((180_000, "18.0".to_owned()))),
        ("postgres role", Verdict::Problem, |facts, _| facts.standby = Ok(true)),
        ("postgres role", Verdict::Problem, |facts, _| facts.read_only = Ok(true)),
        ("postgres durability", Verdict::Problem, |facts, _| facts.fsync = Ok(false)),
        ("postgres durability", Verdict::Problem, |facts, _| facts.commit = text("off")),
        ("postgres durability", Verdict::Ok, |facts, _| facts.commit = text("remote_apply")),
        ("postgres connections", Verdict::Warning, |facts, _| facts.connections = Ok(5)),
        ("postgres schema", Verdict::Ok, |facts, _| facts.steps = Ok(None)),
        ("postgres schema", Verdict::Ok, |facts, _| facts.steps = Ok(Some(vec![(1, true)]))),
        ("postgres schema", Verdict::Problem, |facts, settings| {
            facts.steps = Ok(Some(vec![(1, true)]));
            settings.migrate = false;
        }),
        ("postgres schema", Verdict::Problem, |facts, _| facts.steps = Ok(Some(vec![(1, true), (2, false)]))),
        ("postgres schema", Verdict::Ok, |facts, _| {
            facts.steps = Ok(Some(vec![(1, true), (2, true), (3, true)]));
        }),
        ("postgres pooling", Verdict::Ok, |facts, _| facts.backends = Ok(vec![vec![7; 3]; 3])),
        ("postgres pooling", Verdict::Problem, |facts, _| {
            facts.backends = Ok(vec![vec![7, 8, 7], vec![8, 9, 9], vec![9, 9, 9]]);
            facts.prepared = Some(Err("prepared statement \"sqlx_s_1\" already exists".to_owned()));
        }),
        ("postgres pooling", Verdict::Ok, |facts, settings| {
            facts.backends = Ok(vec![vec![7; 3]; 3]);
            facts.prepared = None;
            settings.prepared_statements = false;
        }),
        ("postgres pooling", Verdict::Unknown, |facts, _| {
            facts.backends = Ok(vec![vec![7; 3]; 3]);
            facts.prepared = None;
        }),
    ];
    for (check, verdict, change) in cases {
        let findings = judge_postgres(change);
        assert_eq!(verdict_of(&findings, check), *verdict, "{findings:#?}");
    }
}

#[test]
fn what_a_postgres_forbids_to_ask_is_unknown_and_never_fine() {
    let findings = judge_postgres(|facts, _| {
        *facts = postgres::Facts {
            version: forbidden(),
            standby: forbidden(),
            read_only: forbidden(),
            commit: forbidden(),
            fsync: forbidden(),
            connections: forbidden(),
            steps: forbidden(),
            known: vec![1],
            backends: forbidden(),
            prepared: Some(forbidden()),
        };
    });
    for finding in findings {
        assert_eq!(finding.verdict, Verdict::Unknown, "{finding:?}");
        assert!(finding.found.contains("NOPERM") && !finding.advice.is_empty(), "{finding:?}");
    }
}

#[test]
fn a_report_is_as_bad_as_its_worst_finding_and_tells_all() {
    let report = Report {
        findings: vec![
            Finding::ok("first", "all is well"),
            Finding::warning("second", "it is odd", "look"),
            Finding::unknown("third", "it is dark", "light it"),
        ],
    };
    assert_eq!(report.verdict(), Verdict::Warning);
    let table = report.table();
    for part in ["warning", "second", "it is odd", "light it"] {
        assert!(table.contains(part), "{table}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["verdict"], "warning");
    assert_eq!(json["findings"][2]["advice"], "light it");
}
