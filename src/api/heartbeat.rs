//! Beats: from one player, or from a gateway for many; and the hint that a viewer left.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Api,
    answer::{Answer, Id},
    code::Code,
    extract::{ManyBeats, OneBeat},
    meters::Outcome,
    openapi::{ListPost, VideoPost},
    problem::ApiError,
    sent::{BeatsSent, SiteId, ViewerSent},
};
use crate::presence::Beat;

/// A beat was taken.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BeatTaken {
    video_id: Id,
    /// Viewers of the video now, the one who beats included.
    #[schema(minimum = 1)]
    online: u64,
    /// When to beat again; longer than usual while the service is loaded.
    next_heartbeat_seconds: u64,
}

/// "This viewer is playing this video."
///
/// Sent when playback begins and then every `nextHeartbeatSeconds`. `userId`, and where the service
/// counts devices `deviceId`, come from a JSON body (also sent as `text/plain`, as beacons are), a
/// form or the query.
#[utoipa::path(
    post,
    path = "/api/video/{videoId}/heartbeat",
    operation_id = "heartbeat",
    tag = "players",
    params(("videoId" = Id, Path), ("userId" = Option<SiteId>, Query, description = "In place of the body's."), ("deviceId" = Option<SiteId>, Query, description = "In place of the body's.")),
    request_body(content(
        (ViewerSent = "application/json"),
        (ViewerSent = "application/x-www-form-urlencoded"),
        (String = "text/plain", example = json!("{\"userId\":\"ann\"}")),
    )),
    responses(
        (status = 200, description = "The beat is taken.", body = BeatTaken,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        VideoPost,
    ),
)]
pub(super) async fn beat(
    State(api): State<Arc<Api>>,
    beat: Result<OneBeat, ApiError>,
) -> Result<Answer<BeatTaken>, ApiError> {
    let taken = take(&api, beat).await;
    api.heartbeats.add(taken.as_ref().map_or_else(Outcome::from, |_| Outcome::Accepted));
    taken
}

async fn take(api: &Api, beat: Result<OneBeat, ApiError>) -> Result<Answer<BeatTaken>, ApiError> {
    let OneBeat(beat) = beat?;
    api.check_known(&beat.video).await?;
    let video_id = Id(beat.video.clone());
    let online = api.presence.beat(beat).await?;
    let next_heartbeat_seconds = api.next_heartbeat_seconds();
    Ok(Answer::private(BeatTaken { video_id, online, next_heartbeat_seconds }))
}

/// A viewer's leaving was noted.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Left {
    video_id: Id,
    /// Viewers of the video now; `null` where no number can be vouched for.
    #[schema(required)]
    online: Option<u64>,
}

/// "This viewer stopped."
///
/// A hint, sent with `navigator.sendBeacon` when the page goes away: without it the viewer leaves
/// when the window is over.
#[utoipa::path(
    post,
    path = "/api/video/{videoId}/leave",
    operation_id = "leave",
    tag = "players",
    params(("videoId" = Id, Path), ("userId" = Option<SiteId>, Query, description = "In place of the body's."), ("deviceId" = Option<SiteId>, Query, description = "In place of the body's.")),
    request_body(content(
        (ViewerSent = "application/json"),
        (ViewerSent = "application/x-www-form-urlencoded"),
        (String = "text/plain", example = json!("{\"userId\":\"ann\"}")),
    )),
    responses(
        (status = 200, description = "The viewer isn't there any more.", body = Left,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        VideoPost,
    ),
)]
pub(super) async fn leave(
    State(api): State<Arc<Api>>,
    OneBeat(beat): OneBeat,
) -> Result<Answer<Left>, ApiError> {
    api.check_known(&beat.video).await?;
    let video_id = Id(beat.video.clone());
    let count = api.presence.leave(beat).await?;
    Ok(Answer::private(Left { video_id, online: count.online }))
}

/// What became of many beats.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct BeatsTaken {
    /// How many were taken.
    accepted: usize,
    /// The others, in the order they were sent.
    refused: Vec<Refused>,
    /// When to beat again; longer than usual while the service is loaded.
    next_heartbeat_seconds: u64,
}

/// A beat that wasn't taken.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Refused {
    /// Its place among those that were sent, from 0.
    index: usize,
    code: Code,
}

/// Beats of many viewers, up to 1,000, from a gateway.
///
/// One that is refused doesn't touch the others. 503 is answered only when every one of them was
/// refused for a reason that passes: then the whole request may be sent again as it is.
#[utoipa::path(
    post,
    path = "/api/heartbeats",
    operation_id = "heartbeats",
    tag = "gateways",
    request_body(content(
        (BeatsSent = "application/json"),
        (String = "text/plain", example = json!("{\"beats\":[{\"videoId\":\"film\",\"userId\":\"ann\"}]}")),
    )),
    responses(
        (status = 200, description = "Which of the beats are taken.", body = BeatsTaken,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        ListPost,
    ),
)]
pub(super) async fn beat_many(
    State(api): State<Arc<Api>>,
    ManyBeats(beats): ManyBeats,
) -> Result<Answer<BeatsTaken>, ApiError> {
    let results = take_many(&api, beats).await;
    for result in &results {
        api.heartbeats.add(result.as_ref().map_or_else(Outcome::from, |()| Outcome::Accepted));
    }
    let passing =
        |result: &Result<(), ApiError>| result.as_ref().is_err_and(|error| error.code().retryable());
    if let Some(Err(error)) = results.first()
        && results.iter().all(passing)
    {
        return Err(error.clone());
    }
    let sent = results.len();
    let refused: Vec<Refused> = results
        .into_iter()
        .enumerate()
        .filter_map(|(index, result)| result.err().map(|error| Refused { index, code: error.code() }))
        .collect();
    let accepted = sent - refused.len();
    let next_heartbeat_seconds = api.next_heartbeat_seconds();
    Ok(Answer::private(BeatsTaken { accepted, refused, next_heartbeat_seconds }))
}

/// One result for each beat, in order. The catalog and the store are asked once for all.
async fn take_many(api: &Api, beats: Vec<Result<Beat, ApiError>>) -> Vec<Result<(), ApiError>> {
    let videos: Vec<_> = beats.iter().flatten().map(|beat| beat.video.clone()).collect();
    let mut known = match api.videos.known(&videos).await {
        Ok(known) => known.into_iter(),
        Err(away) => return beats.into_iter().map(|beat| beat.and(Err(away.clone().into()))).collect(),
    };
    let mut taken = Vec::with_capacity(videos.len());
    let checked: Vec<Result<(), ApiError>> = beats
        .into_iter()
        .map(|beat| {
            let beat = beat?;
            if known.next() == Some(true) {
                taken.push(beat);
                Ok(())
            } else {
                Err(ApiError::UnknownVideo)
            }
        })
        .collect();
    let mut results = api.presence.beat_many(taken).await.into_iter();
    let mut result = || results.next().expect("one result for each beat").map_err(ApiError::from);
    checked.into_iter().map(|checked| checked.and_then(|()| result())).collect()
}
