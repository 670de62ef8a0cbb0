//! What happened to the requests: counted as they end, shown as a bar while the run lasts and as a
//! table after it.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::client::Failure;

/// What a request was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Heartbeat,
    Play,
    /// The reads of `--verify`.
    Counts,
}

/// All requests of the run, by kind.
#[derive(Debug)]
pub(super) struct Stats {
    kinds: Mutex<[OfKind; 3]>,
}

#[derive(Debug)]
struct OfKind {
    name: &'static str,
    requests: u64,
    retries: u64,
    failures: BTreeMap<String, u64>,
    /// In microseconds.
    latency: Histogram<u32>,
}

/// Where the run stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Requests that were answered as they should be.
    pub(super) beats: u64,
    pub(super) plays: u64,
    pub(super) reads: u64,
    pub(super) errors: u64,
}

impl Totals {
    pub(super) fn is_nothing(self) -> bool {
        self.beats + self.plays + self.reads == 0
    }
}

impl Stats {
    pub(super) fn new() -> Self {
        Self { kinds: Mutex::new(["heartbeat", "play", "counts"].map(OfKind::new)) }
    }

    /// A request has ended. `took` is counted from the moment it was due, so the time it had to wait for
    /// a free slot is in it: a slow service is seen as latency, not as fewer requests.
    pub(super) fn record(&self, kind: Kind, took: Duration, failure: Option<&Failure>) {
        let mut kinds = self.kinds.lock();
        let kind = &mut kinds[kind as usize];
        kind.requests += 1;
        if let Some(failure) = failure {
            *kind.failures.entry(failure.to_string()).or_default() += 1;
        }
        // How quickly no connection was made says nothing about the service.
        if !matches!(failure, Some(Failure::Connect | Failure::Broken)) {
            kind.latency.saturating_record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// A request that failed is going to be sent again.
    pub(super) fn retried(&self, kind: Kind) {
        self.kinds.lock()[kind as usize].retries += 1;
    }

    pub(super) fn totals(&self) -> Totals {
        let kinds = self.kinds.lock();
        let good = |kind: Kind| kinds[kind as usize].good();
        Totals {
            beats: good(Kind::Heartbeat),
            plays: good(Kind::Play),
            reads: good(Kind::Counts),
            errors: kinds.iter().map(OfKind::errors).sum(),
        }
    }

    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_FULL_CONDENSED)
            .set_header(["request", "sent", "errors", "of these", "retries", "p50 ms", "p99 ms", "max ms"]);
        for kind in self.kinds.lock().iter().filter(|kind| kind.requests > 0) {
            let shown =
                |micros| if kind.latency.is_empty() { "–".to_owned() } else { milliseconds(micros) };
            let at = |quantile| shown(kind.latency.value_at_quantile(quantile));
            table.add_row([
                kind.name.to_owned(),
                HumanCount(kind.requests).to_string(),
                HumanCount(kind.errors()).to_string(),
                kind.reasons(),
                HumanCount(kind.retries).to_string(),
                at(0.5),
                at(0.99),
                shown(kind.latency.max()),
            ]);
        }
        for column in [1, 2, 4, 5, 6, 7] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

impl OfKind {
    fn new(name: &'static str) -> Self {
        const LONGEST_MICROS: u64 = 600_000_000;
        let latency = Histogram::new_with_bounds(1, LONGEST_MICROS, 3)
            .expect("1 is over 0, the longest over twice that, and 3 digits are under 6");
        Self { name, requests: 0, retries: 0, failures: BTreeMap::new(), latency }
    }

    fn errors(&self) -> u64 {
        self.failures.values().sum()
    }

    fn good(&self) -> u64 {
        self.requests - self.errors()
    }

    fn reasons(&self) -> String {
        let mut text = String::new();
        for (reason, times) in &self.failures {
            let comma = if text.is_empty() { "" } else { ", " };
            // Writing to a string can't fail.
            let _ = write!(text, "{comma}{} × {reason}", HumanCount(*times));
        }
        text
    }
}

fn milliseconds(micros: u64) -> String {
    format!("{}.{}", HumanCount(micros / 1_000), micros % 1_000 / 100)
}

/// The bar. On a terminal only: elsewhere it draws nothing, and only the notes are printed.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    began: Instant,
    last: (Instant, Totals),
}

impl Progress {
    pub(super) fn new(length: Duration) -> Self {
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} s  {msg}")
            .expect("the template is a constant, and drawn by every run");
        let now = Instant::now();
        Self {
            bar: ProgressBar::new(length.as_secs()).with_style(style),
            began: now,
            last: (now, Totals::default()),
        }
    }

    /// The run begins now: what was before is not shown.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
    }

    pub(super) fn set_length(&self, length: Duration) {
        self.bar.set_length(length.as_secs());
    }

    /// Prints a line above the bar.
    pub(super) fn note(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    pub(super) fn show(&mut self, totals: Totals, in_flight: usize, waiting: usize) {
        let now = Instant::now();
        let (then, before) = std::mem::replace(&mut self.last, (now, totals));
        let rate = |now_so_many: u64, then_so_many: u64| {
            let more = u32::try_from(now_so_many - then_so_many).unwrap_or(u32::MAX);
            f64::from(more) / (now - then).as_secs_f64().max(0.001)
        };
        self.bar.set_position((now - self.began).as_secs());
        self.bar.set_message(format!(
            "{:.0} beats/s  {:.0} plays/s  {} errors  {in_flight} in flight  {waiting} waiting",
            rate(totals.beats, before.beats),
            rate(totals.plays, before.plays),
            HumanCount(totals.errors),
        ));
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_kind_that_was_sent() {
        let stats = Stats::new();
        let unavailable = Failure::Status { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: None };
        for millis in 1..=100 {
            stats.record(Kind::Heartbeat, Duration::from_millis(millis), None);
        }
        stats.record(Kind::Heartbeat, Duration::from_secs(5), Some(&Failure::Timeout));
        stats.record(Kind::Heartbeat, Duration::from_millis(1), Some(&unavailable));
        stats.record(Kind::Heartbeat, Duration::from_millis(1), Some(&unavailable));
        stats.retried(Kind::Heartbeat);

        let table = stats.table().to_string();
        let row = table.lines().find(|line| line.contains("heartbeat")).unwrap();
        for text in ["103", "2 × status 503, 1 × timeout", "50.0", "5,00"] {
            assert!(row.contains(text), "no {text} in {row}");
        }
        assert!(!table.contains("play") && !table.contains("counts"), "{table}");
        assert_eq!((stats.totals().beats, stats.totals().errors), (100, 3));
    }

    #[test]
    fn where_nothing_was_answered_no_time_is_shown() {
        let stats = Stats::new();
        stats.record(Kind::Play, Duration::ZERO, Some(&Failure::Connect));
        let table = stats.table().to_string();
        assert!(table.contains("–") && !table.contains("0.0"), "{table}");
    }

    #[test]
    fn a_refused_connection_is_an_error_and_no_quick_answer() {
        let stats = Stats::new();
        stats.record(Kind::Play, Duration::from_millis(200), None);
        for _ in 0..1_000 {
            stats.record(Kind::Play, Duration::ZERO, Some(&Failure::Connect));
        }
        let table = stats.table().to_string();
        assert!(table.contains("1,000 × no connection") && table.contains("200."), "{table}");
    }
}
