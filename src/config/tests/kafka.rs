//! What the settings of Kafka promise, with Kafka in the build and without.

use super::{complaint, with, with_file};

#[cfg(feature = "kafka")]
const BROKERS: (&str, &str) = ("HEADCOUNT_KAFKA__BROKERS", "kafka-1:9092,kafka-2:9092");
#[cfg(feature = "kafka")]
const REDIS: (&str, &str) = ("HEADCOUNT_BACKEND", "redis");

#[test]
fn without_brokers_kafka_is_not_used_and_asks_nothing_of_others() {
    let loaded = with(&[("HEADCOUNT_KAFKA__DEADLINE", "1m"), ("HEADCOUNT_PLAYS__ACK", "received")]).unwrap();
    assert!(!loaded.config.kafka.is_used());
}

#[cfg(feature = "kafka")]
#[test]
fn kafka_asks_for_the_backend_that_has_what_it_needs() {
    assert!(with(&[BROKERS, REDIS]).unwrap().config.kafka.is_used());
    assert!(complaint(with(&[BROKERS])).contains("\"embedded\""));
    for (setting, variables) in [
        ("plays.ack", [BROKERS, REDIS, ("HEADCOUNT_PLAYS__ACK", "received")].as_slice()),
        (
            "plays.wait",
            &[BROKERS, REDIS, ("HEADCOUNT_PLAYS__WAIT", "true"), ("HEADCOUNT_REDIS__WAIT_REPLICAS", "1")],
        ),
        ("server.request_timeout", &[BROKERS, REDIS, ("HEADCOUNT_KAFKA__DEADLINE", "10s")]),
        ("kafka.dead_letter_topic", &[BROKERS, REDIS, ("HEADCOUNT_KAFKA__DEAD_LETTER_TOPIC", "video.plays")]),
    ] {
        let text = complaint(with(variables));
        assert!(text.starts_with(setting), "{text}");
    }
}

#[test]
fn names_of_kafka_are_checked_before_kafka_is_asked() {
    for (name, bad) in [
        ("HEADCOUNT_KAFKA__BROKERS", "kafka"),
        ("HEADCOUNT_KAFKA__BROKERS", "kafka:9092,"),
        ("HEADCOUNT_KAFKA__TOPIC", "plays of videos"),
        ("HEADCOUNT_KAFKA__TOPIC", ".."),
        ("HEADCOUNT_KAFKA__DEAD_LETTER_TOPIC", ""),
        ("HEADCOUNT_KAFKA__GROUP", ""),
        ("HEADCOUNT_KAFKA__REPLICATION", "0"),
        ("HEADCOUNT_KAFKA__PROPERTY", "1"),
        ("HEADCOUNT_KAFKA__PROPERTIES", "1"),
    ] {
        complaint(with(&[(name, bad)]));
    }
}

#[test]
fn properties_come_from_a_file_and_from_variables_and_are_never_shown() {
    let file = "[kafka.properties]\nsecurity.protocol = \"SASL_SSL\"\n\"sasl.password\" = \"hunter1\"\n\
                socket.keepalive.enable = true\n";
    let loaded = with_file(file, &[("HEADCOUNT_KAFKA__PROPERTIES__SASL__PASSWORD", "hunter2")]).unwrap();
    let properties: Vec<_> = loaded.config.kafka.properties.expose().collect();
    assert_eq!(
        properties,
        [
            ("sasl.password", "hunter2"),
            ("security.protocol", "SASL_SSL"),
            ("socket.keepalive.enable", "true")
        ]
    );
    assert!(!format!("{loaded:?}").contains("hunter"), "{loaded:?}");
    assert_eq!(loaded.given.len(), 3);
}

#[test]
fn a_property_that_a_promise_rests_on_can_not_be_set() {
    for name in ["acks", "enable.idempotence", "bootstrap.servers", "enable.auto.commit"] {
        let text = complaint(with_file(&format!("[kafka.properties]\n{name} = \"hunter2\"\n"), &[]));
        assert!(text.contains(name) && text.contains("promises") && !text.contains("hunter2"), "{text}");
    }
}

#[cfg(feature = "kafka")]
#[test]
fn a_property_that_librdkafka_refuses_is_told_before_a_socket_opens_and_without_its_value() {
    for (name, value) in [
        ("HEADCOUNT_KAFKA__PROPERTIES__SASL__PASWORD", "hunter2"),
        ("HEADCOUNT_KAFKA__PROPERTIES__SECURITY__PROTOCOL", "hunter2"),
    ] {
        let text = complaint(with(&[BROKERS, REDIS, (name, value)]));
        assert!(text.contains("librdkafka") && !text.contains("hunter2"), "{text}");
    }
}
