//! Kills everything around headcount at random and looks whether every play is counted once.
//!
//! Two instances, a Redis that forgets nothing and a Postgres; players, viewers and readers; and a
//! killer. `scripts/torture` builds what this needs and runs it.

mod audience;
mod audit;
mod clients;
mod cluster;
mod faults;
mod http;
mod instance;
mod kafka;
mod keys;
mod killer;
mod ledger;
mod process;
mod readers;
mod report;
mod run;
mod stores;
mod tails;
mod tally;
mod verdict;
mod world;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, ensure};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::world::{Kind, Programs};

/// Kill everything around headcount at random, and look whether every play is counted once.
#[derive(Debug, Parser)]
#[command(name = "torture")]
struct Options {
    /// For how long; fractions are allowed.
    #[arg(default_value_t = 10.0)]
    minutes: f64,
    /// Strike by the schedule of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Plays a second, all players together.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// On a Redis Cluster, whose primaries are killed and whose slots move.
    #[arg(long)]
    cluster: bool,
    /// With Kafka, whose brokers are killed while consumers come and go.
    #[arg(long, conflicts_with = "cluster")]
    kafka: bool,
    /// The service.
    #[arg(long, value_name = "FILE")]
    headcount: PathBuf,
    /// Where initdb and postgres are.
    #[arg(long, value_name = "FOLDER")]
    postgres: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let Options { minutes, seed, rate, cluster, kafka, headcount, postgres } = Options::parse();
    ensure!(minutes > 0.0 && minutes < 1e6, "minutes must be more than 0");
    let programs = Programs { headcount, postgres };
    let seed = seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let kind = match (cluster, kafka) {
        (true, _) => Kind::Cluster,
        (_, true) => Kind::Kafka,
        _ => Kind::Single,
    };
    let plan = run::Plan { seed, lasts: Duration::from_secs_f64(minutes * 60.0), rate, kind };
    let folder = tempfile::Builder::new().prefix("headcount-torture.").tempdir()?;
    println!("torture: {minutes} minutes, seed {seed}, logs and data in {}", folder.path().display());

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        tokio::select! {
            ended = run::run(&plan, &programs, folder.path()) => Ok(ended),
            code = interrupted() => Err(code),
        }
    });
    // With its tasks go all processes; the folder they write to is removed after them.
    drop(runtime);
    let passed = match ended {
        Ok(Ok(report)) => report.print(minutes, seed),
        Ok(Err(error)) => {
            println!("torture: it could not be brought to its end: {error:#}");
            false
        }
        Err(code) => return Ok(ExitCode::from(code?)),
    };
    if passed {
        return Ok(ExitCode::SUCCESS);
    }
    println!("torture: FAILED, seed {seed}; logs and data are kept in {}", folder.keep().display());
    Ok(ExitCode::FAILURE)
}

/// Waits for a signal that asks this to end, and answers the exit code for it.
async fn interrupted() -> anyhow::Result<u8> {
    let listen = |kind| signal(kind).context("can't listen for signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => 130,
        _ = terminate.recv() => 143,
        _ = hang_up.recv() => 129,
    })
}
