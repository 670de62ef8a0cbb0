//! One headcount process after the other at one address: an instance, or one that only counts.

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use tokio::{process::Command, time::Instant};

use crate::{http::Http, process::Process};

/// `server.drain`, and what this program itself may be late.
const DRAIN: Duration = Duration::from_secs(20);
const DRAIN_MARGIN: Duration = Duration::from_secs(10);

/// Longer than any start takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Short where that exercises the protocols, long where nothing may run out.
const SETTINGS: &[(&str, &str)] = &[
    ("HEADCOUNT_BACKEND", "redis"),
    ("HEADCOUNT_REDIS__BATCH_MIN_AGE", "0s"), // appendfsync always
    ("HEADCOUNT_SERVER__DRAIN", "20s"),
    ("HEADCOUNT_SERVER__REQUEST_TIMEOUT", "3s"),
    // A machine that is busy with so many processes is no overload of one of them.
    ("HEADCOUNT_SERVER__MAX_DELAY", "10s"),
    ("HEADCOUNT_POSTGRES__DEADLINE", "2s"),
    ("HEADCOUNT_PRESENCE__WINDOW", "45s"),
    ("HEADCOUNT_PRESENCE__HEARTBEAT_EVERY", "15s"),
    ("HEADCOUNT_PRESENCE__SHARDS", "4"),
    ("HEADCOUNT_PLAYS__DEDUPE_WINDOW", "1d"),
    ("HEADCOUNT_JOBS__SWEEP_EVERY", "2s"),
    ("HEADCOUNT_JOBS__FLUSH_EVERY", "400ms"),
];

/// What a process does, as the program names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    Serve,
    /// Counts what is in Kafka's log, and answers only operators.
    Consume,
}

/// An instance, through all its lives.
pub(crate) struct Instance {
    process: Process,
    program: PathBuf,
    does: Does,
    log: PathBuf,
    variables: Vec<(String, String)>,
    url: String,
    http: Http,
    born_with: u64,
    pub(crate) lives: Vec<Life>,
}

/// What one process took, in KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// How a drain went.
pub(crate) struct Drained {
    status: ExitStatus,
    took: Duration,
}

/// What is wrong with how a drain went, which ends in its time, and with 0 where all around it is `quiet`.
pub(crate) fn wrong_with(drained: Option<&Drained>, quiet: bool) -> Option<String> {
    match drained {
        None => Some("is still there long after".to_owned()),
        Some(Drained { status, took }) if quiet && !status.success() => {
            let took = took.as_secs_f64();
            Some(format!("ended with {status} after {took:.1} s though nothing was in its way"))
        }
        Some(_) => None,
    }
}

impl Instance {
    /// `own` are settings beyond those that all share.
    pub(crate) async fn start(
        program: &Path,
        does: Does,
        log: PathBuf,
        [public, ops]: [u16; 2],
        own: &[(&str, String)],
        http: Http,
    ) -> anyhow::Result<Self> {
        let listen = [("SERVER", public), ("OPS", ops)];
        let listen =
            listen.map(|(name, port)| (format!("HEADCOUNT_{name}__LISTEN"), format!("127.0.0.1:{port}")));
        let variables: Vec<_> = variables(own).chain(listen).collect();
        let process = spawn(program, does, &log, &variables)?;
        let port = if does == Does::Serve { public } else { ops };
        let url = format!("http://127.0.0.1:{port}");
        let program = program.to_owned();
        let mut instance =
            Self { process, program, does, log, variables, url, http, born_with: 0, lives: Vec::new() };
        instance.answers().await?;
        Ok(instance)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Another life.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = spawn(&self.program, self.does, &self.log, &self.variables)?;
        self.answers().await
    }

    /// Waits for any answer: whether the stores are there is another matter.
    async fn answers(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.http.get(&format!("{}/livez", self.url)).await.is_err() {
            ensure!(self.process.has_ended().is_none(), "{} ended at its start", self.log.display());
            ensure!(Instant::now() < until, "{} doesn't answer", self.log.display());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.born_with = self.process.resident().unwrap_or(0);
        Ok(())
    }

    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.note_memory();
        self.process.kill().await.map(drop).context("can't kill an instance")
    }

    /// Asks it to stop; `None` where it is still there long after it should have gone.
    pub(crate) async fn drain(&mut self) -> anyhow::Result<Option<Drained>> {
        self.note_memory();
        let asked = Instant::now();
        self.process.ask_to_end(Signal::TERM);
        let Ok(status) = tokio::time::timeout(DRAIN + DRAIN_MARGIN, self.process.ended()).await else {
            self.process.kill().await?;
            return Ok(None);
        };
        Ok(Some(Drained { status: status?, took: asked.elapsed() }))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// How it ended although nobody asked it to.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.process.has_ended()
    }

    /// Notes what it takes at the end of a life.
    pub(crate) fn note_memory(&mut self) {
        let last = self.process.resident();
        self.lives.extend(last.map(|last| Life { first: self.born_with, last }));
    }

    /// Another command of the same program, about the same stores.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Whether the readiness probe of the instance at `url` has nothing to complain about.
pub(crate) async fn is_well(http: &Http, url: &str) -> bool {
    let answer = http.get(&format!("{url}/readyz")).await;
    answer.is_ok_and(|answer| answer.status == 200 && answer.body.get("degraded").is_none())
}

/// Makes the tables, and Kafka's topics where there is Kafka.
pub(crate) async fn migrate(program: &Path, own: &[(&str, String)]) -> anyhow::Result<()> {
    let migrated = Command::new(program).arg("migrate").envs(variables(own)).output().await?;
    let said = String::from_utf8_lossy(&migrated.stderr);
    ensure!(migrated.status.success(), "headcount migrate ended with {} and said {said}", migrated.status);
    Ok(())
}

fn variables(own: &[(&str, String)]) -> impl Iterator<Item = (String, String)> {
    let shared = SETTINGS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    shared.chain(own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())))
}

fn spawn(program: &Path, does: Does, log: &Path, variables: &[(String, String)]) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    let subcommand = if does == Does::Serve { "serve" } else { "consume" };
    command.arg(subcommand).envs(variables.iter().map(|(name, value)| (name, value)));
    Process::start(command, log).with_context(|| format!("can't start {}", program.display()))
}
