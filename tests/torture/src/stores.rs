//! A Redis and a Postgres of this run, set up to lose nothing, and what can be done to them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use redis::{AsyncConnectionConfig, Cmd, aio::MultiplexedConnection};
use rustix::process::Signal;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::{process::Command, time::Instant};

use crate::process::Process;

/// Longer than any start takes, recovery included.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks whether a server answers.
const AGAIN: Duration = Duration::from_millis(20);

/// How long one question to a store may take, on a machine that has other things to do as well.
const DEADLINE: Duration = Duration::from_secs(30);

/// Between two removals of what runs out.
const EXPIRE_EVERY: Duration = Duration::from_millis(3);

/// The user Postgres runs as where this runs as root, as which Postgres refuses to run.
const POSTGRES_USER: &str = "postgres";

/// Forgets nothing it has answered: every write is on its disk first.
pub(crate) struct Redis {
    process: Process,
    folder: PathBuf,
    pub(crate) port: u16,
}

impl Redis {
    pub(crate) async fn start(folder: &Path, port: u16) -> anyhow::Result<Self> {
        fs::create_dir_all(folder.join("redis"))?;
        let process = Self::spawn(folder, port)?;
        let mut redis = Self { process, folder: folder.to_owned(), port };
        redis.answers().await?;
        Ok(redis)
    }

    fn spawn(folder: &Path, port: u16) -> anyhow::Result<Process> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"]);
        command.arg("--dir").arg(folder.join("redis"));
        Process::start(command, &folder.join("redis.log")).context("can't start redis-server")
    }

    async fn answers(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.ask::<String>(&redis::cmd("PING")).await.is_err() {
            ensure!(self.process.has_ended().is_none(), "redis-server ended; see redis.log");
            ensure!(Instant::now() < until, "redis-server doesn't answer; see redis.log");
            tokio::time::sleep(AGAIN).await;
        }
        Ok(())
    }

    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        Ok(())
    }

    pub(crate) async fn end_politely(&mut self) -> anyhow::Result<()> {
        self.process.ask_to_end(Signal::TERM);
        self.process.ended().await?;
        Ok(())
    }

    /// Over what is on its disk.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = Self::spawn(&self.folder, self.port)?;
        self.answers().await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Asks it one thing, not by one of the service's ways.
    pub(crate) async fn ask<T: redis::FromRedisValue>(&self, command: &Cmd) -> anyhow::Result<T> {
        tokio::time::timeout(DEADLINE, async { Ok(command.query_async(&mut self.connect().await?).await?) })
            .await?
    }

    async fn connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        connect(self.port).await
    }
}

/// A connection to a Redis of this run, not by one of the service's ways.
pub(crate) async fn connect(port: u16) -> redis::RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    // The library's own limits are those of a machine that has nothing else to do.
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(DEADLINE))
        .set_response_timeout(Some(DEADLINE));
    client.get_multiplexed_async_connection_with_config(&patient).await
}

/// For so long removes keys that may run out at any time from these servers, as soon as they are there.
pub(crate) async fn expire(ports: &[u16], keys: &[String], lasts: Duration) -> anyhow::Result<()> {
    let until = Instant::now() + lasts;
    tokio::time::timeout(lasts + DEADLINE, async {
        let mut connections = Vec::new();
        for port in ports {
            connections.push(connect(*port).await?);
        }
        while Instant::now() < until {
            for connection in &mut connections {
                // One by one: in a cluster each has its place, and what isn't here is refused.
                let mut all = redis::pipe();
                for key in keys {
                    all.del(key).ignore();
                }
                let _ = all.exec_async(connection).await;
            }
            tokio::time::sleep(EXPIRE_EVERY).await;
        }
        Ok(())
    })
    .await?
}

/// Where Postgres's programs and files are.
#[derive(Clone)]
struct Place {
    programs: PathBuf,
    folder: PathBuf,
    data: PathBuf,
    port: u16,
}

/// A Postgres that survives a power cut, as far as this machine's disk does.
pub(crate) struct Postgres {
    process: Process,
    place: Place,
}

