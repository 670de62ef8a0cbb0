//! What a job is promised: when it runs, that it runs on, and that a hang is seen.

use std::collections::VecDeque;

use super::*;
use crate::{error::Part, lifecycle::Stopped};

const SECOND: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_secs(10);

/// What one run does.
enum Act {
    Work(Duration),
    WorkThenWait(Duration, Duration),
    Fail,
    Hang,
}

/// A job that plays its acts one after the other, then works in no time for ever.
struct Scripted {
    first_in: Duration,
    acts: Mutex<VecDeque<Act>>,
    began: Instant,
    /// When runs began, in seconds since the start.
    runs: Mutex<Vec<u64>>,
    finished: Mutex<Vec<u64>>,
}

impl Scripted {
    fn new(first_in: Duration, acts: impl IntoIterator<Item = Act>) -> Arc<Self> {
        Arc::new(Self {
            first_in,
            acts: Mutex::new(acts.into_iter().collect()),
            began: Instant::now(),
            runs: Mutex::default(),
            finished: Mutex::default(),
        })
    }
}

#[async_trait]
impl Job for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn first_in(&self) -> Duration {
        self.first_in
    }

    fn every(&self) -> Duration {
        EVERY
    }

    fn retry_in(&self) -> Duration {
        SECOND * 4
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        self.runs.lock().push(self.began.elapsed().as_secs());
        let act = self.acts.lock().pop_front();
        match act {
            None => Ok(None),
            Some(Act::Work(time)) => {
                tokio::time::sleep(time).await;
                Ok(None)
            }
            Some(Act::WorkThenWait(time, wait)) => {
                tokio::time::sleep(time).await;
                Ok(Some(wait))
            }
            Some(Act::Fail) => Err(StoreError::unavailable(Part::Redis, "as a test wants it")),
            Some(Act::Hang) => std::future::pending().await,
        }
    }

    async fn finish(&self) {
        self.finished.lock().push(self.began.elapsed().as_secs());
    }
}

struct Running {
    lifecycle: Lifecycle,
    watch: Watch,
    job: Arc<Scripted>,
}

impl Running {
    fn start(job: Arc<Scripted>) -> Self {
        let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(3_600));
        let watch = Watch::default();
        super::start(&lifecycle, &watch, job.clone());
        Self { lifecycle, watch, job }
    }

    /// Lets the paused clock run until `secs` after the start.
    async fn until(&self, secs: u64) {
        tokio::time::sleep_until(self.job.began + SECOND * u32::try_from(secs).unwrap()).await;
    }

    async fn stop(&self) -> Stopped {
        self.lifecycle.stop();
        self.lifecycle.run().await
    }

    fn runs(&self) -> Vec<u64> {
        self.job.runs.lock().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_run_waits_and_the_others_keep_the_period_however_long_a_run_is() {
    let running = Running::start(Scripted::new(SECOND * 3, [Act::Work(SECOND * 4), Act::Work(SECOND * 9)]));
    running.until(34).await;
    assert_eq!(running.runs(), [3, 13, 23, 33]);
    assert_eq!(running.stop().await, Stopped::Drained);
}

#[tokio::test(start_paused = true)]
async fn runs_missed_in_ten_minutes_are_made_up_for_by_one() {
    let running = Running::start(Scripted::new(Duration::ZERO, [Act::Work(SECOND * 605)]));
    running.until(630).await;
    assert_eq!(running.runs(), [0, 605, 615, 625]);
}

#[tokio::test(start_paused = true)]
async fn a_run_says_when_the_next_is_due() {
    let acts = [Act::WorkThenWait(SECOND, SECOND * 2), Act::WorkThenWait(SECOND * 5, Duration::ZERO)];
    let running = Running::start(Scripted::new(Duration::ZERO, acts));
    running.until(20).await;
    assert_eq!(running.runs(), [0, 2, 7, 17]);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_goes_on_after_the_time_it_says() {
    let running = Running::start(Scripted::new(Duration::ZERO, [Act::Fail, Act::Fail]));
    running.until(25).await;
    assert_eq!(running.runs(), [0, 4, 8, 18]);
    assert!(running.watch.stuck().is_empty());
    assert_eq!(running.stop().await, Stopped::Drained);
}

#[tokio::test(start_paused = true)]
async fn only_the_change_to_failing_and_back_is_logged() {
    let lines = crate::telemetry::capture();
    let running = Running::start(Scripted::new(Duration::ZERO, [Act::Fail, Act::Fail, Act::Fail]));
    running.until(55).await;
    let text = lines.text();
    assert_eq!(text.matches("scripted failed and will be tried on").count(), 1, "{text}");
    assert_eq!(text.matches("scripted works again").count(), 1, "{text}");
}

#[tokio::test(start_paused = true)]
async fn the_last_run_comes_after_the_one_under_way() {
    let running = Running::start(Scripted::new(Duration::ZERO, [Act::Work(SECOND * 4)]));
    running.until(1).await;
    assert_eq!(running.stop().await, Stopped::Drained);
    assert_eq!(running.runs(), [0]);
    assert_eq!(*running.job.finished.lock(), [4]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_first_run_still_has_the_last_one() {
    let running = Running::start(Scripted::new(SECOND * 100, []));
    running.until(1).await;
    assert_eq!(running.stop().await, Stopped::Drained);
    assert!(running.runs().is_empty());
    assert_eq!(*running.job.finished.lock(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_hangs_is_seen_and_one_that_is_slow_is_not() {
    let running = Running::start(Scripted::new(SECOND * 200, [Act::Work(SECOND * 65), Act::Hang]));
    for secs in [1, 199, 230, 264] {
        running.until(secs).await;
        assert!(running.watch.stuck().is_empty(), "at {secs} s");
    }
    // It hangs from second 265 on, and has its period and a minute.
    running.until(334).await;
    assert!(running.watch.stuck().is_empty());
    running.until(336).await;
    assert_eq!(running.watch.stuck(), ["scripted"]);
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_between_runs_is_no_hang() {
    let act = Act::WorkThenWait(SECOND, SECOND * 5_000);
    let running = Running::start(Scripted::new(Duration::ZERO, [act]));
    running.until(4_999).await;
    assert!(running.watch.stuck().is_empty());
}
