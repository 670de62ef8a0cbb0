//! Ways to Kafka: how each of librdkafka's clients is set up, and whether the brokers can be used.
//! No rule of the domain.

mod ask;
mod condition;

pub use rdkafka::config::ClientConfig;
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
};

pub use self::{
    ask::Asking,
    condition::{Condition, Look},
};
use crate::config::kafka::Kafka;

/// What librdkafka's own values don't fit; an operator may set other ones.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "headcount"),
    // Ten seconds by default: for so long plays would go on failing after the brokers are back.
    ("reconnect.backoff.max.ms", "1000"),
    // What a firewall dropped without a word is noticed by the system as well.
    ("socket.keepalive.enable", "true"),
    // Brokers close what is idle; that is no news.
    ("log.connection.close", "false"),
];

/// What every client begins with: where the brokers are, and the operator's properties.
#[must_use]
pub fn client(settings: &Kafka) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (name, value) in DEFAULTS.iter().copied().chain(settings.properties.expose()) {
        config.set(name, value);
    }
    config.set("bootstrap.servers", &settings.brokers);
    // A broker makes topics with settings of its own: no question of ours is to bring it to that.
    config.set("allow.auto.create.topics", "false");
    // All of it goes to our own log, which has its own filter.
    config.set_log_level(RDKafkaLogLevel::Debug);
    config
}

/// A line of librdkafka's for the log. It tells each failed attempt: what an operator has to know is told
/// once, by [`Condition`], and these are for who looks closer (`log.filter = "info,librdkafka=debug"`).
pub fn log(level: RDKafkaLogLevel, facility: &str, line: &str) {
    tracing::debug!(target: "librdkafka", "{level:?} {facility}: {line}");
}

/// A client whose errors are told by what it is asked for: what it says between goes to the log of those who
/// look closer.
#[derive(Clone, Copy, Debug)]
pub struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
    }
}

/// What went wrong, in words, and without the value of a property: it may be a secret.
#[must_use]
pub fn told(error: &KafkaError) -> String {
    match (error, error.rdkafka_error_code()) {
        (_, Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::OperationTimedOut)) => {
            "no broker answers".to_owned()
        }
        (_, Some(code)) => code.to_string(),
        (KafkaError::ClientConfig(_, _, name, _), None) => format!("the property {name} isn't taken"),
        (other, None) => other.to_string(),
    }
}