impl Postgres {
    pub(crate) async fn start(programs: &Path, folder: &Path, port: u16) -> anyhow::Result<Self> {
        let home = folder.join("postgres");
        fs::create_dir_all(&home)?;
        // Another user has to get through, and this folder has nothing that others may not see.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        if is_root() {
            let given = Command::new("chown").arg(POSTGRES_USER).arg(&home).status().await?;
            ensure!(given.success(), "run as root this needs a user called {POSTGRES_USER}");
        }
        let place = Place { programs: programs.into(), folder: folder.into(), data: home.join("data"), port };
        let mut initdb = place.command("initdb");
        initdb.args(["--username", "postgres", "--auth", "trust", "--encoding", "UTF8"]);
        initdb.args(["--locale", "C.UTF-8", "--no-sync", "--pgdata"]).arg(&place.data);
        let made = Process::start(initdb, &place.log()).context("can't start initdb")?.ended().await?;
        ensure!(made.success(), "initdb failed; see postgres.log");
        let mut postgres = Self { process: place.spawn()?, place };
        postgres.answers().await?;
        Ok(postgres)
    }

    /// A server whose predecessor was killed may have to wait for that one's last process to go.
    async fn answers(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.run("select 1").await.is_err() {
            if self.process.has_ended().is_some() {
                self.process = self.place.spawn()?;
            }
            ensure!(Instant::now() < until, "postgres doesn't answer; see postgres.log");
            tokio::time::sleep(AGAIN).await;
        }
        Ok(())
    }

    /// All of its processes, as a power cut would.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        Ok(())
    }

    /// Ends every session, then itself.
    pub(crate) async fn end_politely(&mut self) -> anyhow::Result<()> {
        self.process.ask_to_end(Signal::INT);
        self.process.ended().await?;
        Ok(())
    }

    /// Over what is on its disk.
    pub(crate) async fn start_again(&mut self) -> anyhow::Result<()> {
        self.process = self.place.spawn()?;
        self.answers().await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// A connection, not by one of the service's ways.
    pub(crate) async fn connect(&self) -> anyhow::Result<PgConnection> {
        let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(self.place.port);
        let options = options.username("postgres").database("postgres").disable_statement_logging();
        Ok(tokio::time::timeout(DEADLINE, options.connect()).await??)
    }

    /// Runs one statement on a connection made for that.
    pub(crate) async fn run(&self, sql: &'static str) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        tokio::time::timeout(DEADLINE, sqlx::raw_sql(sql).execute(&mut connection)).await??;
        connection.close().await?;
        Ok(())
    }

    /// Where the service would find it without a way between.
    pub(crate) fn url(port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    }
}

impl Drop for Postgres {
    /// Killed, it would leave shared memory behind; all of its processes take this for a reason to go.
    fn drop(&mut self) {
        self.process.signal(Signal::CONT);
        self.process.end_now(Signal::QUIT);
    }
}

impl Place {
    fn log(&self) -> PathBuf {
        self.folder.join("postgres.log")
    }

    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = if is_root() {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={POSTGRES_USER}")).arg(format!("--regid={POSTGRES_USER}"));
            command.args(["--clear-groups", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.folder.join("postgres"));
        command
    }

    fn spawn(&self) -> anyhow::Result<Process> {
        let mut command = self.command("postgres");
        command.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
        // Nothing is switched off: a commit that was answered is on the disk.
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=60"] {
            command.args(["-c", setting]);
        }
        Process::start(command, &self.log()).context("can't start postgres")
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Waits until `ports` free ports are found: below those that outgoing connections are given, so that
/// nobody takes one while its server is down.
pub(crate) fn free_ports<const N: usize>() -> anyhow::Result<[u16; N]> {
    const TRIES: usize = 1_000;
    let mut held = Vec::new();
    for _ in 0..TRIES {
        if held.len() == N {
            break;
        }
        held.extend(std::net::TcpListener::bind(("127.0.0.1", rand::random_range(10_240..32_768))));
    }
    let ports: Result<Vec<u16>, _> = held.iter().map(|held| held.local_addr().map(|at| at.port())).collect();
    let Ok(ports) = ports?.try_into() else { bail!("no free ports") };
    Ok(ports)
}
