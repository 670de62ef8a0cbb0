//! HTTP: requests in, answers out, no rule of the domain.
//!
//! [`public`] and [`operators`] list every route. A handler extracts (`extract.rs`), asks the domain
//! and answers (`answer.rs`, `problem.rs`); what every request goes through is in `edge.rs`.

mod answer;
mod body;
mod code;
mod counts;
mod edge;
mod extract;
mod failures;
mod fields;
mod health;
mod heartbeat;
mod many;
mod meters;
mod metrics;
mod openapi;
mod plays;
mod problem;
mod sent;
#[cfg(test)]
mod tests;
mod top;

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    http::Uri,
    routing::{MethodRouter, any, get, post},
};
use tokio_util::sync::CancellationToken;

pub use self::openapi::document;
use self::{
    edge::Edge, failures::FailureLog, fields::Field, health::Readiness, meters::Tally, metrics::Render,
    problem::ApiError,
};
use crate::{
    clock::Clock,
    config::Identity,
    health::HealthCheck,
    ids::{InvalidId, VideoId},
    jobs::Watch,
    plays::Plays,
    presence::Presence,
    videos::Catalog,
};

/// The body of one beat or play: three ids and their names, several times over.
const SINGLE_BODY: usize = 4 * 1024;

/// The body of a batch: 1,000 beats of the longest ids fit.
const BATCH_BODY: usize = 512 * 1024;

/// What the API works on.
pub struct Parts {
    /// Who is watching.
    pub presence: Arc<dyn Presence>,
    /// How often it was played.
    pub plays: Arc<dyn Plays>,
    /// Which videos there are.
    pub videos: Catalog,
    /// Whether the stores do their work.
    pub health: Arc<dyn HealthCheck>,
    /// Whether the jobs still run.
    pub jobs: Watch,
    /// Cancelled when the service is asked to stop.
    pub draining: CancellationToken,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Who is one viewer.
    pub identity: Identity,
    /// How long a viewer is online after a beat.
    pub window: Duration,
    /// The longest a request may take.
    pub request_timeout: Duration,
}

/// The API, ready to be served. Clones share it, so that both listeners tell the same.
#[derive(Clone)]
pub struct AppState(Arc<Api>);

impl AppState {
    /// Over these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Api {
            presence: parts.presence,
            plays: parts.plays,
            videos: parts.videos,
            jobs: parts.jobs,
            readiness: Readiness::new(parts.health, parts.clock, parts.draining),
            identity: parts.identity,
            window: parts.window,
            request_timeout: parts.request_timeout,
            heartbeats: Tally::new("headcount_heartbeats_total"),
            recorded: Tally::new("headcount_plays_total"),
        }))
    }
}

/// What the handlers work on.
struct Api {
    presence: Arc<dyn Presence>,
    plays: Arc<dyn Plays>,
    videos: Catalog,
    jobs: Watch,
    readiness: Readiness,
    identity: Identity,
    window: Duration,
    request_timeout: Duration,
    heartbeats: Tally,
    recorded: Tally,
}

impl Api {
    async fn check_known(&self, video: &VideoId) -> Result<(), ApiError> {
        let known = self.videos.known(std::slice::from_ref(video)).await?;
        if known.first() == Some(&true) { Ok(()) } else { Err(ApiError::UnknownVideo) }
    }

    fn next_heartbeat_seconds(&self) -> u64 {
        self.presence.next_heartbeat().as_secs().max(1)
    }
}

/// A route and what it does with each method.
type Routes<const N: usize> = [(&'static str, MethodRouter<Arc<Api>>); N];

/// What is public, by who calls it.
pub fn public(AppState(api): AppState) -> Router {
    let players: Routes<_> = [
        ("/api/video/{videoId}/heartbeat", post(heartbeat::beat)),
        ("/api/video/{videoId}/leave", post(heartbeat::leave)),
        ("/api/video/{videoId}/play", post(plays::record)),
    ];
    let gateways: Routes<_> = [("/api/heartbeats", post(heartbeat::beat_many))];
    let pages: Routes<_> = [
        ("/api/video/{videoId}/online-count", get(counts::online)),
        ("/api/video/{videoId}/play-count", get(counts::plays)),
        ("/api/video/{videoId}/counts", get(counts::both)),
        ("/api/videos/counts", get(many::get).post(many::post)),
        ("/api/videos/top", get(top::top)),
    ];
    Table::new(&api)
        .group(SINGLE_BODY, players)
        .group(BATCH_BODY, gateways)
        .group(BATCH_BODY, pages)
        .group(SINGLE_BODY, probes())
        .finish(api)
}

/// What is for operators only. `metrics` renders what `/metrics` answers.
pub fn operators(AppState(api): AppState, metrics: Arc<dyn Fn() -> String + Send + Sync>) -> Router {
    let pages: Routes<_> = [
        ("/metrics", get(metrics::scrape).layer::<_, Infallible>(Extension::<Render>(metrics))),
        ("/openapi.json", get(openapi::json)),
    ];
    Table::new(&api).group(SINGLE_BODY, probes()).group(SINGLE_BODY, pages).finish(api)
}

/// On both listeners: a balancer may reach only one of them.
fn probes() -> Routes<2> {
    [("/livez", get(health::live)), ("/readyz", get(health::ready))]
}

/// Builds a router with an [`Edge`] around every route.
struct Table {
    router: Router<Arc<Api>>,
    failures: Arc<FailureLog>,
    timeout: Duration,
}

impl Table {
    fn new(api: &Api) -> Self {
        Self { router: Router::new(), failures: Arc::new(FailureLog::new()), timeout: api.request_timeout }
    }

    fn edge(&self, route: &'static str, body_limit: usize) -> Edge {
        Edge::new(route, body_limit, self.timeout, self.failures.clone())
    }

    /// Adds routes that take bodies of at most `body_limit` bytes.
    fn group<const N: usize>(mut self, body_limit: usize, routes: Routes<N>) -> Self {
        for (path, methods) in routes {
            let methods = methods.fallback(method_not_allowed).layer(self.edge(path, body_limit));
            self.router = self.router.route(path, methods);
        }
        self
    }

    fn finish(self, api: Arc<Api>) -> Router {
        let elsewhere = any(not_found).layer(self.edge("other", SINGLE_BODY));
        self.router.fallback_service(elsewhere).with_state(api)
    }
}

async fn method_not_allowed() -> ApiError {
    ApiError::MethodNotAllowed
}

async fn not_found(uri: Uri) -> ApiError {
    // The router takes an empty id for no id; a page that forgot its id should be told.
    if uri.path().starts_with("/api/video//") {
        return ApiError::InvalidId { field: Field::Video, reason: InvalidId::Empty };
    }
    ApiError::NotFound
}
