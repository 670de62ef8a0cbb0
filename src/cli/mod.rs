//! The command line: one file a command, and what they share.

mod audit;
mod check_config;
#[cfg(feature = "kafka")]
mod consume;
mod doctor;
mod healthcheck;
mod migrate;
mod openapi;
mod serve;

use std::{
    ffi::OsString,
    future::Future,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::{
    config::{
        invalid::Invalid,
        load::{Loaded, load},
    },
    simulate,
};

/// How many people are watching this video now, and how often was it played.
#[derive(Debug, Parser)]
#[command(name = "headcount", version)]
pub struct Cli {
    /// Settings over the built-in ones; HEADCOUNT_ variables go over both.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service (what is done where no command is given).
    Serve,
    /// Bring the tables of the database up to date, make Kafka's topics, and say what was missing.
    Migrate,
    /// Check the settings, and show those that differ from the built-in ones.
    CheckConfig,
    /// Count the plays that are in Kafka's log, without serving players.
    #[cfg(feature = "kafka")]
    Consume(consume::Options),
    /// Check that the stores are set up so that the promises hold.
    Doctor(doctor::Options),
    /// Look whether every play that was counted is still somewhere: 0 if so, else 1.
    Audit(audit::Options),
    /// Ask a running service whether it is ready: 0 if so, else 1.
    Healthcheck(healthcheck::Options),
    /// Print the OpenAPI document of the HTTP API.
    Openapi,
    /// Play an audience against running instances over HTTP, and compare the counts.
    Simulate(simulate::Options),
}

/// Bad settings, as bad arguments: the caller has to change something.
const UNUSABLE: u8 = 2;

/// Reads the arguments of the command line.
///
/// # Errors
/// They ask for help, or can't be understood: that is printed, and this is how the process ends.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Cli, ExitCode> {
    let arguments: Vec<OsString> = arguments.collect();
    Cli::try_parse_from(&arguments).map_err(|error| {
        // Nobody is left to be told where even stderr is gone.
        let _ = error.print();
        // Docker reserves 2.
        let is_for_docker = error.use_stderr() && arguments.iter().any(|word| word == "healthcheck");
        if is_for_docker {
            ExitCode::FAILURE
        } else {
            u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    })
}

/// Runs the command and tells how it ended. An error is printed once, with its causes.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    let file = cli.config.as_deref();
    let ended = match cli.command {
        Some(Command::Audit(options)) => audit::run(file, &options),
        Some(Command::CheckConfig) => check_config::run(file),
        #[cfg(feature = "kafka")]
        Some(Command::Consume(options)) => consume::run(file, &options),
        Some(Command::Doctor(options)) => doctor::run(file, &options),
        Some(Command::Healthcheck(options)) => healthcheck::run(file, &options),
        Some(Command::Migrate) => migrate::run(file),
        Some(Command::Openapi) => openapi::run(),
        Some(Command::Simulate(options)) => on_all_cores(simulate::run(options)),
        Some(Command::Serve) | None => serve::run(file),
    };
    ended.unwrap_or_else(|error| {
        complain(&error);
        if error.is::<Invalid>() { ExitCode::from(UNUSABLE) } else { ExitCode::FAILURE }
    })
}

/// Prints an error and its causes to stderr.
fn complain(error: &anyhow::Error) {
    // Nobody is left to be told where even stderr is gone.
    let _ = writeln!(io::stderr(), "headcount: {error:#}");
}

/// The settings, with their warnings told on stderr.
fn settings(file: Option<&Path>) -> anyhow::Result<Loaded> {
    let loaded = load(file, None)?;
    for warning in &loaded.warnings {
        let _ = writeln!(io::stderr(), "headcount: warning: {warning}");
    }
    Ok(loaded)
}

/// Prints to stdout. Who reads it may stop early (`| head`), which is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{text}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("can't write to stdout"),
    }
}

/// Runs a command that waits for others, on this thread.
fn wait_for<T>(task: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the runtime")?
        .block_on(task)
}

/// Runs a command that has a lot to do.
fn on_all_cores<T>(task: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("can't start the runtime")?
        .block_on(task)
}
