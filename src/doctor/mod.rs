//! Whether the stores are set up so that the promises hold: asked by `headcount doctor`, and at every
//! start in the background.
//!
//! Asking (`ask_redis`, `ask_postgres`, `ask_kafka`) gives facts; judging them (`redis`, `postgres`,
//! `kafka`) is plain functions, so that every good, bad and forbidden answer has its test. A check that may not look
//! says *unknown*, never "fine".

#[cfg(feature = "kafka")]
mod ask_kafka;
mod ask_postgres;
mod ask_redis;
mod embedded;
#[cfg(feature = "kafka")]
mod kafka;
mod postgres;
mod redis;
mod report;
#[cfg(test)]
mod tests;
mod watching;

pub use self::{report::Report, watching::Watching};

use crate::{
    clock::Clock,
    config::{BackendKind, Config, Topology},
};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It couldn't be looked at.
    Unknown,
    /// Fine for some; know about it.
    Warning,
    /// A promise doesn't hold.
    Problem,
}

impl Verdict {
    /// The word in reports and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was seen.
    pub found: String,
    /// What to do about it; empty where nothing is.
    pub advice: String,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: String::new() }
    }

    fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), advice: advice.into() }
    }

    fn problem(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Problem, found: found.into(), advice: advice.into() }
    }

    fn unknown(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Unknown, found: found.into(), advice: advice.into() }
    }
}

/// What a store said to one question, or why it didn't say.
type Answer<T> = Result<T, String>;

/// Looks at everything the configured backend rests on.
pub async fn examine(config: &Config, clock: &dyn Clock) -> Report {
    let findings = match config.backend {
        BackendKind::Embedded => embedded::examine(&config.embedded).await,
        BackendKind::Redis => {
            let (redis, postgres) = tokio::join!(
                Box::pin(ask_redis::ask_all(&config.redis, clock)),
                Box::pin(ask_postgres::ask(&config.postgres))
            );
            let mut findings = match redis {
                Ok(asked) => redis_findings(&asked, config),
                Err(reason) => {
                    let (setting, addresses) = config.redis.addresses();
                    vec![unreachable("redis", setting, &addresses, &reason)]
                }
            };
            findings.extend(match postgres {
                Ok(facts) => postgres::judge(&facts, &config.postgres),
                Err(reason) => {
                    vec![unreachable("postgres", "postgres.url", &config.postgres.url.redacted(), &reason)]
                }
            });
            #[cfg(feature = "kafka")]
            if config.kafka.is_used() {
                findings.extend(match ask_kafka::ask(&config.kafka).await {
                    Ok(facts) => kafka::judge(&facts, &config.kafka),
                    Err(reason) => {
                        vec![unreachable("kafka", "kafka.brokers", &config.kafka.brokers, &reason)]
                    }
                });
            }
            findings
        }
    };
    Report { findings }
}

/// Of several primaries the worst of each check, with the address of which it is.
fn redis_findings(asked: &ask_redis::Asked, config: &Config) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let several = asked.primaries.len() > 1;
    for (address, facts) in &asked.primaries {
        let judged = match facts {
            Ok(facts) => redis::judge(facts, config),
            Err(reason) => vec![unreachable("redis", config.redis.addresses().0, address, reason)],
        };
        for mut finding in judged {
            if several && finding.verdict != Verdict::Ok {
                finding.found = format!("{address}: {}", finding.found);
            }
            match findings.iter_mut().find(|known| known.check == finding.check) {
                Some(known) if known.verdict < finding.verdict => *known = finding,
                Some(_) => {}
                None => findings.push(finding),
            }
        }
    }
    if config.redis.topology == Topology::Cluster {
        findings.push(redis::coverage(asked.primaries.len(), asked.uncovered));
    }
    findings
}

/// The steps of the schema that went through, with their names.
///
/// # Errors
/// The database can't be asked.
pub async fn applied_steps(config: &Config) -> Result<Vec<(i64, String)>, String> {
    match config.backend {
        BackendKind::Embedded => embedded::applied_steps(&config.embedded).await,
        BackendKind::Redis => ask_postgres::applied_steps(&config.postgres).await,
    }
}

fn unreachable(check: &'static str, setting: &str, address: &str, reason: &str) -> Finding {
    Finding::problem(
        check,
        format!("{address} can't be used: {reason}"),
        format!("start it, or mend {setting} (address, user, password, TLS)"),
    )
}
