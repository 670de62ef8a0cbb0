//! What makes a Redis fit to hold plays and viewers, judged from its own answers.

use std::time::Duration;

use super::{Answer, Finding};
use crate::{
    config::{self, Config, Topology},
    store::{redis::info_field, time::TOLERATED_SKEW},
};

/// What was asked.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// An error where it refuses all writes because it can't save.
    pub(super) writes: Answer<()>,
    /// `INFO`, all of it.
    pub(super) info: Answer<String>,
    /// `CONFIG GET maxmemory-policy`.
    pub(super) policy: Answer<String>,
    /// `CONFIG GET appendfsync`.
    pub(super) fsync: Answer<String>,
    /// `CONFIG GET no-appendfsync-on-rewrite`.
    pub(super) lazy_rewrite: Answer<String>,
    /// `CONFIG GET save`: when it writes a snapshot; empty for never.
    pub(super) snapshots: Answer<String>,
    /// Whether a script may run.
    pub(super) script: Answer<()>,
    /// How far its clock is ahead of this host's, in milliseconds, and how long the question took.
    pub(super) ahead: Answer<(i64, Duration)>,
    /// Whether `WAIT` may be called; not tried where replicas aren't waited for.
    pub(super) wait: Option<Answer<()>>,
}

/// Once Redis is so full, plays are soon refused.
const NEARLY_FULL: u64 = 80;
const FULL: u64 = 95;

/// The oldest that works: scripts use effects that came with it.
const OLDEST: (u64, u64) = (7, 0);

/// What `appendfsync everysec` may take to reach the disk: Redis itself allows a second more.
const EVERYSEC: Duration = Duration::from_secs(2);

const LOOSE: &str = "plays may be lost or counted twice when it comes back older than it was";

pub(super) fn judge(facts: &Facts, config: &Config) -> Vec<Finding> {
    vec![
        version(facts),
        topology(facts, config.redis.topology),
        commands(facts),
        scripts(facts),
        eviction(facts),
        memory(facts),
        durability(facts, &config.redis),
        replicas(facts, config),
        disk(facts),
        clock(facts),
    ]
}

fn field<'a>(facts: &'a Facts, name: &str) -> Answer<&'a str> {
    let info = facts.info.as_ref().map_err(Clone::clone)?;
    info_field(info, name).ok_or_else(|| format!("INFO names no {name}"))
}

fn number(facts: &Facts, name: &str) -> Answer<u64> {
    field(facts, name)?.parse().map_err(|_| format!("INFO's {name} is no number"))
}

fn version(facts: &Facts) -> Finding {
    const CHECK: &str = "redis version";
    if let Ok(valkey) = field(facts, "valkey_version") {
        return Finding::ok(CHECK, format!("Valkey {valkey}"));
    }
    let text = match field(facts, "redis_version") {
        Ok(text) => text,
        Err(reason) => {
            return Finding::unknown(CHECK, reason, "see that it is Redis 7.0 or later, or Valkey");
        }
    };
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= OLDEST {
        Finding::ok(CHECK, format!("Redis {text}"))
    } else {
        Finding::problem(CHECK, format!("Redis {text}"), "use Redis 7.0 or later, or Valkey")
    }
}

/// Whether every key has a place.
pub(super) fn coverage(primaries: usize, uncovered: usize) -> Finding {
    const CHECK: &str = "redis cluster";
    if uncovered == 0 {
        return Finding::ok(CHECK, format!("{primaries} primaries have all slots"));
    }
    Finding::problem(
        CHECK,
        format!(
            "{uncovered} slots have no primary: Redis refuses what belongs there, and by default all else"
        ),
        "bring the missing primary or a replica of it back, or mend it with redis-cli --cluster fix",
    )
}

fn topology(facts: &Facts, wanted: Topology) -> Finding {
    const CHECK: &str = "redis role";
    if field(facts, "cluster_enabled") == Ok("1") && wanted != Topology::Cluster {
        return Finding::problem(
            CHECK,
            "it is a node of a cluster",
            "set redis.topology = \"cluster\", and redis.urls to some of its nodes",
        );
    }
    match field(facts, "role") {
        Ok("master") => Finding::ok(CHECK, "it is a primary"),
        Ok(other) => Finding::problem(
            CHECK,
            format!("it is a replica (role {other}) and takes no writes"),
            "point redis.url at the primary",
        ),
        Err(reason) => Finding::unknown(CHECK, reason, "see that redis.url names the primary"),
    }
}

