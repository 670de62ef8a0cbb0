//! Plays through a real Kafka: what is acknowledged is in the log, once, whatever brokers do.

mod brokers;
pub mod counting;
mod doctor;
mod following;
mod producer;
pub mod rebuild;
mod secure;
mod service;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use headcount::{
    config::{Config, load::load},
    plays::in_kafka::{
        record::{self, Received},
        topics,
    },
    store::kafka::{self, ClientConfig},
};
use rdkafka::{
    Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
};
use uuid::Uuid;

use crate::world::{World, secs, service};

/// How long the log is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Has plays go through these brokers, in topics that no other test has.
pub fn through_kafka(config: &mut Config, brokers: &str, replication: i32) {
    let name = Uuid::now_v7().simple();
    brokers.clone_into(&mut config.kafka.brokers);
    config.kafka.topic = format!("plays-{name}");
    config.kafka.dead_letter_topic = format!("unreadable-{name}");
    config.kafka.group = format!("group-{name}");
    config.kafka.partitions = 3;
    config.kafka.replication = replication;
    // These tests ask what is in the log.
    config.kafka.consume = false;
    // Machines that test are slow at times; tests of the deadline set their own.
    config.kafka.deadline = secs(8);
}

/// One instance whose plays go through the brokers that all tests share.
async fn world() -> World {
    shared_with(|_| {}).await
}

/// One instance with other settings, whose plays go through the brokers that all tests share.
pub async fn shared_with(change: impl FnOnce(&mut Config)) -> World {
    world_with(&service("TEST_KAFKA_BROKERS"), 1, change).await
}

/// One instance whose plays go through these brokers.
async fn world_with(brokers: &str, replication: i32, change: impl FnOnce(&mut Config)) -> World {
    let mut with = load(None, Some(HashMap::new())).unwrap().config;
    through_kafka(&mut with, brokers, replication);
    topics::make(&with.kafka).await.unwrap();
    World::redis_with(|config| {
        config.kafka = with.kafka;
        change(config);
    })
    .await
}

/// Every record of the topic now, by its partition, in order. What isn't readable fails the test.
async fn log_of(config: &Config) -> BTreeMap<i32, Vec<Received>> {
    let (client, topic) = (kafka::client(&config.kafka), config.kafka.topic.clone());
    tokio::task::spawn_blocking(move || read_log(client, &topic)).await.unwrap()
}

fn read_log(mut client: ClientConfig, topic: &str) -> BTreeMap<i32, Vec<Received>> {
    let consumer: BaseConsumer = client
        .set("group.id", "reads-the-log")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "false")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
    let mut left = BTreeMap::new();
    let mut all = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        let (_, end) = consumer.fetch_watermarks(topic, partition.id(), PATIENCE).unwrap();
        if end > 0 {
            all.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
            left.insert(partition.id(), end);
        }
    }
    consumer.assign(&all).unwrap();
    let until = std::time::Instant::now() + PATIENCE;
    let mut found: BTreeMap<i32, Vec<Received>> = BTreeMap::new();
    while !left.is_empty() {
        assert!(std::time::Instant::now() < until, "the log was not read to its end: {left:?}");
        let Some(message) = consumer.poll(Duration::from_millis(100)) else { continue };
        // A leader that moves is no end.
        let Ok(message) = message else { continue };
        let read = record::read(message.key(), message.payload(), message.timestamp().to_millis());
        found.entry(message.partition()).or_default().push(read.unwrap());
        left.retain(|partition, end| *partition != message.partition() || message.offset() + 1 < *end);
    }
    found
}

/// How often each playId is in the log.
async fn play_ids(config: &Config) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for received in log_of(config).await.into_values().flatten() {
        *times.entry(received.play.play_id.expect("these tests send one").to_string()).or_default() += 1;
    }
    times
}
