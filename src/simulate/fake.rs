//! A small service for the tests: the part of the API that the simulator uses, honest unless told not to be.

#![expect(clippy::disallowed_types, reason = "a fake needs no error bodies")]

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet, time::Instant};

/// What is wrong with the service.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// This many plays are acknowledged and not counted.
    pub(super) lost_plays: u64,
    /// One viewer too many of the first video.
    pub(super) phantom: bool,
    /// Every few requests: 503, an answer cut off, an answer that never comes.
    pub(super) flaky: bool,
    /// Plays are answered 202.
    pub(super) decides_later: bool,
    /// The next heartbeat that is asked for.
    pub(super) next_heartbeat: u64,
    /// After so many beats four times as long is asked for; 0 for never.
    pub(super) loaded_after: u64,
}

#[derive(Debug)]
pub(super) struct Inner {
    window: Duration,
    faults: Faults,
    viewers: HashMap<String, HashMap<String, Instant>>,
    pub(super) plays: HashMap<String, u64>,
    seen: HashSet<(String, String)>,
    pub(super) requests: u64,
    pub(super) beats: u64,
    /// Answers that were withheld although the work was done.
    pub(super) swallowed: u64,
}

/// Serves the same numbers on several addresses, until dropped.
#[derive(Debug)]
pub(super) struct Fake {
    addresses: Vec<SocketAddr>,
    pub(super) inner: Arc<Mutex<Inner>>,
    _servers: JoinSet<std::io::Result<()>>,
}

impl Fake {
    pub(super) async fn start(window: Duration, instances: usize, faults: Faults) -> Self {
        let inner = Arc::new(Mutex::new(Inner {
            window,
            faults,
            viewers: HashMap::new(),
            plays: HashMap::new(),
            seen: HashSet::new(),
            requests: 0,
            beats: 0,
            swallowed: 0,
        }));
        let router = Router::new()
            .route("/api/video/{video}/heartbeat", post(beat))
            .route("/api/video/{video}/play", post(play))
            .route("/api/video/{video}/online-count", get(online_count))
            .route("/api/videos/counts", post(counts))
            .with_state(Arc::clone(&inner));

        let mut servers = JoinSet::new();
        let mut addresses = Vec::new();
        for _ in 0..instances {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            let router = router.clone();
            servers.spawn(async move { axum::serve(listener, router).await });
        }
        Self { addresses, inner, _servers: servers }
    }

    pub(super) fn targets(&self) -> String {
        let urls: Vec<_> = self.addresses.iter().map(|address| format!("http://{address}")).collect();
        urls.join(",")
    }
}

impl Inner {
    fn online(&mut self, video: &str) -> usize {
        let window = self.window;
        let phantom = usize::from(self.faults.phantom && video.ends_with("-0"));
        let viewers = self.viewers.entry(video.to_owned()).or_default();
        viewers.retain(|_, last| last.elapsed() <= window);
        viewers.len() + phantom
    }

    fn play(&mut self, video: &str, user: &str) -> Value {
        if !self.seen.insert((video.to_owned(), user.to_owned())) && !self.faults.decides_later {
            return json!({ "videoId": video, "counted": false, "reason": "duplicate" });
        }
        let count = self.seen.iter().filter(|(seen, _)| seen == video).count() as u64;
        let plays = self.plays.entry(video.to_owned()).or_default();
        if self.faults.lost_plays > 0 {
            self.faults.lost_plays -= 1;
            self.seen.remove(&(video.to_owned(), user.to_owned()));
        } else {
            *plays = count;
        }
        if self.faults.decides_later {
            json!({ "videoId": video, "accepted": true })
        } else {
            json!({ "videoId": video, "counted": true })
        }
    }

    fn counts(&mut self, video: &str) -> Value {
        let plays = self.plays.get(video).copied().unwrap_or(0);
        json!({
            "videoId": video, "online": self.online(video), "onlineStale": false,
            "plays": plays, "playsStale": false, "windowSeconds": self.window.as_secs(),
        })
    }
}

type Shared = State<Arc<Mutex<Inner>>>;

async fn beat(State(inner): Shared, Path(video): Path<String>, body: Bytes) -> Response {
    let user = field(&body, "userId");
    answer(&inner, |inner| {
        inner.beats += 1;
        inner.viewers.entry(video.clone()).or_default().insert(user, Instant::now());
        let faults = inner.faults;
        let is_loaded = faults.loaded_after > 0 && inner.beats > faults.loaded_after;
        let next = faults.next_heartbeat * if is_loaded { 4 } else { 1 };
        json!({ "videoId": video, "online": inner.online(&video), "nextHeartbeatSeconds": next })
    })
    .await
}

async fn play(State(inner): Shared, Path(video): Path<String>, body: Bytes) -> Response {
    let user = field(&body, "userId");
    assert!(!field(&body, "playId").is_empty());
    answer(&inner, |inner| inner.play(&video, &user)).await
}

async fn online_count(State(inner): Shared, Path(video): Path<String>) -> Response {
    answer(&inner, |inner| json!({ "videoId": video, "windowSeconds": inner.window.as_secs() })).await
}

async fn counts(State(inner): Shared, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let ids: Vec<_> = body["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    assert!(ids.len() <= 500);
    answer(&inner, |inner| {
        let counts: Vec<_> = ids.iter().map(|id| inner.counts(id)).collect();
        json!({ "counts": counts })
    })
    .await
}

fn field(body: &[u8], name: &str) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body[name].as_str().unwrap().to_owned()
}

async fn answer(inner: &Mutex<Inner>, act: impl FnOnce(&mut Inner) -> Value) -> Response {
    let (request, flaky) = {
        let mut inner = inner.lock();
        inner.requests += 1;
        (inner.requests, inner.faults.flaky)
    };
    if flaky && request.is_multiple_of(7) {
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "0")]).into_response();
    }
    let json = act(&mut inner.lock()).to_string();
    if flaky && request.is_multiple_of(11) {
        inner.lock().swallowed += 1;
        let cut = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut off")) });
        return Body::from_stream(cut).into_response();
    }
    if flaky && request.is_multiple_of(13) {
        inner.lock().swallowed += 1;
        std::future::pending::<()>().await;
    }
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}
