//! One request at a time: what is sent, what the answer means, and whether it is worth another try.

use std::{fmt, fmt::Write as _, sync::Arc, time::Duration};

use anyhow::Context;
use reqwest::{
    Method, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::Instant;

use super::{
    audience::{Video, Viewer},
    line::{Lines, Reply},
    options::{Options, Patience},
    report::{Kind, Stats},
};

/// What an instance says in answer to a heartbeat.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BeatAnswer {
    pub(super) online: Option<u64>,
    pub(super) next_heartbeat_seconds: Option<u64>,
}

/// What became of a play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlayAnswer {
    /// Counted now, or taken for good and counted soon.
    Counted,
    /// This viewer's play of this video was counted before.
    Duplicate,
    /// Not counted, for a reason of the service's own.
    NotCounted,
}

/// What an instance says about one video. What doesn't concern the check is left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Counts {
    video_id: String,
    pub(super) error: Option<String>,
    pub(super) online: Option<u64>,
    pub(super) online_stale: bool,
    pub(super) plays: Option<u64>,
    pub(super) plays_stale: bool,
}

/// Why a request brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    #[error("no connection")]
    Connect,
    #[error("timeout")]
    Timeout,
    #[error("connection lost")]
    Broken,
    #[error("unreadable answer")]
    Unreadable,
    #[error("numbers the service can't vouch for")]
    Unsure,
    #[error("status {}", status.as_u16())]
    Status { status: StatusCode, retry_after: Option<Duration> },
}

impl Failure {
    /// Another try may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => {
                status.is_server_error()
                    || matches!(*status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
            }
            Self::Connect | Self::Timeout | Self::Broken | Self::Unreadable | Self::Unsure => true,
        }
    }

    /// The service may have done what it was asked for. A 503 too: its store may have, unheard.
    pub(super) fn may_have_worked(&self) -> bool {
        match self {
            Self::Connect | Self::Unsure => false,
            Self::Status { status, .. } => status.is_server_error(),
            Self::Timeout | Self::Broken | Self::Unreadable => true,
        }
    }

    /// Something came back, so the instance is alive.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::Unreadable | Self::Unsure)
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Connect | Self::Timeout | Self::Broken | Self::Unreadable | Self::Unsure => None,
        }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        if error.is_connect() {
            Self::Connect
        } else if error.is_timeout() {
            Self::Timeout
        } else {
            Self::Broken
        }
    }
}

/// The ids under which viewers, videos and plays are known to the service.
#[derive(Debug)]
struct Names {
    prefix: String,
    with_device: bool,
}

impl Names {
    fn video(&self, video: Video) -> impl fmt::Display {
        format!("{}-{}", self.prefix, video.0)
    }

    /// The body of a heartbeat. JSON by hand: no id has a character that would have to be escaped.
    fn viewer(&self, viewer: Viewer) -> String {
        let mut body = self.begin(viewer);
        body.push('}');
        body
    }

