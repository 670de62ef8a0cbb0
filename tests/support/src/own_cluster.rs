//! A Redis Cluster of a test's own, whose nodes are killed, and whose slots go from one to another.

use std::process::Stdio;

use tokio::process::Command;

use crate::{OwnRedis, eventually};

/// Until a node that doesn't answer is taken for dead, in milliseconds.
const NODE_TIMEOUT: &str = "1500";

/// Ended when dropped.
pub struct OwnCluster {
    nodes: Vec<OwnRedis>,
}

/// A node, as the others tell of it.
#[derive(Clone, Debug)]
pub struct Member {
    /// By which the cluster knows it.
    pub id: String,
    /// Where it listens.
    pub port: u16,
    /// Whether it takes writes, as far as they know.
    pub is_primary: bool,
    /// The primary that it follows.
    pub follows: Option<String>,
    /// How many slots it has.
    pub slots: u32,
    /// Whether they take it for dead.
    pub is_failing: bool,
}

impl OwnCluster {
    /// Starts three primaries, each with a replica.
    pub async fn start(settings: &[&str]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..6 {
            nodes.push(Self::node(settings).await);
        }
        let cluster = Self { nodes };
        let addresses: Vec<String> = cluster.nodes.iter().map(address).collect();
        let mut create = vec!["create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1"]);
        manage(&create).await;
        cluster.is_whole().await;
        cluster
    }

    /// A node that is in no cluster yet.
    async fn node(settings: &[&str]) -> OwnRedis {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bus = free.local_addr().unwrap().port().to_string();
        drop(free);
        let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let timeout = ["--cluster-node-timeout", NODE_TIMEOUT, "--cluster-replica-validity-factor", "0"];
        OwnRedis::start_primary(&[&cluster[..], &timeout[..], settings].concat()).await
    }

    /// Adds a primary without slots and tells its port.
    pub async fn add_primary(&mut self, settings: &[&str]) -> u16 {
        let node = Self::node(settings).await;
        let port = node.port();
        manage(&["add-node", &address(&node), &address(self.alive().await)]).await;
        self.nodes.push(node);
        eventually("everybody knows the new node", async || {
            let count = self.nodes.len();
            let mut known = 0;
            for node in &self.nodes {
                known += usize::from(members_by(node).await.len() >= count);
            }
            known == count
        })
        .await;
        port
    }

    /// Moves all slots of one primary to another.
    pub async fn empty(&self, port: u16, to: u16) {
        // An attempt that broke off may have moved some of them already, and be made once more.
        loop {
            let slots = self.member(port).await.slots;
            if slots == 0 {
                return;
            }
            self.reshard(slots, port, to).await;
        }
    }

    /// Takes a primary without slots out of the cluster, and ends it.
    pub async fn remove(&mut self, port: u16) {
        let id = self.member(port).await.id;
        let other = self.nodes.iter().find(|node| node.port() != port).unwrap();
        manage(&["del-node", &address(other), &id]).await;
        self.nodes.retain(|node| node.port() != port);
    }

    /// Moves so many slots, with all keys in them, as `redis-cli` does while the cluster is used.
    pub async fn reshard(&self, slots: u32, from: u16, to: u16) {
        let (from, to) = (self.member(from).await.id, self.member(to).await.id);
        let slots = slots.to_string();
        let at = address(self.alive().await);
        manage(&[
            "reshard",
            &at,
            "--cluster-from",
            &from,
            "--cluster-to",
            &to,
            "--cluster-slots",
            &slots,
            "--cluster-pipeline",
            "100",
        ])
        .await;
    }

    /// kill -9 of the node at `port`.
    pub async fn kill(&mut self, port: u16) {
        self.nodes.iter_mut().find(|node| node.port() == port).unwrap().kill().await;
    }

    /// Starts the node at `port` again over what it left on disk.
    pub async fn start_again(&mut self, port: u16) {
        self.nodes.iter_mut().find(|node| node.port() == port).unwrap().start_again().await;
    }

    /// The node at `port`.
    #[must_use]
    pub fn at(&self, port: u16) -> &OwnRedis {
        self.nodes.iter().find(|node| node.port() == port).unwrap()
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[OwnRedis] {
        &self.nodes
    }

    /// Addresses for `redis.urls`.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://{}", address(node))).collect()
    }

    /// The nodes, by the word of one that lives.
    pub async fn members(&self) -> Vec<Member> {
        members_by(self.alive().await).await
    }

    /// The ports of primaries that live and have slots.
    pub async fn primaries(&self) -> Vec<u16> {
        let members = self.members().await.into_iter();
        members.filter(|it| it.is_primary && it.slots > 0 && !it.is_failing).map(|it| it.port).collect()
    }

    /// The node at `port`, by the word of another that lives.
    pub async fn member(&self, port: u16) -> Member {
        self.members().await.into_iter().find(|member| member.port == port).unwrap()
    }

    /// Waits until every slot has a primary, and every node that lives says so.
    pub async fn is_whole(&self) {
        eventually("the cluster is whole", async || {
            for node in &self.nodes {
                let mut info = redis::cmd("CLUSTER");
                info.arg("INFO");
                if let Ok(info) = node.query::<String>(info).await
                    && !info.contains("cluster_state:ok")
                {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Waits until the replica of the node that was at `port` has taken over, and tells where it is.
    pub async fn promoted(&self, replica: u16) {
        eventually("a replica is promoted", async || {
            let members = self.members().await;
            members.iter().any(|member| member.port == replica && member.is_primary && member.slots > 0)
        })
        .await;
        self.is_whole().await;
    }

    /// The port of a replica of the primary at `port`, once everybody has heard of one.
    pub async fn replica_of(&self, port: u16) -> u16 {
        let mut replica = None;
        eventually("the primary has a replica", async || {
            let members = self.members().await;
            let primary = members.iter().find(|member| member.port == port).map(|member| &member.id);
            let follows = members.iter().find(|it| primary.is_some() && it.follows.as_ref() == primary);
            replica = follows.map(|member| member.port);
            replica.is_some()
        })
        .await;
        replica.unwrap()
    }

    async fn alive(&self) -> &OwnRedis {
        for node in &self.nodes {
            if node.query::<String>(redis::cmd("PING")).await.is_ok() {
                return node;
            }
        }
        panic!("no node lives")
    }
}

fn address(node: &OwnRedis) -> String {
    format!("127.0.0.1:{}", node.port())
}

async fn members_by(node: &OwnRedis) -> Vec<Member> {
    let mut nodes = redis::cmd("CLUSTER");
    nodes.arg("NODES");
    let nodes: String = node.query(nodes).await.unwrap_or_default();
    nodes
        .lines()
        .map(|line| {
            let parts: Vec<&str> = line.split(' ').collect();
            let flags: Vec<&str> = parts[2].split(',').collect();
            let address = parts[1].split('@').next().unwrap_or_default();
            Member {
                id: parts[0].to_owned(),
                port: address.rsplit(':').next().unwrap_or_default().parse().unwrap(),
                is_primary: flags.contains(&"master"),
                follows: Some(parts[3].to_owned()).filter(|primary| primary != "-"),
                slots: parts[8..]
                    .iter()
                    .filter(|range| !range.starts_with('['))
                    .map(|range| size(range))
                    .sum(),
                is_failing: flags.iter().any(|flag| flag.starts_with("fail")) || flags.contains(&"noaddr"),
            }
        })
        .collect()
}

/// How many slots `12` and `12-15` are.
fn size(range: &str) -> u32 {
    let number = |text: &str| text.parse::<u32>().unwrap();
    range.split_once('-').map_or(1, |(first, last)| number(last) - number(first) + 1)
}

/// `redis-cli --cluster …`. What other nodes haven't heard of yet makes it fail in passing.
async fn manage(arguments: &[&str]) {
    let mut said = String::new();
    for _ in 0..20 {
        let output = Command::new("redis-cli")
            .arg("--cluster")
            .args(arguments)
            .arg("--cluster-yes")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        if output.status.success() {
            return;
        }
        said = String::from_utf8_lossy(&output.stdout).into_owned();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        if let ["reshard", at, ..] = arguments {
            // A slot that it left half moved is in the way of the next attempt.
            let mut fix = Command::new("redis-cli");
            fix.args(["--cluster", "fix", at, "--cluster-yes"]).stdin(Stdio::null()).stdout(Stdio::null());
            fix.status().await.unwrap();
        }
    }
    panic!("redis-cli --cluster {arguments:?}: {said}");
}
