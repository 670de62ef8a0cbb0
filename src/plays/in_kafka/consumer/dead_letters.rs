//! What can't be read is put aside with the reason, and only then passed over.

use std::time::Duration;

use rdkafka::{
    config::FromClientConfigAndContext as _,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};
use tokio::sync::OnceCell;

use super::super::record::Unreadable;
use crate::{
    config::kafka::Kafka,
    error::{Part, StoreError},
    plays::postgres::positions::Place,
    store::kafka::{self, Quiet, told},
};

/// How long the brokers have for one.
const WAITS: Duration = Duration::from_secs(10);

/// A record that can't be read, as it was.
pub(super) struct Letter {
    pub(super) reason: Unreadable,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) millis: Option<i64>,
}

/// The way to the dead-letter topic, made when the first is to be put there.
pub(super) struct DeadLetters {
    settings: Kafka,
    producer: OnceCell<FutureProducer<Quiet>>,
}

impl DeadLetters {
    pub(super) fn new(settings: &Kafka) -> Self {
        Self { settings: settings.clone(), producer: OnceCell::new() }
    }

    /// Puts one there; answers when the brokers have it. The same one again, after a failure, is put there
    /// twice: its headers tell where it was.
    pub(super) async fn put(&self, place: &Place, offset: i64, letter: &Letter) -> Result<(), StoreError> {
        let producer = self.producer.get_or_try_init(async || self.open()).await?;
        let (partition, offset) = (place.partition.to_string(), offset.to_string());
        let reason = letter.reason.to_string();
        let mut headers = OwnedHeaders::new();
        for (key, value) in
            [("reason", &reason), ("topic", &place.topic), ("partition", &partition), ("offset", &offset)]
        {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.settings.dead_letter_topic).headers(headers);
        record.key = letter.key.as_deref();
        record.payload = letter.value.as_deref();
        record.timestamp = letter.millis;
        let sent = producer.send(record, WAITS).await;
        sent.map(drop).map_err(|(error, _)| {
            let topic = &self.settings.dead_letter_topic;
            let why = told(&error);
            StoreError::unavailable(
                Part::Kafka,
                format!("a record that can't be read ({reason}) can't be put into {topic}: {why}"),
            )
        })
    }

    fn open(&self) -> Result<FutureProducer<Quiet>, StoreError> {
        let mut config = kafka::client(&self.settings);
        config.set("acks", "all").set("enable.idempotence", "true");
        config.set("message.timeout.ms", WAITS.as_millis().to_string());
        FutureProducer::from_config_and_context(&config, Quiet)
            .map_err(|error| StoreError::unexpected(Part::Kafka, told(&error)))
    }
}
