//! The topics: made by `headcount migrate`, never by a start.
//!
//! A broker that makes topics by itself makes them with settings of its own, under which plays could be
//! lost: on one broker, or compacted to the last play of each video.

use std::time::Duration;

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
};

use crate::{
    config::kafka::Kafka,
    error::{Part, StoreError},
    store::kafka::{self, Asking, Quiet, told},
};

/// How long the brokers have to be reached, and to make topics.
const REACHED_WITHIN: Duration = Duration::from_secs(5);
const MADE_WITHIN: Duration = Duration::from_secs(15);

/// How far ahead of the brokers' time a record may be, in milliseconds: an hour, and whatever it likes.
const AHEAD: &str = "message.timestamp.after.max.ms";
const AHEAD_AT_MOST: &str = "3600000";
const ANY: &str = "9223372036854775807";

/// What became of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Whether this call made it.
    pub made: bool,
}

/// Makes the topics that aren't there. Those that are stay as they are.
///
/// # Errors
/// The brokers are away, or refuse.
pub async fn make(settings: &Kafka) -> Result<Vec<Topic>, StoreError> {
    let unavailable = |error: &KafkaError| StoreError::unavailable(Part::Kafka, told(error));
    reach(settings).await.map_err(|reason| StoreError::unavailable(Part::Kafka, reason))?;
    let admin: AdminClient<Quiet> = AdminClient::from_config_and_context(&kafka::client(settings), Quiet)
        .map_err(|error| unavailable(&error))?;
    // A play is answered when all brokers but one have it: one may fail, and nothing waits for it.
    let in_step = (settings.replication - 1).max(1).to_string();
    let topic = |name, partitions| {
        NewTopic::new(name, partitions, TopicReplication::Fixed(settings.replication))
            .set("min.insync.replicas", &in_step)
            // A broker that lacks plays never leads.
            .set("unclean.leader.election.enable", "false")
            // Compaction would keep the last play of each video.
            .set("cleanup.policy", "delete")
            // Kept for ever, so that totals can be made anew from it; an operator may decide otherwise.
            .set("retention.ms", "-1")
            // When a play was received decides whether it counts.
            .set("message.timestamp.type", "CreateTime")
    };
    let wanted = [
        // A wrong clock makes no plays of the future: they would bar their viewers until then.
        topic(&settings.topic, settings.partitions).set(AHEAD, AHEAD_AT_MOST),
        // What can't be read is put there as it was, whatever its time.
        topic(&settings.dead_letter_topic, 1).set(AHEAD, ANY),
    ];
    let options = AdminOptions::new().request_timeout(Some(MADE_WITHIN)).operation_timeout(Some(MADE_WITHIN));
    let results = admin.create_topics(&wanted, &options).await.map_err(|error| unavailable(&error))?;
    results
        .into_iter()
        .map(|result| match result {
            Ok(name) => Ok(Topic { name, made: true }),
            Err((name, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(Topic { name, made: false }),
            Err((name, error)) => {
                Err(StoreError::unexpected(Part::Kafka, format!("the topic {name} can't be made: {error}")))
            }
        })
        .collect()
}

/// Whether anybody answers, and why not: who makes topics only tells that nobody does.
async fn reach(settings: &Kafka) -> Result<(), String> {
    let (asking, topic) = (Asking::new(settings)?, settings.topic.clone());
    let asked = tokio::task::spawn_blocking(move || asking.topic(&topic, REACHED_WITHIN).map(drop));
    asked.await.unwrap_or_else(|error| Err(error.to_string()))
}