    /// The body of a play. The same at every try, or a retry would be a second play.
    fn play(&self, viewer: Viewer, video: Video) -> String {
        let mut body = self.begin(viewer);
        // Writing to a string can't fail.
        let _ = write!(body, r#","playId":"{}-p{}-{}"}}"#, self.prefix, viewer.0, video.0);
        body
    }

    fn begin(&self, viewer: Viewer) -> String {
        let mut body = String::with_capacity(192);
        let _ = write!(body, r#"{{"userId":"{}-v{}""#, self.prefix, viewer.0);
        if self.with_device {
            let _ = write!(body, r#","deviceId":"d{}""#, viewer.0);
        }
        body
    }
}

/// Speaks to the targets; cheap to share.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    bases: Vec<String>,
    /// For each target that is spoken to without TLS, and what its paths begin with.
    lines: Vec<Option<(Lines, String)>>,
    timeout: Duration,
    names: Names,
    pub(super) stats: Arc<Stats>,
}

impl Client {
    pub(super) fn new(options: &Options, prefix: String, patience: &Patience) -> anyhow::Result<Self> {
        crate::tls::choose_provider();
        let http = reqwest::Client::builder()
            .timeout(patience.timeout)
            .pool_max_idle_per_host(options.in_flight)
            // The targets are measured, not a proxy that happens to be configured here.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            // Retries are to be seen in the table, so all of them are made in `crowd.rs`.
            .retry(reqwest::retry::never())
            .build()
            .context("could not set up the HTTP client")?;

        let bases = options.targets.iter().map(|url| url.as_str().trim_end_matches('/').to_owned());
        let lines = options.targets.iter().map(|url| {
            let base = url.path().trim_end_matches('/').to_owned();
            Lines::to(url).map(|lines| (lines, base))
        });
        Ok(Self {
            http,
            bases: bases.collect(),
            lines: lines.collect(),
            timeout: patience.timeout,
            names: Names { prefix, with_device: options.with_device },
            stats: Arc::new(Stats::new()),
        })
    }

    pub(super) fn targets(&self) -> usize {
        self.bases.len()
    }

    pub(super) fn base(&self, target: usize) -> &str {
        &self.bases[target]
    }

    pub(super) fn video_id(&self, video: Video) -> String {
        self.names.video(video).to_string()
    }

    pub(super) async fn beat(
        &self,
        target: usize,
        due: Instant,
        viewer: Viewer,
        video: Video,
    ) -> Result<BeatAnswer, Failure> {
        let path = format!("video/{}-{}/heartbeat", self.names.prefix, video.0);
        self.post(Kind::Heartbeat, target, due, &path, self.names.viewer(viewer)).await
    }

    pub(super) async fn play(
        &self,
        target: usize,
        due: Instant,
        viewer: Viewer,
        video: Video,
    ) -> Result<PlayAnswer, Failure> {
        let path = format!("video/{}-{}/play", self.names.prefix, video.0);
        let body = self.names.play(viewer, video);
        let answer: RawPlayAnswer = self.post(Kind::Play, target, due, &path, body).await?;
        Ok(answer.meaning())
    }

    /// The numbers of up to 500 videos, in the order asked.
    pub(super) async fn counts(&self, target: usize, videos: &[Video]) -> Result<Vec<Counts>, Failure> {
        let ids: Vec<_> = videos.iter().map(|&video| self.video_id(video)).collect();
        let request = self.request(target, Method::POST, "videos/counts").json(&json!({ "ids": ids }));
        let answer: RawCounts = self.send(Kind::Counts, Instant::now(), request).await?;

        let as_asked = answer.counts.iter().map(|counts| &counts.video_id).eq(&ids);
        if as_asked { Ok(answer.counts) } else { Err(Failure::Unreadable) }
    }

    /// What the instance is set to, told with every online count.
    pub(super) async fn window(&self, target: usize, video: Video) -> Result<Duration, Failure> {
        let path = format!("video/{}/online-count", self.names.video(video));
        let request = self.request(target, Method::GET, &path);
        let answer: RawOnlineCount = self.send(Kind::Counts, Instant::now(), request).await?;
        Ok(Duration::from_secs(answer.window_seconds))
    }

    async fn post<T: DeserializeOwned>(
        &self,
        kind: Kind,
        target: usize,
        due: Instant,
        path: &str,
        body: String,
    ) -> Result<T, Failure> {
        let Some((lines, base)) = &self.lines[target] else {
            let request = self.request(target, Method::POST, path);
            let request = request.header(CONTENT_TYPE, "application/json").body(body);
            return self.send(kind, due, request).await;
        };
        let path = format!("{base}/api/{path}");
        let posted = tokio::time::timeout(self.timeout, lines.post(&path, body)).await;
        let result = posted.unwrap_or(Err(Failure::Timeout)).and_then(meaning);
        self.stats.record(kind, due.elapsed(), result.as_ref().err());
        result
    }

    fn request(&self, target: usize, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}/api/{path}", self.bases[target]))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        kind: Kind,
        due: Instant,
        request: reqwest::RequestBuilder,
    ) -> Result<T, Failure> {
        let result = exchange(request).await;
        self.stats.record(kind, due.elapsed(), result.as_ref().err());
        result
    }
}

async fn exchange<T: DeserializeOwned>(request: reqwest::RequestBuilder) -> Result<T, Failure> {
    let response = request.send().await?;
    let status = response.status();
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map(Duration::from_secs);
    // Read in any case: a connection with an unread answer can't be used again.
    let body = response.bytes().await?;
    meaning(Reply { status, retry_after, body })
}

fn meaning<T: DeserializeOwned>(reply: Reply) -> Result<T, Failure> {
    let Reply { status, retry_after, body } = reply;
    if !status.is_success() {
        return Err(Failure::Status { status, retry_after });
    }
    serde_json::from_slice(&body).map_err(|_| Failure::Unreadable)
}

/// How long to wait before the next try. Doubles with every failure, is random between half and all of
/// it so that a thousand viewers don't come back at once, and never shorter than the service asked for.
///
/// `roll` is a random number from 0 to 1.
pub(super) fn wait_before_retry(failures: u32, retry_after: Option<Duration>, roll: f64) -> Duration {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);
    /// An instance that asks for an hour is asked again all the same.
    const LONGEST_ASKED: Duration = Duration::from_secs(30);

