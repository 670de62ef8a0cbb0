//! `[kafka]`, and which of librdkafka's properties are an operator's to set.

use std::{collections::BTreeMap, fmt, time::Duration};

use humantime::format_duration;
use serde::Deserialize;

use super::{Ack, BackendKind, Config};

/// What the full name of every property begins with.
pub(super) const PROPERTIES: &str = "kafka.properties.";

/// `[kafka]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kafka {
    /// Where it is; empty where plays go through Redis.
    pub brokers: String,
    /// Where plays are written.
    pub topic: String,
    /// Where records are put that can't be read.
    pub dead_letter_topic: String,
    /// The consumer group that counts.
    pub group: String,
    /// Parts of the topic, where it is made.
    pub partitions: i32,
    /// On how many brokers each of them is, where it is made.
    pub replication: i32,
    /// The longest a play waits for the answer.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// Whether `serve` counts as well.
    pub consume: bool,
    /// How long plays are added up.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Plays that are written to the database at once.
    pub window_records: usize,
    /// For librdkafka, by its names. The loader reads them apart from the rest: there are dots in them.
    #[serde(default)]
    pub properties: Properties,
}

impl Kafka {
    /// Whether plays go through Kafka.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.brokers.is_empty()
    }
}

/// Properties of librdkafka: `Debug` shows their names alone, as any of them may be a secret.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Each with its value, for the driver.
    pub fn expose(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Sets one.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

/// Properties that are settings of their own, or that a promise rests on. Sorted; beside their names
/// those that librdkafka takes for the same.
const OURS: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "batch.num.messages",
    "bootstrap.servers",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "dr_cb",
    "dr_msg_cb",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "group.remote.assignor",
    "isolation.level",
    "linger.ms",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "partitioner",
    "produce.offset.report",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "queue.buffering.max.ms",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "request.required.acks",
    "request.timeout.ms",
    "retries",
    "statistics.interval.ms",
    "test.mock.broker.rtt",
    "test.mock.num.brokers",
    "transactional.id",
];

/// Whether headcount sets this property itself.
pub(super) fn is_ours(property: &str) -> bool {
    OURS.binary_search(&property).is_ok()
}

/// Whether this is a broker's address. What would hold a password is none.
pub(super) fn is_broker(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => (host, Some(port)),
        _ => (text, None),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-[]:".contains(&byte);
    let port_is_one = port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    port_is_one && host.bytes().all(plain)
}

/// Whether Kafka would take this for a topic's name.
pub(super) fn is_topic(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    matches!(text.len(), 1..=249) && text.bytes().all(plain) && text != "." && text != ".."
}

/// The name of the first property that librdkafka doesn't take, and why. Its own words may hold the value.
#[cfg(feature = "kafka")]
fn refused(properties: &Properties) -> Option<(String, &'static str)> {
    use rdkafka::{config::ClientConfig, error::KafkaError, types::RDKafkaConfRes};

    for (name, value) in properties.expose() {
        if let Err(KafkaError::ClientConfig(kind, ..)) =
            ClientConfig::new().set(name, value).create_native_config()
        {
            let why = match kind {
                RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN => {
                    "a name that librdkafka knows, which this is none of"
                }
                _ => "a value that librdkafka takes",
            };
            return Some((name.to_owned(), why));
        }
    }
    None
}

/// Nobody is there who could refuse one.
#[cfg(not(feature = "kafka"))]
fn refused(_properties: &Properties) -> Option<(String, &'static str)> {
    None
}

/// What brokers must be in a build without Kafka in it.
fn missing(is_built_in: bool) -> Option<&'static str> {
    (!is_built_in).then_some(
        "\"\" in this build, which has no Kafka in it; the Docker image has, and what \
         `cargo build --release --features kafka` builds",
    )
}

/// Looks at what Kafka asks of the others.
pub(super) fn check(config: &Config, wrong: &mut impl FnMut(&str, String, &[&'static str], String)) {
    let kafka = &config.kafka;
    let brokers = format!("{:?}", kafka.brokers);
    if let Some(must) = missing(cfg!(feature = "kafka")) {
        wrong("kafka.brokers", brokers, &[], must.to_owned());
        return;
    }
    if config.backend != BackendKind::Redis {
        let must = "\"\" with backend = \"embedded\": what Kafka hands on is counted in Postgres";
        wrong("kafka.brokers", brokers, &["backend"], must.to_owned());
    }
    if kafka.dead_letter_topic == kafka.topic {
        let must = "another topic than kafka.topic: what can't be read would be read again";
        wrong(
            "kafka.dead_letter_topic",
            format!("{:?}", kafka.dead_letter_topic),
            &["kafka.topic"],
            must.to_owned(),
        );
    }
    if config.server.request_timeout <= kafka.deadline {
        let (timeout, deadline) = (config.server.request_timeout, kafka.deadline);
        wrong(
            "server.request_timeout",
            format_duration(timeout).to_string(),
            &["kafka.deadline"],
            format!("longer than kafka.deadline, here {}", format_duration(deadline)),
        );
    }
    if config.plays.ack == Ack::Received {
        let must = "\"stored\" with Kafka: a play is answered when the log has it";
        wrong("plays.ack", "\"received\"".to_owned(), &["kafka.brokers"], must.to_owned());
    }
    if config.plays.wait {
        let must = "false with Kafka: plays wait for Kafka's brokers, not for Redis's replicas";
        wrong("plays.wait", true.to_string(), &["kafka.brokers"], must.to_owned());
    }
    if let Some((name, must)) = refused(&kafka.properties) {
        let setting = format!("{PROPERTIES}{name}");
        wrong(&setting, "set".to_owned(), &[], must.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_properties_that_are_ours_are_sorted_so_that_they_are_found() {
        assert!(OURS.is_sorted());
        assert!(OURS.iter().all(|name| is_ours(name)));
        assert!(!is_ours("security.protocol"));
    }

    #[test]
    fn a_broker_is_a_host_and_a_port() {
        for good in ["kafka-1.example.org:9092", "127.0.0.1:9092", "[::1]:9092"] {
            assert!(is_broker(good), "{good}");
        }
        for bad in
            ["", "kafka", ":9092", "kafka:", "kafka:0", "kafka:65536", "user:password@kafka:9092", "a b:1"]
        {
            assert!(!is_broker(bad), "{bad}");
        }
    }

    #[test]
    fn a_build_without_kafka_says_which_one_has_it() {
        assert_eq!(missing(true), None);
        let must = missing(false).unwrap();
        for part in ["no Kafka in it", "Docker image", "--features kafka"] {
            assert!(must.contains(part), "{part} is not in {must}");
        }
    }

    #[test]
    fn a_property_is_shown_by_its_name_alone() {
        let mut properties = Properties::default();
        properties.set("sasl.password", "hunter2");
        assert_eq!(format!("{properties:?}"), "{\"sasl.password\"}");
    }
}
