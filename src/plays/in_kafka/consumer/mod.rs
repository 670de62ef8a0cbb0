//! Counts the plays that are in Kafka's log.
//!
//! The group shares the parts of the topic out among all instances; `group` follows what it says. Each
//! part that this instance has is a `lane`: records are gathered for a moment, counted in one transaction
//! of Postgres together with the offset, and told to Redis. The offsets in Postgres rule. Kafka's own are
//! written after them, for tools that show how far a group is, and never read.

mod backfill;
mod dead_letters;
mod group;
mod lag;
mod lane;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::backfill::{NoRebuild, Rebuilt, rebuild};
use self::{dead_letters::DeadLetters, group::Follow};
use super::{raise::Raiser, record::Received};
use crate::{
    config::{Config, kafka::Kafka},
    error::StoreError,
    lifecycle::{Lifecycle, Phase},
    plays::postgres::Ledger,
    store::{redis::Redis, time::StoreClock},
};

/// Windows in one database at the same time, of one instance: as many connections as the flush has where
/// the pool is as large as it is made.
const WINDOWS_AT_ONCE: usize = 3;

/// How long whatever failed waits before the next try.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_LAST: Duration = Duration::from_secs(5);

/// A record on its way to be counted.
struct Taken {
    offset: i64,
    content: Result<Received, Box<dead_letters::Letter>>,
}

/// What all lanes share.
struct Counting {
    settings: Kafka,
    ledger: Ledger,
    /// None where another Redis than this database's might be told.
    raiser: Option<Raiser>,
    letters: DeadLetters,
    turns: Semaphore,
    dedupe_window: Duration,
    clock: Arc<StoreClock>,
    trouble: Trouble,
}

/// Starts counting, until the service stops.
pub(in crate::plays) fn start(config: &Config, redis: &Redis, ledger: Ledger, lifecycle: &Lifecycle) {
    let raiser = Raiser::new(redis.clone(), ledger.clone());
    let counting = Counting::new(config, ledger, Some(raiser), redis.clock().clone());
    let stopping = lifecycle.stopping(Phase::Jobs);
    lifecycle.spawn(Phase::Jobs, "kafka-consumer", async move { counting.follow_on(&stopping).await });
}

impl Counting {
    fn new(config: &Config, ledger: Ledger, raiser: Option<Raiser>, clock: Arc<StoreClock>) -> Arc<Self> {
        Arc::new(Self {
            settings: config.kafka.clone(),
            raiser,
            ledger,
            letters: DeadLetters::new(&config.kafka),
            turns: Semaphore::new(WINDOWS_AT_ONCE),
            dedupe_window: config.plays.dedupe_window,
            clock,
            trouble: Trouble::default(),
        })
    }

    /// Follows the group, with another client where one can't go on.
    async fn follow_on(self: &Arc<Self>, stopping: &CancellationToken) {
        let mut again = Again::default();
        while let Err(error) = Follow::new(self.clone()).run(stopping).await {
            self.trouble.failed(&error);
            if again.wait(stopping).await.is_none() {
                break;
            }
        }
    }
}

/// Whether counting goes on: told when it changes.
#[derive(Default)]
struct Trouble(AtomicBool);

impl Trouble {
    fn failed(&self, error: &StoreError) {
        metrics::counter!("headcount_kafka_failures_total").increment(1);
        if self.0.swap(true, Ordering::Relaxed) {
            tracing::debug!(error = %error, "plays still can't be counted");
        } else {
            tracing::warn!(error = %error, "plays can't be counted just now and wait in kafka's log: {error}");
        }
    }

    fn over(&self) {
        if self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed) {
            tracing::info!("plays are counted again");
        }
    }
}

/// Waits longer from one try to the next.
struct Again(Duration);

impl Default for Again {
    fn default() -> Self {
        Self(AGAIN_FIRST)
    }
}

impl Again {
    /// `None` where there is no next try.
    async fn wait(&mut self, over: &CancellationToken) -> Option<()> {
        let wait = self.0;
        self.0 = (2 * wait).min(AGAIN_LAST);
        over.run_until_cancelled(tokio::time::sleep(wait)).await
    }
}
