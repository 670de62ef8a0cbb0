//! Keeps a connection to every primary of a cluster, and knows which slots each has.
//!
//! While the primaries stay the same, the connection does too, and only its map of slots changes. Where
//! one comes or goes, or had to be connected to anew, there is a new connection: what was learnt on the
//! one before may be untrue. Until all slots have a primary that answers, the one before stays in use,
//! for the slots that have.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::future::{join_all, try_join_all};
use redis::{Client, Value};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    Redis,
    connection::Live,
    keeper::{PROBE_EVERY, Told, reason},
    node::Node,
    servers::{ask_seeds, at, cluster_slots},
    slots::{SlotMap, slot_of},
};
use crate::error::{Part, StoreError};

/// Looks that commands ask for, since their slots have moved, are at least so far apart.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How many nodes are asked for the map. One that was cut off from the others may have an old one.
const ASKED: usize = 3;

impl Redis {
    pub(super) async fn keep_cluster(&self, seeds: &[Client]) {
        let mut told = Told::new(self.shared.beside);
        let mut members = Vec::new();
        loop {
            match self.look_around(seeds, &mut members).await {
                Ok(()) => {
                    // Also of one over which the connection stayed: the nodes refused everything meanwhile.
                    if told.well() {
                        self.shared.note_end_of_outage();
                    }
                    self.shared.note_answer();
                    tokio::time::sleep(LOOK_AGAIN).await;
                    let _ = tokio::time::timeout(PROBE_EVERY, self.shared.broke.notified()).await;
                }
                Err(error) => {
                    self.failed(&mut told, &error);
                    if let Some(live) = &*self.shared.current.load() {
                        live.confirmed.store(false, Ordering::Relaxed);
                    }
                    if self.shared.current.load().as_ref().is_some_and(|live| live.is_broken()) {
                        self.shared.current.store(None);
                    }
                    told.pause().await;
                }
            }
        }
    }

    /// Looks who has which slots, connects to who is new, and makes a new connection where it must.
    async fn look_around(&self, seeds: &[Client], members: &mut Vec<Arc<Node>>) -> Result<(), StoreError> {
        members.retain(|node| !node.is_broken());
        let map = self.slot_map(seeds, members).await?;
        let seed = seeds.first().ok_or_else(|| StoreError::unexpected(Part::Redis, "redis.urls is empty"))?;
        let connecting = map.primaries.iter().map(async |address| {
            match members.iter().find(|node| *node.address == **address) {
                Some(node) => Ok(node.clone()),
                None => Node::connect(&self.shared, &at(seed, address)?, address)
                    .await
                    .map(Arc::new)
                    .map_err(|error| {
                        StoreError::unavailable(Part::Redis, format!("{address}: {}", reason(&error)))
                    }),
            }
        });
        // Those that can be connected to are kept, whatever becomes of the others.
        let connected = join_all(connecting).await;
        members.extend(connected.iter().flatten().cloned());
        members.sort_by(|one, other| one.address.cmp(&other.address));
        members.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let current = self.shared.current.load_full();
        let known: Vec<Arc<Node>> = current.iter().flat_map(|live| live.nodes.load().to_vec()).collect();
        // One that is away stays what it was, so that the others can go on without it.
        let (mut nodes, mut away) = (Vec::with_capacity(connected.len()), None);
        for (connected, address) in connected.into_iter().zip(&map.primaries) {
            match (connected, known.iter().find(|node| *node.address == **address)) {
                (Ok(node), _) => nodes.push(node),
                (Err(error), Some(before)) => {
                    nodes.push(before.clone());
                    away.get_or_insert(error);
                }
                (Err(error), None) => return Err(error),
            }
        }
        members.retain(|member| nodes.iter().any(|node| Arc::ptr_eq(node, member)));
        self.probe_all(&nodes, &map).await?;
        if map.uncovered() > 0 {
            let uncovered = map.uncovered();
            let reason = format!("{uncovered} of the cluster's slots have no primary");
            return Err(StoreError::unavailable(Part::Redis, reason));
        }
        match current.as_ref().and_then(|live| Some((live, live.slots.as_ref()?))) {
            Some((live, slots)) if are_the_same(&known, &nodes) => {
                if **slots.load() != map {
                    slots.store(Arc::new(map));
                }
                live.confirmed.store(away.is_none(), Ordering::Relaxed);
                live.nodes.store(Arc::new(nodes));
            }
            _ => {
                let slots = Some(ArcSwap::from_pointee(map));
                let live = Live::new(self.next_epoch(), run_of(&nodes).into(), nodes, slots);
                live.confirmed.store(away.is_none(), Ordering::Relaxed);
                self.greet_and_publish(live).await?;
            }
        }
        away.map_or(Ok(()), Err)
    }

    /// The map that most of those who are asked agree on.
    async fn slot_map(&self, seeds: &[Client], members: &[Arc<Node>]) -> Result<SlotMap, StoreError> {
        let first = rand::random_range(0..members.len().max(1));
        let asked = members.iter().cycle().skip(first).take(members.len().min(ASKED));
        let told = join_all(
            asked.map(async |node| SlotMap::read(node.ask::<Value>(cluster_slots()).await?, &node.address)),
        )
        .await;
        let maps: Vec<SlotMap> = told.into_iter().flatten().collect();
        let votes = |map: &&SlotMap| maps.iter().filter(|other| other == map).count();
        if let Some(map) = maps.iter().max_by_key(votes) {
            return Ok(map.clone());
        }
        ask_seeds(seeds, &self.shared.way.connect, self.shared.way.deadline).await
    }

    /// Looks whether each still answers. The store's time is that of the node that has the map of shards:
    /// the same one for all instances.
    async fn probe_all(&self, nodes: &[Arc<Node>], map: &SlotMap) -> Result<(), StoreError> {
        let timekeeper = map.owner(slot_of(self.keys().shards_version().as_bytes()));
        let there = nodes.iter().enumerate().filter(|(_, node)| !node.is_broken());
        let probes = there.map(async |(place, node)| {
            let probed = node.probe(Some(place) == timekeeper).await;
            probed.inspect_err(|_| drop(node.give_up("the probe failed")))
        });
        try_join_all(probes).await?;
        // A node that has lost sight of the others still tells the time and the map, and refuses the rest.
        match timekeeper.map(|place| &nodes[place]).filter(|node| !node.is_broken()) {
            Some(node) => {
                let mut version = redis::cmd("GET");
                version.arg(self.keys().shards_version());
                node.ask::<Option<String>>(version).await.map(drop)
            }
            None => Ok(()),
        }
    }
}

/// Whether these are the same servers in the same runs, though connections to some may be new: what is known
/// of their data holds.
fn are_the_same(before: &[Arc<Node>], now: &[Arc<Node>]) -> bool {
    let same =
        |(one, other): (&Arc<Node>, &Arc<Node>)| one.address == other.address && one.run_id == other.run_id;
    before.len() == now.len() && before.iter().zip(now).all(same)
}

/// Which runs these are, in one word: a viewer's data may be on any of them, so what one of them has
/// forgotten concerns every partition.
fn run_of(nodes: &[Arc<Node>]) -> String {
    let mut runs: Vec<&str> = nodes.iter().map(|node| &*node.run_id).collect();
    runs.sort_unstable();
    format!("cluster-{:032x}", xxh3_128(runs.concat().as_bytes()))
}
