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
    let entries = body.counts.len();
    Ok(Answer::cached(cache, body).of_many(entries))
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
    let entries = body.counts.len();
    Ok(Answer::private(body).of_many(entries))
}

/// One entry for each video, and whether a cache may keep them.
async fn look_up(api: &Api, asked: Vec<Asked>) -> Result<(Cache, ManyCounts), ApiError> {
    let mut videos = Vec::with_capacity(asked.len());
    // For each that was asked for: why it isn't in `videos`, or that it is the next one there.
    let mut refused: Vec<Option<NoCounts>> = Vec::with_capacity(asked.len());
    for asked in asked {
        refused.push(match asked {
            Asked::Video(video) => {
                videos.push(video);
                None
            }
            Asked::Wrong(given) => Some(NoCounts { video_id: given, error: Code::InvalidVideoId }),
        });
    }
    let known = api.videos.known(&videos).await?;
    if known.contains(&false) {
        let mut known = known.into_iter();
        let mut places = refused.iter_mut().filter(|refused| refused.is_none());
        videos.retain(|video| {
            let (is_known, place) = (known.next() == Some(true), places.next());
            if !is_known && let Some(place) = place {
                *place = Some(NoCounts { video_id: video.to_string(), error: Code::UnknownVideo });
            }
            is_known
        });
    }

    let (online, plays) = tokio::join!(api.presence.online(&videos), api.plays.counts(&videos));
    let good =
        refused.len() == videos.len() && online.iter().all(good_online) && plays.iter().all(good_plays);
    let mut counted = videos.into_iter().zip(online.iter().zip(&plays));
    let counts = refused
        .into_iter()
        .filter_map(|refused| match refused {
            Some(refused) => Some(Entry::Refused(refused)),
            None => counted
                .next()
                .map(|(video, (online, plays))| Entry::Counts(Counts::new(api, video, online, plays))),
        })
        .collect();
    Ok((Cache::shared_if(good), ManyCounts { counts }))
}
