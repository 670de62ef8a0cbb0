//! A Redis of a test's own, to be set up badly, stopped, killed and started again.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::{Child, Command};

use crate::eventually;

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
        self.process = Self::spawn(&self.folder, &self.socket, &self.settings);
        self.answers().await;
    }

    /// What it has on disk now.
    ///
    /// With `appendfsync always` that is all that it has answered for.
    #[must_use]
    pub fn copy_of_data(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_files(self.folder.path(), copy.path());
        copy
    }

    /// Puts a copy in place of what it has on disk. Not while it runs.
    pub fn put_back(&self, copy: &tempfile::TempDir) {
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        }
        copy_files(copy.path(), self.folder.path());
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
        let client = redis::Client::open(self.url(""))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        command.query_async(&mut connection).await
    }

    /// Where it is; `query` is put behind.
    #[must_use]
    pub fn url(&self, query: &str) -> String {
        format!("unix://{}{query}", self.socket.display())
    }
}

/// Copies folders and plain files; a socket is none.
fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy_files(&entry.path(), &target);
        } else if kind.is_file() {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