/// What the service can't do without. Where it may not ask, it isn't enough to know nothing.
fn commands(facts: &Facts) -> Finding {
    const CHECK: &str = "redis commands";
    let asked = [
        ("INFO", facts.info.as_ref().err()),
        ("TIME", facts.ahead.as_ref().err()),
        ("WAIT", facts.wait.as_ref().and_then(|wait| wait.as_ref().err())),
    ];
    let refused: Vec<String> = asked
        .into_iter()
        .filter_map(|(command, reason)| reason.map(|reason| format!("{command} ({reason})")))
        .collect();
    if refused.is_empty() {
        return Finding::ok(CHECK, "those that are needed may be used");
    }
    Finding::problem(
        CHECK,
        format!("headcount can't work without what is refused: {}", refused.join(", ")),
        "allow it to the user in redis.url",
    )
}

fn scripts(facts: &Facts) -> Finding {
    const CHECK: &str = "redis scripts";
    match &facts.script {
        Ok(()) => Finding::ok(CHECK, "scripts may run"),
        Err(reason) => Finding::problem(
            CHECK,
            format!("scripts may not run: {reason}"),
            "allow EVAL, EVALSHA and SCRIPT LOAD to the user in redis.url",
        ),
    }
}

fn eviction(facts: &Facts) -> Finding {
    const CHECK: &str = "redis eviction";
    const ADVICE: &str = "set maxmemory-policy noeviction; give a cache a Redis of its own";
    let policy = match facts.policy.as_deref() {
        Ok(policy) => policy,
        // INFO tells it as well, and is allowed where CONFIG often isn't.
        Err(reason) => match field(facts, "maxmemory_policy") {
            Ok(policy) => policy,
            Err(_) => {
                return Finding::unknown(CHECK, reason.clone(), "see that maxmemory-policy is noeviction");
            }
        },
    };
    if policy == "noeviction" {
        return Finding::ok(CHECK, "noeviction");
    }
    match number(facts, "maxmemory") {
        Ok(0) => Finding::warning(CHECK, format!("{policy}, without effect while maxmemory is 0"), ADVICE),
        _ => Finding::problem(
            CHECK,
            format!("{policy}: a full Redis throws away plays and viewers without a word"),
            ADVICE,
        ),
    }
}

fn memory(facts: &Facts) -> Finding {
    const CHECK: &str = "redis memory";
    let (used, limit) = match (number(facts, "used_memory"), number(facts, "maxmemory")) {
        (Ok(used), Ok(limit)) => (used, limit),
        (Err(reason), _) | (_, Err(reason)) => {
            return Finding::unknown(CHECK, reason, "see that it can't grow into the machine's limit");
        }
    };
    let machine = number(facts, "total_system_memory").unwrap_or(0);
    let share = |whole: u64| used.saturating_mul(100).checked_div(whole).unwrap_or(0);
    let found = |whole: u64, of: &str| format!("{} of {} {of} used", mebibytes(used), mebibytes(whole));
    if limit > 0 {
        let found = found(limit, "maxmemory");
        return match share(limit) {
            FULL.. => {
                Finding::problem(CHECK, found, "give it more: at the limit, beats and plays are refused")
            }
            NEARLY_FULL.. => Finding::warning(CHECK, found, "give it more before it is full"),
            _ => Finding::ok(CHECK, found),
        };
    }
    if share(machine) >= NEARLY_FULL {
        let advice = "set maxmemory: without it the system kills Redis instead of Redis refusing writes";
        return Finding::warning(CHECK, found(machine, "the machine's memory"), advice);
    }
    Finding::ok(CHECK, format!("{} used, no maxmemory set", mebibytes(used)))
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes / (1024 * 1024))
}

fn durability(facts: &Facts, settings: &config::Redis) -> Finding {
    const CHECK: &str = "redis durability";
    let age = settings.batch_min_age;
    match number(facts, "aof_enabled") {
        Ok(1) => {}
        Ok(_) => {
            let kept = match facts.snapshots.as_deref() {
                Ok("") => "nothing on disk: a restart forgets viewers and the plays not yet in Postgres",
                _ => "snapshots (RDB) only",
            };
            return Finding::warning(
                CHECK,
                format!("{kept}; {LOOSE}"),
                "set appendonly yes and appendfsync everysec (or always)",
            );
        }
        Err(reason) => {
            return Finding::unknown(
                CHECK,
                reason,
                "see that appendonly is yes and appendfsync everysec or always",
            );
        }
    }
    match facts.fsync.as_deref() {
        Ok("always") => Finding::ok(CHECK, "append-only file, on disk before each answer"),
        Ok("everysec") if facts.lazy_rewrite.as_deref() == Ok("yes") => Finding::warning(
            CHECK,
            format!("append-only file, but not forced to disk while it is rewritten; {LOOSE}"),
            "set no-appendfsync-on-rewrite no",
        ),
        Ok("everysec") if age < EVERYSEC => Finding::problem(
            CHECK,
            format!(
                "appendfsync everysec, and redis.batch_min_age is {}: a power cut may count plays twice",
                humantime::format_duration(age)
            ),
            "set redis.batch_min_age to 2s or more, or appendfsync always",
        ),
        Ok("everysec") => Finding::ok(CHECK, "append-only file, on disk every second"),
        Ok(other) => Finding::warning(
            CHECK,
            format!("appendfsync {other}: on disk when the system sees fit; {LOOSE}"),
            "set appendfsync everysec or always",
        ),
        Err(reason) => Finding::unknown(
            CHECK,
            format!("append-only file; how often it is forced to disk can't be seen: {reason}"),
            "see that appendfsync is everysec or always",
        ),
    }
}

