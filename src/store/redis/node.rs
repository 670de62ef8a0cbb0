//! One server and the connection to it: commands go out together, answers come back in order.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};
use tokio::time::Instant;

use super::{
    Shared,
    address::explained,
    info_field,
    keeper::reason,
    reply::{reply, server_error_code},
};
use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    store::attempts::first_to_end,
};

/// How often scripts are loaded in one call: somebody may throw them away faster than we load them.
const RELOADS: usize = 8;

/// A primary. The connection may break at any time; it never becomes another one.
pub(super) struct Node {
    /// Its address as a cluster tells it; empty where there is only this one.
    pub(super) address: Arc<str>,
    /// Which run of which server it is.
    pub(super) run_id: Arc<str>,
    inner: MultiplexedConnection,
    broken: AtomicBool,
    shared: Arc<Shared>,
}

impl Node {
    /// Makes a connection fit for use: to a primary that knows our scripts.
    pub(super) async fn connect(
        shared: &Arc<Shared>,
        client: &redis::Client,
        address: &str,
    ) -> Result<Self, StoreError> {
        let way = &shared.way;
        let inner = first_to_end(|| client.get_multiplexed_async_connection_with_config(&way.connect))
            .await
            .map_err(|error| StoreError::unavailable(Part::Redis, explained(&error.to_string(), client)))?;
        let mut node = Self {
            address: address.into(),
            run_id: "".into(),
            inner,
            broken: AtomicBool::new(false),
            shared: shared.clone(),
        };
        let first = node.ask(info("server")).await;
        // The first that is said on it: a server may only now have hung up.
        let server: String = first
            .map_err(|error| StoreError::unavailable(Part::Redis, explained(&reason(&error), client)))?;
        let replication: String = node.ask(info("replication")).await?;
        if info_field(&replication, "role") == Some("slave") {
            return Err(StoreError::unavailable(Part::Redis, "READONLY it is a replica and takes no writes"));
        }
        let in_cluster = info_field(&server, "redis_mode") == Some("cluster")
            || info_field(&server, "server_mode") == Some("cluster");
        if in_cluster != way.servers.is_cluster() {
            let reason = if in_cluster {
                "it is a node of a cluster: set redis.topology = \"cluster\", and redis.urls to some of its nodes"
            } else {
                "redis.topology is \"cluster\", and it is no node of one: set \"single\" and redis.url"
            };
            return Err(StoreError::unavailable(Part::Redis, reason));
        }
        node.run_id = info_field(&server, "run_id").unwrap_or("unknown").into();
        let loads = node.loads();
        if !loads.is_empty() {
            for value in node.exchange(&pipeline_of(loads.into_iter()), 0, node.deadline()).await? {
                reply::<String>(value)?;
            }
        }
        Ok(node)
    }

    /// Whether it is of no more use.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Sends commands together and returns a value for each. The last `behind` of them stay behind the
    /// others, also behind those that had to be sent again because the server had lost its scripts.
    ///
    /// # Errors
    /// No answer by `until`, or the connection broke: what happened to the commands is unknown.
    pub(super) async fn exchange(
        &self,
        pipeline: &Pipeline,
        behind: usize,
        until: Instant,
    ) -> Result<Vec<Value>, StoreError> {
        let Ok(values) = tokio::time::timeout_at(until, self.exchange_untimed(pipeline, behind)).await else {
            return Err(self.give_up("no answer within redis.deadline"));
        };
        let values = values?;
        // The socket of a server that was demoted or shut its doors stays open: leave it.
        if values.iter().any(|value| matches!(server_error_code(value), Some("READONLY" | "NOAUTH"))) {
            self.give_up("it no longer takes writes from this connection");
        }
        Ok(values)
    }

    async fn exchange_untimed(&self, pipeline: &Pipeline, behind: usize) -> Result<Vec<Value>, StoreError> {
        let count = pipeline.len() - behind;
        let mut values = self.send(pipeline).await?;
        for _ in 0..RELOADS {
            let is_lost = |index: &usize| server_error_code(&values[*index]) == Some("NOSCRIPT");
            let mut again: Vec<usize> = (0..count).filter(is_lost).collect();
            if again.is_empty() {
                break;
            }
            again.extend(count..pipeline.len());
            // Loads and calls go together: scripts that are lost again and again meet a small gap.
            let loads = self.loads();
            let loading = loads.len();
            let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
            let calls = again.iter().map(|index| commands[*index].clone());
            let mut answers = self.send(&pipeline_of(loads.into_iter().chain(calls))).await?;
            let called = answers.split_off(loading);
            for load in answers {
                reply::<String>(load)?;
            }
            for (index, value) in again.into_iter().zip(called) {
                values[index] = value;
            }
        }
        Ok(values)
    }

    async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let mut inner = self.inner.clone();
        let count = pipeline.len();
        let values = inner
            .send_packed_commands(pipeline, 0, count)
            .await
            .map_err(|error| self.give_up(&error.to_string()))?;
        if values.len() != count {
            return Err(self.give_up("a pipeline answered too little"));
        }
        self.shared.note_answer_of_one();
        Ok(values)
    }

    fn loads(&self) -> Vec<Cmd> {
        let scripts = self.shared.way.scripts.iter();
        scripts
            .map(|script| {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.source());
                load
            })
            .collect()
    }

    /// Asks one thing that is about the server and not about a key.
    pub(super) async fn ask<T: redis::FromRedisValue>(&self, command: Cmd) -> Result<T, StoreError> {
        let asked = pipeline_of([command].into_iter());
        let answer = self.exchange(&asked, 0, self.deadline()).await?.pop();
        reply(answer.unwrap_or(Value::Nil))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.shared.way.deadline
    }

    /// Looks whether it still answers. What time it is there is taken for the store's, where this is the
    /// node to tell it.
    pub(super) async fn probe(&self, tells_the_time: bool) -> Result<(), StoreError> {
        let clock = &self.shared.way.clock;
        let asked = clock.monotonic();
        let (secs, micros): (i64, i64) = self.ask(redis::cmd("TIME")).await?;
        // On a way beside, the question may have stood behind a WAIT: the answer is no measure of the time.
        if self.shared.beside || !tells_the_time {
            return Ok(());
        }
        let round_trip = clock.monotonic().saturating_sub(asked);
        let told = Timestamp::from_millis(secs.saturating_mul(1_000).saturating_add(micros / 1_000));
        clock.observe(told, round_trip);
        Ok(())
    }

    /// Marks the connection as broken and wakes the keeper.
    pub(super) fn give_up(&self, reason: &str) -> StoreError {
        if !self.broken.swap(true, Ordering::Relaxed) {
            tracing::debug!(
                redis.reason = reason,
                redis.node = &*self.address,
                "dropping the connection to redis"
            );
            self.shared.broke.notify_one();
        }
        StoreError::unavailable(Part::Redis, reason)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Node").field(&self.address).finish()
    }
}

pub(super) fn pipeline_of(commands: impl Iterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.size_hint().0);
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

fn info(section: &str) -> Cmd {
    let mut command = redis::cmd("INFO");
    command.arg(section);
    command
}
