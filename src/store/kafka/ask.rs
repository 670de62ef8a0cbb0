//! One question to the brokers, by a client of its own that knows why nobody answers.

use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::{
    ClientContext,
    config::{FromClientConfigAndContext as _, RDKafkaLogLevel},
    error::KafkaError,
    metadata::Metadata,
    producer::{BaseProducer, DeliveryResult, Producer as _, ProducerContext},
};

use super::{client, log, told};
use crate::config::kafka::Kafka;

/// How long it takes to hear all that the client has said.
const COMPLAINTS_WAIT: Duration = Duration::from_millis(100);

/// Remembers what the client complained of last.
#[derive(Default)]
struct Attentive(Mutex<Option<String>>);

impl ClientContext for Attentive {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log(level, facility, line);
    }

    fn error(&self, _: KafkaError, reason: &str) {
        // That all brokers are down is said last, and says least.
        if !reason.contains("brokers are down") {
            *self.0.lock() = Some(reason.to_owned());
        }
    }
}

impl ProducerContext for Attentive {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// A client for questions. A producer, as those alone say what they complain of when asked.
pub struct Asking(BaseProducer<Attentive>);

impl Asking {
    /// Nobody is asked yet.
    ///
    /// # Errors
    /// librdkafka doesn't take the settings.
    pub fn new(settings: &Kafka) -> Result<Self, String> {
        let made = BaseProducer::from_config_and_context(&client(settings), Attentive::default());
        made.map(Self).map_err(|error| told(&error))
    }

    /// What the brokers say of a topic. Blocks for as long as `waits`.
    ///
    /// # Errors
    /// Nobody answers, and why.
    pub fn topic(&self, name: &str, waits: Duration) -> Result<Metadata, String> {
        let asked = self.0.client().fetch_metadata(Some(name), waits);
        asked.map_err(|error| {
            // Lines for the log stand before it in the same queue.
            self.0.poll(COMPLAINTS_WAIT);
            match self.0.context().0.lock().take() {
                Some(complaint) => format!("{}: {complaint}", told(&error)),
                None => told(&error),
            }
        })
    }
}