fn replicas(facts: &Facts, config: &Config) -> Finding {
    const CHECK: &str = "redis replicas";
    let (wanted, wait) = (u64::from(config.redis.wait_replicas), config.plays.wait);
    let there = match number(facts, "connected_slaves") {
        Ok(_) => replicas_in_step(facts),
        Err(reason) => {
            let advice = "see that redis.wait_replicas is the number of replicas that may be promoted";
            return Finding::unknown(CHECK, reason, advice);
        }
    };
    if there < wanted {
        let cost = if wait { "plays are answered 503" } else { "no play reaches the database" };
        return Finding::problem(
            CHECK,
            format!("{there} are in step, redis.wait_replicas is {wanted}: {cost}"),
            "bring replicas back, or lower redis.wait_replicas",
        );
    }
    if there > wanted {
        let cost = if wait { "forget acknowledged plays" } else { "forget plays" };
        return Finding::warning(
            CHECK,
            format!(
                "{there} are in step, redis.wait_replicas is {wanted}: a failover to one that is behind may \
                 {cost} and count others twice"
            ),
            format!("set redis.wait_replicas to {there}, if all of them may be promoted"),
        );
    }
    Finding::ok(
        CHECK,
        match (there, wait) {
            (0, _) => "none".to_owned(),
            (_, true) => format!("{there}; plays are on all of them before they are answered"),
            (_, false) => format!("{there}; a batch is on all of them before it is applied"),
        },
    )
}

/// Replicas that are sent what is written now; others are still being sent what was before.
fn replicas_in_step(facts: &Facts) -> u64 {
    let info = facts.info.as_deref().unwrap_or_default();
    let is_one = |line: &&str| {
        let number = line.strip_prefix("slave").and_then(|rest| rest.split_once(':'));
        number.is_some_and(|(number, rest)| number.parse::<u32>().is_ok() && rest.contains("state=online"))
    };
    info.lines().filter(is_one).fold(0, |count, _| count + 1)
}

fn disk(facts: &Facts) -> Finding {
    const CHECK: &str = "redis disk";
    const ADVICE: &str =
        "look for the reason in Redis's log; the disk may be full or memory too short to fork";
    if facts.writes.is_err() {
        return Finding::problem(CHECK, "its last snapshot failed, and it refuses all writes for it", ADVICE);
    }
    let last = |name| field(facts, name);
    match (last("aof_last_write_status"), last("rdb_last_bgsave_status")) {
        (Ok("ok"), Ok("ok")) => Finding::ok(CHECK, "its last writes went through"),
        (Ok("ok"), Ok(_)) => {
            Finding::warning(CHECK, "its last snapshot failed; Redis may refuse writes for it", ADVICE)
        }
        (Ok(_), Ok(_)) => Finding::problem(
            CHECK,
            "its last write to the append-only file failed",
            "look for the reason in Redis's log; the disk may be full",
        ),
        (Err(reason), _) | (_, Err(reason)) => {
            Finding::unknown(CHECK, reason, "see in Redis's log that its disk takes writes")
        }
    }
}

fn clock(facts: &Facts) -> Finding {
    const CHECK: &str = "clocks";
    match &facts.ahead {
        Ok((ahead, took)) => {
            let off = Duration::from_millis(ahead.unsigned_abs());
            let found = format!("Redis's is {ahead} ms ahead of this host's");
            // Half the round trip is the measurement's own error.
            if off > TOLERATED_SKEW + *took / 2 {
                Finding::warning(
                    CHECK,
                    found,
                    "let NTP set both; counts go by Redis's clock, logs by this one",
                )
            } else {
                Finding::ok(CHECK, found)
            }
        }
        Err(reason) => Finding::unknown(CHECK, reason.clone(), "see that both hosts run NTP"),
    }
}
