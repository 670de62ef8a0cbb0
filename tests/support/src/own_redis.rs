//! A Redis of a test's own, to be set up badly, stopped, killed and started again.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::{Child, Command};

use crate::{Authority, Issued, certificates::text, eventually, redis_connection};

/// Ended when dropped.
pub struct OwnRedis {
    process: Child,
    port: u16,
    settings: Vec<String>,
    folder: tempfile::TempDir,
    socket: PathBuf,
}

impl OwnRedis {
    /// Starts one with these settings, on a socket of its own.
    pub async fn start(settings: &[&str]) -> Self {
        let own = Self::spawned(0, settings);
        own.answers().await;
        own
    }

    fn spawned(port: u16, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("redis.sock");
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let process = Self::spawn(&folder, &socket, port, &settings);
        Self { process, port, settings, folder, socket }
    }

    /// Starts one that others can follow: on a port as well, since replicas know no sockets.
    pub async fn start_primary(settings: &[&str]) -> Self {
        Self::at_a_port(|port| Self::spawned(port, settings)).await
    }

    /// Starts one that speaks TLS at its port, shows `shown`, and lets in who shows what `authority` has
    /// signed, or everybody where that is nobody. Its socket is as it always is.
    pub async fn start_with_tls(shown: &Issued, authority: Option<&Authority>, settings: &[&str]) -> Self {
        let (certificate, key) = (text(&shown.certificate()), text(&shown.key()));
        let mut tls = vec!["--tls-cert-file", &certificate, "--tls-key-file", &key];
        let file = authority.map(|authority| text(&authority.file()));
        match &file {
            Some(file) => tls.extend(["--tls-ca-cert-file", file]),
            // It wants to know one all the same.
            None => tls.extend(["--tls-auth-clients", "no", "--tls-ca-cert-file", &certificate]),
        }
        Self::at_a_port(|port| {
            let at = port.to_string();
            Self::spawned(port, &[&["--port", "0", "--tls-port", &at], &tls[..], settings].concat())
        })
        .await
    }

    /// Starts one at a port that nobody else has.
    async fn at_a_port(spawned: impl Fn(u16) -> Self) -> Self {
        loop {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let mut own = spawned(port);
            // Somebody else may have taken the port meanwhile: then it ends at once.
            let mut ended = false;
            eventually("redis answers, or has ended", async || {
                ended = own.process.try_wait().unwrap().is_some();
                ended || own.is_there().await
            })
            .await;
            if !ended {
                return own;
            }
        }
    }

    /// Starts one that follows the primary at `port`, and waits until it has all that is there.
    pub async fn start_replica(port: u16, settings: &[&str]) -> Self {
        let primary = format!("127.0.0.1 {port}");
        let own = Self::start(&[&["--replicaof", &primary], settings].concat()).await;
        own.in_step().await;
        own
    }

    /// Waits until this replica has what its primary had when it began to follow.
    pub async fn in_step(&self) {
        let mut info = redis::cmd("INFO");
        info.arg("replication");
        eventually("the replica follows", async || {
            let info: String = self.query(info.clone()).await.unwrap_or_default();
            info.contains("master_link_status:up")
        })
        .await;
    }

    /// Makes it the replica of `"host port"`, or with `"NO ONE"` a primary.
    pub async fn follow(&self, primary: &str) {
        let mut follow = redis::cmd("REPLICAOF");
        follow.arg(primary.split(' ').collect::<Vec<_>>());
        self.query::<String>(follow).await.unwrap();
    }

    /// Lets in only who has this password, from now on.
    pub async fn require(&self, password: &str) {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("requirepass").arg(password);
        self.query::<String>(set).await.unwrap();
    }

    /// Where replicas find it, or who speaks TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it keeps its files.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    fn spawn(folder: &tempfile::TempDir, socket: &PathBuf, port: u16, settings: &[String]) -> Child {
        Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            // Replicas are few and small here: none is worth waiting for others.
            .args(["--repl-diskless-sync-delay", "0", "--save", "", "--unixsocket"])
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
        eventually("redis answers", async || self.is_there().await).await;
    }

    async fn is_there(&self) -> bool {
        match self.query::<String>(redis::cmd("PING")).await {
            Ok(_) => true,
            // It wants a password, so it is there.
            Err(error) => error.code() == Some("NOAUTH"),
        }
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
        self.process = Self::spawn(&self.folder, &self.socket, self.port, &self.settings);
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
