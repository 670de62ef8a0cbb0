//! The stable names of everything that can go wrong, and their HTTP statuses.

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

/// Why a request failed, for programs. Stable: a client may match on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Code {
    InvalidVideoId,
    InvalidUserId,
    InvalidDeviceId,
    InvalidPlayId,
    MissingVideoId,
    MissingUserId,
    MissingDeviceId,
    MissingUserOrPlayId,
    ConflictingVideoId,
    ConflictingUserId,
    ConflictingDeviceId,
    ConflictingPlayId,
    MalformedRequest,
    InvalidBody,
    InvalidQuery,
    InvalidLimit,
    MissingIds,
    MissingBeats,
    TooManyIds,
    TooManyBeats,
    UnknownVideo,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    PayloadTooLarge,
    HeadersTooLarge,
    UnsupportedMediaType,
    Internal,
    Unavailable,
    Overloaded,
    Timeout,
    Starting,
    NotReady,
    Draining,
    Stuck,
}

impl Code {
    /// Status, the code as text, and what it means for people; the same wherever it occurs.
    pub(super) fn contract(self) -> (StatusCode, &'static str, &'static str) {
        const BAD: StatusCode = StatusCode::BAD_REQUEST;
        const AWAY: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
        match self {
            Self::InvalidVideoId => (BAD, "invalid_video_id", "This is no video id"),
            Self::InvalidUserId => (BAD, "invalid_user_id", "This is no user id"),
            Self::InvalidDeviceId => (BAD, "invalid_device_id", "This is no device id"),
            Self::InvalidPlayId => (BAD, "invalid_play_id", "This is no play id"),
            Self::MissingVideoId => (BAD, "missing_video_id", "The video id is missing"),
            Self::MissingUserId => (BAD, "missing_user_id", "The user id is missing"),
            Self::MissingDeviceId => (BAD, "missing_device_id", "The device id is missing"),
            Self::MissingUserOrPlayId => {
                (BAD, "missing_user_or_play_id", "A play needs a userId or a playId")
            }
            Self::ConflictingVideoId => (BAD, "conflicting_video_id", "The video id is given twice"),
            Self::ConflictingUserId => (BAD, "conflicting_user_id", "The user id is given twice"),
            Self::ConflictingDeviceId => (BAD, "conflicting_device_id", "The device id is given twice"),
            Self::ConflictingPlayId => (BAD, "conflicting_play_id", "The play id is given twice"),
            Self::MalformedRequest => (BAD, "malformed_request", "This is no HTTP/1.1 request"),
            Self::InvalidBody => (BAD, "invalid_body", "The body can't be read"),
            Self::InvalidQuery => (BAD, "invalid_query", "The query can't be read"),
            Self::InvalidLimit => (BAD, "invalid_limit", "The limit is out of its range"),
            Self::MissingIds => (BAD, "missing_ids", "The ids are missing"),
            Self::MissingBeats => (BAD, "missing_beats", "The beats are missing"),
            Self::TooManyIds => (BAD, "too_many_ids", "Too many ids in one request"),
            Self::TooManyBeats => (BAD, "too_many_beats", "Too many beats in one request"),
            Self::UnknownVideo => (StatusCode::NOT_FOUND, "unknown_video", "There is no such video"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", "There is no such page"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This method isn't for this page")
            }
            Self::RequestTimeout => {
                (StatusCode::REQUEST_TIMEOUT, "request_timeout", "The request didn't come in time")
            }
            Self::HeadersTooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "headers_too_large",
                "The request line and headers are too long, or too many",
            ),
            Self::PayloadTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "The body is too large")
            }
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "This kind of body isn't read")
            }
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The service failed"),
            Self::Unavailable => (AWAY, "unavailable", "The service can't do this now"),
            Self::Overloaded => (AWAY, "overloaded", "The service has too much to do"),
            Self::Timeout => (AWAY, "timeout", "The request took too long"),
            Self::Starting => (AWAY, "starting", "The service has only just started"),
            Self::NotReady => (AWAY, "not_ready", "The service isn't ready"),
            Self::Draining => (AWAY, "draining", "The service is stopping"),
            Self::Stuck => (AWAY, "stuck", "A part of the service hangs"),
        }
    }

    /// Whether the same request may succeed a little later.
    pub(super) fn retryable(self) -> bool {
        matches!(self, Self::RequestTimeout) || self.contract().0 == StatusCode::SERVICE_UNAVAILABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_one_spelling() {
        for code in [Code::InvalidVideoId, Code::MissingUserOrPlayId, Code::Internal, Code::NotReady] {
            assert_eq!(serde_json::to_value(code).unwrap(), code.contract().1);
        }
    }
}
