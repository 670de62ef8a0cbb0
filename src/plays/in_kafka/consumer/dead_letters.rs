//! What can't be read is put aside with the reason, and only then passed over.
//!
//! Nothing that stands in the topic may hold its part up for ever: what the brokers would never take, for
//! its size or for its time, is put there cut shorter and without the time, and says so.

use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::{
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};

use super::super::record::Unreadable;
use crate::{
    config::kafka::Kafka,
    error::{Part, StoreError},
    plays::postgres::positions::Place,
    store::kafka::{self, Quiet, told},
};

/// How long the brokers have for one.
const WAITS: Duration = Duration::from_secs(10);

/// Bytes that are kept of a key or of a value: many times a play, and two thousand of them, which may wait
/// in a part of the topic, are no burden.
const KEPT: usize = 16 * 1_024;

/// How much of one is put there, one try after the other, where the brokers don't take it as it is.
const TRIES: [usize; 3] = [KEPT, 512, 0];

/// A record that can't be read, as it was or cut short.
#[derive(Debug)]
pub(super) struct Letter {
    reason: Unreadable,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    millis: Option<i64>,
    /// How long key and value were.
    lengths: (usize, usize),
}

impl Letter {
    pub(super) fn new(
        reason: Unreadable,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        millis: Option<i64>,
    ) -> Self {
        let keep = |bytes: &[u8]| cut(bytes, KEPT).to_vec();
        let lengths = (key.map_or(0, <[u8]>::len), value.map_or(0, <[u8]>::len));
        Self { reason, key: key.map(keep), value: value.map(keep), millis, lengths }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |kept: &Option<Vec<u8>>| kept.as_ref().map_or(0, Vec::len);
        bytes(&self.key) + bytes(&self.value)
    }

    /// The record for the dead-letter topic: `most` bytes of key and value, and with less than [`KEPT`] not the
    /// time either.
    fn record<'a>(
        &'a self,
        to: &'a str,
        place: &Place,
        offset: i64,
        most: usize,
    ) -> FutureRecord<'a, [u8], [u8]> {
        let mut told = vec![
            ("reason", self.reason.to_string()),
            ("topic", place.topic.clone()),
            ("partition", place.partition.to_string()),
            ("offset", offset.to_string()),
        ];
        let (key, value) = self.lengths;
        if key.max(value) > most {
            told.push(("cut", format!("key {key}, value {value}")));
        }
        let is_first_try = most == KEPT;
        if let Some(millis) = self.millis.filter(|_| !is_first_try) {
            told.push(("time", millis.to_string()));
        }
        let headers = told.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
            headers.insert(Header { key, value: Some(value) })
        });
        let mut record = FutureRecord::<[u8], [u8]>::to(to).headers(headers);
        record.key = self.key.as_deref().map(|key| cut(key, most));
        record.payload = self.value.as_deref().map(|value| cut(value, most));
        record.timestamp = self.millis.filter(|_| is_first_try);
        record
    }
}

fn cut(bytes: &[u8], most: usize) -> &[u8] {
    bytes.get(..most).unwrap_or(bytes)
}

/// The way to the dead-letter topic, made when the first is to be put there.
pub(super) struct DeadLetters {
    settings: Kafka,
    producer: Mutex<Option<FutureProducer<Quiet>>>,
}

impl DeadLetters {
    pub(super) fn new(settings: &Kafka) -> Self {
        Self { settings: settings.clone(), producer: Mutex::default() }
    }

    /// Puts one there; answers when the brokers have it. The same one again, after a failure, is put there
    /// twice: its headers tell where it was.
    pub(super) async fn put(&self, place: &Place, offset: i64, letter: &Letter) -> Result<(), StoreError> {
        let producer = self.open()?;
        let topic = &self.settings.dead_letter_topic;
        let mut why = None;
        for most in TRIES {
            match producer.send(letter.record(topic, place, offset, most), WAITS).await {
                Ok(_) => return Ok(()),
                Err((error, _)) => {
                    let is_for_ever = is_for_ever(&error);
                    // After a fatal error this client takes nothing any more.
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
                        self.producer.lock().take();
                    }
                    why = Some(told(&error));
                    if !is_for_ever {
                        break;
                    }
                }
            }
        }
        let (reason, why) = (&letter.reason, why.unwrap_or_default());
        Err(StoreError::unavailable(
            Part::Kafka,
            format!("a record that can't be read ({reason}) can't be put into {topic}: {why}"),
        ))
    }

    fn open(&self) -> Result<FutureProducer<Quiet>, StoreError> {
        let mut open = self.producer.lock();
        if let Some(producer) = &*open {
            return Ok(producer.clone());
        }
        let mut config = kafka::client(&self.settings);
        config.set("acks", "all").set("enable.idempotence", "true");
        config.set("message.timeout.ms", WAITS.as_millis().to_string());
        let producer = FutureProducer::from_config_and_context(&config, Quiet)
            .map_err(|error| StoreError::unexpected(Part::Kafka, told(&error)))?;
        Ok(open.insert(producer).clone())
    }
}

/// Whether the brokers won't take the same record later either.
fn is_for_ever(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::MessageSizeTooLarge
                | RDKafkaErrorCode::InvalidMessageSize
                | RDKafkaErrorCode::MessageBatchTooLarge
                | RDKafkaErrorCode::InvalidTimestamp
                | RDKafkaErrorCode::InvalidRecord
        )
    )
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;
    use uuid::Uuid;

    use super::*;

    fn names(record: &FutureRecord<'_, [u8], [u8]>) -> Vec<String> {
        let headers = record.headers.as_ref().unwrap();
        headers.iter().map(|header| header.key.to_owned()).collect()
    }

    #[test]
    fn a_letter_is_as_the_record_was_or_says_that_it_is_cut() {
        let place = Place { topic: "plays".into(), topic_id: Uuid::nil(), partition: 3 };
        let short = Letter::new(Unreadable::NoKey, None, Some(b"junk"), Some(7));
        let record = short.record("unreadable", &place, 5, KEPT);
        assert_eq!((record.key, record.payload, record.timestamp), (None, Some(&b"junk"[..]), Some(7)));
        assert_eq!(names(&record), ["reason", "topic", "partition", "offset"]);

        let long = Letter::new(Unreadable::KeyBytes, Some(b"\xff"), Some(&vec![b'x'; 900_000]), Some(7));
        assert!(long.value.as_ref().is_some_and(|kept| kept.len() == KEPT), "what waits is bounded");
        let record = long.record("unreadable", &place, 5, KEPT);
        assert_eq!(names(&record), ["reason", "topic", "partition", "offset", "cut"]);
        assert_eq!(record.headers.as_ref().unwrap().get(4).value, Some(&b"key 1, value 900000"[..]));
        // What isn't taken like this goes without its time, and at last without anything of it.
        let record = long.record("unreadable", &place, 5, 0);
        assert_eq!((record.payload, record.timestamp), (Some(&b""[..]), None));
        assert_eq!(names(&record), ["reason", "topic", "partition", "offset", "cut", "time"]);
    }
}
