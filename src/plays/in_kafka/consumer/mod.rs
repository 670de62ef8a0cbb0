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
mod opening;
mod piece;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::backfill::{NoRebuild, Rebuilt, rebuild};
use self::{dead_letters::DeadLetters, group::Follow};
use super::{raise::Raiser, record::Received};
use crate::{
    config::{Config, kafka::Kafka},
    error::StoreError,
    lifecycle::{Lifecycle, Phase},
    plays::postgres::Ledger,
    store::{postgres::Lane, redis::Redis, time::StoreClock},
};

/// How long whatever failed waits before the next try.
const AGAIN_FIRST: Duration = Duration::from_millis(100);
const AGAIN_LAST: Duration = Duration::from_secs(5);

/// A client that has followed the group for so long did well until then.
const WELL_AFTER: Duration = Duration::from_secs(60);

/// A record on its way to be counted.
struct Taken {
    offset: i64,
    content: Result<Received, Box<dead_letters::Letter>>,
}

impl Taken {
    /// The bytes of what can't be read.
    fn letter_bytes(&self) -> usize {
        self.content.as_ref().err().map_or(0, |letter| letter.bytes())
    }
}

/// What all lanes share.
struct Counting {
    settings: Kafka,
    ledger: Ledger,
    /// None where another Redis than this database's might be told.
    raiser: Option<Raiser>,
    letters: DeadLetters,
    /// One a connection: what else would wait for one has its place in the log.
    turns: Semaphore,
    /// What a statement may take in Postgres.
    too_slow: Duration,
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
        let connections = ledger.postgres().connections(Lane::Flush);
        Arc::new(Self {
            settings: config.kafka.clone(),
            raiser,
            ledger,
            letters: DeadLetters::new(&config.kafka),
            turns: Semaphore::new(connections),
            too_slow: config.postgres.deadline,
            dedupe_window: config.plays.dedupe_window,
            clock,
            trouble: Trouble::default(),
        })
    }

    /// Follows the group, with another client where one can't go on.
    async fn follow_on(self: &Arc<Self>, stopping: &CancellationToken) {
        let mut again = Again::default();
        loop {
            let began = Instant::now();
            let Err(error) = Follow::new(self.clone()).run(stopping).await else { break };
            if began.elapsed() >= WELL_AFTER {
                again = Again::default();
            }
            self.trouble.failed(None, &error);
            if again.wait(stopping).await.is_none() {
                break;
            }
        }
    }
}

/// Which parts of the topic can't be counted just now, or that none can: told when it changes.
#[derive(Default)]
struct Trouble(Mutex<BTreeSet<Option<i32>>>);

impl Trouble {
    fn failed(&self, partition: impl Into<Option<i32>>, error: &StoreError) {
        metrics::counter!("headcount_kafka_failures_total").increment(1);
        let partition = partition.into();
        let whose = partition.map_or_else(String::new, |partition| format!(" of partition {partition}"));
        if self.0.lock().insert(partition) {
            tracing::warn!(
                error = %error, kafka.partition = partition,
                "plays{whose} can't be counted just now and wait in kafka's log: {error}"
            );
        } else {
            tracing::debug!(error = %error, kafka.partition = partition, "plays still can't be counted");
        }
    }

    /// One that is counted shows that the client does well.
    fn over(&self, partition: i32) {
        let mut ill = self.0.lock();
        if !ill.is_empty() && (ill.remove(&Some(partition)) | ill.remove(&None)) {
            tracing::info!(kafka.partition = partition, "plays of partition {partition} are counted again");
        }
    }

    /// All parts are counted by others now, who tell what there is to tell.
    fn forget(&self) {
        self.0.lock().retain(Option::is_none);
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
