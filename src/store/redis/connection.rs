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
        let sent = self.send(&commands);
        let mut values = match tokio::time::timeout(self.shared.deadline, sent).await {
            Ok(result) => result?,
            Err(_elapsed) => return Err(self.give_up("no answer within redis.deadline")),
        };
        let lost: Vec<usize> = (0..values.len())
            .filter(|index| server_error_code(&values[*index]) == Some("NOSCRIPT"))
            .collect();
        if !lost.is_empty() {
            let again: Vec<Cmd> = lost.iter().map(|index| commands[*index].clone()).collect();
            let resent = async {
                self.load_scripts().await?;
                self.send(&again).await
            };
            match tokio::time::timeout(self.shared.deadline, resent).await {
                Ok(result) => {
                    for (index, value) in lost.into_iter().zip(result?) {
                        values[index] = value;
                    }
                }
                Err(_elapsed) => return Err(self.give_up("no answer within redis.deadline")),
            }
        }
        // The socket of a server that was demoted or shut its doors stays open: leave it.
        if values.iter().any(|value| matches!(server_error_code(value), Some("READONLY" | "NOAUTH"))) {
            self.give_up("it no longer takes writes from this connection");
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

    async fn send(&self, commands: &[Cmd]) -> Result<Vec<Value>, StoreError> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let mut inner = self.live.inner.clone();
        let values = inner
            .send_packed_commands(&pipeline, 0, commands.len())
            .await
            .map_err(|error| self.give_up(&error.to_string()))?;
        if values.len() != commands.len() {
            return Err(self.give_up("a pipeline answered too little"));
        }
        self.shared.note_answer();
        Ok(values)
    }

    pub(super) async fn load_scripts(&self) -> Result<(), StoreError> {
        let loads: Vec<Cmd> = self
            .shared
            .scripts
            .iter()
            .map(|script| {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(script.source());
                load
            })
            .collect();
        if loads.is_empty() {
            return Ok(());
        }
        let loaded = tokio::time::timeout(self.shared.deadline, self.send(&loads)).await;
        let values = loaded.map_err(|_elapsed| self.give_up("no answer within redis.deadline"))??;
        for value in values {
            reply::<String>(value)?;
        }
        Ok(())
    }

    pub(super) async fn observe_time(&self) -> Result<(), StoreError> {
        let asked = self.shared.clock.monotonic();
        let (secs, micros): (i64, i64) = self.query(redis::cmd("TIME")).await?;
        let round_trip = self.shared.clock.monotonic().saturating_sub(asked);
        let told = Timestamp::from_millis(secs.saturating_mul(1_000).saturating_add(micros / 1_000));
        self.shared.clock.observe(told, round_trip);
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