    let doubled = FIRST.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST);
    let own = doubled.mul_f64(0.5 + roll / 2.0);
    // Asked for by many at once, so it is spread here too.
    let asked = retry_after.unwrap_or_default().min(LONGEST_ASKED).mul_f64(1.0 + roll / 10.0);
    own.max(asked)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawPlayAnswer {
    Decided { counted: bool, reason: Option<String> },
    Later { accepted: bool },
}

impl RawPlayAnswer {
    fn meaning(self) -> PlayAnswer {
        match self {
            Self::Decided { counted: true, .. } | Self::Later { accepted: true } => PlayAnswer::Counted,
            Self::Decided { reason: Some(reason), .. } if reason == "duplicate" => PlayAnswer::Duplicate,
            Self::Decided { .. } | Self::Later { .. } => PlayAnswer::NotCounted,
        }
    }
}

#[derive(Deserialize)]
struct RawCounts {
    counts: Vec<Counts>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawOnlineCount {
    window_seconds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16) -> Failure {
        Failure::Status { status: StatusCode::from_u16(code).unwrap(), retry_after: None }
    }

    #[test]
    fn what_may_help_is_tried_again_and_a_refusal_is_not() {
        for failure in
            [Failure::Connect, Failure::Timeout, Failure::Broken, status(429), status(503), status(500)]
        {
            assert!(failure.is_transient(), "{failure}");
        }
        for failure in [status(400), status(401), status(404), status(413)] {
            assert!(!failure.is_transient(), "{failure}");
        }
    }

    #[test]
    fn only_a_play_that_surely_was_not_taken_is_known_not_to_be_counted() {
        for failure in [Failure::Timeout, Failure::Broken, Failure::Unreadable, status(503), status(500)] {
            assert!(failure.may_have_worked(), "{failure}");
        }
        for failure in [Failure::Connect, status(429), status(404)] {
            assert!(!failure.may_have_worked(), "{failure}");
        }
    }

    #[test]
    fn an_answer_to_a_play_means_what_the_contract_says() {
        for (body, meaning) in [
            (r#"{"videoId":"a","counted":true}"#, PlayAnswer::Counted),
            (r#"{"videoId":"a","accepted":true}"#, PlayAnswer::Counted),
            (r#"{"videoId":"a","counted":false,"reason":"duplicate"}"#, PlayAnswer::Duplicate),
            (r#"{"videoId":"a","counted":false,"reason":"blocked"}"#, PlayAnswer::NotCounted),
            (r#"{"videoId":"a","counted":false}"#, PlayAnswer::NotCounted),
        ] {
            assert_eq!(serde_json::from_str::<RawPlayAnswer>(body).unwrap().meaning(), meaning, "{body}");
        }
        assert!(serde_json::from_str::<RawPlayAnswer>("{}").is_err(), "says nothing, so means nothing");
    }

    #[test]
    fn tries_come_further_and_further_apart_within_a_limit() {
        let waits = [1, 2, 3, 4, 7, 40].map(|failures| wait_before_retry(failures, None, 1.0).as_millis());
        assert_eq!(waits, [100, 200, 400, 800, 5_000, 5_000]);
        assert_eq!(wait_before_retry(1, None, 0.0).as_millis(), 50);
    }

    #[test]
    fn retry_after_is_honoured_unless_the_own_wait_is_longer() {
        let asked = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(wait_before_retry(1, asked(2), 0.0).as_secs(), 2);
        assert_eq!(wait_before_retry(9, asked(2), 1.0).as_secs(), 5);
        assert_eq!(wait_before_retry(1, asked(3_600), 0.0).as_secs(), 30);
    }

    #[test]
    fn the_longest_ids_fit_into_the_service() {
        let names = Names { prefix: "x".repeat(30), with_device: true };
        let play = names.play(Viewer(u64::MAX), Video(9_999_999));
        let play: serde_json::Value = serde_json::from_str(&play).unwrap();
        for field in ["userId", "playId", "deviceId"] {
            assert!(play[field].as_str().unwrap().len() <= 64, "{play}");
        }
        assert!(names.video(Video(u32::MAX)).to_string().len() <= 64);
    }
}
