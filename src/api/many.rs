//! The numbers of many videos, for list pages: one request here, one call to each store.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Api,
    answer::{Answer, Cache},
    code::Code,
    counts::{Counts, good_online, good_plays},
    extract::{Asked, IdsInBody, IdsInQuery},
    openapi::{ListGet, ListPost},
    problem::ApiError,
    sent::IdsSent,
};
use crate::{ids::VideoId, plays::PlayCount, presence::OnlineCount};

/// The numbers of many videos, in the order they were asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ManyCounts {
    counts: Vec<Entry>,
}

/// The numbers of one of them, or why there are none.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Entry {
    /// Its numbers.
    Counts(Counts),
    /// What was asked for is no video.
    Refused(NoCounts),
}

/// What was asked for is no video.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NoCounts {
    /// What was sent, as it was sent.
    video_id: String,
    /// `invalid_video_id` or `unknown_video`.
    error: Code,
}

/// The numbers of up to 100 videos.
#[utoipa::path(
    get,
    path = "/api/videos/counts",
    operation_id = "manyCounts",
    tag = "pages",
    params(("ids" = String, Query, description = "Ids, separated by commas.", example = "a,b,c")),
    responses(
        (status = 200, description = "The counts, in the order asked.", body = ManyCounts, headers(
            ("Cache-Control" = String, description = "`no-cache`, or `no-store` if any is a 0, stale or an error"),
            ("CDN-Cache-Control" = String, description = "A second, for good numbers"))),
        ListGet,
    ),
)]
pub(super) async fn get(
    State(api): State<Arc<Api>>,
    IdsInQuery(asked): IdsInQuery,
) -> Result<Answer<ManyCounts>, ApiError> {
    let (cache, body) = look_up(&api, asked).await?;
    Ok(Answer::cached(cache, body))
}

/// The numbers of up to 500 videos.
#[utoipa::path(
    post,
    path = "/api/videos/counts",
    operation_id = "manyCountsPosted",
    tag = "pages",
    request_body(content(
        (IdsSent = "application/json"),
        (String = "text/plain", example = json!("{\"ids\":[\"a\",\"b\"]}")),
    )),
    responses(
        (status = 200, description = "The counts, in the order asked.", body = ManyCounts,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        ListPost,
    ),
)]
pub(super) async fn post(
    State(api): State<Arc<Api>>,
    IdsInBody(asked): IdsInBody,
) -> Result<Answer<ManyCounts>, ApiError> {
    let (_, body) = look_up(&api, asked).await?;
    Ok(Answer::private(body))
}

/// One entry for each video, and whether a cache may keep them.
async fn look_up(api: &Api, asked: Vec<Asked>) -> Result<(Cache, ManyCounts), ApiError> {
    let wanted: Vec<VideoId> = asked.iter().filter_map(Asked::video).cloned().collect();
    let mut known = api.videos.known(&wanted).await?.into_iter();
    let asked: Vec<Result<VideoId, NoCounts>> = asked
        .into_iter()
        .map(|asked| match asked {
            Asked::Wrong(given) => Err(NoCounts { video_id: given, error: Code::InvalidVideoId }),
            Asked::Video(video) if known.next() == Some(true) => Ok(video),
            Asked::Video(video) => Err(NoCounts { video_id: video.to_string(), error: Code::UnknownVideo }),
        })
        .collect();
    let videos: Vec<VideoId> = asked.iter().flatten().cloned().collect();

    let (online, plays) = tokio::join!(api.presence.online(&videos), api.plays.counts(&videos));
    let good = asked.len() == videos.len() && online.iter().all(good_online) && plays.iter().all(good_plays);
    let (mut online, mut plays) = (online.into_iter(), plays.into_iter());
    let counts = asked
        .into_iter()
        .map(|asked| match asked {
            Ok(video) => {
                let online = online.next().unwrap_or(OnlineCount::UNKNOWN);
                let plays = plays.next().unwrap_or(PlayCount::UNKNOWN);
                Entry::Counts(Counts::new(api, video, &online, &plays))
            }
            Err(refused) => Entry::Refused(refused),
        })
        .collect();
    Ok((Cache::shared_if(good), ManyCounts { counts }))
}
