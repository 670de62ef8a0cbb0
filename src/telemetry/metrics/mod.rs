//! Every metric the service writes: its name, its kind, its unit and what it tells, in one table.
//!
//! Code writes a metric by its name where the thing happens; a test holds those names against this
//! table. No label ever carries an id: there are as many series on the first day as on the last.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::{error::StoreError, jobs::Job};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, and begins at 0 with the process.
    Counter,
    /// Goes up and down. Not there before it is known: a 0 would be made up.
    Gauge,
    /// How often and how much.
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, unit included.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The labels it has.
    pub labels: &'static [&'static str],
    /// Its `# HELP`.
    pub help: &'static str,
}

const fn metric(
    kind: Kind,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind, labels, help }
}

use Kind::{Counter, Gauge, Histogram};

/// Every metric, by what it is about.
pub const METRICS: &[Metric] = &[
    metric(Counter, "headcount_heartbeats_total", &["outcome"], "Heartbeats, by what became of them"),
    metric(Gauge, "headcount_online_fields", &[], "Viewers kept, of the partitions this instance swept last"),
    metric(
        Gauge,
        "headcount_active_videos",
        &[],
        "Videos with viewers, of the partitions this instance swept last",
    ),
    metric(
        Gauge,
        "headcount_sharded_videos",
        &[],
        "Videos of more than one shard, of the partitions this instance swept last",
    ),
    metric(
        Counter,
        "headcount_shard_changes_total",
        &["to"],
        "Videos whose viewers were spread over more or fewer shards",
    ),
    metric(Gauge, "headcount_shard_fields_max", &[], "Viewers in the fullest shard the last sweep saw"),
    metric(Histogram, "headcount_sweep_duration_seconds", &[], "How long the sweep of one partition took"),
    metric(
        Counter,
        "headcount_sweep_removed_total",
        &[],
        "Viewers dropped because their last heartbeat was too old",
    ),
    metric(
        Gauge,
        "headcount_sweep_last_success_timestamp_seconds",
        &[],
        "Unix time at which a sweep of this instance last went through",
    ),
    metric(
        Counter,
        "headcount_count_reads_total",
        &["kind", "tier"],
        "Counts read, by where they came from: local, cache, live, stale or unknown",
    ),
    metric(Counter, "headcount_plays_total", &["outcome"], "Plays, by what became of them"),
    metric(
        Counter,
        "headcount_kafka_plays_total",
        &["outcome"],
        "Plays handed to Kafka, by what became of them: delivered or failed (unknown whether it has them)",
    ),
    metric(
        Counter,
        "headcount_kafka_counted_total",
        &["outcome"],
        "Records of Kafka's log, by what became of them: counted, duplicate or unreadable",
    ),
    metric(
        Counter,
        "headcount_kafka_failures_total",
        &[],
        "Tries to count records of Kafka's log that failed; each is made again",
    ),
    metric(
        Counter,
        "headcount_kafka_missed_total",
        &[],
        "Records that were gone from Kafka's log before they were counted",
    ),
    metric(
        Gauge,
        "headcount_kafka_lag_records",
        &["partition"],
        "Records in Kafka's log that are not counted yet, of the partitions this instance counts",
    ),
    metric(
        Gauge,
        "headcount_kafka_lag_seconds",
        &["partition"],
        "How old the last record is that was counted, while there are more, of the partitions this instance counts",
    ),
    metric(
        Histogram,
        "headcount_kafka_window_duration_seconds",
        &[],
        "How long Postgres took for one window of Kafka's log",
    ),
    metric(Gauge, "headcount_plays_pending", &[], "Plays counted and not yet in the database"),
    metric(
        Gauge,
        "headcount_plays_refused",
        &[],
        "Videos whose plays the database refused; each needs an operator",
    ),
    metric(Histogram, "headcount_flush_duration_seconds", &[], "How long the flush of one partition took"),
    metric(
        Gauge,
        "headcount_flush_last_success_timestamp_seconds",
        &[],
        "Unix time at which a flush of this instance last went through",
    ),
    metric(
        Counter,
        "headcount_flush_failed_total",
        &[],
        "Flushes of a partition that failed; its plays wait for the next",
    ),
    metric(
        Counter,
        "headcount_plays_lost_total",
        &[],
        "Plays answered 202 and lost, as plays.ack = \"received\" allows",
    ),
    metric(
        Counter,
        "headcount_replica_waits_failed_total",
        &["what"],
        "Writes that too few replicas had in time: batches not applied, plays answered 503",
    ),
    metric(Counter, "headcount_plays_flushed_total", &[], "Plays moved into the database"),
    metric(
        Gauge,
        "headcount_conservation_difference",
        &["partition"],
        "Plays counted that nobody has any more (above 0), or that nobody has reported (below), as last read",
    ),
    metric(
        Gauge,
        "headcount_conservation_last_success_timestamp_seconds",
        &[],
        "Unix time at which this instance last read the books of all partitions",
    ),
    metric(
        Counter,
        "headcount_witness_unknown_total",
        &[],
        "Plays of which it stays unknown whether Redis counted them; those it did stay unreported",
    ),
    metric(Histogram, "headcount_batch_size", &["batch"], "Requests written together"),
    metric(
        Histogram,
        "headcount_batch_duration_seconds",
        &["store", "batch"],
        "How long a store took for one batch",
    ),
    metric(Gauge, "headcount_queue_depth", &["queue"], "Requests that wait for a store"),
    metric(
        Counter,
        "headcount_lock_lost_total",
        &[],
        "Passes that found their lock taken by another instance",
    ),
    metric(
        Gauge,
        "headcount_clock_skew_seconds",
        &[],
        "How far this host's clock is ahead of the store's; nothing is wrong for it, but logs disagree",
    ),
    metric(
        Counter,
        "headcount_job_failures_total",
        &["task"],
        "Runs of a job that failed and are tried again",
    ),
    metric(
        Counter,
        "headcount_http_refused_total",
        &["reason"],
        "Requests and connections refused before they reached a route: connections, load, malformed, slow_head or slow_reader",
    ),
    metric(Gauge, "headcount_http_connections", &[], "Connections that are open"),
    metric(
        Gauge,
        "headcount_scheduling_delay_seconds",
        &[],
        "How long what comes in waits until it is looked at, as last measured",
    ),
    metric(Gauge, "headcount_next_heartbeat_seconds", &[], "How often players are asked to beat"),
    metric(Counter, "headcount_http_requests_total", &["route", "status"], "Requests answered"),
    metric(Histogram, "headcount_http_request_duration_seconds", &["route"], "How long an answer took"),
];

