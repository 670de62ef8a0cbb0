//! One connection: commands go out together, answers come back in order, each call within the deadline.

use std::sync::{Arc, atomic::Ordering};

use redis::{Cmd, FromRedisValue, Pipeline, Value};

use super::{
    Live, Shared,
    reply::{reply, server_error_code},
};
use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
};

/// How often scripts are loaded in one call: somebody may throw them away faster than we load them.
const RELOADS: usize = 8;

/// One connection to Redis. It may break at any time; it never becomes another one.
#[derive(Clone)]
pub struct Connection {
    pub(super) live: Arc<Live>,
    pub(super) shared: Arc<Shared>,
}

impl Connection {
    /// Which connection this is; later ones have greater numbers.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.live.epoch
    }

    /// Which run of which Redis server is behind it.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.live.run_id
    }

    /// Whether it is of no more use.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.live.broken.load(Ordering::Relaxed)
    }

    /// Sends commands together and returns a value for each, in order. A command that Redis
    /// refused has a [`Value::ServerError`] in its place (see [`reply`]) and doesn't touch the
    /// others. Scripts that Redis has lost are loaded and called again.
    ///
    /// # Errors
    /// No answer within the deadline, or the connection broke: what happened to the commands is
    /// unknown.
    pub async fn pipe(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.exchange(commands, None).await
    }

    /// [`Connection::pipe`] with `last` behind the commands, also behind those that had to be sent
    /// again; its value is the last.
    pub(super) async fn pipe_before(&self, commands: Vec<Cmd>, last: &Cmd) -> Result<Vec<Value>, StoreError> {
        self.exchange(commands, Some(last)).await
    }

    async fn exchange(&self, commands: Vec<Cmd>, last: Option<&Cmd>) -> Result<Vec<Value>, StoreError> {
        // Who still holds it would wait for the deadline, one after the other where they take turns.
        if self.is_broken() {
            return Err(StoreError::unavailable(Part::Redis, "the connection is broken"));
        }
        let exchanged = self.exchange_untimed(commands, last);
        let Ok(values) = tokio::time::timeout(self.shared.way.deadline, exchanged).await else {
            return Err(self.give_up("no answer within redis.deadline"));
        };
        let values = values?;
        // The socket of a server that was demoted or shut its doors stays open: leave it.
        if values.iter().any(|value| matches!(server_error_code(value), Some("READONLY" | "NOAUTH"))) {
            self.give_up("it no longer takes writes from this connection");
        }
        Ok(values)
    }

    async fn exchange_untimed(
        &self,
        commands: Vec<Cmd>,
        last: Option<&Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let count = commands.len();
        let pipeline = pipeline_of(commands.into_iter().chain(last.cloned()));
        let mut values = self.send(&pipeline).await?;
        for _ in 0..RELOADS {
            let is_lost = |index: &usize| server_error_code(&values[*index]) == Some("NOSCRIPT");
            let lost: Vec<usize> = (0..count).filter(is_lost).collect();
            if lost.is_empty() {
                break;
            }
            // Loads and calls go together: scripts that are lost again and again meet a small gap.
            let loads = self.loads();
            let loading = loads.len();
            let commands: Vec<&Cmd> = pipeline.cmd_iter().collect();
            let again = lost.iter().map(|index| commands[*index]).chain(last).cloned();
            let mut answers = self.send(&pipeline_of(loads.into_iter().chain(again))).await?;
            let mut called = answers.split_off(loading).into_iter();
            for load in answers {
                reply::<String>(load)?;
            }
            let ends = lost.into_iter().chain(last.map(|_| count));
            for (index, value) in ends.zip(&mut called) {
                values[index] = value;
            }
        }
        Ok(values)
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

    async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        let mut inner = self.live.inner.clone();
        let count = pipeline.len();
        let values = inner
            .send_packed_commands(pipeline, 0, count)
            .await
            .map_err(|error| self.give_up(&error.to_string()))?;
        if values.len() != count {
            return Err(self.give_up("a pipeline answered too little"));
        }
        self.shared.note_answer();
        Ok(values)
    }

    /// Makes every script known to the server.
    pub(super) async fn load_scripts(&self) -> Result<(), StoreError> {
        for value in self.pipe(self.loads()).await? {
            reply::<String>(value)?;
        }
        Ok(())
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

    pub(super) async fn observe_time(&self) -> Result<(), StoreError> {
        let asked = self.shared.way.clock.monotonic();
        let (secs, micros): (i64, i64) = self.query(redis::cmd("TIME")).await?;
        let round_trip = self.shared.way.clock.monotonic().saturating_sub(asked);
        let told = Timestamp::from_millis(secs.saturating_mul(1_000).saturating_add(micros / 1_000));
        self.shared.way.clock.observe(told, round_trip);
        Ok(())
    }

    /// Marks the connection as broken and wakes the keeper.
    pub(super) fn give_up(&self, reason: &str) -> StoreError {
        if !self.live.broken.swap(true, Ordering::Relaxed) {
            tracing::debug!(redis.reason = reason, "dropping the connection to redis");
            self.shared.broke.notify_one();
        }
        StoreError::unavailable(Part::Redis, reason)
    }
}

fn pipeline_of(commands: impl Iterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(commands.size_hint().0);
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}
