//! Tells the other instances that players were slowed down here: whichever has to know how long it
//! takes until everybody has beaten twice needn't be the one that asked for it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    error::StoreError,
    jobs::Job,
    presence::rhythm::Rhythm,
    store::redis::{Redis, reply},
};

/// How often it is told and listened for: players aren't slowed down much in so short a time.
const EVERY: Duration = Duration::from_secs(5);

/// The job "rhythm".
pub(super) struct Slowed {
    pub(super) redis: Redis,
    pub(super) rhythm: Arc<Rhythm>,
}

impl Slowed {
    async fn exchange(&self) -> Result<(), StoreError> {
        let key = self.redis.keys().slowed();
        let mut commands = Vec::new();
        if let Some(left) = self.rhythm.own_lasts() {
            // What another instance asked for may last longer: only ever prolonged.
            let left = left.as_millis().max(1).to_string();
            let mut tell = redis::cmd("SET");
            tell.arg(&key).arg(1).arg("PX").arg(&left).arg("NX");
            let mut prolong = redis::cmd("PEXPIRE");
            prolong.arg(&key).arg(&left).arg("GT");
            commands.extend([tell, prolong]);
        }
        let mut ask = redis::cmd("PTTL");
        ask.arg(&key);
        commands.push(ask);
        let answers = self.redis.connection()?.pipe(commands).await?;
        if let Some(left) = answers.into_iter().next_back() {
            // Negative where nobody was slowed down.
            if let Ok(left) = u64::try_from(reply::<i64>(left)?) {
                self.rhythm.heard(Duration::from_millis(left));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Job for Slowed {
    fn name(&self) -> &'static str {
        "rhythm"
    }

    /// At once: what an instance that was here before asked for still holds.
    fn first_in(&self) -> Duration {
        Duration::ZERO
    }

    fn every(&self) -> Duration {
        EVERY
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        // What others asked for is kept in mind meanwhile; that Redis is away is told elsewhere.
        if let Err(error) = self.exchange().await {
            tracing::debug!(error = %error, "how often players beat was not exchanged");
        }
        Ok(None)
    }
}