/// From half a millisecond to the longest request timeout, so that a p99 can be told within a
/// factor of 2 everywhere and better where most answers are.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0];

/// Powers of four up to the largest batch.
const SIZES: [f64; 10] = [1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 2_048.0, 4_096.0, 16_384.0, 100_000.0];

/// The process's metrics, for whoever shows them. Clones show the same.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    handle: Option<PrometheusHandle>,
}

impl Metrics {
    /// Metrics that nobody keeps: what is written is dropped.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The recorder of this process, installed at the first call. The only global of the program:
    /// instances that run in one process (in tests) add to the same numbers.
    ///
    /// # Errors
    /// Somebody else has installed a recorder.
    pub fn install() -> anyhow::Result<Self> {
        static INSTALLED: OnceLock<Result<PrometheusHandle, String>> = OnceLock::new();
        let handle = INSTALLED.get_or_init(|| recorder().map_err(|error| format!("{error:#}")));
        match handle {
            Ok(handle) => Ok(Self { handle: Some(handle.clone()) }),
            Err(error) => Err(anyhow::anyhow!("{error}")),
        }
    }

    /// All metrics in Prometheus's text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.as_ref().map(PrometheusHandle::render).unwrap_or_default()
    }

    /// [`Metrics::render`] as the operators' listener takes it.
    #[must_use]
    pub fn renderer(&self) -> Arc<dyn Fn() -> String + Send + Sync> {
        let metrics = self.clone();
        Arc::new(move || metrics.render())
    }
}

fn recorder() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full("headcount_batch_size".into()), &SIZES)
        })
        .context("a list of buckets is empty")?
        .install_recorder()
        .context("metrics are kept by somebody else in this process")?;
    for metric in METRICS {
        describe(metric);
    }
    Ok(handle)
}

fn describe(metric: &Metric) {
    let unit = if metric.name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
    match metric.kind {
        Counter => describe_counter!(metric.name, unit, metric.help),
        Gauge => describe_gauge!(metric.name, unit, metric.help),
        Histogram => describe_histogram!(metric.name, unit, metric.help),
    }
    // What has not happened yet is 0, so that a rate is right from the first event on.
    match metric.kind {
        Counter if metric.labels.is_empty() => counter!(metric.name).absolute(0),
        Histogram if metric.labels.is_empty() => drop(histogram!(metric.name)),
        _ => {}
    }
}

/// Sorts recorded values into their buckets, also when nobody asks for the metrics: they would pile
/// up in memory.
#[derive(Debug)]
pub struct Upkeep(Metrics);

impl Upkeep {
    /// For these metrics.
    #[must_use]
    pub fn of(metrics: &Metrics) -> Self {
        Self(metrics.clone())
    }
}

#[async_trait]
impl Job for Upkeep {
    fn name(&self) -> &'static str {
        "metrics-upkeep"
    }

    fn first_in(&self) -> Duration {
        self.every()
    }

    fn every(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        if let Some(handle) = &self.0.handle {
            handle.run_upkeep();
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
