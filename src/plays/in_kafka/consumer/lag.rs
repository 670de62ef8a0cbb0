//! How far counting is behind the log, by part of the topic.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rdkafka::statistics::Statistics;

use crate::clock::Timestamp;

/// How far the log and the counting are. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Lag(Arc<Mutex<HashMap<i32, Progress>>>);

#[derive(Default)]
struct Progress {
    /// The offset behind the last record in the log.
    end: Option<i64>,
    /// The offset behind the last that is counted, and the time of that one.
    counted: Option<(i64, Option<Timestamp>)>,
}

impl Lag {
    /// The client tells how long the log is.
    pub(super) fn saw(&self, topic: &str, statistics: &Statistics) {
        let mut parts = self.0.lock();
        for (partition, told) in statistics.topics.get(topic).into_iter().flat_map(|topic| &topic.partitions)
        {
            if let Some(progress) = parts.get_mut(partition).filter(|_| told.hi_offset >= 0) {
                progress.end = Some(told.hi_offset);
            }
        }
    }

    /// A part is counted here from now on.
    pub(super) fn take(&self, partition: i32, next: i64) {
        self.0.lock().entry(partition).or_default().counted = Some((next, None));
    }

    /// A part is counted up to here; `at` is the time of its last record. A window that ends after its part was
    /// left is told by who has the part now.
    pub(super) fn counted(&self, partition: i32, next: i64, at: Option<Timestamp>) {
        let mut parts = self.0.lock();
        let Some(progress) = parts.get_mut(&partition) else { return };
        let at = at.or(progress.counted.and_then(|(_, at)| at));
        progress.counted = Some((next, at));
    }

    /// A part is counted elsewhere from now on, or nowhere: others tell how far it is. Gauges can't be taken
    /// back; one that is no number is nobody's, and the largest of them all is somebody else's.
    pub(super) fn leave_all(&self) {
        for (partition, _) in self.0.lock().drain() {
            export(partition, f64::NAN, f64::NAN);
        }
    }

    /// Tells it.
    pub(super) fn export(&self, now: Timestamp) {
        for (partition, progress) in self.0.lock().iter() {
            if let Progress { end: Some(end), counted: Some((next, at)) } = progress {
                let behind = (end - next).max(0);
                let late = at.filter(|_| behind > 0).map_or(Duration::ZERO, |at| now.since(at));
                #[expect(clippy::cast_precision_loss, reason = "a metric; far below 2^52")]
                export(*partition, behind as f64, late.as_secs_f64());
            }
        }
    }
}

fn export(partition: i32, records: f64, seconds: f64) {
    let partition = partition.to_string();
    metrics::gauge!("headcount_kafka_lag_records", "partition" => partition.clone()).set(records);
    metrics::gauge!("headcount_kafka_lag_seconds", "partition" => partition).set(seconds);
}
