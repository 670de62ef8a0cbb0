//! A Postgres of a test's own, to be stopped, killed and started again.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::process::Child;

use crate::eventually;

/// A server's own way to end at once takes well under a second.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

/// Ended when dropped.
pub struct OwnPostgres {
    process: Child,
    programs: PathBuf,
    folder: tempfile::TempDir,
}

impl OwnPostgres {
    /// Makes one and starts it, on a socket of its own.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let programs = programs();
        if is_root() {
            let given = Command::new("chown").arg("postgres").arg(folder.path()).status().unwrap();
            assert!(given.success());
        }
        let mut made = command(&programs, "initdb", folder.path());
        made.args([
            "--username",
            "postgres",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--no-sync",
            "--pgdata",
        ]);
        let made = made.arg(folder.path().join("data")).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let process = Self::spawn(&programs, folder.path());
        let own = Self { process, programs, folder };
        own.answers().await;
        own
    }

    /// What makes it safe against a power cut is off: its data goes with the test.
    fn spawn(programs: &Path, folder: &Path) -> Child {
        let mut command = command(programs, "postgres", folder);
        command.args(["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "listen_addresses="]);
        command.arg("-c").arg(format!("unix_socket_directories={}", folder.display()));
        command.arg("-D").arg(folder.join("data"));
        let mut command = tokio::process::Command::from(command);
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
    }

    async fn answers(&self) {
        eventually("postgres answers", async || {
            let mut asks = Command::new(self.programs.join("pg_isready"));
            asks.arg("--host").arg(self.folder.path()).args(["--username", "postgres"]);
            asks.stdout(Stdio::null()).status().unwrap().success()
        })
        .await;
    }

    /// Stops it as an operator does who doesn't wait for clients ("fast").
    pub async fn stop(&mut self) {
        self.signal("-INT");
        self.process.wait().await.unwrap();
    }

    /// Ends it as a crash does: what was committed is found by the next start.
    pub async fn crash(&mut self) {
        self.signal("-QUIT");
        self.process.wait().await.unwrap();
    }

    /// Starts it again over its data.
    pub async fn start_again(&mut self) {
        self.process = Self::spawn(&self.programs, self.folder.path());
        self.answers().await;
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@localhost/postgres?host={}", self.folder.path().display())
    }

    fn signal(&self, signal: &str) {
        if let Some(pid) = self.process.id() {
            assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        }
    }
}

impl Drop for OwnPostgres {
    /// Killed, it would leave shared memory behind.
    fn drop(&mut self) {
        self.signal("-QUIT");
        let until = std::time::Instant::now() + STOPS_WITHIN;
        while matches!(self.process.try_wait(), Ok(None)) && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A program of Postgres, as a user it runs as: it refuses to be root.
fn command(programs: &Path, name: &str, folder: &Path) -> Command {
    let program = programs.join(name);
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Debian keeps the server's programs out of PATH, in a folder for each version; the newest is taken.
fn programs() -> PathBuf {
    let in_path = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .find(|folder| folder.join("postgres").exists() && folder.join("initdb").exists());
    // What is in PATH may only be a link, and not have all of them beside it.
    let in_path = in_path.map(|folder| std::fs::canonicalize(folder.join("postgres")).unwrap());
    in_path.and_then(|postgres| Some(postgres.parent()?.to_owned())).unwrap_or_else(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("Postgres is installed");
        let newest = versions
            .filter_map(|version| version.unwrap().file_name().to_str()?.parse::<u32>().ok())
            .max()
            .expect("Postgres is installed");
        PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"))
    })
}
