//! What makes a Postgres fit to hold totals, judged from its own answers.

use super::{Answer, Finding};
use crate::config;

/// What was asked.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// `server_version_num` and `server_version`.
    pub(super) version: Answer<(u32, String)>,
    /// Whether it only follows another server.
    pub(super) standby: Answer<bool>,
    /// `default_transaction_read_only`.
    pub(super) read_only: Answer<bool>,
    /// `synchronous_commit`.
    pub(super) commit: Answer<String>,
    /// `fsync`.
    pub(super) fsync: Answer<bool>,
    /// `max_connections`, less those kept for superusers.
    pub(super) connections: Answer<u32>,
    /// The steps of the schema that were tried: number, and whether it went through. `None` where
    /// the schema was never begun.
    pub(super) steps: Answer<Option<Vec<(i64, bool)>>>,
    /// The steps this version knows.
    pub(super) known: Vec<i64>,
    /// The server processes that answered, statement by statement, for each of our connections.
    pub(super) backends: Answer<Vec<Vec<i32>>>,
    /// Whether prepared statements work on connections used in turn; not tried where they are off.
    pub(super) prepared: Option<Answer<()>>,
}

/// The first that reads a stretch of a table by its place in the file. In an older one each step of an
/// audit would read the whole table.
const OLDEST: u32 = 140_000;

pub(super) fn judge(facts: &Facts, settings: &config::Postgres) -> Vec<Finding> {
    vec![
        version(facts),
        role(facts),
        commits(facts),
        connections(facts, settings),
        schema(facts, settings),
        pooling(facts, settings),
    ]
}

fn version(facts: &Facts) -> Finding {
    const CHECK: &str = "postgres version";
    match &facts.version {
        Ok((number, text)) if *number >= OLDEST => Finding::ok(CHECK, format!("PostgreSQL {text}")),
        Ok((_, text)) => Finding::problem(CHECK, format!("PostgreSQL {text}"), "use PostgreSQL 14 or later"),
        Err(reason) => Finding::unknown(CHECK, reason.clone(), "see that it is PostgreSQL 14 or later"),
    }
}

fn role(facts: &Facts) -> Finding {
    const CHECK: &str = "postgres role";
    const ADVICE: &str = "point postgres.url at the primary, as a user who may write";
    match (&facts.standby, &facts.read_only) {
        (Ok(true), _) => Finding::problem(CHECK, "it is a standby and takes no writes", ADVICE),
        (_, Ok(true)) => {
            Finding::problem(CHECK, "transactions are read-only (default_transaction_read_only)", ADVICE)
        }
        (Ok(false), Ok(false)) => Finding::ok(CHECK, "it is a primary"),
        (Err(reason), _) | (_, Err(reason)) => Finding::unknown(CHECK, reason.clone(), ADVICE),
    }
}

fn commits(facts: &Facts) -> Finding {
    const CHECK: &str = "postgres durability";
    match (&facts.fsync, facts.commit.as_deref()) {
        (Ok(false), _) => {
            Finding::problem(CHECK, "fsync is off: a power cut may destroy the database", "set fsync on")
        }
        (_, Ok("off")) => Finding::problem(
            CHECK,
            "synchronous_commit is off: a crash forgets plays that Redis has given up by then",
            "set synchronous_commit on, at least for this user (alter role … set synchronous_commit = on)",
        ),
        (Ok(true), Ok(commit)) => Finding::ok(CHECK, format!("synchronous_commit {commit}")),
        (Err(reason), _) | (_, Err(reason)) => {
            Finding::unknown(CHECK, reason.clone(), "see that fsync and synchronous_commit are on")
        }
    }
}

fn connections(facts: &Facts, settings: &config::Postgres) -> Finding {
    const CHECK: &str = "postgres connections";
    let ours = settings.max_connections;
    match facts.connections {
        Ok(theirs) if ours > theirs => Finding::warning(
            CHECK,
            format!("postgres.max_connections is {ours}, the server lets in {theirs}"),
            "lower it, or raise max_connections of the server; every instance opens so many",
        ),
        Ok(theirs) => {
            Finding::ok(CHECK, format!("up to {ours} for this instance, {theirs} for all clients together"))
        }
        Err(ref reason) => {
            Finding::unknown(CHECK, reason.clone(), "see that the server lets in all instances' connections")
        }
    }
}

fn schema(facts: &Facts, settings: &config::Postgres) -> Finding {
    const CHECK: &str = "postgres schema";
    let tried = match &facts.steps {
        Ok(tried) => tried.as_deref().unwrap_or_default(),
        Err(reason) => {
            return Finding::unknown(CHECK, reason.clone(), "see that `headcount migrate` went through");
        }
    };
    let list = |steps: &[i64]| steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let failed: Vec<i64> = tried.iter().filter(|(_, done)| !done).map(|(step, _)| *step).collect();
    if !failed.is_empty() {
        return Finding::problem(
            CHECK,
            format!("step {} was begun and did not end", list(&failed)),
            "see in Postgres's log why, mend it, and run `headcount migrate`",
        );
    }
    let has = |step: &i64| tried.iter().any(|(done, _)| done == step);
    let missing: Vec<i64> = facts.known.iter().filter(|step| !has(step)).copied().collect();
    if !missing.is_empty() {
        let found = format!("step {} is missing", list(&missing));
        return if settings.migrate {
            Finding::ok(CHECK, format!("{found}; the next start applies it (postgres.migrate)"))
        } else {
            Finding::problem(CHECK, found, "run `headcount migrate`")
        };
    }
    let last = tried.iter().map(|(step, _)| *step).max().unwrap_or(0);
    let newer = if facts.known.contains(&last) { "" } else { ", made by a newer version of headcount" };
    Finding::ok(CHECK, format!("complete at step {last}{newer}"))
}

fn pooling(facts: &Facts, settings: &config::Postgres) -> Finding {
    const CHECK: &str = "postgres pooling";
    const FOUND: &str = "a pooler hands connections out by the transaction";
    let pooled = match &facts.backends {
        Ok(backends) => is_pooled(backends),
        Err(reason) => {
            let advice = "behind a pooler in transaction mode, set postgres.prepared_statements = false";
            return Finding::unknown(CHECK, reason.clone(), advice);
        }
    };
    if !pooled {
        return Finding::ok(CHECK, "each connection has a server process of its own");
    }
    match &facts.prepared {
        _ if !settings.prepared_statements => {
            Finding::ok(CHECK, format!("{FOUND}; prepared statements are off, as they should be"))
        }
        Some(Ok(())) => Finding::ok(CHECK, format!("{FOUND} and follows prepared statements")),
        Some(Err(reason)) => Finding::problem(
            CHECK,
            format!("{FOUND} and loses prepared statements: {reason}"),
            "set postgres.prepared_statements = false, or max_prepared_statements of PgBouncer 1.21 or later",
        ),
        None => Finding::unknown(
            CHECK,
            format!("{FOUND}; whether it follows prepared statements wasn't tried"),
            "set postgres.prepared_statements = false if it doesn't",
        ),
    }
}

/// Connections that have server processes of their own always see the same one, and never one that
/// another of them sees.
fn is_pooled(backends: &[Vec<i32>]) -> bool {
    let mut owners = std::collections::HashMap::new();
    backends.iter().enumerate().any(|(connection, seen)| {
        let moved = seen.windows(2).any(|pair| pair[0] != pair[1]);
        moved || seen.iter().any(|process| *owners.entry(process).or_insert(connection) != connection)
    })
}
