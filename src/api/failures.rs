//! The log of failed requests: what goes wrong is said at once, and then once a second.
//!
//! With its store away an instance refuses tens of thousands of requests a second; a line for each
//! would be the next outage.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use super::{code::Code, problem::Failure};

/// At most one line for each code in so many milliseconds.
const QUIET_MILLIS: u64 = 1_000;

/// Logs failures, few of each kind.
#[derive(Debug)]
pub(super) struct FailureLog {
    started: Instant,
    kinds: [Kind; 4],
}

#[derive(Debug, Default)]
struct Kind {
    /// When the next line may be written, in milliseconds since the start.
    next: AtomicU64,
    /// How many were not written since the last one that was.
    hidden: AtomicU64,
}

impl FailureLog {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), kinds: Default::default() }
    }

    /// Writes a line for `failure`, unless one like it was written just now.
    pub(super) fn log(&self, route: &'static str, failure: &Failure) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let Some(hidden) = self.kind(failure.code).admit(now) else { return };
        let code = failure.code.contract().1;
        tracing::error!(
            http.route = route,
            http.code = code,
            http.hidden = hidden,
            "{route} answered {code}: {} ({hidden} more since the last such line)",
            failure.cause,
        );
    }

    fn kind(&self, code: Code) -> &Kind {
        let index = match code {
            Code::Unavailable => 0,
            Code::Overloaded => 1,
            Code::Timeout => 2,
            _ => 3,
        };
        &self.kinds[index]
    }
}

impl Kind {
    /// How many were hidden since the last line, if a line may be written at `now`.
    fn admit(&self, now: u64) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let won = now >= next
            && self
                .next
                .compare_exchange(next, now + QUIET_MILLIS, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if won {
            return Some(self.hidden.swap(0, Ordering::Relaxed));
        }
        self.hidden.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_logged_and_then_one_a_second_with_the_number_of_the_others() {
        let kind = Kind::default();
        assert_eq!(kind.admit(0), Some(0));
        for millis in 1..1_000 {
            assert_eq!(kind.admit(millis), None);
        }
        assert_eq!(kind.admit(1_000), Some(999));
        assert_eq!(kind.admit(1_001), None);
        assert_eq!(kind.admit(60_000), Some(1));
    }

    #[test]
    fn one_kind_of_failure_does_not_hide_another() {
        let log = FailureLog::new();
        assert_eq!(log.kind(Code::Unavailable).admit(0), Some(0));
        assert_eq!(log.kind(Code::Internal).admit(0), Some(0));
    }
}
