//! Asks Kafka's brokers of the topics, over a connection of its own.

use std::{collections::BTreeMap, time::Duration};

use rdkafka::{
    admin::{AdminClient, AdminOptions, ResourceSpecifier},
    config::FromClientConfigAndContext as _,
    error::RDKafkaErrorCode,
    metadata::MetadataTopic,
};

use super::{
    Answer,
    kafka::{Facts, Shape},
};
use crate::{
    config::kafka::Kafka,
    store::kafka::{self, Asking, Quiet, told},
};

/// An answer that takes longer isn't waited for: a doctor is no request.
const PATIENCE: Duration = Duration::from_secs(5);

/// The facts, or why there is no way to the brokers.
pub(super) async fn ask(settings: &Kafka) -> Answer<Facts> {
    let asking = Asking::new(settings)?;
    let names = [settings.topic.clone(), settings.dead_letter_topic.clone()];
    // librdkafka blocks, for this and to end.
    let asked =
        tokio::task::spawn_blocking(move || Ok([shape(&asking, &names[0])?, shape(&asking, &names[1])?]));
    let [topic, dead_letters] = asked.await.unwrap_or_else(|error| Err(error.to_string()))?;
    let settings = match topic {
        Ok(Some(_)) => config_of(settings).await,
        _ => Ok(BTreeMap::new()),
    };
    Ok(Facts { topic, dead_letters: dead_letters.map(|shape| shape.is_some()), settings })
}

/// How a topic lies on the brokers: nothing where it isn't there. The outer error is that nobody answers.
fn shape(asking: &Asking, name: &str) -> Answer<Answer<Option<Shape>>> {
    let metadata = asking.topic(name, PATIENCE)?;
    let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
        return Ok(Ok(None));
    };
    Ok(match topic.error().map(RDKafkaErrorCode::from) {
        None => Ok(Some(shape_of(topic))),
        Some(RDKafkaErrorCode::UnknownTopicOrPartition) => Ok(None),
        Some(error) => Err(error.to_string()),
    })
}

fn shape_of(topic: &MetadataTopic) -> Shape {
    let partitions = topic.partitions();
    let copies = |partition: &rdkafka::metadata::MetadataPartition| partition.replicas().len();
    Shape {
        partitions: partitions.len(),
        replication: partitions.iter().map(copies).min().unwrap_or(0),
        headless: partitions.iter().filter(|partition| partition.leader() < 0).count(),
        behind: partitions.iter().filter(|partition| partition.isr().len() < copies(partition)).count(),
    }
}

/// The topic's settings, those it has from the brokers included.
async fn config_of(settings: &Kafka) -> Answer<BTreeMap<String, String>> {
    let admin: AdminClient<Quiet> = AdminClient::from_config_and_context(&kafka::client(settings), Quiet)
        .map_err(|error| told(&error))?;
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let asked = admin.describe_configs([&ResourceSpecifier::Topic(&settings.topic)], &options).await;
    let found =
        asked.map_err(|error| told(&error))?.pop().ok_or("it says nothing of the topic's settings")?;
    let entries = found.map_err(|error| error.to_string())?.entries;
    Ok(entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect())
}
