//! What happened, counted; and what must not have happened, written down.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Problems that are told in full; the others are only counted.
const TOLD: usize = 50;

/// A counter.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What must not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wrong {
    /// A play that was acknowledged is missing.
    Lost,
    /// A play is counted more than once.
    Double,
    /// A total is smaller than it was.
    StepBack,
    /// Viewers that are there aren't counted, or some that aren't are.
    Online,
    /// Anything else the service promised.
    Promise,
}

/// Everything that is counted.
pub(crate) struct Tally {
    began: Instant,
    log: Mutex<File>,
    faults: Mutex<BTreeMap<&'static str, u64>>,
    consumers: Mutex<BTreeMap<&'static str, u64>>,
    problems: Mutex<Vec<(Wrong, String)>>,
    statuses: Mutex<BTreeMap<u16, u64>>,
    stopping: AtomicBool,
    /// Different plays.
    pub(crate) begun: Count,
    /// Requests, with all repetitions.
    pub(crate) plays_sent: Count,
    pub(crate) retries: Count,
    pub(crate) acknowledged: Count,
    /// Acknowledged as duplicates with no answer ever that counted them: that answer was lost.
    pub(crate) silent: Count,
    pub(crate) duplicates_sent: Count,
    pub(crate) beats: Count,
    pub(crate) beats_failed: Count,
    pub(crate) totals_read: Count,
    pub(crate) totals_unsure: Count,
    pub(crate) online_fresh: Count,
    pub(crate) online_stale: Count,
    pub(crate) online_unknown: Count,
}

impl Tally {
    pub(crate) fn new(folder: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            began: Instant::now(),
            log: Mutex::new(File::create(folder.join("torture.log"))?),
            faults: Mutex::default(),
            consumers: Mutex::default(),
            problems: Mutex::default(),
            statuses: Mutex::default(),
            stopping: AtomicBool::new(false),
            begun: Count::default(),
            plays_sent: Count::default(),
            retries: Count::default(),
            acknowledged: Count::default(),
            silent: Count::default(),
            duplicates_sent: Count::default(),
            beats: Count::default(),
            beats_failed: Count::default(),
            totals_read: Count::default(),
            totals_unsure: Count::default(),
            online_fresh: Count::default(),
            online_stale: Count::default(),
            online_unknown: Count::default(),
        })
    }

    /// Since the beginning.
    pub(crate) fn at(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether nothing new is to be begun.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Writes a line to the run's own log.
    pub(crate) fn log(&self, line: &str) {
        let at = self.at().as_secs_f64();
        // The run is about the service; a full disk shows in enough other places.
        let _ = writeln!(self.log.lock(), "{at:9.3} {line}");
    }

    pub(crate) fn fault(&self, name: &'static str) {
        *self.faults.lock().entry(name).or_default() += 1;
    }

    pub(crate) fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.faults.lock().clone()
    }

    /// What the third consumer does now, by which parts of the topic are shared out anew.
    pub(crate) fn consumer(&self, does: &'static str) {
        self.log(&format!("consumer: {does}"));
        *self.consumers.lock().entry(does).or_default() += 1;
    }

    pub(crate) fn consumers(&self) -> BTreeMap<&'static str, u64> {
        self.consumers.lock().clone()
    }

    pub(crate) fn answered(&self, status: u16) {
        *self.statuses.lock().entry(status).or_default() += 1;
    }

    pub(crate) fn statuses(&self) -> BTreeMap<u16, u64> {
        self.statuses.lock().clone()
    }

    pub(crate) fn wrong(&self, wrong: Wrong, what: &str) {
        self.log(&format!("WRONG {wrong:?}: {what}"));
        let at = self.at().as_secs_f64();
        self.problems.lock().push((wrong, format!("{wrong:?} at {at:.3} s: {what}")));
    }

    /// How often that went wrong.
    pub(crate) fn count(&self, wrong: Wrong) -> usize {
        self.problems.lock().iter().filter(|(kind, _)| *kind == wrong).count()
    }

    /// How much went wrong, and the first of it in words.
    pub(crate) fn problems(&self) -> (usize, Vec<String>) {
        let problems = self.problems.lock();
        (problems.len(), problems.iter().take(TOLD).map(|(_, what)| what.clone()).collect())
    }
}
