//! Routes that read what the real ones read and answer as much, and do nothing between: what a
//! benchmark holds the real ones against. Only a build with the feature `bench` has them.
//!
//! They stand behind the same edge, on the same listener. Where they are as fast as the real route,
//! nothing is left to be gained by work on what lies behind it.

use std::sync::Arc;

use axum::{
    extract::State,
    routing::{get, post},
};
use serde::Serialize;

use super::{
    Api, Group, SINGLE_BODY,
    answer::{Answer, Cache, Id},
    extract::{OneBeat, OnePlay, OneVideo},
    problem::ApiError,
};

/// Beside `heartbeat`, `play` and `online-count`, each under the same name.
pub(super) fn routes() -> Group {
    let routes = vec![
        ("/api/video/{videoId}/noop/heartbeat", post(beat)),
        ("/api/video/{videoId}/noop/play", post(play)),
        ("/api/video/{videoId}/noop/online-count", get(online)),
    ];
    Group { body_limit: SINGLE_BODY, timeout: None, routes }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Beaten {
    video_id: Id,
    online: u64,
    next_heartbeat_seconds: u64,
}

async fn beat(OneBeat(beat): OneBeat) -> Answer<Beaten> {
    Answer::private(Beaten { video_id: Id(beat.video), online: 1_234, next_heartbeat_seconds: 30 })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Played {
    video_id: Id,
    counted: bool,
}

async fn play(OnePlay(play): OnePlay) -> Answer<Played> {
    Answer::private(Played { video_id: Id(play.video), counted: true })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    video_id: Id,
    online: Option<u64>,
    as_of: Option<&'static str>,
    window_seconds: u64,
    stale: bool,
}

async fn online(State(api): State<Arc<Api>>, OneVideo(video): OneVideo) -> Result<Answer<Counted>, ApiError> {
    let body = Counted {
        video_id: Id(video),
        online: Some(1_234),
        as_of: Some("2026-01-02T03:04:05Z"),
        window_seconds: api.window.as_secs(),
        stale: false,
    };
    Ok(Answer::cached(Cache::Shared, body))
}
