//! The most watched videos.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Api,
    answer::{Answer, Cache, Id, Time},
    extract::Limit,
    openapi::ListGet,
    problem::ApiError,
};

/// The most watched videos, most watched first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TopAnswer {
    videos: Vec<TopVideo>,
    /// When the ranking was right; `null` before the first one was made.
    #[schema(required, format = DateTime, value_type = Option<String>)]
    as_of: Option<Time>,
    /// Whether it may have changed since without the service knowing.
    stale: bool,
}

/// One of the most watched videos.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TopVideo {
    video_id: Id,
    /// Its viewers.
    online: u64,
}

/// The videos that most are watching now.
#[utoipa::path(
    get,
    path = "/api/videos/top",
    operation_id = "top",
    tag = "pages",
    params(("limit" = Option<usize>, Query, description = "How many, 20 unless said.", minimum = 1, maximum = 100)),
    responses(
        (status = 200, description = "The ranking.", body = TopAnswer, headers(
            ("Cache-Control" = String, description = "`no-cache`, or `no-store` while it is empty or stale"),
            ("CDN-Cache-Control" = String, description = "A second, for a good ranking"))),
        ListGet,
    ),
)]
pub(super) async fn top(
    State(api): State<Arc<Api>>,
    Limit(limit): Limit,
) -> Result<Answer<TopAnswer>, ApiError> {
    let ranking = api.presence.top(limit).await;
    let cache = Cache::shared_if(!ranking.stale && ranking.as_of.is_some() && !ranking.videos.is_empty());
    let videos = ranking.videos.into_iter().map(|(video, online)| TopVideo { video_id: Id(video), online });
    let body = TopAnswer { videos: videos.collect(), as_of: ranking.as_of.map(Time), stale: ranking.stale };
    Ok(Answer::cached(cache, body))
}
