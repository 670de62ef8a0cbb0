//! What runs by itself: one helper starts, repeats, watches and ends every job.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

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
    due: Instant,
}

/// A run may take so much longer than its period before the job counts as stuck: a flush may well
/// wait out a few deadlines of stores that are away.
const GRACE: Duration = Duration::from_secs(60);

impl Watch {
    /// The jobs that should have reported and have not.
    #[must_use]
    pub fn stuck(&self) -> Vec<&'static str> {
        let now = Instant::now();
        self.jobs.lock().iter().filter(|job| job.due < now).map(|job| job.name).collect()
    }

    fn enter(&self, name: &'static str) -> Beat {
        let mut jobs = self.jobs.lock();
        jobs.push(Watched { name, due: Instant::now() + GRACE });
        Beat { jobs: self.jobs.clone(), index: jobs.len() - 1 }
    }
}

/// One job's line in a [`Watch`].
struct Beat {
    jobs: Arc<Mutex<Vec<Watched>>>,
    index: usize,
}

impl Beat {
    /// The job will report again within `next`, give or take [`GRACE`].
    fn alive(&self, next: Duration) {
        self.jobs.lock()[self.index].due = Instant::now() + next + GRACE;
    }
}

/// Starts a job. Runs that were missed are skipped, not made up for. A run under way when the
/// service stops is finished, and [`Job::finish`] comes after it.
pub fn start(lifecycle: &Lifecycle, watch: &Watch, job: Arc<dyn Job>) {
    let stopping = lifecycle.stopping(Phase::Jobs);
    let beat = watch.enter(job.name());
    lifecycle.spawn(Phase::Jobs, job.name(), async move {
        let mut failing = false;
        let mut next = Instant::now() + job.first_in();
        loop {
            beat.alive(next.saturating_duration_since(Instant::now()));
            if stopping.run_until_cancelled(tokio::time::sleep_until(next)).await.is_none() {
                break;
            }
            let began = Instant::now();
            // A run that hangs is seen after as long as it should have been over twice.
            beat.alive(job.every());
            let wait = run_once(job.as_ref(), &mut failing).await;
            // Counted from the beginning, so that a slow store doesn't stretch the period; at
            // once, and once, where that moment is past.
            next = (began + wait).max(Instant::now());
        }
        beat.alive(job.every());
        job.finish().await;
    });
}

/// One run: how long to wait from its beginning to the next. Only changes are logged.
async fn run_once(job: &dyn Job, failing: &mut bool) -> Duration {
    let name = job.name();
    match job.run().await {
        Ok(wait) => {
            if std::mem::take(failing) {
                tracing::info!(job = name, "{name} works again");
            }
            wait.unwrap_or(job.every())
        }
        Err(error) => {
            metrics::counter!("headcount_job_failures_total", "task" => name).increment(1);
            if !std::mem::replace(failing, true) {
                tracing::warn!(job = name, error = %error, "{name} failed and will be tried on");
            }
            job.retry_in()
        }
    }
}

#[cfg(test)]
mod tests;
