//! `/audit`, on the operators' listener only.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Reply, World, request};
use crate::{
    error::{Part, StoreError},
    ids::PARTITIONS,
    plays::audit::Terms,
};

async fn audit(world: &World) -> Reply {
    world.call_operators(request("GET", "/audit", None, "".into())).await
}

fn terms(witnessed: i128, views: i128) -> Terms {
    Terms { witnessed, views, imported: 1, pending: 1, refused: 2, adjustments: 3 }
}

#[tokio::test]
async fn every_term_of_every_partition_is_told_and_a_loss_isnt_made_up_for_elsewhere() {
    let world = World::new();
    let mut reading = [Some(terms(15, 10)); PARTITIONS as usize];
    reading[3] = Some(terms(20, 10));
    reading[4] = Some(terms(11, 10));
    *world.books.found.lock() = Ok(reading);
    let answer = audit(&world).await.json();
    assert_eq!(
        answer["partitions"][3],
        json!({
            "partition": 3, "verified": true, "witnessed": 20, "imported": 1, "views": 10, "pending": 1,
            "refused": 2, "adjustments": 3, "difference": 5, "lost": 5, "unreported": 0,
        })
    );
    assert_eq!(answer["partitions"][4]["unreported"], 4);
    assert_eq!(answer["partitions"].as_array().unwrap().len(), 16);
    let totals = &answer["totals"];
    assert_eq!(
        (&totals["difference"], &totals["lost"], &totals["unreported"]),
        (&json!(1), &json!(5), &json!(4))
    );
    assert_eq!((&answer["verified"], &answer["asOf"]), (&json!(true), &json!("2026-01-02T03:04:05Z")));
}

#[tokio::test]
async fn of_a_partition_that_isnt_verified_no_number_is_told_and_no_sum_is_made_without_it() {
    let world = World::new();
    let mut reading = [Some(terms(15, 10)); PARTITIONS as usize];
    reading[7] = None;
    *world.books.found.lock() = Ok(reading);
    let answer = audit(&world).await.json();
    for unknown in [&answer["partitions"][7], &answer["totals"]] {
        for name in ["witnessed", "views", "difference", "lost", "unreported"] {
            assert_eq!(unknown[name], Value::Null, "{name} of {unknown}");
        }
    }
    assert_eq!((&answer["partitions"][7]["verified"], &answer["verified"]), (&json!(false), &json!(false)));
    assert_eq!(answer["partitions"][8]["lost"], 0);
}

#[tokio::test]
async fn a_store_that_is_away_is_named() {
    let world = World::new();
    for part in [Part::Redis, Part::Postgres] {
        *world.books.found.lock() = Err(StoreError::unavailable(part, "10.0.0.7 refused"));
        let reply = audit(&world).await;
        reply.refused(503, "not_ready");
        assert_eq!(reply.json()["parts"], json!([part.name()]));
    }
    *world.books.found.lock() = Err(StoreError::unexpected(Part::Redis, "10.0.0.7 made no sense"));
    audit(&world).await.refused(500, "internal");
}

#[tokio::test]
async fn it_isnt_public() {
    World::new().get("/audit").await.refused(404, "not_found");
}

#[tokio::test(start_paused = true)]
async fn a_look_may_take_longer_than_any_other_request_and_ends_when_the_service_stops() {
    let world = World::new();
    *world.books.takes.lock() = Duration::from_secs(120);
    assert_eq!(audit(&world).await.status, 200);
    *world.books.takes.lock() = Duration::from_secs(3_600);
    let began = tokio::time::Instant::now();
    audit(&world).await.refused(503, "timeout");
    assert_eq!(began.elapsed().as_secs(), 300);
    let (answer, ()) = tokio::join!(audit(&world), async { world.draining.cancel() });
    answer.refused(503, "draining");
}
