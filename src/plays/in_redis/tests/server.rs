//! A Redis of a test's own, for what would disturb others on the shared one.

use std::{process::Stdio, time::Duration};

use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Ended when dropped.
pub(super) struct OwnRedis {
    _process: Child,
    folder: TempDir,
}

impl OwnRedis {
    pub(super) async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("redis.sock");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--maxmemory-policy", "noeviction"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let listening = async {
            while tokio::net::UnixStream::connect(&socket).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), listening).await.unwrap();
        Self { _process: process, folder }
    }

    pub(super) fn url(&self) -> String {
        format!("unix://{}", self.folder.path().join("redis.sock").display())
    }
}
