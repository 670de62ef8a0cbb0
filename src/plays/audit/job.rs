//! Exports the difference of each partition.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::Audit;
use crate::{error::StoreError, jobs::Job};

/// How often it is looked, where looking is cheap.
const EVERY: Duration = Duration::from_secs(60);

/// Looking takes at most one part in so many of the time. A look walks over all videos: a million
/// take Postgres about half a second on a busy machine, so it is once a minute up to about that many.
const SHARE: u32 = 100;

/// A look that takes longer is given up: a job that takes too long looks stuck.
const LONGEST: Duration = Duration::from_secs(60);

/// The job "audit".
pub struct AuditJob {
    audit: Arc<Audit>,
    /// This instance's own part of a period, between 0 and 1, so that instances started together
    /// don't all come at once.
    phase: f64,
    /// Whether the last look was given up, which is told when it begins and ends.
    too_long: AtomicBool,
}

impl AuditJob {
    /// Over this audit.
    #[must_use]
    pub fn new(audit: Arc<Audit>, phase: f64) -> Self {
        Self { audit, phase, too_long: AtomicBool::new(false) }
    }
}

#[async_trait]
impl Job for AuditJob {
    fn name(&self) -> &'static str {
        "audit"
    }

    fn first_in(&self) -> Duration {
        EVERY.mul_f64(self.phase)
    }

    fn every(&self) -> Duration {
        EVERY
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        let began = Instant::now();
        let looked = tokio::time::timeout(LONGEST, self.audit.read()).await;
        let was_too_long = self.too_long.swap(looked.is_err(), Ordering::Relaxed);
        let Ok(looked) = looked else {
            metrics::counter!("headcount_job_failures_total", "task" => self.name()).increment(1);
            if !was_too_long {
                tracing::warn!(
                    "the audit isn't done within {} s and will be tried on; GET /audit waits longer for it",
                    LONGEST.as_secs()
                );
            }
            return Ok(Some(began.elapsed() * SHARE));
        };
        if was_too_long {
            tracing::info!("the audit is done in time again");
        }
        let audited = match looked {
            Ok(audited) => audited,
            // That a store is away is told by who keeps the way to it. The gauges stay as they were
            // when they were last known.
            Err(error) if error.is_transient() => return Ok(None),
            Err(error) => return Err(error),
        };
        for (partition, terms) in audited.by_partition() {
            if let Some(terms) = terms {
                #[expect(clippy::cast_precision_loss, reason = "a metric; differences are far below 2^52")]
                let difference = terms.difference() as f64;
                metrics::gauge!("headcount_conservation_difference", "partition" => partition.to_string())
                    .set(difference);
            }
        }
        if audited.unverified().next().is_none() {
            #[expect(clippy::cast_precision_loss, reason = "a metric in seconds")]
            let as_of = audited.as_of.millis() as f64 / 1_000.0;
            metrics::gauge!("headcount_conservation_last_success_timestamp_seconds").set(as_of);
        }
        Ok(Some(EVERY.max(began.elapsed() * SHARE)))
    }
}
