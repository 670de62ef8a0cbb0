//! What this instance knows to have been counted, reported to Postgres: the witness of conservation.
//!
//! A count beside the plays in Redis would be rewound together with them. Counts only grow and are
//! reported whole, so a report may be repeated, or come late, or not at all: then the next one tells
//! more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{
    books::{Books, Report},
    unanswered::Unanswered,
};
use crate::{
    error::{Part, StoreError},
    failpoint,
    ids::{PARTITIONS, Partition},
    jobs::Job,
    store::redis::Redis,
};

/// Rows are folded after a month without a report, so one that has nothing to tell says so daily.
const STILL_HERE_EVERY: Duration = Duration::from_secs(24 * 3_600);

/// A row that is missing before this long can't have been folded, which takes a month: a day is left
/// for clocks that don't agree.
const NOT_FOLDED_BEFORE: Duration = Duration::from_secs(29 * 24 * 3_600);

/// How long the last report may take, and how long it waits between two tries.
const LAST_REPORT: Duration = Duration::from_secs(4);
const REPORT_AGAIN: Duration = Duration::from_millis(100);

type Counts = [u64; PARTITIONS as usize];

/// Counts what was counted.
pub(super) struct Witness {
    redis: Redis,
    books: Books,
    counted: [AtomicU64; PARTITIONS as usize],
    unanswered: Unanswered,
    /// One report at a time.
    reported: Mutex<Reported>,
}

/// What the database has heard.
#[derive(Debug)]
struct Reported {
    /// Under which id.
    instance: Uuid,
    /// What was reported under earlier ids.
    before: Counts,
    /// All that was reported, earlier ids included.
    told: Counts,
    /// Whether this id has a row.
    known: [bool; PARTITIONS as usize],
    /// When all of its rows were last written, on the monotonic clock.
    all_written: Duration,
}

impl Witness {
    pub(super) fn new(redis: Redis, books: Books) -> Arc<Self> {
        let reported = Reported {
            instance: Uuid::now_v7(),
            before: Counts::default(),
            told: Counts::default(),
            known: Default::default(),
            all_written: redis.clock().monotonic(),
        };
        let counted = std::array::from_fn(|_| AtomicU64::new(0));
        let unanswered = Unanswered::default();
        Arc::new(Self { redis, books, counted, unanswered, reported: Mutex::new(reported) })
    }

    /// Redis said that it counted so many plays.
    pub(super) fn saw(&self, partition: Partition, plays: u64) {
        self.counted[partition.index()].fetch_add(plays, Ordering::Relaxed);
    }

    /// Calls whose answer was lost.
    pub(super) fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    /// Finds out about calls whose answer was lost, and reports. Redis may be away for the report.
    ///
    /// # Errors
    /// Postgres is away; the next report tells more.
    pub(super) async fn tell(&self) -> Result<(), StoreError> {
        let now = self.redis.clock().monotonic();
        let saw = |partition, plays| self.saw(partition, plays);
        if let Err(error) = self.unanswered.look_up(&self.redis, now, saw).await {
            tracing::debug!(error = %error, "calls without an answer can't be looked up yet");
        }
        self.report().await
    }

    async fn report(&self) -> Result<(), StoreError> {
        let mut reported = self.reported.lock().await;
        let counted: Counts = std::array::from_fn(|index| self.counted[index].load(Ordering::Relaxed));
        let now = self.redis.clock().monotonic();
        let still_here = now.saturating_sub(reported.all_written) >= STILL_HERE_EVERY;
        // Twice, because where a row is missing all is told anew.
        for _ in 0..2 {
            let reports = reported.due(&counted, still_here);
            if reports.is_empty() {
                break;
            }
            let reporting = self.books.report(reported.instance, &reports);
            let done = failpoint::step("witness.report", Part::Postgres, reporting).await?;
            let mut missing = false;
            for Report { partition, .. } in reports {
                let index = partition.index();
                if done.contains(&partition) {
                    reported.told[index] = counted[index];
                    reported.known[index] = true;
                } else {
                    missing = true;
                }
            }
            if !missing {
                break;
            }
            if now.saturating_sub(reported.all_written) < NOT_FOLDED_BEFORE {
                tracing::warn!("the database has lost what this instance reported, which is reported again");
                reported.tell_all();
            } else {
                tracing::warn!("this instance was taken for gone; what it counts is reported under a new id");
                reported.begin_anew();
            }
        }
        if still_here {
            reported.all_written = now;
        }
        Ok(())
    }
}

impl Reported {
    /// What is to be told: counts that grew, or all that has a row.
    fn due(&self, counted: &Counts, still_here: bool) -> Vec<Report> {
        let report = |partition: Partition| {
            let index = partition.index();
            let (plays, known) = (counted[index] - self.before[index], self.known[index]);
            let due = counted[index] > self.told[index] || (still_here && known);
            due.then_some(Report { partition, plays, known })
        };
        Partition::all().filter_map(report).collect()
    }

    /// A database that was put back from a backup knows of nothing that was told since.
    fn tell_all(&mut self) {
        self.told = self.before;
        self.known = Default::default();
    }

    /// What was told stays told under the id of before.
    fn begin_anew(&mut self) {
        self.instance = Uuid::now_v7();
        self.before = self.told;
        self.known = Default::default();
    }
}

/// The job "witness".
pub(super) struct WitnessJob {
    witness: Arc<Witness>,
    every: Duration,
    /// This instance's own part of a period, between 0 and 1.
    phase: f64,
}

impl WitnessJob {
    pub(super) fn new(witness: Arc<Witness>, every: Duration, phase: f64) -> Self {
        Self { witness, every, phase }
    }
}

#[async_trait]
impl Job for WitnessJob {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn first_in(&self) -> Duration {
        self.every.mul_f64(self.phase)
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        if !self.witness.books.is_migrated() {
            return Ok(None);
        }
        match self.witness.tell().await {
            // That a store is away is told by who keeps the way to it.
            Err(error) if error.is_transient() => Ok(None),
            told => told.map(|()| None),
        }
    }

    /// After the last play was counted.
    async fn finish(&self) {
        let last = async {
            // First what is known: looking calls up may take all the time there is. A database that is
            // away may be back in a moment.
            while self.witness.report().await.is_err() {
                tokio::time::sleep(REPORT_AGAIN).await;
            }
            self.witness.unanswered.plays() == 0 || self.witness.tell().await.is_ok()
        };
        let told = tokio::time::timeout(LAST_REPORT, last).await;
        if !matches!(told, Ok(true)) {
            tracing::warn!(
                "the last plays couldn't be reported: they are counted, and the audit shows them as unreported"
            );
        }
    }
}
