//! The doctor before real brokers, and the command that makes the topics.

use std::collections::HashMap;

use headcount::{
    clock::SystemClock,
    config::{Config, load::load},
    doctor::{Verdict, examine},
    plays::in_kafka::topics,
};

use super::through_kafka;
use crate::{
    process::ran,
    world::{World, new_database, service},
};

const CHECKS: [&str; 5] =
    ["kafka topic", "kafka durability", "kafka retention", "kafka timestamps", "kafka dead letters"];

/// What the doctor says of Kafka, in that order; nothing where a check wasn't made.
async fn verdicts(config: &Config) -> [Option<Verdict>; 5] {
    let report = examine(config, SystemClock::start().as_ref()).await;
    CHECKS.map(|check| {
        report.findings.iter().find(|finding| finding.check == check).map(|finding| finding.verdict)
    })
}

#[tokio::test]
async fn topics_that_migrate_made_are_fine_and_missing_ones_and_brokers_are_found_out() {
    let mut config = World::redis().await.config;
    through_kafka(&mut config, &service("TEST_KAFKA_BROKERS"), 1);
    let [problem, warning, ok] = [Verdict::Problem, Verdict::Warning, Verdict::Ok].map(Some);
    assert_eq!(verdicts(&config).await, [problem, None, None, None, problem]);
    topics::make(&config.kafka).await.unwrap();
    // One broker is no more than a trial.
    assert_eq!(verdicts(&config).await, [ok, warning, ok, ok, ok]);

    config.kafka.brokers = "127.0.0.1:1".to_owned();
    let report = examine(&config, SystemClock::start().as_ref()).await;
    let found = report.findings.iter().find(|finding| finding.check == "kafka").expect("it is looked at");
    assert_eq!(found.verdict, Verdict::Problem, "{}", report.table());
    assert!(found.found.contains("127.0.0.1:1") && found.advice.contains("kafka.brokers"), "{found:?}");
}

#[tokio::test]
async fn migrate_makes_the_topics_once_and_says_so() {
    let mut config = load(None, Some(HashMap::new())).unwrap().config;
    through_kafka(&mut config, &service("TEST_KAFKA_BROKERS"), 1);
    let database = new_database().await;
    let variables = [
        ("HEADCOUNT_BACKEND", "redis"),
        ("HEADCOUNT_POSTGRES__URL", &database),
        ("HEADCOUNT_KAFKA__BROKERS", &config.kafka.brokers),
        ("HEADCOUNT_KAFKA__TOPIC", &config.kafka.topic),
        ("HEADCOUNT_KAFKA__DEAD_LETTER_TOPIC", &config.kafka.dead_letter_topic),
        ("HEADCOUNT_KAFKA__REPLICATION", "1"),
    ];
    for what in ["made the topic", "there is the topic"] {
        let output = ran(&["migrate"], &variables).await;
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(told.matches(what).count(), 2, "{told}");
    }
    let mut away = variables;
    away[2].1 = "127.0.0.1:1";
    let output = ran(&["migrate"], &away).await;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(told.contains("can't make the topics at 127.0.0.1:1"), "{told}");
}
