//! What a real broker can't be made to say: librdkafka's mock cluster says it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use headcount_support::eventually;
use rdkafka::{
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};

use super::producer::Producer;
use crate::{
    clock::SystemClock,
    config::load::load,
    error::StoreError,
    ids::{PlayId, VideoId},
    lifecycle::{Lifecycle, Stopped},
    plays::Play,
    store::time::{Caution, StoreClock},
};

const TOPIC: &str = "video.plays";

type Mock = MockCluster<'static, DefaultProducerContext>;

fn play(id: &str) -> Play {
    let id = PlayId::parse(id).unwrap();
    Play { video: VideoId::parse("film").unwrap(), viewer: None, play_id: Some(id) }
}

/// A producer on a cluster that isn't one, prepared before it is asked anything.
fn producer_on(prepare: impl FnOnce(&Mock)) -> (Mock, Arc<Producer>, Lifecycle) {
    let mock = MockCluster::new(1).unwrap();
    mock.create_topic(TOPIC, 3, 1).unwrap();
    prepare(&mock);
    let mut config = load(None, Some(HashMap::new())).unwrap().config;
    config.kafka.brokers = mock.bootstrap_servers();
    config.kafka.deadline = Duration::from_secs(5);
    let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
    let clock = Arc::new(StoreClock::new(SystemClock::start(), Caution::from(Duration::ZERO)));
    let producer = Producer::start(&config, clock, &lifecycle).unwrap();
    (mock, producer, lifecycle)
}

#[tokio::test]
async fn a_client_that_can_not_go_on_is_replaced_without_a_restart() {
    let lines = crate::telemetry::capture();
    // Without the right to write idempotently, librdkafka gives up for good.
    let (_mock, producer, lifecycle) = producer_on(|mock| {
        let refuse = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED];
        mock.request_errors(RDKafkaApiKey::InitProducerId, &refuse);
    });
    eventually("plays are taken again", async || producer.write(&play("again")).await.is_ok()).await;
    eventually("it is told", async || lines.text().contains("another one is made")).await;
    lifecycle.stop();
    assert_eq!(lifecycle.run().await, Stopped::Drained);
    assert!(producer.write(&play("late")).await.is_err());
}

#[tokio::test]
async fn a_write_that_a_broker_asks_to_try_again_is_tried_again() {
    let (mock, producer, lifecycle) = producer_on(|_| {});
    mock.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        ],
    );
    producer.write(&play("p-1")).await.unwrap();
    lifecycle.stop();
    assert_eq!(lifecycle.run().await, Stopped::Drained);
}

#[tokio::test]
async fn what_no_second_try_can_mend_is_told_as_that() {
    let (mock, producer, _lifecycle) = producer_on(|_| {});
    mock.request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP]);
    let error = producer.write(&play("p-1")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unexpected { .. }), "{error}");
}
