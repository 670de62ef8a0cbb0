//! A lock that the whole fleet shares: a Redis key with its owner's token and a lease.
//!
//! It saves work; nothing is wrong where two hold it. Still a holder asks before each write whether
//! it is the owner yet, and never frees what another has taken since.

use std::time::Duration;

use uuid::Uuid;

use super::{
    redis::{Connection, reply},
    script::LuaScript,
};
use crate::{
    clock::millis,
    error::{Part, StoreError},
};

/// Prolongs a lock.
pub static RENEW: LuaScript = LuaScript::new("lock_renew", include_str!("lua/lock_renew.lua"));

/// Gives a lock back.
pub static RELEASE: LuaScript = LuaScript::new("lock_release", include_str!("lua/lock_release.lua"));

/// A lock this process took.
#[derive(Clone, Debug)]
pub struct Lock {
    key: String,
    token: String,
    lease: Duration,
}

/// What came of trying to take a lock.
#[derive(Debug)]
pub enum Taken {
    /// It is mine for one lease.
    Mine(Lock),
    /// It is another's, for so long unless prolonged.
    Others(Duration),
}

impl Lock {
    /// Takes the lock at `key` for `lease`, if nobody has it.
    ///
    /// # Errors
    /// Redis is away; whether the lock was taken is unknown, and it runs out by itself.
    pub async fn take(connection: &Connection, key: String, lease: Duration) -> Result<Taken, StoreError> {
        let token = Uuid::now_v7().to_string();
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&token).arg("NX").arg("PX").arg(millis(lease));
        let mut left = redis::cmd("PTTL");
        left.arg(&key);
        let [taken, left] = connection.pipe_array([set, left]).await?;
        if reply::<Option<String>>(taken)?.is_some() {
            return Ok(Taken::Mine(Self { key, token, lease }));
        }
        let left: i64 = reply(left)?;
        if left == -1 {
            // Whoever put it there without a lease would keep everybody out for ever.
            tracing::warn!(lock.key = %key, "{key} has no lease: it is given one");
            let mut expire = redis::cmd("PEXPIRE");
            expire.arg(&key).arg(millis(lease));
            connection.query::<i64>(expire).await?;
            return Ok(Taken::Others(lease));
        }
        Ok(Taken::Others(Duration::from_millis(u64::try_from(left).unwrap_or(0))))
    }

    /// Prolongs the lock by a lease from now; `false` where it is no longer mine.
    ///
    /// # Errors
    /// Redis is away.
    pub async fn renew(&self, connection: &Connection) -> Result<bool, StoreError> {
        let args = [self.token.clone(), millis(self.lease).to_string()];
        let renewed: i64 = connection.query(RENEW.call(&[&self.key], &args)).await?;
        if renewed == 0 {
            metrics::counter!("headcount_lock_lost_total").increment(1);
        }
        Ok(renewed == 1)
    }

    /// Gives the lock back, if it is still mine.
    ///
    /// # Errors
    /// Redis is away; the lock runs out by itself.
    pub async fn release(self, connection: &Connection) -> Result<(), StoreError> {
        connection.query::<i64>(RELEASE.call(&[&self.key], &[&self.token])).await.map(drop)
    }

    /// The token that marks the owner, for a script that checks it itself.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The key it lies at.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// A lock while its owner works: asked for before each write, and only where it may be lost.
#[derive(Debug)]
pub struct Held {
    lock: Lock,
    confirmed: std::time::Instant,
}

impl Held {
    /// Of a lock that was taken just now.
    #[must_use]
    pub fn new(lock: Lock) -> Self {
        Self { lock, confirmed: std::time::Instant::now() }
    }

    /// The lock itself.
    #[must_use]
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Makes sure that the lock is mine, prolonging it once a third of its lease is over.
    ///
    /// # Errors
    /// It is another's by now, or Redis is away.
    pub async fn still_mine(&mut self, connection: &Connection) -> Result<(), StoreError> {
        if self.confirmed.elapsed() < self.lock.lease / 3 {
            return Ok(());
        }
        let asked = std::time::Instant::now();
        if !self.lock.renew(connection).await? {
            return Err(StoreError::unavailable(Part::Redis, "another instance has taken over"));
        }
        self.confirmed = asked;
        Ok(())
    }
}
