//! What a request is answered when it isn't answered: `application/problem+json` (RFC 9457).
//!
//! [`Code::contract`](super::code::Code::contract) is the contract with clients. The cause of a 5xx is not part of it: it rides on
//! the response as a [`Failure`], and `edge.rs` logs it.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{code::Code, fields::Field};
use crate::{error::StoreError, ids::InvalidId, server::Refused};

/// Why a request is refused; the message is the `detail` of its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("{} {reason}", field.name())]
    InvalidId { field: Field, reason: InvalidId },
    #[error("{} must be a text or an integer", .0.name())]
    NotText(Field),
    #[error("{} is missing", .0.name())]
    Missing(Field),
    #[error("deviceId is missing: here each device of a user is a viewer (presence.identity is \"device\")")]
    MissingDevice,
    #[error("userId and playId are both missing")]
    MissingUserOrPlay,
    #[error("{} is given more than once, with different values", .0.name())]
    Conflict(Field),
    #[error("{0}")]
    InvalidBody(String),
    #[error("the query must be UTF-8")]
    InvalidQuery,
    #[error("limit must be a number from 1 to {max}")]
    InvalidLimit { max: usize },
    #[error("ids is missing")]
    MissingIds,
    #[error("beats is missing")]
    MissingBeats,
    #[error("{given} ids were sent; at most {max} are answered at once")]
    TooManyIds { given: usize, max: usize },
    #[error("{given} beats were sent; at most {max} are taken at once")]
    TooManyBeats { given: usize, max: usize },
    #[error("there is no video of this id")]
    UnknownVideo,
    #[error("there is nothing at this path")]
    NotFound,
    #[error("the Allow header lists the methods of this path")]
    MethodNotAllowed,
    #[error("the body is longer than this path takes")]
    PayloadTooLarge,
    #[error("nothing of it was taken; the connection was slow, or the request was not sent to its end")]
    RequestTimeout,
    #[error("the request line and headers can't be read")]
    Malformed,
    #[error(
        "the request line and headers may have 32 KiB together, and there may be 100 headers; shorten the path and \
         query, or send a POST"
    )]
    HeadersTooLarge,
    #[error("it was not looked at; send it again later")]
    Refused,
    #[error("send {0}")]
    UnsupportedMediaType(&'static str),
    #[error("it was not taken, or it is unknown whether it was; sending it again is safe")]
    Unavailable(#[source] StoreError),
    #[error("it was not taken; send it again later")]
    Overloaded(#[source] StoreError),
    #[error("sending it again won't help")]
    Unexpected(#[source] StoreError),
    #[error("sending it again won't help")]
    Panicked(String),
    #[error("whether it was taken is unknown; sending it again is safe")]
    Timeout,
    #[error("the stores have not been seen to work yet")]
    Starting,
    #[error("not working: {what}")]
    NotReady { parts: Vec<&'static str>, what: String },
    #[error("the stores haven't answered for a while")]
    Silent,
    #[error("it takes no new requests")]
    Draining,
    #[error("not heard of for too long: {}", parts.join(", "))]
    Stuck { parts: Vec<&'static str> },
}

impl ApiError {
    /// The code a client sees.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::InvalidId { field, .. } | Self::NotText(field) => field.invalid(),
            Self::Missing(field) => field.missing(),
            Self::MissingDevice => Code::MissingDeviceId,
            Self::MissingUserOrPlay => Code::MissingUserOrPlayId,
            Self::Conflict(field) => field.conflicting(),
            Self::InvalidBody(_) => Code::InvalidBody,
            Self::InvalidQuery => Code::InvalidQuery,
            Self::InvalidLimit { .. } => Code::InvalidLimit,
            Self::MissingIds => Code::MissingIds,
            Self::MissingBeats => Code::MissingBeats,
            Self::TooManyIds { .. } => Code::TooManyIds,
            Self::TooManyBeats { .. } => Code::TooManyBeats,
            Self::UnknownVideo => Code::UnknownVideo,
            Self::NotFound => Code::NotFound,
            Self::MethodNotAllowed => Code::MethodNotAllowed,
            Self::PayloadTooLarge => Code::PayloadTooLarge,
            Self::RequestTimeout => Code::RequestTimeout,
            Self::Malformed => Code::MalformedRequest,
            Self::HeadersTooLarge => Code::HeadersTooLarge,
            Self::UnsupportedMediaType(_) => Code::UnsupportedMediaType,
            Self::Unavailable(_) => Code::Unavailable,
            Self::Overloaded(_) | Self::Refused => Code::Overloaded,
            Self::Unexpected(_) | Self::Panicked(_) => Code::Internal,
            Self::Timeout => Code::Timeout,
            Self::Starting => Code::Starting,
            Self::NotReady { .. } | Self::Silent => Code::NotReady,
            Self::Draining => Code::Draining,
            Self::Stuck { .. } => Code::Stuck,
        }
    }

    /// What an operator wants to know of a failure; `None` where the client is told all there is.
    fn cause(&self) -> Option<String> {
        match self {
            Self::Unavailable(error) | Self::Overloaded(error) | Self::Unexpected(error) => {
                Some(error.to_string())
            }
            Self::Panicked(message) => Some(format!("the handler panicked: {message}")),
            Self::Timeout => Some("over server.request_timeout".into()),
            _ => None,
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable { .. } => Self::Unavailable(error),
            StoreError::Full { .. } => Self::Overloaded(error),
            StoreError::Unexpected { .. } => Self::Unexpected(error),
        }
    }
}

/// The answer to what was refused before it reached a route.
#[must_use]
pub fn refuse(refused: Refused) -> Response {
    let error = match refused {
        Refused::Connections | Refused::Load => ApiError::Refused,
        Refused::Malformed => ApiError::Malformed,
        Refused::HeadTooLarge => ApiError::HeadersTooLarge,
        Refused::HeadTooSlow | Refused::Unread => ApiError::RequestTimeout,
    };
    error.into_response()
}

/// Rides on a response to the layer that logs it; it is not sent.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) code: Code,
    pub(super) cause: String,
}

/// Every error has this body (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// `urn:headcount:problem:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// What the code means; the same wherever it occurs.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What is wrong with this request.
    detail: String,
    code: Code,
    /// Whether the same request may succeed a little later.
    retryable: bool,
    /// The parts that don't work, where the service tells of itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<&'static str>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = self.code();
        let (status, text, title) = code.contract();
        let retryable = code.retryable();
        let failure = self.cause().map(|cause| Failure { code, cause });
        let detail = self.to_string();
        let parts = match self {
            Self::NotReady { parts, .. } | Self::Stuck { parts } => parts,
            _ => Vec::new(),
        };
        let kind = format!("urn:headcount:problem:{text}");
        let problem = Problem { kind, title, status: status.as_u16(), detail, code, retryable, parts };
        let body = serde_json::to_vec(&problem).expect("text, numbers and lists of text always serialize");
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // Spread, or the clients that were refused together come back together.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(rand::random_range(1..=5_u16)));
        }
        if let Some(failure) = failure {
            response.extensions_mut().insert(failure);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Part;

    #[test]
    fn what_a_store_says_decides_whether_to_try_again() {
        let part = Part::Redis;
        for (error, status, code, retryable) in [
            (StoreError::unavailable(part, "10.0.0.7 refused"), 503, Code::Unavailable, true),
            (StoreError::Full { part, queue: "plays" }, 503, Code::Overloaded, true),
            (StoreError::unexpected(part, "10.0.0.7 made no sense"), 500, Code::Internal, false),
        ] {
            let error = ApiError::from(error);
            assert_eq!((error.code(), error.code().retryable()), (code, retryable));
            assert!(!error.to_string().contains("10.0.0.7"), "a cause must not be told: {error}");

            let response = error.into_response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retryable);
            assert_eq!(response.extensions().get::<Failure>().unwrap().code, code);
        }
    }

    #[test]
    fn clients_that_are_refused_together_are_told_different_times() {
        let waits: std::collections::HashSet<_> = (0..100)
            .map(|_| ApiError::Timeout.into_response().headers()[header::RETRY_AFTER].clone())
            .collect();
        assert_eq!(waits.len(), 5);
        assert!(waits.iter().all(|wait| (1..=5).contains(&wait.to_str().unwrap().parse::<u8>().unwrap())));
    }
}
