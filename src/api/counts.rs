//! The numbers of one video.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Api,
    answer::{Answer, Cache, Id, Time},
    extract::OneVideo,
    openapi::VideoGet,
    problem::ApiError,
};
use crate::{ids::VideoId, plays::PlayCount, presence::OnlineCount};

/// How many are watching.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct OnlineAnswer {
    video_id: Id,
    /// Viewers whose last beat is at most `windowSeconds` old; `null` where no number can be vouched for.
    #[schema(required)]
    online: Option<u64>,
    /// When `online` was right.
    #[schema(required, format = DateTime, value_type = Option<String>)]
    as_of: Option<Time>,
    /// How long a viewer counts after a beat.
    window_seconds: u64,
    /// Whether `online` may have changed since without the service knowing.
    stale: bool,
}

/// How many are watching a video now.
#[utoipa::path(
    get,
    path = "/api/video/{videoId}/online-count",
    operation_id = "onlineCount",
    tag = "pages",
    params(("videoId" = Id, Path)),
    responses(
        (status = 200, description = "The count.", body = OnlineAnswer, headers(
            ("Cache-Control" = String, description = "`no-cache`, or `no-store` for a 0 or a stale number"),
            ("CDN-Cache-Control" = String, description = "A second, for good numbers"))),
        VideoGet,
    ),
)]
pub(super) async fn online(
    State(api): State<Arc<Api>>,
    OneVideo(video): OneVideo,
) -> Result<Answer<OnlineAnswer>, ApiError> {
    api.check_known(&video).await?;
    let count = only(api.presence.online(std::slice::from_ref(&video)).await, OnlineCount::UNKNOWN);
    let body = OnlineAnswer {
        video_id: Id(video),
        online: count.online,
        as_of: count.as_of.map(Time),
        window_seconds: api.window.as_secs(),
        stale: count.stale,
    };
    Ok(Answer::cached(Cache::shared_if(good_online(&count)), body))
}

/// How often a video was played.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlaysAnswer {
    video_id: Id,
    /// Plays, each counted once; `null` where no number can be vouched for.
    #[schema(required)]
    plays: Option<u64>,
    /// Different viewers among them, estimated within about 1 %.
    #[schema(required)]
    unique_viewers: Option<u64>,
    /// When the numbers were right.
    #[schema(required, format = DateTime, value_type = Option<String>)]
    as_of: Option<Time>,
    /// Whether they may have changed since without the service knowing.
    stale: bool,
}

/// How often a video was played.
#[utoipa::path(
    get,
    path = "/api/video/{videoId}/play-count",
    operation_id = "playCount",
    tag = "pages",
    params(("videoId" = Id, Path)),
    responses(
        (status = 200, description = "The count.", body = PlaysAnswer, headers(
            ("Cache-Control" = String, description = "`no-cache`, or `no-store` for a 0 or a stale number"),
            ("CDN-Cache-Control" = String, description = "A second, for good numbers"))),
        VideoGet,
    ),
)]
pub(super) async fn plays(
    State(api): State<Arc<Api>>,
    OneVideo(video): OneVideo,
) -> Result<Answer<PlaysAnswer>, ApiError> {
    api.check_known(&video).await?;
    let count = only(api.plays.counts(std::slice::from_ref(&video)).await, PlayCount::UNKNOWN);
    let body = PlaysAnswer {
        video_id: Id(video),
        plays: count.plays,
        unique_viewers: count.unique_viewers,
        as_of: count.as_of.map(Time),
        stale: count.stale,
    };
    Ok(Answer::cached(Cache::shared_if(good_plays(&count)), body))
}

/// Both numbers of a video.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counts {
    video_id: Id,
    /// Viewers whose last beat is at most `windowSeconds` old; `null` where no number can be vouched for.
    #[schema(required)]
    online: Option<u64>,
    /// When `online` was right.
    #[schema(required, format = DateTime, value_type = Option<String>)]
    online_as_of: Option<Time>,
    /// Whether `online` may have changed since without the service knowing.
    online_stale: bool,
    /// How long a viewer counts after a beat.
    window_seconds: u64,
    /// Plays, each counted once; `null` where no number can be vouched for.
    #[schema(required)]
    plays: Option<u64>,
    /// Different viewers among them, estimated within about 1 %.
    #[schema(required)]
    unique_viewers: Option<u64>,
    /// When `plays` and `uniqueViewers` were right.
    #[schema(required, format = DateTime, value_type = Option<String>)]
    plays_as_of: Option<Time>,
    /// Whether they may have changed since without the service knowing.
    plays_stale: bool,
}

impl Counts {
    pub(super) fn new(api: &Api, video: VideoId, online: &OnlineCount, plays: &PlayCount) -> Self {
        Self {
            video_id: Id(video),
            online: online.online,
            online_as_of: online.as_of.map(Time),
            online_stale: online.stale,
            window_seconds: api.window.as_secs(),
            plays: plays.plays,
            unique_viewers: plays.unique_viewers,
            plays_as_of: plays.as_of.map(Time),
            plays_stale: plays.stale,
        }
    }
}

/// Both numbers of a video.
#[utoipa::path(
    get,
    path = "/api/video/{videoId}/counts",
    operation_id = "counts",
    tag = "pages",
    params(("videoId" = Id, Path)),
    responses(
        (status = 200, description = "The counts.", body = Counts, headers(
            ("Cache-Control" = String, description = "`no-cache`, or `no-store` for a 0 or a stale number"),
            ("CDN-Cache-Control" = String, description = "A second, for good numbers"))),
        VideoGet,
    ),
)]
pub(super) async fn both(
    State(api): State<Arc<Api>>,
    OneVideo(video): OneVideo,
) -> Result<Answer<Counts>, ApiError> {
    api.check_known(&video).await?;
    let videos = std::slice::from_ref(&video);
    let (online, plays) = tokio::join!(api.presence.online(videos), api.plays.counts(videos));
    let (online, plays) = (only(online, OnlineCount::UNKNOWN), only(plays, PlayCount::UNKNOWN));
    let cache = Cache::shared_if(good_online(&online) && good_plays(&plays));
    Ok(Answer::cached(cache, Counts::new(&api, video, &online, &plays)))
}

/// The answer for the one video that was asked for.
fn only<T>(mut counts: Vec<T>, unknown: T) -> T {
    counts.pop().unwrap_or(unknown)
}

/// Whether a cache may keep it. A 0 may be the moment before the first beat is seen.
pub(super) fn good_online(count: &OnlineCount) -> bool {
    !count.stale && count.online.is_some_and(|online| online > 0)
}

/// The same for plays. Unique viewers don't matter: there are none while only `playId`s are sent.
pub(super) fn good_plays(count: &PlayCount) -> bool {
    !count.stale && count.plays.is_some_and(|plays| plays > 0)
}
