//! A Postgres of a test's own, to be stopped, killed and started again.

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tokio::process::Child;

use crate::{Issued, eventually};

/// A server's own way to end at once takes well under a second.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

const DEFAULT_PORT: u16 = 5_432;

/// Ended when dropped.
pub struct OwnPostgres {
    process: Child,
    programs: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
}

impl OwnPostgres {
    /// Makes one and starts it, on a socket of its own.
    pub async fn start() -> Self {
        Self::start_with(0, "trust", |_| {}).await
    }

    /// Makes one that also listens at a port of 127.0.0.1, with TLS and this certificate where there is
    /// one. There every user needs a password (SCRAM); by its socket none does.
    pub async fn start_with_passwords(shown: Option<&Issued>) -> Self {
        Self::start_with(free_port(), "scram-sha-256", |data| {
            let Some(shown) = shown else { return };
            for (file, name) in [(shown.certificate(), "server.crt"), (shown.key(), "server.key")] {
                std::fs::copy(file, data.join(name)).unwrap();
            }
            // Whoever else may read the key could be the server.
            std::fs::set_permissions(data.join("server.key"), PermissionsExt::from_mode(0o600)).unwrap();
            let mut settings = std::fs::read_to_string(data.join("postgresql.conf")).unwrap();
            settings.push_str("ssl = on\n");
            std::fs::write(data.join("postgresql.conf"), settings).unwrap();
        })
        .await
    }

    async fn start_with(port: u16, passwords: &str, prepare: impl FnOnce(&Path)) -> Self {
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
            "--auth-local",
            "trust",
            "--auth-host",
            passwords,
            "--encoding",
            "UTF8",
            "--no-sync",
            "--pgdata",
        ]);
        let made = made.arg(folder.path().join("data")).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        prepare(&folder.path().join("data"));
        if is_root() {
            let all = Command::new("chown").args(["-R", "postgres"]).arg(folder.path()).status().unwrap();
            assert!(all.success());
        }
        let process = Self::spawn(&programs, folder.path(), port);
        let mut own = Self { process, programs, folder, port };
        // Somebody else may have taken the port meanwhile: then it ends at once.
        while !own.answers().await {
            assert!(port != 0, "postgres ended by itself");
            own.port = free_port();
            own.process = Self::spawn(&own.programs, own.folder.path(), own.port);
        }
        own
    }

    /// What makes it safe against a power cut is off: its data goes with the test.
    fn spawn(programs: &Path, folder: &Path, port: u16) -> Child {
        let mut command = command(programs, "postgres", folder);
        command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
        // Its socket's name has a port in it, whether it listens there or not.
        let (addresses, port) = if port == 0 { ("", DEFAULT_PORT) } else { ("127.0.0.1", port) };
        command.arg("-c").arg(format!("listen_addresses={addresses}"));
        command.args(["-p", &port.to_string()]);
        command.arg("-c").arg(format!("unix_socket_directories={}", folder.display()));
        command.arg("-D").arg(folder.join("data"));
        let mut command = tokio::process::Command::from(command);
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap()
    }

    /// Waits until it answers; `false` where it has ended.
    async fn answers(&mut self) -> bool {
        let mut ended = false;
        eventually("postgres answers, or has ended", async || {
            ended = self.process.try_wait().unwrap().is_some();
            let mut asks = Command::new(self.programs.join("pg_isready"));
            asks.arg("--host").arg(self.folder.path()).args(["--username", "postgres"]);
            asks.args(["--port", &self.socket_port().to_string()]);
            ended || asks.stdout(Stdio::null()).status().unwrap().success()
        })
        .await;
        !ended
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
        self.process = Self::spawn(&self.programs, self.folder.path(), self.port);
        assert!(self.answers().await, "postgres ended by itself");
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        let port = self.socket_port();
        format!("postgres://postgres@localhost:{port}/postgres?host={}", self.folder.path().display())
    }

    /// The port of 127.0.0.1 that it listens at, if it does.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn socket_port(&self) -> u16 {
        if self.port == 0 { DEFAULT_PORT } else { self.port }
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

/// Where nobody listens just now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
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
