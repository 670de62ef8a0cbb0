//! What callers hold: one server, or the primaries of a cluster as they were when it was made.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use redis::{Cmd, FromRedisValue, Value};
use tokio::time::Instant;

use super::{
    Shared,
    node::{Node, pipeline_of},
    reply::reply,
    slots::SlotMap,
};
use crate::error::{Part, StoreError};

/// A way to all of the data. It may break at any time; it never becomes another one.
#[derive(Clone)]
pub struct Connection {
    pub(super) live: Arc<Live>,
    pub(super) shared: Arc<Shared>,
}

/// The servers behind a [`Connection`].
pub(super) struct Live {
    pub(super) epoch: u64,
    pub(super) run_id: Arc<str>,
    /// One; or those of a cluster, in the order of [`SlotMap::primaries`]. Only the connection to a node may
    /// be another one by now, never the node.
    pub(super) nodes: ArcSwap<Vec<Arc<Node>>>,
    /// Whether the last look at the cluster found it as it is here.
    pub(super) confirmed: AtomicBool,
    /// Which of them has which slots; slots may go from one to another. `None` for a single server.
    pub(super) slots: Option<ArcSwap<SlotMap>>,
}

impl Live {
    pub(super) fn new(
        epoch: u64,
        run_id: Arc<str>,
        nodes: Vec<Arc<Node>>,
        slots: Option<ArcSwap<SlotMap>>,
    ) -> Self {
        let confirmed = AtomicBool::new(true);
        Self { epoch, run_id, nodes: ArcSwap::from_pointee(nodes), confirmed, slots }
    }

    /// Whether nothing can be had from it any more. Of a cluster, some of it may be away meanwhile.
    pub(super) fn is_broken(&self) -> bool {
        self.nodes.load().iter().all(|node| node.is_broken())
    }

    /// Whether nothing of it is away, as far as is known.
    pub(super) fn is_whole(&self) -> bool {
        self.confirmed.load(Ordering::Relaxed) && self.nodes.load().iter().all(|node| !node.is_broken())
    }
}

impl Connection {
    /// Which connection this is; later ones have greater numbers.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.live.epoch
    }

    /// Which run of which server is behind it; of a cluster, which runs of all of its primaries.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.live.run_id
    }

    /// How many servers work on what is sent, at the same time.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.live.nodes.load().len()
    }

    /// Whether no node of a cluster is away, or has come that can't be reached. Where it isn't, what is found
    /// missing need not be missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.live.is_whole()
    }

    /// Whether it is of no more use.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.live.is_broken()
    }

    /// Sends commands together and returns a value for each, in order. A command that Redis
    /// refused has a [`Value::ServerError`] in its place (see [`reply`]) and doesn't touch the
    /// others. Scripts that Redis has lost are loaded and called again.
    ///
    /// On one server they run in this order. In a cluster each node has its part of them, at the same
    /// time; what a node didn't answer has an error in its place that [`is_unheard`] tells.
    ///
    /// [`is_unheard`]: super::is_unheard
    ///
    /// # Errors
    /// No answer within the deadline, or the connection broke: what happened to the commands is
    /// unknown.
    pub async fn pipe(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        let until = Instant::now() + self.shared.way.deadline;
        self.exchange(commands, None, until).await.map(|(values, _)| values)
    }

    /// [`Connection::pipe`] in stages of which none begins before the one ahead is over: one pipeline on
    /// one server, in a cluster one after the other. Each has its values.
    ///
    /// # Errors
    /// As [`Connection::pipe`]; of all stages.
    pub async fn pipe_in_stages<const N: usize>(
        &self,
        stages: [Vec<Cmd>; N],
    ) -> Result<[Vec<Value>; N], StoreError> {
        let until = Instant::now() + self.shared.way.deadline;
        let mut answers = [const { Vec::new() }; N];
        if self.live.slots.is_none() {
            let lengths = stages.each_ref().map(Vec::len);
            let commands = stages.into_iter().flatten().collect();
            let mut values = self.exchange(commands, None, until).await?.0.into_iter();
            for (answer, length) in answers.iter_mut().zip(lengths) {
                answer.extend(values.by_ref().take(length));
            }
        } else {
            for (answer, stage) in answers.iter_mut().zip(stages) {
                *answer = self.exchange(stage, None, until).await?.0;
            }
        }
        Ok(answers)
    }

    /// [`Connection::pipe`] with `last` behind the commands, of each node that got any, and also behind
    /// those that had to be sent again; beside each value that of the `last` behind it.
    pub(super) async fn pipe_before(
        &self,
        commands: Vec<Cmd>,
        last: &Cmd,
    ) -> Result<(Vec<Value>, Vec<Value>), StoreError> {
        self.exchange(commands, Some(last), Instant::now() + self.shared.way.deadline).await
    }

    async fn exchange(
        &self,
        commands: Vec<Cmd>,
        last: Option<&Cmd>,
        until: Instant,
    ) -> Result<(Vec<Value>, Vec<Value>), StoreError> {
        if commands.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        // Who still holds it would wait for the deadline, one after the other where they take turns.
        if self.is_broken() {
            return Err(StoreError::unavailable(Part::Redis, "the connection is broken"));
        }
        if let Some(slots) = &self.live.slots {
            return Ok(self.exchange_by_slot(&slots.load_full(), commands, last, until).await);
        }
        let count = commands.len();
        let pipeline = pipeline_of(commands.into_iter().chain(last.cloned()));
        let node = self.live.nodes.load()[0].clone();
        let mut values = node.exchange(&pipeline, usize::from(last.is_some()), until).await?;
        let last = values.split_off(count).pop();
        Ok((values, vec![last.unwrap_or(Value::Nil); count]))
    }

    /// [`Connection::pipe`] for a number of commands known beforehand.
    ///
    /// # Errors
    /// As [`Connection::pipe`].
    pub async fn pipe_array<const N: usize>(&self, commands: [Cmd; N]) -> Result<[Value; N], StoreError> {
        let values = self.pipe(commands.into()).await?;
        values.try_into().map_err(|_| StoreError::unexpected(Part::Redis, "a pipeline answered too little"))
    }

    /// Sends one command and reads its answer.
    ///
    /// # Errors
    /// As [`Connection::pipe`], and where Redis refused the command.
    pub async fn query<T: FromRedisValue>(&self, command: Cmd) -> Result<T, StoreError> {
        let [value] = self.pipe_array([command]).await?;
        reply(value)
    }
}
