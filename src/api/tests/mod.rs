//! The whole API, called as a service, over stores that live in a map.
//!
//! Every answer in these tests is also held against the OpenAPI document (`contract.rs`).

mod audit;
mod batches;
mod contract;
mod counts;
mod document;
mod edge;
mod fakes;
mod inputs;
mod paths;
mod posts;
mod probes;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode, header},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::fakes::{FakeBooks, FakeHealth, FakePlays, FakePresence, FakeVideos};
use super::{AppState, Parts};
use crate::{
    clock::{ManualClock, Timestamp},
    config::{Identity, Unknown},
    ids::VideoId,
    jobs::Watch,
    plays::audit::Audit,
    videos::Catalog,
};

/// 2026-01-02T03:04:05Z
fn now() -> Timestamp {
    Timestamp::from_secs(1_767_323_045)
}

/// How a [`World`] differs from the default configuration.
#[derive(Clone, Copy)]
struct Settings {
    identity: Identity,
    unknown: Unknown,
}

impl Default for Settings {
    fn default() -> Self {
        Self { identity: Identity::User, unknown: Unknown::Accept }
    }
}

/// The API and the stores behind it.
struct World {
    presence: Arc<FakePresence>,
    plays: Arc<FakePlays>,
    books: Arc<FakeBooks>,
    health: Arc<FakeHealth>,
    clock: Arc<ManualClock>,
    jobs: Watch,
    draining: CancellationToken,
    public: Router,
    operators: Router,
}

impl World {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let clock = ManualClock::at(now());
        let presence = Arc::new(FakePresence::default());
        let plays = Arc::new(FakePlays::default());
        let books = Arc::new(FakeBooks::default());
        let health = Arc::new(FakeHealth::default());
        let (jobs, draining) = (Watch::default(), CancellationToken::new());
        let state = AppState::new(Parts {
            presence: presence.clone(),
            plays: plays.clone(),
            videos: Catalog::new(Arc::new(FakeVideos), settings.unknown, clock.clone()),
            audit: Audit::new(books.clone(), clock.clone()),
            health: health.clone(),
            jobs: jobs.clone(),
            draining: draining.clone(),
            clock: clock.clone(),
            identity: settings.identity,
            window: Duration::from_secs(600),
            request_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
        });
        let public = super::public(state.clone());
        let operators = super::operators(state, Arc::new(|| "# metrics\n".to_owned()));
        Self { presence, plays, books, health, clock, jobs, draining, public, operators }
    }

    async fn get(&self, path: &str) -> Reply {
        self.call(request("GET", path, None, Body::empty())).await
    }

    /// Sends a body of a JSON content type.
    async fn post(&self, path: &str, body: impl Into<Body>) -> Reply {
        self.post_as(path, "application/json", body).await
    }

    async fn post_as(&self, path: &str, content_type: &str, body: impl Into<Body>) -> Reply {
        self.call(request("POST", path, Some(content_type), body.into())).await
    }

    async fn call(&self, request: Request<Body>) -> Reply {
        call(&self.public, request).await
    }

    async fn call_operators(&self, request: Request<Body>) -> Reply {
        call(&self.operators, request).await
    }
}

fn request(method: &str, path: &str, content_type: Option<&str>, body: Body) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(content_type) = content_type {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    request.body(body).unwrap()
}

async fn call(router: &Router, request: Request<Body>) -> Reply {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = router.clone().oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let body = String::from_utf8(body.into()).unwrap();
    let reply = Reply { status: head.status, headers: head.headers, body };
    contract::check(&method, &path, &reply);
    reply
}

/// What came back.
#[derive(Debug)]
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The status and the code of a problem, or the empty text.
    fn outcome(&self) -> (u16, String) {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        (self.status.as_u16(), body["code"].as_str().unwrap_or_default().to_owned())
    }

    #[track_caller]
    fn refused(&self, status: u16, code: &str) {
        assert_eq!(self.outcome(), (status, code.to_owned()), "{self:?}");
    }
}

fn video(id: &str) -> VideoId {
    VideoId::parse(id).unwrap()
}
