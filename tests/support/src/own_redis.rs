//! A Redis of a test's own, to be set up badly, stopped, killed and started again.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::{Child, Command};

use crate::{eventually, redis_connection};

/// Ended when dropped.
pub struct OwnRedis {
    process: Child,
    settings: Vec<String>,
    folder: tempfile::TempDir,
    socket: PathBuf,
}

impl OwnRedis {
    /// Starts one with these settings, on a socket of its own.
    pub async fn start(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("redis.sock");
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let process = Self::spawn(&folder, &socket, &settings);
        let own = Self { process, settings, folder, socket };
        own.answers().await;
        own
    }

    fn spawn(folder: &tempfile::TempDir, socket: &PathBuf, settings: &[String]) -> Child {
        Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(socket)
            .arg("--dir")
            .arg(folder.path())
            .args(settings)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    async fn answers(&self) {
        eventually("redis answers", async || self.query::<String>(redis::cmd("PING")).await.is_ok()).await;
    }

    /// kill -9
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    /// Starts it again over what it left on disk.
    pub async fn start_again(&mut self) {
        self.begin_again();
        self.answers().await;
    }

    /// Starts it again over what it left on disk, which it may take its time to load.
    pub fn begin_again(&mut self) {
        self.process = Self::spawn(&self.folder, &self.socket, &self.settings);
    }

    /// Where it keeps its data.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Makes it take connections and answer nothing, or go on.
    pub async fn signal(&self, signal: &str) {
        let pid = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
    }

    /// Asks it one thing, on a connection made for that.
    ///
    /// # Errors
    /// It is away or refuses.
    pub async fn query<T: redis::FromRedisValue>(&self, command: redis::Cmd) -> redis::RedisResult<T> {
        self.query_by("", command).await
    }

    /// Asks it one thing on a connection whose URL ends in `query`, which may hold a password.
    ///
    /// # Errors
    /// It is away or refuses.
    pub async fn query_by<T: redis::FromRedisValue>(
        &self,
        query: &str,
        command: redis::Cmd,
    ) -> redis::RedisResult<T> {
        let mut connection = redis_connection(&self.url(query)).await?;
        command.query_async(&mut connection).await
    }

    /// Where it is; `query` is put behind.
    #[must_use]
    pub fn url(&self, query: &str) -> String {
        format!("unix://{}{query}", self.socket.display())
    }
}
