//! What runs by itself: one helper starts, repeats, watches and ends every job.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::{
    error::StoreError,
    lifecycle::{Lifecycle, Phase},
};

/// The body of a job. Safe to run at any time, again, and in several instances at once.
#[async_trait]
pub trait Job: Send + Sync + 'static {
    /// What logs and `/livez` call it.
    fn name(&self) -> &'static str;

    /// How long to wait before the first run.
    fn first_in(&self) -> Duration;

    /// From the beginning of one run to the next, unless a run says otherwise.
    fn every(&self) -> Duration;

    /// How long to wait after a run that failed.
    fn retry_in(&self) -> Duration {
        self.every()
    }

    /// Does the work once and says when to do it next; `None` for the usual time.
    ///
    /// # Errors
    /// A store failed. It is logged when that begins and ends, and the job goes on.
    async fn run(&self) -> Result<Option<Duration>, StoreError>;

    /// A last run when the service stops, after the last request was served.
    async fn finish(&self) {}
}

/// Whether the jobs still run, for `/livez`.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    jobs: Arc<Mutex<Vec<Watched>>>,
}

#[derive(Debug)]
struct Watched {
    name: &'static str,
    due: tokio::time::Instant,
}

/// A run may take so much longer than its period before the job counts as stuck.
const GRACE: Duration = Duration::from_secs(60);

impl Watch {
    /// The jobs that should have reported and have not.
    #[must_use]
    pub fn stuck(&self) -> Vec<&'static str> {
        let now = tokio::time::Instant::now();
        self.jobs.lock().iter().filter(|job| job.due < now).map(|job| job.name).collect()
    }

    fn enter(&self, name: &'static str, next: Duration) -> usize {
        let mut jobs = self.jobs.lock();
        jobs.push(Watched { name, due: tokio::time::Instant::now() + next + GRACE });
        jobs.len() - 1
    }

    fn alive(&self, index: usize, next: Duration) {
        self.jobs.lock()[index].due = tokio::time::Instant::now() + next + GRACE;
    }
}

/// Starts a job. Runs that were missed are skipped, not made up for.
pub fn start(lifecycle: &Lifecycle, watch: &Watch, job: Arc<dyn Job>) {
    let stopping = lifecycle.stopping(Phase::Jobs);
    let watch = watch.clone();
    let index = watch.enter(job.name(), job.first_in() + job.every());
    lifecycle.spawn(Phase::Jobs, job.name(), async move {
        let mut next = tokio::time::Instant::now() + job.first_in();
        let mut failing = false;
        while stopping.run_until_cancelled(tokio::time::sleep_until(next)).await.is_some() {
            let began = tokio::time::Instant::now();
            let wait = match job.run().await {
                Ok(wait) => {
                    if std::mem::take(&mut failing) {
                        tracing::info!(job = job.name(), "{} works again", job.name());
                    }
                    wait.unwrap_or(job.every())
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(job = job.name(), error = %error, "{} failed; it is tried on", job.name());
                    }
                    job.retry_in()
                }
            };
            next = (began + wait).max(tokio::time::Instant::now());
            watch.alive(index, next.saturating_duration_since(tokio::time::Instant::now()));
        }
        job.finish().await;
    });
}
