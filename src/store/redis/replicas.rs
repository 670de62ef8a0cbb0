//! Writes that hold only once replicas have them as well: what a failover must not forget.
//!
//! `WAIT` vouches for what its own connection wrote before it, and holds up whatever is sent behind it.
//! So it goes in one pipeline with those writes, on a connection that nobody else uses.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::Mutex;

use super::{Redis, is_unheard, reply};
use crate::{
    clock::millis,
    error::{Part, StoreError},
    lifecycle::Lifecycle,
};

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// A batch, before it is applied.
    Flush,
    /// Plays, before they are answered.
    Plays,
}

impl WaitFor {
    fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Plays => "plays",
        }
    }

    /// What stands still while replicas are missing.
    fn cost(self) -> &'static str {
        match self {
            Self::Flush => "plays wait in redis and reach the database when they are back",
            Self::Plays => "plays are answered 503",
        }
    }
}

/// Why replicas don't vouch for commands, and what became of those.
#[derive(Debug)]
pub struct Unvouched {
    /// Why, of the first of them.
    pub error: StoreError,
    /// What became of them.
    pub sent: Sent,
}

/// What became of commands that replicas don't vouch for.
#[derive(Debug)]
pub enum Sent {
    /// They never left.
    Not,
    /// Nobody heard an answer.
    Unheard,
    /// Redis answered each of them, though its replicas may not have what they wrote: of a cluster those of
    /// some nodes. For each whether they don't.
    Answered(Vec<Value>, Vec<bool>),
}

/// A way to Redis by which a write is a write to `redis.wait_replicas` replicas, too.
pub struct Replicas {
    first: Redis,
    pub(super) beside: Redis,
    wanted: u32,
    what: WaitFor,
    /// A call that comes while one waits would stand behind it with its deadline running.
    turn: Mutex<()>,
    short: AtomicBool,
}

impl Replicas {
    /// A way of its own beside `redis`, for writes that `wanted` replicas must have.
    #[must_use]
    pub fn start(redis: &Redis, lifecycle: &Lifecycle, wanted: u32, what: WaitFor) -> Self {
        let beside = redis.beside(lifecycle);
        Self {
            first: redis.clone(),
            beside,
            wanted,
            what,
            turn: Mutex::default(),
            short: AtomicBool::new(false),
        }
    }

    /// Sends commands together, waits until enough replicas have what they wrote, and returns a value
    /// for each, as [`Connection::pipe`](super::Connection::pipe) does. The last of them, of those of each
    /// node of a cluster, has to write something, or nothing is vouched for: `WAIT` looks at what this
    /// connection wrote, and no further than that.
    ///
    /// # Errors
    /// Too few replicas have it in time, or what happened is unknown. Redis itself may have done it all.
    pub async fn pipe(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, Unvouched> {
        let _turn = self.turn.lock().await;
        let result = self.pipe_and_wait(commands).await;
        if result.is_err() {
            metrics::counter!("headcount_replica_waits_failed_total", "what" => self.what.name())
                .increment(1);
        }
        self.tell(result.as_ref().err().map(|unvouched| &unvouched.error));
        result
    }

    /// [`Replicas::pipe`] for one command, whose answer is read.
    ///
    /// # Errors
    /// As [`Replicas::pipe`], and where Redis refused the command.
    pub async fn query<T: FromRedisValue>(&self, command: Cmd) -> Result<T, StoreError> {
        let value = self.pipe(vec![command]).await.map_err(|unvouched| unvouched.error)?.pop();
        reply(value.ok_or_else(|| StoreError::unexpected(Part::Redis, "a pipeline answered too little"))?)
    }

    /// Whether the last call found too few replicas.
    #[must_use]
    pub fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    async fn pipe_and_wait(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, Unvouched> {
        let connection = self.beside.connection().map_err(|error| Unvouched { error, sent: Sent::Not })?;
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wanted).arg(millis(self.patience()));
        let unheard = |error| Unvouched { error, sent: Sent::Unheard };
        let (values, waited) = connection.pipe_before(commands, &wait).await.map_err(unheard)?;
        let mut first = None;
        let short = waited.into_iter().zip(&values).map(|(waited, value)| {
            // What was not heard says so itself.
            if is_unheard(value) || matches!(waited, Value::Nil) {
                return false;
            }
            let error = match reply::<u32>(waited) {
                Ok(reached) if reached >= self.wanted => return false,
                Ok(reached) => {
                    let wanted = self.wanted;
                    let reason =
                        format!("{reached} of redis.wait_replicas = {wanted} replicas have it in time");
                    StoreError::unavailable(Part::Redis, reason)
                }
                // Whatever it is (demoted while it waited, WAIT forbidden), nothing is vouched for.
                Err(error) => StoreError::unavailable(Part::Redis, format!("WAIT failed: {error}")),
            };
            first.get_or_insert(error);
            true
        });
        let short: Vec<bool> = short.collect();
        if let Some(error) = first {
            return Err(Unvouched { error, sent: Sent::Answered(values, short) });
        }
        Ok(values)
    }

    /// A play that came while others waited waits twice, and is still answered within the deadline.
    fn patience(&self) -> Duration {
        (self.beside.shared.way.deadline * 3 / 8).max(Duration::from_millis(1))
    }

    /// Tells when it begins and when it ends, not each time.
    fn tell(&self, error: Option<&StoreError>) {
        let was_short = self.short.swap(error.is_some(), Ordering::Relaxed);
        let what = self.what.name();
        match error {
            // That Redis is gone altogether is told by the first connection's keeper.
            Some(_) if self.first.connection().is_err() => self.short.store(was_short, Ordering::Relaxed),
            Some(error) if !was_short => tracing::error!(
                replicas.wanted = self.wanted, replicas.what = what, error = %error,
                "{what}: redis.wait_replicas isn't reached, so {}; bring replicas back, or lower it",
                self.what.cost()
            ),
            None if was_short => {
                tracing::info!(replicas.what = what, "{what}: enough replicas are there again");
            }
            _ => {}
        }
    }
}
