//! Parts of the log change hands, and each play still is counted once.

use std::time::Duration;

use headcount::config::{Config, SecretUrl};
use headcount_support::{Proxy, Way};
use tokio::time::Instant;

use super::{
    counting::{plays, soon},
    shared_with,
};
use crate::world::{World, eventually};

/// How long instances come and go; `scripts/torture --kafka` does it for longer.
const LASTS: Duration = Duration::from_secs(10);

/// How long each stays.
const EVERY: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_come_and_go_under_load_count_each_play_once() {
    const EACH: u32 = 100;
    let writer = shared_with(|_| {}).await;
    let mut counting: Vec<World> = Vec::new();
    for _ in 0..3 {
        counting.push(writer.another_with(soon).await);
    }
    let until = Instant::now() + LASTS;
    let write = async {
        let (mut round, mut records) = (0, 0);
        while Instant::now() < until {
            records += writer.write(plays(round, EACH)).await;
            round += 1;
        }
        (round, records)
    };
    let change = async {
        while Instant::now() < until {
            tokio::time::sleep(EVERY).await;
            let next = writer.another_with(soon).await;
            counting.push(next);
            counting.remove(0).stop().await;
        }
    };
    let ((rounds, records), ()) = tokio::join!(write, change);
    writer.counts(records).await;
    assert_eq!(writer.views().await, i64::from(rounds * EACH));
    assert!(rounds > 10, "{rounds} rounds are no load");
}

#[tokio::test]
async fn an_instance_for_which_no_part_is_left_holds_nobody_up() {
    let writer = shared_with(|_| {}).await;
    let mut counting: Vec<World> = Vec::new();
    let mut records = 0;
    for round in 0..5 {
        counting.push(writer.another_with(soon).await);
        records += writer.write(plays(round, 50)).await;
        writer.counts(records).await;
    }
    for round in 5..9 {
        counting.remove(0).stop().await;
        records += writer.write(plays(round, 50)).await;
        writer.counts(records).await;
    }
    assert_eq!(writer.views().await, 450);
}

/// While it looks up where its parts begin it takes part in the group, and it can leave it.
#[tokio::test]
async fn an_instance_whose_database_is_away_holds_nobody_up() {
    let writer = shared_with(|_| {}).await;
    let proxy = Proxy::to(writer.config.postgres.url.expose()).await;
    let through = proxy.by(writer.config.postgres.url.expose());
    // Who is missing without a word is missed long after this test.
    let patient = |config: &mut Config| {
        soon(config);
        config.kafka.properties.set("session.timeout.ms", "300000");
        config.kafka.properties.set("max.poll.interval.ms", "300000");
    };
    let blind = writer
        .another_with(|config| {
            patient(config);
            config.postgres.url = SecretUrl::new(through);
            config.postgres.deadline = Duration::from_millis(500);
        })
        .await;
    let records = writer.write(plays(0, 50)).await;
    writer.counts(records).await;
    proxy.set(Way::Dark);
    // Both are given parts, and so is the next, while one of them can't look up where they begin.
    let second = writer.another_with(patient).await;
    let written = writer.write(plays(1, 100)).await;
    eventually("the second counts its parts", async || writer.counted().await > records).await;
    let third = writer.another_with(patient).await;
    let records = records + written + writer.write(plays(2, 100)).await;
    blind.stop().await;
    writer.counts(records).await;
    assert_eq!(writer.views().await, 250);
    drop((second, third));
}
