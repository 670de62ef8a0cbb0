//! `headcount_count_reads_total`: where the numbers that are answered come from.

use metrics::{Counter, counter};

/// Counts reads of one kind of number, `"online"` or `"plays"`, by their source.
#[derive(Clone)]
pub struct CountReads {
    /// Kept ready in this process, and right.
    pub local: Counter,
    /// Kept ready in the store.
    pub cache: Counter,
    /// Worked out for this read.
    pub live: Counter,
    /// The last that was right.
    pub stale: Counter,
    /// None could be given.
    pub unknown: Counter,
}

impl CountReads {
    /// The counters of one kind.
    #[must_use]
    pub fn of(kind: &'static str) -> Self {
        let tier = |tier| counter!("headcount_count_reads_total", "kind" => kind, "tier" => tier);
        Self {
            local: tier("local"),
            cache: tier("cache"),
            live: tier("live"),
            stale: tier("stale"),
            unknown: tier("unknown"),
        }
    }
}
