//! All totals can be made anew from the log, and counting can be a process of its own.

use headcount::config::SecretUrl;
use serde_json::Value;
use sqlx::Connection as _;

use super::{
    counting::{plays, soon},
    shared_with,
};
use crate::{
    process::{Service, ran},
    world::{World, eventually, new_database},
};

/// Everything in a database that tells how often what was played, as text.
async fn numbers(url: &str) -> Vec<String> {
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let mut all = Vec::new();
    for sql in [
        "select concat_ws(' ', video_id, views, unique_viewers, md5(viewer_sketch)) from videos order by 1",
        "select concat_ws(' ', video_id, day, views) from video_daily order by 1",
        "select concat_ws(' ', partition, sum(plays)) from play_witness group by partition order by 1",
        "select concat_ws(' ', topic, partition, topic_id, next_offset) from kafka_offset order by 1",
        "select concat_ws(' ', video_id, viewer, counted_at) from play_seen order by 1",
    ] {
        let rows: Vec<(String,)> = sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap();
        assert!(!rows.is_empty(), "{sql}");
        all.extend(rows.into_iter().map(|(row,)| row));
    }
    all
}

/// What a process has to be told to count the log of this world.
pub fn settings(world: &World) -> Vec<(&'static str, String)> {
    let config = &world.config;
    vec![
        ("HEADCOUNT_BACKEND", "redis".to_owned()),
        ("HEADCOUNT_REDIS__URL", config.redis.url.expose().to_owned()),
        ("HEADCOUNT_REDIS__PREFIX", config.redis.prefix.clone()),
        ("HEADCOUNT_POSTGRES__URL", config.postgres.url.expose().to_owned()),
        ("HEADCOUNT_POSTGRES__MIGRATE", config.postgres.migrate.to_string()),
        ("HEADCOUNT_KAFKA__BROKERS", config.kafka.brokers.clone()),
        ("HEADCOUNT_KAFKA__TOPIC", config.kafka.topic.clone()),
        ("HEADCOUNT_KAFKA__DEAD_LETTER_TOPIC", config.kafka.dead_letter_topic.clone()),
        ("HEADCOUNT_KAFKA__GROUP", config.kafka.group.clone()),
        ("HEADCOUNT_KAFKA__WINDOW", "50ms".to_owned()),
    ]
}

async fn rebuild(world: &World) -> (Option<i32>, String) {
    let settings = settings(world);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = ran(&["consume", "--from-beginning", "--into-empty"], &settings).await;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code(), said)
}

#[tokio::test]
async fn a_rebuild_from_the_log_comes_to_what_was_there_and_only_into_an_empty_database() {
    let world = shared_with(soon).await;
    let mut records = 0;
    for round in 0..4 {
        records += world.write(plays(round % 3, 300)).await;
        world.counts(records).await;
        // The same again after the window is over, and before.
        world.pass(std::time::Duration::from_secs(1_200));
    }
    let (code, said) = rebuild(&world).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the database is not empty"), "{said}");

    let mut other = world.another_with(|config| config.kafka.consume = false).await;
    other.config.postgres.url = SecretUrl::new(new_database().await);
    other.config.postgres.migrate = true;
    let (code, said) = rebuild(&other).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("counted all {records} records")), "{said}");
    let rebuilt = numbers(other.config.postgres.url.expose()).await;
    assert_eq!(numbers(world.config.postgres.url.expose()).await, rebuilt);
}

#[tokio::test]
async fn counting_can_be_a_process_of_its_own_that_drains_when_it_is_told_to_end() {
    let world = shared_with(|_| {}).await;
    let settings = settings(&world);
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let service = Service::start_as(&["consume"], world.folder(), &settings).await;
    let records = world.write(plays(0, 500)).await;
    world.counts(records).await;
    assert_eq!(world.views().await, 500);
    let client = reqwest::Client::new();
    let metrics =
        async || client.get(format!("{}/metrics", service.ops)).send().await.unwrap().text().await.unwrap();
    eventually("it tells how far it is behind", async || {
        let metrics = metrics().await;
        metrics.contains("headcount_kafka_lag_records{partition=\"0\"} 0")
            && metrics.contains("headcount_kafka_counted_total{outcome=\"counted\"} 500")
            && metrics.contains("headcount_kafka_counted_total{outcome=\"duplicate\"} 50")
    })
    .await;
    let ready: Value =
        client.get(format!("{}/readyz", service.ops)).send().await.unwrap().json().await.unwrap();
    assert!(ready.is_object(), "{ready}");
    service.signal("-TERM").await;
    let (code, log) = service.ended().await;
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("drained and stopped"), "{log}");
    // What comes next is counted by who comes next, from where this one ended.
    let next = world.another_with(soon).await;
    let records = records + next.write(plays(1, 10)).await;
    next.counts(records).await;
    assert_eq!(next.views().await, 510);
}
