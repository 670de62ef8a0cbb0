//! What the sweeps of this process found, partition by partition, summed for the metrics.
//!
//! An instance reports only the partitions it swept last, so that the sum over all instances is the
//! sum over all partitions.

use parking_lot::Mutex;

use crate::ids::{PARTITIONS, Partition};

/// The figures of one partition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    /// When it was last swept, here or elsewhere, in Unix seconds.
    pub(super) swept: i64,
    pub(super) videos: u64,
    pub(super) sharded: u64,
    pub(super) viewers: u64,
    pub(super) fullest_shard: u64,
}

/// The figures of all partitions that this process swept last.
#[derive(Debug)]
pub(super) struct Tally {
    shares: Mutex<[Share; PARTITIONS as usize]>,
}

impl Tally {
    /// No partition was swept since `now`, in Unix seconds.
    pub(super) fn new(now: i64) -> Self {
        Self { shares: Mutex::new([Share { swept: now, ..Share::default() }; PARTITIONS as usize]) }
    }

    /// Sets a partition's share; no figures where another instance swept it.
    pub(super) fn set(&self, partition: Partition, share: Share) {
        let mut shares = self.shares.lock();
        shares[partition.index()] = share;
        let sum = |figure: fn(&Share) -> u64| shares.iter().map(figure).sum();
        gauge("headcount_online_fields", sum(|share| share.viewers));
        gauge("headcount_active_videos", sum(|share| share.videos));
        gauge("headcount_sharded_videos", sum(|share| share.sharded));
        let fullest = shares.iter().map(|share| share.fullest_shard).max();
        gauge("headcount_shard_fields_max", fullest.unwrap_or_default());
        // The oldest: one partition that fails shows, however well the others do.
        let swept = shares.iter().map(|share| u64::try_from(share.swept).unwrap_or(0)).min();
        gauge("headcount_sweep_last_success_timestamp_seconds", swept.unwrap_or_default());
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge; the figures are far below 2^52")]
fn gauge(name: &'static str, figure: u64) {
    metrics::gauge!(name).set(figure as f64);
}
