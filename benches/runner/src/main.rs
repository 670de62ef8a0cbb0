//! Measures headcount against an empty handler of the same server, against its peers, and against what
//! it promises. `scripts/bench` builds and calls it.

mod audience;
mod bench;
mod bulk;
mod figures;
mod http;
mod lines;
mod machine;
mod open_loop;
mod process;
mod report;
mod simulator;
mod waits;
mod world;
mod wrk;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum as _};
use tokio::signal::unix::{SignalKind, signal};

use self::{bench::Bench, lines::Line, machine::Machine, report::Report};

/// Measure headcount
#[derive(Clone, Debug, Parser)]
#[command(name = "bench")]
pub(crate) struct Options {
    /// About two minutes: shorter rounds, a tenth of the viewers
    #[arg(long)]
    pub(crate) quick: bool,

    /// Only this line; may be given more than once
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<Line>,

    /// Redis writes its log, once a second (appendfsync everysec)
    #[arg(long)]
    pub(crate) aof: bool,

    /// The program to measure, built with the feature `bench`
    #[arg(long, hide = true)]
    pub(crate) headcount: PathBuf,

    /// The folder of the peers
    #[arg(long, hide = true)]
    pub(crate) peers: PathBuf,

    /// The peer that is built from them
    #[arg(long, hide = true)]
    pub(crate) axum_peer: PathBuf,

    /// Postgres's programs
    #[arg(long, hide = true)]
    pub(crate) postgres: PathBuf,

    /// Where results go
    #[arg(long, hide = true)]
    pub(crate) output: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let mut options = Options::parse();
    options.output = std::path::absolute(&options.output)?;
    // One thread: what is measured should have the machine.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, run(options))
}

async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [interrupt, terminate, hangup] = &mut signals;
    let (Ok(interrupt), Ok(terminate), Ok(hangup)) = (interrupt, terminate, hangup) else {
        anyhow::bail!("can't listen for signals")
    };
    // Whatever was started ends when it is dropped: also when a signal drops the measuring.
    tokio::select! {
        done = measure(options) => done,
        _ = interrupt.recv() => Ok(ExitCode::from(130)),
        _ = terminate.recv() => Ok(ExitCode::from(143)),
        _ = hangup.recv() => Ok(ExitCode::from(129)),
    }
}

async fn measure(options: Options) -> anyhow::Result<ExitCode> {
    let postgres = machine::said(&options.postgres.join("postgres").display().to_string(), &["--version"]);
    let postgres = postgres.split_whitespace().nth(2).unwrap_or_default().to_owned();
    let report = Report::new(&options.output, Machine::look(postgres), options.quick);
    let bench = Bench::new(options, report)?;
    let chosen = Line::value_variants().iter().copied().filter(|line| {
        let only = &bench.options.only;
        if only.is_empty() { line.is_default() } else { only.contains(line) }
    });
    let mut failed = false;
    for line in chosen {
        let value = line.to_possible_value().expect("no line is hidden");
        eprintln!(
            "== {}: {}",
            value.get_name(),
            value.get_help().map(ToString::to_string).unwrap_or_default()
        );
        if let Err(error) = line.run(&bench).await {
            eprintln!("   failed: {error:#}");
            bench.raw(&format!("{}-failed", value.get_name()), format!("{error:#}"));
            failed = true;
        }
        bench.save()?;
    }
    let (path, tables) = bench.save()?;
    println!("{tables}");
    eprintln!("results in {}", path.display());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
