//! HTTP: requests in, answers out, no rule of the domain.
//!
//! [`public`] and [`operators`] list every route. A handler extracts (`extract.rs`), asks the domain
//! and answers (`answer.rs`, `problem.rs`); what every request goes through is in `edge.rs`.

mod answer;
mod audit;
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
#[cfg(feature = "bench")]
mod noop;
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

pub use self::{audit::audit_json, openapi::document};
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
    plays::{Plays, audit::Audit},
    presence::Presence,
    videos::Catalog,
};

/// The body of one beat or play: three ids and their names, several times over.
const SINGLE_BODY: usize = 4 * 1024;

/// The body of a batch: 1,000 beats of the longest ids fit.
const BATCH_BODY: usize = 512 * 1024;

/// How long an operator waits for a look at all videos.
const LONGEST_AUDIT: Duration = Duration::from_secs(300);

/// What the API works on.
pub struct Parts {
    /// Who is watching.
    pub presence: Arc<dyn Presence>,
    /// How often it was played.
    pub plays: Arc<dyn Plays>,
    /// Which videos there are.
    pub videos: Catalog,
    /// Whether every play that was counted is still somewhere.
    pub audit: Arc<Audit>,
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
            audit: parts.audit,
            jobs: parts.jobs,
            readiness: Readiness::new(parts.health, parts.clock, parts.draining.clone()),
            draining: parts.draining,
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
    audit: Arc<Audit>,
    jobs: Watch,
    readiness: Readiness,
    draining: CancellationToken,
    identity: Identity,
    window: Duration,
    request_timeout: Duration,
    heartbeats: Tally,
    recorded: Tally,
}

impl Api {
    async fn check_known(&self, video: &VideoId) -> Result<(), ApiError> {
        if self.videos.takes_all() {
            return Ok(());
        }
        let known = self.videos.known(std::slice::from_ref(video)).await?;
        if known.first() == Some(&true) { Ok(()) } else { Err(ApiError::UnknownVideo) }
    }

    fn next_heartbeat_seconds(&self) -> u64 {
        self.presence.next_heartbeat().as_secs().max(1)
    }
}

/// Routes that one kind of caller uses.
struct Group {
    /// The longest body they take, in bytes.
    body_limit: usize,
    /// How long they may take, where that is longer than any other request.
    timeout: Option<Duration>,
    routes: Vec<(&'static str, MethodRouter<Arc<Api>>)>,
}

/// What is public, by who calls it.
fn public_routes() -> [Group; 4] {
    let players = vec![
        ("/api/video/{videoId}/heartbeat", post(heartbeat::beat)),
        ("/api/video/{videoId}/leave", post(heartbeat::leave)),
        ("/api/video/{videoId}/play", post(plays::record)),
    ];
    let gateways = vec![("/api/heartbeats", post(heartbeat::beat_many))];
    let pages = vec![
        ("/api/video/{videoId}/online-count", get(counts::online)),
        ("/api/video/{videoId}/play-count", get(counts::plays)),
        ("/api/video/{videoId}/counts", get(counts::both)),
        ("/api/videos/counts", get(many::get).post(many::post)),
        ("/api/videos/top", get(top::top)),
    ];
    [
        Group { body_limit: SINGLE_BODY, timeout: None, routes: players },
        Group { body_limit: BATCH_BODY, timeout: None, routes: gateways },
        Group { body_limit: BATCH_BODY, timeout: None, routes: pages },
        probes(),
    ]
}

/// What is for operators only.
fn operators_routes(metrics: Render) -> [Group; 3] {
    let pages = vec![
        ("/metrics", get(metrics::scrape).layer::<_, Infallible>(Extension(metrics))),
        ("/openapi.json", get(openapi::json)),
    ];
    let slow = vec![("/audit", get(audit::read))];
    [
        probes(),
        Group { body_limit: SINGLE_BODY, timeout: None, routes: pages },
        Group { body_limit: SINGLE_BODY, timeout: Some(LONGEST_AUDIT), routes: slow },
    ]
}

/// On both listeners: a balancer may reach only one of them.
fn probes() -> Group {
    let routes = vec![("/livez", get(health::live)), ("/readyz", get(health::ready))];
    Group { body_limit: SINGLE_BODY, timeout: None, routes }
}

/// The routes of the public listener.
///
/// Metrics are looked up in the recorder when they are first counted: install it before serving.
pub fn public(state: AppState) -> Router {
    let groups = public_routes().into_iter();
    #[cfg(feature = "bench")]
    let groups = {
        tracing::warn!("this build has routes that do nothing (feature `bench`): it is for measuring only");
        groups.chain([noop::routes()])
    };
    router(groups, state.0)
}

/// The routes of the operators' listener. `metrics` renders what `/metrics` answers.
pub fn operators(state: AppState, metrics: Arc<dyn Fn() -> String + Send + Sync>) -> Router {
    router(operators_routes(metrics), state.0)
}

/// Puts an [`Edge`] around every route, and around what is no route.
fn router(groups: impl IntoIterator<Item = Group>, api: Arc<Api>) -> Router {
    let failures = Arc::new(FailureLog::new());
    let edge = |route, body_limit, timeout: Option<Duration>| {
        let timeout = timeout.unwrap_or_default().max(api.request_timeout);
        Edge::new(route, body_limit, timeout, failures.clone())
    };
    let mut router = Router::new();
    for Group { body_limit, timeout, routes } in groups {
        for (path, methods) in routes {
            let edge = edge(path, body_limit, timeout);
            router = router.route(path, methods.fallback(method_not_allowed).layer(edge));
        }
    }
    router.fallback_service(any(not_found).layer(edge("other", SINGLE_BODY, None))).with_state(api)
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
