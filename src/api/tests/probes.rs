//! `/livez` and `/readyz`, on both listeners, and the operators' own pages.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Reply, World, request};
use crate::{
    error::{Part, StoreError},
    health::Health,
    jobs::{self, Job},
    lifecycle::Lifecycle,
};

async fn ready(world: &World) -> Reply {
    let [public, operators] = [&world.public, &world.operators]
        .map(|router| super::call(router, request("GET", "/readyz", None, "".into())));
    let (public, operators) = tokio::join!(public, operators);
    assert_eq!((public.status, &public.body), (operators.status, &operators.body));
    public
}

fn redis_is_away() -> Health {
    Health {
        failed: vec![StoreError::unavailable(Part::Redis, "10.0.0.7 refused")],
        degraded: vec![Part::Postgres],
    }
}

#[tokio::test]
async fn ready_means_that_the_stores_were_seen_to_work() {
    let world = World::new();
    assert_eq!(ready(&world).await.json(), json!({ "status": "ready" }));

    world.clock.advance(Duration::from_secs(1));
    *world.health.found.lock() = Health { failed: Vec::new(), degraded: vec![Part::Postgres] };
    assert_eq!(ready(&world).await.json(), json!({ "status": "ready", "degraded": ["postgres"] }));

    world.clock.advance(Duration::from_secs(1));
    *world.health.found.lock() = redis_is_away();
    let reply = ready(&world).await;
    reply.refused(503, "not_ready");
    assert_eq!(reply.json()["parts"], json!(["redis"]));
    assert_eq!(reply.json()["detail"], "not working: redis", "and not where it is");

    world.clock.advance(Duration::from_secs(1));
    *world.health.found.lock() = Health::default();
    assert_eq!(ready(&world).await.status, 200);
}

#[tokio::test]
async fn it_isnt_ready_before_the_first_good_look() {
    let world = World::new();
    *world.health.found.lock() = redis_is_away();
    ready(&world).await.refused(503, "not_ready");
    world.clock.advance(Duration::from_secs(1));
    *world.health.found.lock() = Health::default();
    assert_eq!(ready(&world).await.status, 200);
}

#[tokio::test]
async fn the_stores_are_asked_once_a_second_however_many_probes_come() {
    let world = World::new();
    for _ in 0..10 {
        futures::future::join_all((0..10).map(|_| ready(&world))).await;
    }
    assert_eq!(world.health.looks.load(Ordering::SeqCst), 1);
    world.clock.advance(Duration::from_millis(999));
    ready(&world).await;
    assert_eq!(world.health.looks.load(Ordering::SeqCst), 1);
    world.clock.advance(Duration::from_millis(1));
    ready(&world).await;
    assert_eq!(world.health.looks.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_slow_look_is_answered_with_the_last_one_for_a_while() {
    let world = World::new();
    let hanging = CancellationToken::new();
    *world.health.hanging.lock() = Some(hanging.clone());
    ready(&world).await.refused(503, "starting");
    hanging.cancel();
    assert_eq!(ready(&world).await.status, 200);
    assert_eq!(world.health.looks.load(Ordering::SeqCst), 1, "the look that was given up is finished");

    let hanging = CancellationToken::new();
    *world.health.hanging.lock() = Some(hanging.clone());
    world.clock.advance(Duration::from_secs(14));
    assert_eq!(ready(&world).await.status, 200);
    world.clock.advance(Duration::from_secs(1));
    ready(&world).await.refused(503, "not_ready");
    *world.health.found.lock() = redis_is_away();
    hanging.cancel();
    ready(&world).await.refused(503, "not_ready");
}

#[tokio::test]
async fn a_check_that_panics_once_is_tried_again() {
    let world = World::new();
    world.health.panicking.store(true, Ordering::SeqCst);
    world.get("/readyz").await.refused(503, "not_ready");
    assert_eq!(world.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_draining_service_is_alive_and_not_ready() {
    let world = World::new();
    assert_eq!(ready(&world).await.status, 200);
    world.draining.cancel();
    ready(&world).await.refused(503, "draining");
    assert_eq!(world.get("/livez").await.json(), json!({ "status": "alive" }));
    assert_eq!(world.post("/api/video/film/heartbeat", r#"{"userId":"ann"}"#).await.status, 200);
}

struct Hanging;

#[async_trait]
impl Job for Hanging {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn first_in(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn every(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_hangs_is_named_by_livez() {
    let world = World::new();
    let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(1));
    jobs::start(&lifecycle, &world.jobs, Arc::new(Hanging));
    assert_eq!(world.get("/livez").await.status, 200);
    tokio::time::sleep(Duration::from_secs(300)).await;
    let reply = world.get("/livez").await;
    reply.refused(503, "stuck");
    assert_eq!(reply.json()["parts"], json!(["sweep"]));
}

#[tokio::test]
async fn operators_read_metrics_and_the_document() {
    let world = World::new();
    let metrics = world.call_operators(request("GET", "/metrics", None, "".into())).await;
    assert_eq!(metrics.body, "# metrics\n");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let document = world.call_operators(request("GET", "/openapi.json", None, "".into())).await;
    assert_eq!(document.json(), *super::contract::DOCUMENT);
    let alive = world.call_operators(request("GET", "/livez", None, "".into())).await;
    assert_eq!(alive.json(), json!({ "status": "alive" }));
}
