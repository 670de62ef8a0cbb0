//! Counters of requests, beats and plays. Each is looked up in the recorder once: the lookup costs
//! more than the rest of the counting.

use std::{sync::OnceLock, time::Duration};

use axum::http::StatusCode;
use metrics::{Counter, Histogram};

use super::code::Code;
use super::problem::ApiError;

/// The statuses this API answers.
const STATUSES: [u16; 11] = [200, 202, 204, 400, 404, 405, 408, 413, 415, 500, 503];

/// Counts the requests of one route.
pub(super) struct RouteMeter {
    route: &'static str,
    requests: [OnceLock<Counter>; STATUSES.len()],
    duration: OnceLock<Histogram>,
}

impl RouteMeter {
    pub(super) fn new(route: &'static str) -> Self {
        Self { route, requests: [const { OnceLock::new() }; STATUSES.len()], duration: OnceLock::new() }
    }

    /// A request was answered.
    pub(super) fn answered(&self, status: StatusCode, took: Duration) {
        let find = || {
            let status = status.as_u16().to_string();
            metrics::counter!("headcount_http_requests_total", "route" => self.route, "status" => status)
        };
        match STATUSES.iter().position(|known| *known == status.as_u16()) {
            Some(index) => self.requests[index].get_or_init(find).increment(1),
            None => find().increment(1),
        }
        self.duration
            .get_or_init(
                || metrics::histogram!("headcount_http_request_duration_seconds", "route" => self.route),
            )
            .record(took);
    }
}

/// What became of a beat or a play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is taken; a play is not decided yet.
    Accepted,
    /// A play counts.
    Counted,
    /// A play was counted before.
    Duplicate,
    /// It couldn't be read.
    Invalid,
    /// Its video isn't known.
    UnknownVideo,
    /// The store was away.
    Unavailable,
    /// A queue was full.
    Overloaded,
    /// It failed for good.
    Failed,
}

impl Outcome {
    const COUNT: usize = 8;

    fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Counted => "counted",
            Self::Duplicate => "duplicate",
            Self::Invalid => "invalid",
            Self::UnknownVideo => "unknown_video",
            Self::Unavailable => "unavailable",
            Self::Overloaded => "overloaded",
            Self::Failed => "failed",
        }
    }
}

impl From<&ApiError> for Outcome {
    fn from(error: &ApiError) -> Self {
        match error.code() {
            Code::UnknownVideo => Self::UnknownVideo,
            Code::Unavailable => Self::Unavailable,
            Code::Overloaded => Self::Overloaded,
            Code::Internal => Self::Failed,
            _ => Self::Invalid,
        }
    }
}

/// Counts things by their outcome.
pub(super) struct Tally {
    name: &'static str,
    counters: [OnceLock<Counter>; Outcome::COUNT],
}

impl Tally {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, counters: [const { OnceLock::new() }; Outcome::COUNT] }
    }

    /// One more ended in `outcome`.
    pub(super) fn add(&self, outcome: Outcome) {
        self.counters[outcome as usize]
            .get_or_init(|| metrics::counter!(self.name, "outcome" => outcome.label()))
            .increment(1);
    }
}
