//! From where a part of the topic is to be read: what the database says, held against what the log has.
//!
//! Each part is opened by itself, so that one without a leader holds up no other. The brokers are asked by
//! a client of its own: while it waits for an answer the consumer can leave the group.

use std::{sync::Arc, time::Duration};

use rdkafka::{admin::AdminClient, config::FromClientConfigAndContext as _, error::KafkaError};
use tokio::{
    sync::OnceCell,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Again, Counting};
use crate::{
    config::kafka::Kafka,
    error::{Part, StoreError},
    plays::postgres::positions::{Place, Position},
    store::kafka::{self, Quiet, told},
};

/// How long the brokers have for an answer.
pub(super) const BROKERS_WAIT: Duration = Duration::from_secs(10);

/// How often it is looked whether the topic still is the one that it was.
const SAME_TOPIC_EVERY: Duration = Duration::from_secs(10);

/// A part of the topic and where it begins.
pub(super) struct Opened {
    pub(super) place: Place,
    pub(super) position: Position,
    pub(super) from: i64,
}

/// The way to the brokers, for questions.
pub(super) struct Brokers {
    client: AdminClient<Quiet>,
    topic: String,
}

impl Brokers {
    /// Nobody is asked yet.
    pub(super) fn new(settings: &Kafka) -> Result<Self, KafkaError> {
        let client = AdminClient::from_config_and_context(&kafka::client(settings), Quiet)?;
        Ok(Self { client, topic: settings.topic.clone() })
    }

    /// Which topic it is that has this name.
    async fn topic_id(self: &Arc<Self>) -> Result<Uuid, StoreError> {
        let brokers = self.clone();
        let asking =
            move || headcount_topic_id::topic_id(brokers.client.inner(), &brokers.topic, BROKERS_WAIT);
        let topic = &self.topic;
        match blocking(asking).await? {
            // Every topic of theirs has this one: one that was made anew would go on where the old one was.
            Ok(0) => {
                let reason =
                    format!("the brokers give the topic {topic} no id; those of Kafka 2.8 or later do");
                Err(StoreError::unexpected(Part::Kafka, reason))
            }
            Ok(id) => Ok(Uuid::from_u128(id)),
            Err(error) => {
                let reason = format!("the topic {topic} can't be described: {error}");
                Err(StoreError::unavailable(Part::Kafka, reason))
            }
        }
    }

    /// The offset of the first record of a part, and the one behind its last.
    async fn ends(self: &Arc<Self>, partition: i32) -> Result<(i64, i64), StoreError> {
        let brokers = self.clone();
        let asking = move || brokers.client.inner().fetch_watermarks(&brokers.topic, partition, BROKERS_WAIT);
        blocking(asking).await?.map_err(|error| StoreError::unavailable(Part::Kafka, told(&error)))
    }
}

/// Finds out where a part begins, however long that takes; it is dropped when the part is given up.
/// `topic_id` is what all parts of one assignment share.
pub(super) async fn open(
    counting: Arc<Counting>,
    brokers: Arc<Brokers>,
    topic_id: Arc<OnceCell<Uuid>>,
    partition: i32,
    given_up: CancellationToken,
) -> Opened {
    let mut again = Again::default();
    loop {
        let opening = async {
            let topic_id = *topic_id.get_or_try_init(|| brokers.topic_id()).await?;
            let place = Place { topic: counting.settings.topic.clone(), topic_id, partition };
            let reading = async {
                let _turn = counting.turns.acquire().await;
                counting.ledger.position(&place).await
            };
            let position = reading.await?;
            Ok::<_, StoreError>((place, position))
        };
        match opening.await {
            Ok((place, position)) => {
                let from = match brokers.ends(partition).await {
                    Ok((low, high)) => begin(&place, position.next_offset, low, high),
                    // Nobody leads it just now. Where it doesn't reach back to there, the client will say so.
                    Err(error) => {
                        tracing::debug!(error = %error, kafka.partition = partition, "its ends aren't known");
                        position.next_offset
                    }
                };
                counting.trouble.over(partition);
                return Opened { place, position, from };
            }
            Err(error) => {
                counting.trouble.failed(partition, &error);
                if again.wait(&given_up).await.is_none() {
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// Where to begin to read, where the log holds records from `low` on, up to `high`.
fn begin(place: &Place, next: i64, low: i64, high: i64) -> i64 {
    let Place { topic, partition, .. } = place;
    if next < low {
        let missed = low - next;
        metrics::counter!("headcount_kafka_missed_total").increment(missed.unsigned_abs());
        tracing::error!(
            kafka.partition = partition,
            kafka.missed = missed,
            "{missed} records of partition {partition} of {topic} are gone from the log and were not counted: \
             it keeps them for too short a time"
        );
    } else if next > high {
        tracing::error!(
            kafka.partition = partition,
            kafka.counted = next,
            kafka.end = high,
            "partition {partition} of {topic} ends at {high}, and {next} records of it were counted: the log has \
             lost some; what comes next is counted"
        );
    }
    next.max(low).min(high)
}

pub(super) async fn blocking<T: Send + 'static>(
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    let asked = tokio::task::spawn_blocking(ask).await;
    asked.map_err(|error| StoreError::unexpected(Part::Kafka, error))
}

/// Returns when the topic's name is another topic's.
pub(super) async fn another_topic(brokers: Arc<Brokers>, id: Uuid) {
    let mut looks = interval(SAME_TOPIC_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if brokers.topic_id().await.is_ok_and(|now| now != id) {
            return;
        }
    }
}
