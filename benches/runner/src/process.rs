//! Processes of a run: what they cost, and their end with the run whatever happens.

use std::{
    fs::{self, OpenOptions},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use tokio::process::{Child, Command};

/// In so many parts of a second the kernel counts processor time, for every program.
const TICKS: f64 = 100.0;

/// Longer than any of them takes to stop.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// Killed when dropped.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`; what it says goes to the end of `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        // Ctrl-C in a terminal reaches this program alone, which then ends the others.
        command.process_group(0);
        let name = command.as_std().get_program().display().to_string();
        let child = command.spawn().with_context(|| format!("can't start {name}"))?;
        Ok(Self { child })
    }

    /// Its id while it runs.
    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("nothing here asks for it after the end")
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// kill -9: it doesn't finish anything.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("can't end a process")
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let id = self.id().to_string();
        Command::new("kill").args(["-TERM", &id]).status().await?;
        let ended = tokio::time::timeout(STOPS_WITHIN, self.child.wait()).await;
        ended.context("a process doesn't stop")??;
        Ok(())
    }
}

/// The processor time that a process has taken so far, all its threads together, in seconds.
pub(crate) fn processor_time(id: u32) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).context("a process is gone")?;
    // "pid (name) state …", and the name may hold anything.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
    let ticks: u32 = ticks.sum::<Result<_, _>>().context("the kernel says something else")?;
    Ok(f64::from(ticks) / TICKS)
}

/// Its resident memory, in bytes.
pub(crate) fn resident(id: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).context("a process is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

/// Programs that do nothing but run: beside them a service can do less, so that it takes less to ask for more.
pub(crate) fn neighbours(count: usize, log: &Path) -> anyhow::Result<Vec<Process>> {
    let neighbour = |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        Process::start(command, log)
    };
    (0..count).map(neighbour).collect()
}

/// Processes on one processor and this program, with all that it starts, on the others; until it is dropped.
pub(crate) struct Apart {
    before: CpuSet,
}

impl Apart {
    /// `None` on a machine that has but one.
    pub(crate) fn keep(processes: &[u32]) -> anyhow::Result<Option<Self>> {
        let before = sched_getaffinity(None)?;
        let Some(theirs) = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)) else { return Ok(None) };
        if before.count() < 2 {
            return Ok(None);
        }
        let (mut one, mut others) = (CpuSet::new(), before);
        one.set(theirs);
        others.unset(theirs);
        for process in processes {
            for thread in fs::read_dir(format!("/proc/{process}/task"))? {
                let thread: i32 = thread?.file_name().to_string_lossy().parse()?;
                sched_setaffinity(Pid::from_raw(thread), &one).context("can't keep a process apart")?;
            }
        }
        sched_setaffinity(None, &others)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // What else is measured would have less of the machine; that it may be there was asked before.
        let _ = sched_setaffinity(None, &self.before);
    }
}
