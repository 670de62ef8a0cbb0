//! Beats, leaves and plays.

use serde_json::json;

use super::{Settings, World};
use crate::{
    config::Unknown,
    error::{Part, StoreError},
};

#[tokio::test]
async fn a_beat_is_answered_with_the_viewers_and_when_to_beat_again() {
    let world = World::new();
    for (user, online) in [("ann", 1), ("bob", 2), ("ann", 2)] {
        let reply = world.post("/api/video/film/heartbeat", json!({ "userId": user }).to_string()).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.json(), json!({ "videoId": "film", "online": online, "nextHeartbeatSeconds": 30 }));
    }
}

#[tokio::test]
async fn leaving_twice_changes_nothing_more() {
    let world = World::new();
    for user in ["ann", "bob"] {
        world.post("/api/video/film/heartbeat", json!({ "userId": user }).to_string()).await;
    }
    for _ in 0..2 {
        let reply = world.post_as("/api/video/film/leave", "text/plain", r#"{"userId":"ann"}"#).await;
        assert_eq!(reply.json(), json!({ "videoId": "film", "online": 1 }));
    }
    world.presence.tell("film", None, true);
    let reply = world.post("/api/video/film/leave", r#"{"userId":"bob"}"#).await;
    assert_eq!(reply.json(), json!({ "videoId": "film", "online": null }));
}

#[tokio::test]
async fn a_play_counts_once_or_is_decided_later() {
    let world = World::new();
    for expected in [
        json!({ "videoId": "film", "counted": true }),
        json!({ "videoId": "film", "counted": false, "reason": "duplicate" }),
    ] {
        let reply = world.post("/api/video/film/play", r#"{"playId":"p1"}"#).await;
        assert_eq!((reply.status.as_u16(), reply.json()), (200, expected));
    }
    let reply = world.post("/api/video/later/play", r#"{"playId":"p1"}"#).await;
    assert_eq!((reply.status.as_u16(), reply.json()), (202, json!({ "videoId": "later", "accepted": true })));
}

#[tokio::test]
async fn a_store_that_is_away_is_503_and_one_that_makes_no_sense_500() {
    for (error, status, code) in [
        (StoreError::unavailable(Part::Redis, "10.0.0.7 refused"), 503, "unavailable"),
        (StoreError::Full { part: Part::Redis, queue: "plays" }, 503, "overloaded"),
        (StoreError::unexpected(Part::Redis, "10.0.0.7 said what?"), 500, "internal"),
    ] {
        let world = World::new();
        *world.presence.failing.lock() = Some(error.clone());
        *world.plays.failing.lock() = Some(error);
        for path in ["heartbeat", "leave", "play"] {
            let reply = world.post(&format!("/api/video/film/{path}"), r#"{"userId":"ann"}"#).await;
            reply.refused(status, code);
        }
    }
}

#[tokio::test]
async fn an_unknown_video_is_404_where_only_known_ones_count() {
    let world = World::with(Settings { unknown: Unknown::Reject, ..Settings::default() });
    for path in ["heartbeat", "leave", "play"] {
        let to = |video: &str| format!("/api/video/{video}/{path}");
        let body = r#"{"userId":"ann"}"#;
        assert_eq!(world.post(&to("known"), body).await.status, 200);
        world.post(&to("other"), body).await.refused(404, "unknown_video");
        world.post(&to("unreachable"), body).await.refused(503, "unavailable");
    }
    assert!(world.presence.viewers_of("other").is_empty());
    assert_eq!(world.plays.recorded.lock().len(), 1);
    for path in ["online-count", "play-count", "counts"] {
        let of = |video: &str| format!("/api/video/{video}/{path}");
        assert_eq!(world.get(&of("known")).await.status, 200);
        world.get(&of("other")).await.refused(404, "unknown_video");
        world.get(&of("unreachable")).await.refused(503, "unavailable");
    }
}
