//! `headcount doctor`: whether the stores are set up so that the promises hold.

use std::{path::Path, process::ExitCode};

use super::{print, settings, wait_for};
use crate::{
    clock::SystemClock,
    doctor::{Verdict, examine},
};

/// What `headcount doctor` can be told.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(file: Option<&Path>, options: &Options) -> anyhow::Result<ExitCode> {
    let config = settings(file)?.config;
    let clock = SystemClock::start();
    let report = wait_for(async { Ok(examine(&config, clock.as_ref()).await) })?;
    print(&if options.json { report.json() } else { report.table() })?;
    Ok(if report.verdict() == Verdict::Problem { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
