//! Every public route over real stores: the same requests get the same answers on both backends.

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode},
};
use headcount::{
    api::{self, AppState, Parts},
    config::{Identity, Unknown},
    jobs::Watch,
    plays::Recorded,
    videos::Catalog,
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::world::{World, secs};

on_every_backend!(
    players_are_counted_and_pages_are_told,
    numbers_nobody_can_vouch_for_are_null_and_stale,
    many_videos_are_told_in_the_order_asked,
    a_gateway_sends_beats_of_many,
    a_beacon_is_read_whatever_its_type,
    odd_ids_never_reach_a_store,
    with_device_identity_each_device_is_a_viewer,
    with_unknown_videos_refused_only_known_ones_count,
    a_prefetch_counts_nothing,
    a_probe_says_ready,
    a_probe_given_up_in_the_middle_holds_nothing,
);

const TYPE_JSON: &str = "application/json";

pub struct Answer {
    pub status: StatusCode,
    headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

fn router(world: &World) -> Router {
    let config = &world.config;
    let parts = Parts {
        presence: world.stores.presence.clone(),
        plays: world.stores.plays.clone(),
        videos: Catalog::new(world.stores.videos.clone(), config.videos.unknown, world.clock.clone()),
        audit: world.stores.audit.clone(),
        health: world.stores.health.clone(),
        jobs: Watch::default(),
        draining: world.lifecycle.draining(),
        clock: world.clock.clone(),
        identity: config.presence.identity,
        window: config.presence.window,
        request_timeout: config.server.request_timeout,
        body_timeout: config.server.body_timeout,
    };
    api::public(AppState::new(parts))
}

/// One request through the public router.
pub async fn send(world: &World, request: Request<Body>) -> Answer {
    let response = router(world).oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
    Answer { status, headers, body }
}

pub async fn get(world: &World, path: &str) -> Answer {
    send(world, Request::get(path).body(Body::empty()).unwrap()).await
}

async fn post(world: &World, path: &str, media: &str, body: &str) -> Answer {
    let request = Request::post(path).header("content-type", media);
    send(world, request.body(Body::from(body.to_owned())).unwrap()).await
}

async fn ok(world: &World, path: &str, body: &Value) -> Value {
    let answer = post(world, path, TYPE_JSON, &body.to_string()).await;
    assert_eq!(answer.status, 200, "{path} {}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    answer.body
}

async fn players_are_counted_and_pages_are_told(world: World) {
    let beat = ok(&world, "/api/video/film/heartbeat", &json!({"userId": "ann"})).await;
    assert_eq!(beat, json!({"videoId": "film", "online": 1, "nextHeartbeatSeconds": 30}));
    let beat = post(&world, "/api/video/film/heartbeat?user_id=7", TYPE_JSON, "").await;
    assert_eq!(beat.status, 200, "{}", beat.body);
    let play = json!({"userId": 7, "playId": "p-1"});
    let counted = ok(&world, "/api/video/film/play", &play).await;
    assert_eq!(counted, json!({"videoId": "film", "counted": true}));
    let again = ok(&world, "/api/video/film/play", &play).await;
    assert_eq!(again, json!({"videoId": "film", "counted": false, "reason": "duplicate"}));

    world.sweep().await;
    world.forget_what_was_read();
    let online = get(&world, "/api/video/film/online-count").await;
    assert_eq!(
        (&online.body["online"], &online.body["stale"], &online.body["windowSeconds"]),
        (&json!(2), &json!(false), &json!(600)),
        "{}",
        online.body
    );
    assert!(online.body["asOf"].as_str().unwrap().starts_with("2025-01-01T12:00:0"), "{}", online.body);
    assert_eq!(online.header("cache-control"), Some("no-cache"));
    assert_eq!(online.header("cdn-cache-control"), Some("public, max-age=1, stale-while-revalidate=30"));

    let plays = get(&world, "/api/video/film/play-count").await;
    assert_eq!(
        plays.body,
        json!({"videoId": "film", "plays": 1, "uniqueViewers": 1, "stale": false, "asOf": plays.body["asOf"]})
    );
    let both = get(&world, "/api/video/film/counts").await.body;
    assert_eq!(
        (&both["online"], &both["onlineStale"], &both["windowSeconds"]),
        (&json!(2), &json!(false), &json!(600))
    );
    assert_eq!(
        (&both["plays"], &both["uniqueViewers"], &both["playsStale"]),
        (&json!(1), &json!(1), &json!(false))
    );
    assert!(both["onlineAsOf"].is_string() && both["playsAsOf"].is_string(), "{both}");

    let top = get(&world, "/api/videos/top?limit=1").await.body;
    assert_eq!((&top["videos"], &top["stale"]), (&json!([{"videoId": "film", "online": 2}]), &json!(false)));

    let left = ok(&world, "/api/video/film/leave", &json!({"userId": "ann"})).await;
    assert_eq!(left["videoId"], "film");
    world.sweep().await;
    world.forget_what_was_read();
    assert_eq!(get(&world, "/api/video/film/online-count").await.body["online"], 1);
}

/// [umami#302] And the answer says which window the number means.
async fn numbers_nobody_can_vouch_for_are_null_and_stale(world: World) {
    world.beat("film", "ann").await;
    world.sweep().await;
    world.pass(secs(1_800));
    let online = get(&world, "/api/video/film/online-count").await;
    assert_eq!(
        online.body,
        json!({"videoId": "film", "online": null, "asOf": null, "windowSeconds": 600, "stale": true})
    );
    assert_eq!(online.header("cache-control"), Some("no-store"));
    assert_eq!(online.header("cdn-cache-control"), None);
}

async fn many_videos_are_told_in_the_order_asked(world: World) {
    world.beat("b", "ann").await;
    world.play("a", Some("ann"), None).await;
    world.sweep().await;
    world.forget_what_was_read();
    let answer = get(&world, "/api/videos/counts?ids=b,no%20id,a,b").await;
    let told: Vec<_> = answer.body["counts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (one["videoId"].clone(), one["online"].clone(), one["plays"].clone(), one["error"].clone())
        })
        .collect();
    let null = Value::Null;
    assert_eq!(
        told,
        [
            (json!("b"), json!(1), json!(0), null.clone()),
            (json!("no id"), null.clone(), null.clone(), json!("invalid_video_id")),
            (json!("a"), json!(0), json!(1), null.clone()),
            (json!("b"), json!(1), json!(0), null.clone()),
        ]
    );
    let posted = post(&world, "/api/videos/counts", TYPE_JSON, r#"{"ids":["b","no id","a","b"]}"#).await;
    assert_eq!(posted.body, answer.body);

    let ids = vec!["x"; 101].join(",");
    assert_eq!(get(&world, &format!("/api/videos/counts?ids={ids}")).await.status, 400);
    let ids = json!({"ids": vec!["x"; 501]}).to_string();
    assert_eq!(post(&world, "/api/videos/counts", TYPE_JSON, &ids).await.status, 400);
}

async fn a_gateway_sends_beats_of_many(world: World) {
    let beats = json!({"beats": [
        {"videoId": "film", "userId": "ann"},
        {"videoId": "fi lm", "userId": "ann"},
        {"videoId": "film"},
        {"videoId": "film", "userId": 7},
    ]});
    let answer = ok(&world, "/api/heartbeats", &beats).await;
    assert_eq!(
        answer,
        json!({
            "accepted": 2,
            "refused": [{"index": 1, "code": "invalid_video_id"}, {"index": 2, "code": "missing_user_id"}],
            "nextHeartbeatSeconds": 30,
        })
    );
    assert_eq!(world.swept_count("film").await, Some(2));
}

/// [eventgate#6, munin#400] `navigator.sendBeacon` sends text/plain without a preflight.
async fn a_beacon_is_read_whatever_its_type(world: World) {
    let json = r#"{"userId":"ann","something":[1,2]}"#;
    for (media, body) in [
        ("text/plain;charset=UTF-8", json),
        ("application/json", json),
        ("application/x-www-form-urlencoded", "user_id=ann&x=y"),
    ] {
        let answer = post(&world, "/api/video/film/heartbeat", media, body).await;
        assert_eq!(answer.status, 200, "{media} {}", answer.body);
    }
    let untyped = Request::post("/api/video/film/leave").body(Body::from(json)).unwrap();
    assert_eq!(send(&world, untyped).await.status, 200);
    assert_eq!(post(&world, "/api/video/film/heartbeat", "text/html", json).await.status, 415);
    assert_eq!(world.swept_count("film").await, Some(0));
}

/// [S8, thin-edge.io#3886]
async fn odd_ids_never_reach_a_store(world: World) {
    let before = if world.is_redis() { world.redis_keys().await } else { Vec::new() };
    let long = "x".repeat(65);
    for id in ["%7D", "a%7Db", "%7B%7D", "%00", "a%2Fb", "%FF", "a%20b", "%E5%90%8D", &long] {
        for (verb, body) in [("heartbeat", r#"{"userId":"ann"}"#), ("play", r#"{"userId":"ann"}"#)] {
            let answer = post(&world, &format!("/api/video/{id}/{verb}"), TYPE_JSON, body).await;
            assert_eq!(
                (answer.status.as_u16(), &answer.body["code"]),
                (400, &json!("invalid_video_id")),
                "{id}"
            );
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        }
        assert_eq!(get(&world, &format!("/api/video/{id}/counts")).await.status, 400, "{id}");
    }
    for body in
        [r#"{"userId":"a b"}"#, r#"{"userId":""}"#, "{\"userId\":\"a\\u0000\"}", r#"{"userId":1.5}"#, "{}"]
    {
        let answer = post(&world, "/api/video/film/heartbeat", TYPE_JSON, body).await;
        assert_eq!(answer.status, 400, "{body}");
    }
    if world.is_redis() {
        assert_eq!(world.redis_keys().await, before);
    }
}

async fn with_device_identity_each_device_is_a_viewer(world: World) {
    let world = world.changed(|config| config.presence.identity = Identity::Device).await;
    for device in ["tv", "phone", "tv"] {
        ok(&world, "/api/video/film/heartbeat", &json!({"userId": "ann", "deviceId": device})).await;
    }
    let missing = post(&world, "/api/video/film/heartbeat", TYPE_JSON, r#"{"userId":"ann"}"#).await;
    assert_eq!((missing.status.as_u16(), &missing.body["code"]), (400, &json!("missing_device_id")));
    assert_eq!(world.swept_count("film").await, Some(2));
    if world.is_redis() {
        let shards: Vec<String> = world
            .redis_keys()
            .await
            .into_iter()
            .filter(|key| key.replace(['{', '}'], "").starts_with("video:online:film:"))
            .collect();
        let mut fields: Vec<String> = Vec::new();
        for shard in shards {
            fields.extend(
                world.redis_command::<Vec<String>>(::redis::cmd("HKEYS").arg(world.key(&shard))).await,
            );
        }
        fields.sort();
        assert_eq!(fields, ["phone:ann", "tv:ann"]);
    }
}

async fn with_unknown_videos_refused_only_known_ones_count(world: World) {
    // A row appears with the first play that reaches the database.
    world.play("known", Some("ann"), None).await;
    world.flush().await;
    let world = world.changed(|config| config.videos.unknown = Unknown::Reject).await;
    for path in ["/api/video/unknown/heartbeat", "/api/video/unknown/play", "/api/video/unknown/leave"] {
        let answer = post(&world, path, TYPE_JSON, r#"{"userId":"ann"}"#).await;
        assert_eq!((answer.status.as_u16(), &answer.body["code"]), (404, &json!("unknown_video")), "{path}");
    }
    assert_eq!(get(&world, "/api/video/unknown/counts").await.status, 404);
    let many = get(&world, "/api/videos/counts?ids=unknown,known").await.body;
    assert_eq!(many["counts"][0], json!({"videoId": "unknown", "error": "unknown_video"}));
    assert_eq!(many["counts"][1]["plays"], 1);
    ok(&world, "/api/video/known/heartbeat", &json!({"userId": "ann"})).await;
}

/// [coderplanets-web#1261]
async fn a_prefetch_counts_nothing(world: World) {
    for verb in ["heartbeat", "play"] {
        let request =
            Request::post(format!("/api/video/film/{verb}?userId=ann")).header("sec-purpose", "prefetch");
        assert_eq!(send(&world, request.body(Body::empty()).unwrap()).await.status, 204);
    }
    assert_eq!(world.swept_count("film").await, Some(0));
    assert_eq!(world.plays("film").await.plays, Some(0));
}

async fn a_probe_says_ready(world: World) {
    assert_eq!(get(&world, "/livez").await.status, 200);
    assert_eq!(get(&world, "/readyz").await.status, 200);
    world.lifecycle.stop();
    let answer = get(&world, "/readyz").await;
    assert_eq!((answer.status.as_u16(), &answer.body["code"]), (503, &json!("draining")));
    assert!(answer.header("retry-after").is_some());
}

/// The prober's own limit, or its end, may come at any step of the look at the stores.
async fn a_probe_given_up_in_the_middle_holds_nothing(world: World) {
    let app = router(&world);
    for steps in 0..20 {
        world.pass(secs(2));
        let request = Request::get("/readyz").body(Body::empty()).unwrap();
        let mut probe = Box::pin(app.clone().oneshot(request));
        for _ in 0..steps {
            if futures::poll!(&mut probe).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(probe);
        let viewer = format!("viewer-{steps}");
        assert_eq!(world.play("film", Some(&viewer), None).await, Recorded::Counted);
    }
}
