//! Plays taken by Kafka's log, and counted from there.
//!
//! `producer` answers a play when the brokers have it. `record` is how it stands in the log. `consumer`
//! reads the log and counts `window`s of it, which `plays/postgres/window.rs` writes; `raise` tells Redis. Totals are
//! read as they are without Kafka; deltas that waited in Redis when Kafka came are flushed on.

pub mod consumer;
#[cfg(test)]
mod counting_tests;
pub(in crate::plays) mod hyperloglog;
mod producer;
pub mod raise;
pub mod record;
#[cfg(test)]
mod tests;
pub mod topics;
pub mod window;

use std::sync::Arc;

use async_trait::async_trait;

use self::producer::Producer;
use super::{Play, PlayCount, Plays, Recorded, in_redis::RedisPlays};
use crate::{
    config::Config,
    error::{Part, StoreError},
    health::{Health, HealthCheck},
    ids::VideoId,
    lifecycle::Lifecycle,
    store::redis::Redis,
};

/// Takes plays into Kafka's log; whether one counts is decided by who reads it.
pub struct KafkaPlays {
    producer: Arc<Producer>,
    kept: Arc<RedisPlays>,
}

impl KafkaPlays {
    /// Starts the client that writes plays, and counting where this process is to. `kept` has the totals. Records are dated in Redis's time, as
    /// everything is, so that instances whose clocks differ agree on what came within the dedupe window.
    ///
    /// # Errors
    /// librdkafka doesn't take the settings.
    pub fn open(
        config: &Config,
        redis: &Redis,
        kept: Arc<RedisPlays>,
        lifecycle: &Lifecycle,
    ) -> Result<Arc<Self>, StoreError> {
        let producer = Producer::start(config, redis.clock().clone(), lifecycle)?;
        if config.kafka.consume {
            consumer::start(config, redis, kept.flusher().ledger().clone(), lifecycle);
        }
        Ok(Arc::new(Self { producer, kept }))
    }
}

#[async_trait]
impl Plays for KafkaPlays {
    async fn record(&self, play: Play) -> Result<Recorded, StoreError> {
        self.producer.write(&play).await.map(|()| Recorded::Accepted)
    }

    async fn counts(&self, videos: &[VideoId]) -> Vec<PlayCount> {
        self.kept.counts(videos).await
    }

    fn fullness(&self) -> f64 {
        self.producer.fullness()
    }
}

/// Without Kafka plays fail and all else goes on: an instance that was taken out of the balancer for it
/// would take beats and counts along, and the others miss the same brokers.
#[async_trait]
impl HealthCheck for KafkaPlays {
    async fn check(&self) -> Health {
        let degraded = (!self.producer.condition().is_well()).then_some(Part::Kafka);
        Health { failed: Vec::new(), degraded: degraded.into_iter().collect() }
    }
}
