//! A process this run started: signalled by its id, and ended with the run whatever happens.

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// How long the end of a process is waited for when this run ends.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// A process and the processes it started.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`; what it says goes to the end of `log`.
    pub(crate) fn start(mut command: Command, log: &Path) -> io::Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Ctrl-C in a terminal reaches this program alone, which then ends the others.
        command.process_group(0);
        Ok(Self { child: command.spawn()? })
    }

    /// `None` once it has ended: its id may be another's by now.
    fn pid(&self) -> Option<Pid> {
        self.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?))
    }

    /// Sends it a signal, and the processes it started as well. One that has just ended gets none.
    pub(crate) fn signal(&self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        let children = children(pid);
        for pid in [pid].into_iter().chain(children) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Asks it alone to end.
    pub(crate) fn ask_to_end(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, signal);
        }
    }

    /// kill -9, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.child.wait().await
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// How it ended, if it has.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Its resident memory in KiB.
    pub(crate) fn resident(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    }

    /// Sends it a signal, and blocks until it is gone or doesn't seem to go.
    pub(crate) fn end_now(&mut self, signal: Signal) {
        self.signal(signal);
        let until = Instant::now() + LAST_WAIT;
        while self.has_ended().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end_now(Signal::KILL);
    }
}

/// The processes that `parent` started. Each of Postgres's is the head of a group of its own, so that
/// a signal to the group of `parent` wouldn't reach them.
fn children(parent: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // "pid (name) state parent …", and the name may hold anything.
            let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
            let is_child = fields.nth(1)?.parse() == Ok(parent.as_raw_nonzero().get());
            is_child.then(|| Pid::from_raw(pid)).flatten()
        })
        .collect()
}
