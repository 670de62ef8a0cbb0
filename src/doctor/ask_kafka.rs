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
    store::kafka::{self, Quiet, told},
};

/// An answer that takes longer isn't waited for: a doctor is no request.
const PATIENCE: Duration = Duration::from_secs(5);

/// The facts, or why there is no way to the brokers.
pub(super) async fn ask(settings: &Kafka) -> Answer<Facts> {
    let admin: AdminClient<Quiet> = AdminClient::from_config_and_context(&kafka::client(settings), Quiet)
        .map_err(|error| told(&error))?;
    let names = [settings.topic.clone(), settings.dead_letter_topic.clone()];
    let asking = move || {
        let [topic, dead_letters] = names.map(|name| shape(&admin, &name));
        (admin, topic, dead_letters)
    };
    let (admin, topic, dead_letters) =
        tokio::task::spawn_blocking(asking).await.map_err(|error| error.to_string())?;
    let (topic, dead_letters) = (topic?, dead_letters?);
    let settings = match topic {
        Ok(Some(_)) => config_of(&admin, &settings.topic).await,
        _ => Ok(BTreeMap::new()),
    };
    Ok(Facts { topic, dead_letters: dead_letters.map(|shape| shape.is_some()), settings })
}

/// How a topic lies on the brokers: nothing where it isn't there. The outer error is that nobody answers.
fn shape(admin: &AdminClient<Quiet>, name: &str) -> Answer<Answer<Option<Shape>>> {
    let metadata = admin.inner().fetch_metadata(Some(name), PATIENCE).map_err(|error| told(&error))?;
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
async fn config_of(admin: &AdminClient<Quiet>, topic: &str) -> Answer<BTreeMap<String, String>> {
    let options = AdminOptions::new().request_timeout(Some(PATIENCE));
    let asked = admin.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await;
    let found =
        asked.map_err(|error| told(&error))?.pop().ok_or("it says nothing of the topic's settings")?;
    let entries = found.map_err(|error| error.to_string())?.entries;
    Ok(entries.into_iter().filter_map(|entry| Some((entry.name, entry.value?))).collect())
}
