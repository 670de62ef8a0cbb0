//! Plays: one playback, counted once.

use std::sync::Arc;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Api,
    answer::{Answer, Id},
    extract::OnePlay,
    meters::Outcome,
    openapi::VideoPost,
    problem::ApiError,
    sent::{PlaySent, SiteId},
};
use crate::plays::Recorded;

/// A play was decided.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlayDecided {
    video_id: Id,
    /// Whether this request made the count go up.
    counted: bool,
    /// Why it didn't.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
}

/// Why a play was not counted.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// It was counted before.
    Duplicate,
}

/// A play was taken; whether it counts is decided later.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlayAccepted {
    video_id: Id,
    /// Always true.
    accepted: bool,
}

/// "This video was played."
///
/// Needs `userId` or `playId`, from a JSON body, a form or the query; with both, both must be new for
/// the play to count. Sending it again is safe, and after a 503 the thing to do.
#[utoipa::path(
    post,
    path = "/api/video/{videoId}/play",
    operation_id = "play",
    tag = "players",
    params(("videoId" = Id, Path), ("userId" = Option<SiteId>, Query, description = "In place of the body's."), ("deviceId" = Option<SiteId>, Query, description = "In place of the body's."), ("playId" = Option<SiteId>, Query, description = "In place of the body's.")),
    request_body(content(
        (PlaySent = "application/json"),
        (PlaySent = "application/x-www-form-urlencoded"),
        (String = "text/plain", example = json!("{\"playId\":\"p-81f2\"}")),
    )),
    responses(
        (status = 200, description = "The play is counted, or was before.", body = PlayDecided,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        (status = 202, description = "The play is taken and decided later.", body = PlayAccepted,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        VideoPost,
    ),
)]
pub(super) async fn record(State(api): State<Arc<Api>>, play: Result<OnePlay, ApiError>) -> Response {
    let decided = decide(&api, play).await;
    api.recorded.add(match &decided {
        Ok((_, Recorded::Counted)) => Outcome::Counted,
        Ok((_, Recorded::Duplicate)) => Outcome::Duplicate,
        Ok((_, Recorded::Accepted)) => Outcome::Accepted,
        Err(error) => Outcome::from(error),
    });
    match decided {
        Ok((video_id, Recorded::Counted)) => {
            Answer::private(PlayDecided { video_id, counted: true, reason: None }).into_response()
        }
        Ok((video_id, Recorded::Duplicate)) => {
            let reason = Some(Reason::Duplicate);
            Answer::private(PlayDecided { video_id, counted: false, reason }).into_response()
        }
        Ok((video_id, Recorded::Accepted)) => {
            let body = PlayAccepted { video_id, accepted: true };
            Answer { status: StatusCode::ACCEPTED, ..Answer::private(body) }.into_response()
        }
        Err(error) => error.into_response(),
    }
}

async fn decide(api: &Api, play: Result<OnePlay, ApiError>) -> Result<(Id, Recorded), ApiError> {
    let OnePlay(play) = play?;
    api.check_known(&play.video).await?;
    let video_id = Id(play.video.clone());
    Ok((video_id, api.plays.record(play).await?))
}
