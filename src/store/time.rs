//! Redis's time, as this instance reckons it between two looks at `TIME`.
//!
//! Everything kept in Redis is dated in Redis's own time, so that instances whose clocks differ
//! agree. It is reckoned forward on the monotonic clock: a host clock that is set changes nothing
//! here, and a Redis clock that is set (or a promoted node whose clock differs) shows up as a jump.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::clock::{Clock, Timestamp, millis};

/// A difference between two clocks that is no longer taken for measurement noise.
pub const TOLERATED_SKEW: Duration = Duration::from_secs(2);

/// Two clocks of one host drift apart slowly. It is made up for from here on, so that it never adds up
/// to a jump; less than this is the rounding of both.
const DRIFT: Duration = Duration::from_millis(50);

/// Reckons a store's time on this host's monotonic clock.
pub struct StoreClock {
    clock: Arc<dyn Clock>,
    /// For how long nothing is removed after a jump: two beat periods.
    caution: Duration,
    /// The store's time at this host's monotonic zero, in milliseconds, by the last observation: every
    /// beat is dated by it, without a lock.
    offset: AtomicI64,
    observed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    cautious_until: Duration,
    skew_told: bool,
}

impl StoreClock {
    /// Begins with the host's time until the store's is observed.
    pub fn new(clock: Arc<dyn Clock>, caution: Duration) -> Self {
        let state = State { cautious_until: Duration::ZERO, skew_told: false };
        let offset = AtomicI64::new((clock.now() - clock.monotonic()).millis());
        Self { clock, caution, offset, observed: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// The store's time now.
    pub fn now(&self) -> Timestamp {
        if let Some(manual) = self.clock.overrides_stores() {
            return manual;
        }
        self.reckoned(self.clock.monotonic())
    }

    fn reckoned(&self, monotonic: Duration) -> Timestamp {
        Timestamp::from_millis(self.offset.load(Ordering::Relaxed)) + monotonic
    }

    fn anchor(&self, told: Timestamp, monotonic: Duration) {
        self.offset.store((told - monotonic).millis(), Ordering::Relaxed);
    }

    /// What a script is given for the time: empty, so that it asks `TIME` itself and a call that
    /// was long under way is dated when it runs; a test's clock hands in its own.
    pub fn for_script(&self) -> String {
        self.clock.overrides_stores().map_or_else(String::new, |manual| manual.millis().to_string())
    }

    /// Time since some fixed moment, for notes and deadlines of this process.
    pub fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Takes note of the store's time, `store_time`, which it told in answer to a question that was
    /// `round_trip` under way, just now.
    pub fn observe(&self, store_time: Timestamp, round_trip: Duration) {
        let told = self.clock.overrides_stores().unwrap_or(store_time + round_trip / 2);
        let mono = self.clock.monotonic();
        let host = self.clock.now();
        let mut state = self.state.lock();
        if self.observed.swap(true, Ordering::Relaxed) {
            let jump = told.millis() - self.reckoned(mono).millis();
            // Half the round trip is the measurement's own error.
            if jump.unsigned_abs() > millis(TOLERATED_SKEW + round_trip / 2) {
                state.cautious_until = mono + self.caution;
                tracing::warn!(
                    clock.jump_ms = jump,
                    clock.caution_s = self.caution.as_secs(),
                    "the store's clock jumped by {jump} ms: no viewer is removed for a while"
                );
            }
        }
        self.anchor(told, mono);

        let skew = host.millis() - told.millis();
        #[expect(clippy::cast_precision_loss, reason = "a metric in seconds; skews are far below 2^52 ms")]
        metrics::gauge!("headcount_clock_skew_seconds").set(skew as f64 / 1_000.0);
        let off = skew.unsigned_abs() > millis(TOLERATED_SKEW);
        if off != state.skew_told {
            state.skew_told = off;
            if off {
                tracing::warn!(clock.skew_ms = skew, "this host's clock is {skew} ms from the store's");
            } else {
                tracing::info!("this host's clock agrees with the store's again");
            }
        }
    }

    /// The host's time, for a store that lives in this process: it is taken for the store's, with
    /// the same care for jumps.
    pub fn follow_host(&self) -> Timestamp {
        let (host, mono) = (self.clock.now(), self.clock.monotonic());
        let jump = host.millis() - self.reckoned(mono).millis();
        if jump.unsigned_abs() > millis(TOLERATED_SKEW) {
            self.observe(host, Duration::ZERO);
        } else if jump.unsigned_abs() > millis(DRIFT) || !self.observed.load(Ordering::Relaxed) {
            self.anchor(host, mono);
            self.observed.store(true, Ordering::Relaxed);
        }
        host
    }

    /// Whether viewers may be removed: not for two beat periods after a jump.
    pub fn may_remove(&self) -> bool {
        // A test's clock has no server that tells its time once a second.
        if let Some(manual) = self.clock.overrides_stores() {
            self.observe(manual, Duration::ZERO);
        }
        self.clock.monotonic() >= self.state.lock().cautious_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn clocks() -> (Arc<ManualClock>, StoreClock) {
        let manual = ManualClock::at(Timestamp::from_secs(1_000_000));
        let store = StoreClock::new(manual.clone(), Duration::from_secs(60));
        store.observe(manual.now(), Duration::ZERO);
        (manual, store)
    }

    #[test]
    fn time_that_passes_is_no_jump() {
        let (manual, store) = clocks();
        manual.advance(Duration::from_secs(3_600));
        store.observe(manual.now(), Duration::ZERO);
        assert!(store.may_remove());
    }

    #[test]
    fn a_jump_of_over_two_seconds_either_way_stops_removal_for_two_beat_periods() {
        for jump in [-3_600_000, -2_001, 2_001, 3_600_000] {
            let (manual, store) = clocks();
            manual.jump(jump);
            store.observe(manual.now(), Duration::ZERO);
            assert!(!store.may_remove(), "{jump}");
            manual.advance(Duration::from_secs(59));
            store.observe(manual.now(), Duration::ZERO);
            assert!(!store.may_remove(), "{jump}");
            manual.advance(Duration::from_secs(1));
            store.observe(manual.now(), Duration::ZERO);
            assert!(store.may_remove(), "{jump}");
        }
    }

    #[test]
    fn a_jump_of_the_host_is_seen_by_a_store_in_this_process() {
        let manual = ManualClock::at(Timestamp::from_secs(1_000_000));
        let store = StoreClock::new(manual.clone(), Duration::from_secs(60));
        manual.advance(Duration::from_secs(3_600));
        assert_eq!(store.follow_host(), manual.now());
        assert!(store.may_remove());
        for jump in [-3_600_000, 3_600_000] {
            manual.jump(jump);
            assert_eq!(store.follow_host(), manual.now());
            assert!(!store.may_remove(), "{jump}");
            manual.advance(Duration::from_secs(60));
            assert_eq!(store.follow_host(), manual.now());
            assert!(store.may_remove(), "{jump}");
        }
    }

    #[test]
    fn two_seconds_are_tolerated() {
        let (manual, store) = clocks();
        manual.jump(2_000);
        store.observe(manual.now(), Duration::ZERO);
        assert!(store.may_remove());
    }
}
