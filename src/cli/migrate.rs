//! `headcount migrate`: brings the tables up to date, for those who don't let a start do it, and makes
//! Kafka's topics, which a start never does.

use std::{path::Path, process::ExitCode};

use anyhow::Context as _;

use super::{print, settings, wait_for};
#[cfg(feature = "kafka")]
use crate::plays::in_kafka::topics;
use crate::{
    config::{BackendKind, Config},
    doctor::applied_steps,
    store::{postgres::Postgres, sqlite::Sqlite},
};

pub(super) fn run(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let config = settings(file)?.config;
    let (database, applied, last) = wait_for(migrate(&config))?;
    for (step, name) in &applied {
        print(&format!("{database}: applied step {step}, {name}"))?;
    }
    if applied.is_empty() {
        print(&format!("{database}: nothing to apply, complete at step {last}"))?;
    }
    #[cfg(feature = "kafka")]
    if config.kafka.is_used() {
        for topic in wait_for(make_topics(&config))? {
            let what = if topic.made { "made the topic" } else { "nothing to make, there is the topic" };
            print(&format!("{}: {what} {}", config.kafka.brokers, topic.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "kafka")]
async fn make_topics(config: &Config) -> anyhow::Result<Vec<topics::Topic>> {
    let made = topics::make(&config.kafka).await;
    made.with_context(|| format!("can't make the topics at {}", config.kafka.brokers))
}

/// The steps that this call applied, and the last there is.
async fn migrate(config: &Config) -> anyhow::Result<(String, Vec<(i64, String)>, i64)> {
    let database = match config.backend {
        BackendKind::Embedded => config.embedded.path.display().to_string(),
        BackendKind::Redis => config.postgres.url.redacted(),
    };
    let steps = async || {
        let asked = applied_steps(config).await;
        asked.map_err(anyhow::Error::msg).with_context(|| format!("can't read the schema of {database}"))
    };
    let before = steps().await?;
    match config.backend {
        // Opening it is what does it.
        BackendKind::Embedded => Sqlite::open(&config.embedded.path).await?.close().await,
        BackendKind::Redis => Postgres::new(&config.postgres)?.migrate().await?,
    }
    let mut after = steps().await?;
    let last = after.iter().map(|(step, _)| *step).max().unwrap_or(0);
    after.retain(|step| !before.contains(step));
    Ok((database, after, last))
}
