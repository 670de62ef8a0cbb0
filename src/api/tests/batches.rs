//! Many beats in one request.

use serde_json::{Value, json};

use super::{Settings, World};
use crate::{
    config::{Identity, Unknown},
    error::{Part, StoreError},
};

const BEATS: &str = "/api/heartbeats";

async fn send(world: &World, beats: Value) -> super::Reply {
    world.post(BEATS, json!({ "beats": beats }).to_string()).await
}

#[tokio::test]
async fn each_beat_is_taken_or_refused_for_itself() {
    let world = World::new();
    let reply = send(
        &world,
        json!([
            { "videoId": "film", "userId": "ann" },
            { "videoId": "a/b", "userId": "ann" },
            { "videoId": "film", "user_id": 7, "deviceId": "tv", "extra": [] },
            { "videoId": "film" },
            { "userId": "ann" },
            { "videoId": "film", "userId": "ann", "user_id": "bob" },
            { "videoId": "film", "userId": 1.5 },
            { "videoId": "film", "userId": "ann", "deviceId": "" },
            "film",
            { "videoId": "away", "userId": "ann" },
            { "video_id": 42, "userId": "ann" },
            { "videoId": "", "userId": "ann" },
            { "videoId": "film", "video_id": "series", "userId": "ann" },
        ]),
    )
    .await;
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.json(),
        json!({
            "accepted": 3,
            "refused": [
                { "index": 1, "code": "invalid_video_id" },
                { "index": 3, "code": "missing_user_id" },
                { "index": 4, "code": "missing_video_id" },
                { "index": 5, "code": "conflicting_user_id" },
                { "index": 6, "code": "invalid_user_id" },
                { "index": 7, "code": "invalid_device_id" },
                { "index": 8, "code": "invalid_body" },
                { "index": 9, "code": "unavailable" },
                { "index": 11, "code": "invalid_video_id" },
                { "index": 12, "code": "conflicting_video_id" },
            ],
            "nextHeartbeatSeconds": 30,
        })
    );
    assert_eq!(world.presence.viewers_of("film"), ["7", "ann"]);
    assert_eq!(world.presence.viewers_of("42"), ["ann"]);
}

#[tokio::test]
async fn the_same_text_is_read_from_a_beacon() {
    let world = World::new();
    let body = r#"{"beats":[{"videoId":"film","userId":"ann"}]}"#;
    for content_type in ["text/plain;charset=UTF-8", "application/json;charset=utf-8"] {
        assert_eq!(world.post_as(BEATS, content_type, body).await.json()["accepted"], 1);
    }
    world
        .post_as(BEATS, "application/x-www-form-urlencoded", "beats=1")
        .await
        .refused(415, "unsupported_media_type");
}

#[tokio::test]
async fn up_to_1000_beats_of_the_longest_ids_fit() {
    let world = World::new();
    let id = |index: usize| format!("{index:0>64}");
    let beat = |index| json!({ "videoId": id(index), "userId": id(index), "deviceId": id(index) });
    let beats: Vec<Value> = (0..1_001).map(beat).collect();
    assert_eq!(send(&world, json!(beats[..1_000])).await.json()["accepted"], 1_000);
    send(&world, json!(beats)).await.refused(400, "too_many_beats");
    assert_eq!(send(&world, json!([])).await.json()["accepted"], 0);
}

#[tokio::test]
async fn a_list_that_isnt_there_or_isnt_one_is_400() {
    let world = World::new();
    for (body, code) in [
        ("", "missing_beats"),
        ("{}", "missing_beats"),
        (r#"{"Beats":[]}"#, "missing_beats"),
        (r#"{"beats":{}}"#, "invalid_body"),
        (r#"{"beats":null}"#, "invalid_body"),
        (r#"{"beats":[],"beats":[]}"#, "invalid_body"),
        ("[]", "invalid_body"),
        ("[", "invalid_body"),
    ] {
        world.post(BEATS, body).await.refused(400, code);
    }
    world.post(BEATS, vec![b' '; 512 * 1024 + 1]).await.refused(413, "payload_too_large");
}

/// A gateway then keeps the request and sends it again as it is.
#[tokio::test]
async fn only_a_batch_of_which_everything_may_succeed_later_is_503() {
    let world = World::new();
    let (ann, bad) = (json!({ "videoId": "film", "userId": "ann" }), json!({ "videoId": "film" }));
    *world.presence.failing.lock() = Some(StoreError::Full { part: Part::Redis, queue: "beats" });
    send(&world, json!([ann, ann])).await.refused(503, "overloaded");

    let mixed = send(&world, json!([bad, ann])).await;
    assert_eq!(mixed.status, 200);
    assert_eq!(
        mixed.json()["refused"],
        json!([{ "index": 0, "code": "missing_user_id" }, { "index": 1, "code": "overloaded" }])
    );

    *world.presence.failing.lock() = Some(StoreError::unexpected(Part::Redis, "10.0.0.7"));
    let failed = send(&world, json!([ann])).await;
    assert_eq!(failed.json()["refused"], json!([{ "index": 0, "code": "internal" }]));
}

#[tokio::test]
async fn unknown_videos_are_refused_one_by_one() {
    let world = World::with(Settings { unknown: Unknown::Reject, identity: Identity::Device });
    let beat = |video: &str| json!({ "videoId": video, "userId": "ann", "deviceId": "tv" });
    let reply = send(&world, json!([beat("other"), beat("known1"), beat("}"), beat("known2")])).await;
    assert_eq!(reply.json()["accepted"], 2);
    assert_eq!(
        reply.json()["refused"],
        json!([{ "index": 0, "code": "unknown_video" }, { "index": 2, "code": "invalid_video_id" }])
    );
    assert_eq!(world.presence.viewers_of("known2"), ["tv:ann"]);

    send(&world, json!([beat("known1"), beat("unreachable")])).await.refused(503, "unavailable");
    let mixed = send(&world, json!([beat("}"), beat("unreachable")])).await;
    assert_eq!(
        mixed.json()["refused"],
        json!([{ "index": 0, "code": "invalid_video_id" }, { "index": 1, "code": "unavailable" }])
    );
}
