//! A Redis Cluster of this run, and what can be done to its nodes.

use anyhow::Context as _;
use headcount_support::OwnCluster;
use redis::Cmd;
use tokio::time::sleep;

use crate::{
    faults::{Deed, Stroke},
    stores::{Redis, connect},
};

pub(crate) const LOSE_SCRIPTS: [&str; 2] = ["SCRIPT", "FLUSH"];
pub(crate) const END_CLIENTS: [&str; 4] = ["CLIENT", "KILL", "TYPE", "normal"];

/// Slots that go to and fro, some of them with keys of the service.
const MOVED: u32 = 300;
const LENT: u32 = 100;

/// Every write is on the disk of its node first, and on the replica before it is vouched for.
const SETTINGS: &[&str] =
    &["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"];

/// Waits on this thread: what tests share is not made to go from one to another.
pub(crate) fn here<T>(done: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(done))
}

/// What holds plays and viewers.
pub(crate) enum AnyRedis {
    One(Redis),
    Cluster(Cluster),
}

/// Three primaries and a replica of each.
pub(crate) struct Cluster(OwnCluster);

impl AnyRedis {
    /// What an instance must be told to find it, beyond the address of a single server.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::One(_) => Vec::new(),
            Self::Cluster(Cluster(cluster)) => vec![
                ("HEADCOUNT_REDIS__TOPOLOGY", "cluster".to_owned()),
                ("HEADCOUNT_REDIS__URLS", cluster.urls().join(",")),
                ("HEADCOUNT_REDIS__WAIT_REPLICAS", "1".to_owned()),
                ("HEADCOUNT_PLAYS__WAIT", "true".to_owned()),
            ],
        }
    }

    /// The servers that take writes.
    pub(crate) fn ports(&self) -> Vec<u16> {
        match self {
            Self::One(redis) => vec![redis.port],
            Self::Cluster(Cluster(cluster)) => here(cluster.primaries()),
        }
    }

    /// Which of these keys are there.
    pub(crate) async fn there(&self, keys: &[String]) -> anyhow::Result<Vec<String>> {
        let mut there = Vec::new();
        for port in self.ports() {
            let mut connection = connect(port).await?;
            let mut asked = redis::pipe();
            for key in keys {
                asked.exists(key);
            }
            let count = asked.len();
            let answers = connection.send_packed_commands(&asked, 0, count).await?;
            // Other nodes' keys are refused here.
            let found = keys.iter().zip(answers).filter(|(_, answer)| *answer == redis::Value::Int(1));
            there.extend(found.map(|(key, _)| key.clone()));
        }
        Ok(there)
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self(OwnCluster::start(SETTINGS).await)
    }

    /// Strikes, and returns when the cluster is whole again.
    pub(crate) async fn strike(&mut self, stroke: &Stroke) -> anyhow::Result<()> {
        let Self(cluster) = self;
        let mut primaries = cluster.primaries().await;
        primaries.sort_unstable();
        let struck = primaries[stroke.instance % primaries.len()];
        let other = primaries[(stroke.instance + 1) % primaries.len()];
        match stroke.fault.deed {
            Deed::KillPrimary => {
                let heir = cluster.replica_of(struck).await;
                cluster.kill(struck).await;
                // It may be back before anybody has missed it, and is then what it was.
                sleep(stroke.lasts).await;
                cluster.start_again(struck).await;
                follows(cluster, struck, heir).await;
            }
            Deed::StopPrimary => {
                let heir = cluster.replica_of(struck).await;
                cluster.at(struck).signal("-STOP").await;
                sleep(stroke.lasts).await;
                cluster.at(struck).signal("-CONT").await;
                follows(cluster, struck, heir).await;
            }
            Deed::FailOver => {
                let heir = cluster.replica_of(struck).await;
                let mut over = redis::cmd("CLUSTER");
                over.arg("FAILOVER");
                // Refused where the replica isn't in step yet.
                let _ = cluster.at(heir).query::<String>(over).await;
                follows(cluster, struck, heir).await;
            }
            Deed::MoveSlots => {
                cluster.reshard(MOVED, struck, other).await;
                cluster.reshard(MOVED, other, struck).await;
            }
            Deed::AddNode => {
                let newcomer = cluster.add_primary(SETTINGS).await;
                cluster.reshard(LENT, struck, newcomer).await;
                cluster.empty(newcomer, struck).await;
                cluster.remove(newcomer).await;
            }
            Deed::LoseScripts => self.tell_all(&LOSE_SCRIPTS).await?,
            _ => self.tell_all(&END_CLIENTS).await?,
        }
        self.0.is_whole().await;
        Ok(())
    }

    async fn tell_all(&self, words: &[&str]) -> anyhow::Result<()> {
        for node in self.0.nodes() {
            let mut told = Cmd::new();
            told.arg(words);
            node.query::<redis::Value>(told).await.context("a node of the cluster")?;
        }
        Ok(())
    }
}

/// Waits until one of the two follows the other again, in step: or the next failover would forget.
async fn follows(cluster: &OwnCluster, one: u16, other: u16) {
    headcount_support::eventually("a replica follows in step", async || {
        for port in [one, other] {
            let mut info = redis::cmd("INFO");
            info.arg("replication");
            let info: String = cluster.at(port).query(info).await.unwrap_or_default();
            if info.contains("role:slave") && info.contains("master_link_status:up") {
                return true;
            }
        }
        false
    })
    .await;
}
