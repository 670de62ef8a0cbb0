//! `/livez`: do the jobs still run? `/readyz`: would a request be served?
//!
//! A probe never asks the stores more than once a second, however many probes there are, and names
//! parts, not causes but for the word that a store refused with: causes hold addresses and go to the
//! log, when they change.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::extract::State;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::{
    Api,
    answer::Answer,
    problem::{ApiError, Problem},
};
use crate::{
    clock::Clock,
    error::{Part, StoreError},
    health::{Health, HealthCheck},
};

/// A look at the stores is good for so long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A prober that gets no answer within its own limit, often a second, takes that for a no. So one
/// that comes while a look is slow is told what the last look found...
const PATIENCE: Duration = Duration::from_millis(700);

/// ...as long as that isn't older than this.
const LAST_LOOK_HOLDS: Duration = Duration::from_secs(15);

/// Whether the service is ready, as far as anybody asked.
pub(super) struct Readiness {
    check: Arc<dyn HealthCheck>,
    clock: Arc<dyn Clock>,
    draining: CancellationToken,
    looks: Mutex<Looks>,
}

/// A look that any number of probes wait for; it finds nothing where the check panicked.
type Look = Shared<BoxFuture<'static, Option<Arc<Health>>>>;

#[derive(Default)]
struct Looks {
    /// When the last one was done, and what it found.
    last: Option<(Duration, Arc<Health>)>,
    /// The one under way.
    under_way: Option<Look>,
    /// Drives it, whoever still waits for it: a look given up in the middle would go on holding what
    /// it had taken of a store.
    driver: JoinSet<()>,
    /// The parts that failed and those that were missed, as they were logged last.
    told: Option<(Vec<&'static str>, Vec<&'static str>)>,
}

impl Readiness {
    pub(super) fn new(
        check: Arc<dyn HealthCheck>,
        clock: Arc<dyn Clock>,
        draining: CancellationToken,
    ) -> Self {
        Self { check, clock, draining, looks: Mutex::default() }
    }

    /// The parts that are missed without a request failing for it, or why the service isn't ready.
    async fn degraded(&self) -> Result<Vec<&'static str>, ApiError> {
        if self.draining.is_cancelled() {
            return Err(ApiError::Draining);
        }
        let health = self.health().await?;
        if health.failed.is_empty() {
            return Ok(names(health.degraded.iter().copied()));
        }
        let what: Vec<String> = health.failed.iter().map(brief).collect();
        Err(ApiError::NotReady {
            parts: names(health.failed.iter().map(StoreError::part)),
            what: what.join(", "),
        })
    }

    async fn health(&self) -> Result<Arc<Health>, ApiError> {
        let look = match self.begin() {
            Ok(health) => return Ok(health),
            Err(look) => look,
        };
        if let Ok(found) = tokio::time::timeout(PATIENCE, look).await {
            let health = found.ok_or(ApiError::Silent).inspect_err(|_| self.looks.lock().under_way = None)?;
            self.looked(&health);
            return Ok(health);
        }
        match &self.looks.lock().last {
            None => Err(ApiError::Starting),
            Some((at, health)) if self.clock.monotonic().saturating_sub(*at) < LAST_LOOK_HOLDS => {
                Ok(health.clone())
            }
            Some(_) => Err(ApiError::Silent),
        }
    }

    /// What a look found less than a second ago, or else the look to wait for.
    fn begin(&self) -> Result<Arc<Health>, Look> {
        let mut looks = self.looks.lock();
        if let Some((at, health)) = &looks.last
            && self.clock.monotonic().saturating_sub(*at) < LOOK_EVERY
        {
            return Ok(health.clone());
        }
        if let Some(look) = &looks.under_way {
            return Err(look.clone());
        }
        let check = self.check.clone();
        let look = async move { Arc::new(check.check().await) };
        let look = AssertUnwindSafe(look).catch_unwind().map(Result::ok).boxed().shared();
        looks.under_way = Some(look.clone());
        while looks.driver.try_join_next().is_some() {}
        looks.driver.spawn(look.clone().map(drop));
        Err(look)
    }

    fn looked(&self, health: &Arc<Health>) {
        let mut looks = self.looks.lock();
        if looks.last.as_ref().is_some_and(|(_, last)| Arc::ptr_eq(last, health)) {
            return;
        }
        looks.last = Some((self.clock.monotonic(), health.clone()));
        looks.under_way = None;
        // Logged when the parts change; the causes may read differently each time.
        let parts =
            (names(health.failed.iter().map(StoreError::part)), names(health.degraded.iter().copied()));
        if looks.told.as_ref() == Some(&parts) {
            return;
        }
        let degraded = parts.1.join(", ");
        if !health.failed.is_empty() {
            let causes: Vec<String> = health.failed.iter().map(ToString::to_string).collect();
            tracing::error!("not ready: {}", causes.join("; "));
        } else if !degraded.is_empty() {
            tracing::warn!("ready, without {degraded}");
        } else {
            tracing::info!("ready");
        }
        looks.told = Some(parts);
    }
}

/// The part, and the word that it refused with, if there is one: stores have such words (`OOM`,
/// `READONLY`) in capitals.
fn brief(error: &StoreError) -> String {
    let (part, cause) = (error.part(), error.to_string());
    let is_code = |word: &&str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    match cause.split(' ').find(is_code) {
        Some(code) => format!("{part} ({code})"),
        None => part.to_string(),
    }
}

fn names(parts: impl Iterator<Item = Part>) -> Vec<&'static str> {
    parts.map(Part::name).collect()
}

/// The service does its work.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Alive {
    /// Always `alive`.
    status: &'static str,
}

/// Whether the process is to be left running.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    tag = "operators",
    responses(
        (status = 200, description = "Every job reports.", body = Alive,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        (status = 503, description = "`parts` names the jobs that hang.", body = Problem,
            content_type = "application/problem+json",
            headers(
                ("Cache-Control" = String, description = "`no-store`"),
                ("Retry-After" = String, description = "Seconds to wait, 1 to 5."))),
    ),
)]
pub(super) async fn live(State(api): State<Arc<Api>>) -> Result<Answer<Alive>, ApiError> {
    let stuck = api.jobs.stuck();
    if stuck.is_empty() {
        Ok(Answer::private(Alive { status: "alive" }))
    } else {
        Err(ApiError::Stuck { parts: stuck })
    }
}

/// Requests are served.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ready {
    /// Always `ready`.
    status: &'static str,
    /// Parts that are missed without a request failing for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<&'static str>,
}

/// Whether requests are to be sent here.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "readyz",
    tag = "operators",
    responses(
        (status = 200, description = "They are.", body = Ready,
            headers(("Cache-Control" = String, description = "`no-store`"))),
        (status = 503, description = "Not yet, not now (`parts` names what fails), or not any more.",
            body = Problem, content_type = "application/problem+json",
            headers(
                ("Cache-Control" = String, description = "`no-store`"),
                ("Retry-After" = String, description = "Seconds to wait, 1 to 5."))),
    ),
)]
pub(super) async fn ready(State(api): State<Arc<Api>>) -> Result<Answer<Ready>, ApiError> {
    let degraded = api.readiness.degraded().await?;
    Ok(Answer::private(Ready { status: "ready", degraded }))
}
