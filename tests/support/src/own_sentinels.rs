//! A primary with replicas, and sentinels that promote one of those when it dies.

use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::{OwnRedis, eventually, redis_connection};

/// What the sentinels call the primary.
pub const NAME: &str = "films";

/// The password of every server.
pub const PASSWORD: &str = "pass-of-the-servers";

/// Ended when dropped.
pub struct OwnSentinels {
    servers: Vec<OwnRedis>,
    sentinels: Vec<(Child, u16)>,
    _folder: tempfile::TempDir,
}

impl OwnSentinels {
    /// Starts a primary with two replicas, and three sentinels.
    pub async fn start(settings: &[&str]) -> Self {
        let secret = ["--requirepass", PASSWORD, "--masterauth", PASSWORD];
        let primary = OwnRedis::start_primary(&[&secret[..], settings].concat()).await;
        let follows = format!("127.0.0.1 {}", primary.port());
        let port = primary.port();
        let mut servers = vec![primary];
        for _ in 0..2 {
            let follow = ["--replicaof", &follows];
            servers.push(OwnRedis::start_primary(&[&secret[..], &follow[..], settings].concat()).await);
        }
        let folder = tempfile::tempdir().unwrap();
        let sentinels = (0..3).map(|number| sentinel(&folder, number, port)).collect();
        let all = Self { servers, sentinels, _folder: folder };
        eventually("all sentinels know each other and the replicas", async || {
            for (_, port) in &all.sentinels {
                let known: Vec<String> = all.ask(*port, "MASTER").await.unwrap_or_default();
                let value = |name: &str| known.iter().skip_while(|word| *word != name).nth(1).cloned();
                if (value("num-other-sentinels"), value("num-slaves")) != (Some("2".into()), Some("2".into()))
                {
                    return false;
                }
            }
            true
        })
        .await;
        all
    }

    async fn ask<T: redis::FromRedisValue>(&self, port: u16, question: &str) -> redis::RedisResult<T> {
        let mut command = redis::cmd("SENTINEL");
        command.arg(question).arg(NAME);
        let mut connection = redis_connection(&format!("redis://127.0.0.1:{port}")).await?;
        command.query_async(&mut connection).await
    }

    /// Addresses for `redis.urls`.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(|(_, port)| format!("redis://127.0.0.1:{port}")).collect()
    }

    /// The port of the primary that most sentinels name.
    pub async fn primary(&self) -> u16 {
        let mut told: Vec<u16> = Vec::new();
        for url in self.urls() {
            told.extend(primary_by(&url, NAME).await.map(|(_, port)| port));
        }
        told.sort_unstable();
        told[told.len() / 2]
    }

    /// Waits until another than the one at `port` is the primary.
    pub async fn is_promoted_after(&self, port: u16) {
        eventually("the sentinels name another primary", async || self.primary().await != port).await;
    }

    /// kill -9 of the server at `port`.
    pub async fn kill(&mut self, port: u16) {
        self.server(port).kill().await;
    }

    /// Starts the server at `port` again; the sentinels make it a replica.
    pub async fn start_again(&mut self, port: u16) {
        self.server(port).begin_again();
        let primary = self.primary().await;
        eventually("who was killed follows the new primary", async || {
            let mut info = redis::cmd("INFO");
            info.arg("replication");
            let url = format!("redis://:{PASSWORD}@127.0.0.1:{primary}");
            let Ok(mut connection) = redis_connection(&url).await else { return false };
            let info: String = info.query_async(&mut connection).await.unwrap_or_default();
            info.matches("state=online").count() == 2
        })
        .await;
    }

    /// Has the sentinels promote a replica although the primary is well: it becomes a replica in place.
    pub async fn fail_over(&self) {
        let before = self.primary().await;
        eventually("the sentinels begin", async || {
            self.ask::<String>(self.sentinels[0].1, "FAILOVER").await.is_ok()
        })
        .await;
        self.is_promoted_after(before).await;
    }

    /// kill -9 of one sentinel.
    pub async fn kill_sentinel(&mut self, number: usize) {
        self.sentinels[number].0.kill().await.unwrap();
    }

    /// Makes one sentinel take connections and answer nothing, or go on.
    pub async fn signal_sentinel(&self, number: usize, signal: &str) {
        let pid = self.sentinels[number].0.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
    }

    fn server(&mut self, port: u16) -> &mut OwnRedis {
        self.servers.iter_mut().find(|server| server.port() == port).unwrap()
    }
}

/// The primary that the sentinel at `url` names.
///
/// # Errors
/// It is away, or knows of none.
pub async fn primary_by(url: &str, name: &str) -> redis::RedisResult<(String, u16)> {
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    ask.query_async(&mut redis_connection(url).await?).await
}

fn sentinel(folder: &tempfile::TempDir, number: u16, primary: u16) -> (Child, u16) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    // Sentinels write to their file what they learn.
    let file = folder.path().join(format!("sentinel-{number}.conf"));
    let dir = folder.path().display();
    let settings = format!(
        "port {port}\nbind 127.0.0.1\ndir {dir}\nlogfile \"\"\nsentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
         sentinel auth-pass {NAME} {PASSWORD}\nsentinel down-after-milliseconds {NAME} 1000\n\
         sentinel failover-timeout {NAME} 3000\nsentinel parallel-syncs {NAME} 2\n"
    );
    std::fs::write(&file, settings).unwrap();
    let process = Command::new("redis-server")
        .arg(&file)
        .arg("--sentinel")
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    (process, port)
}
