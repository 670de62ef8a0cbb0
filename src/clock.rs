//! Time, as the service sees it.
//!
//! The wall clock is asked at the edge and handed down as a [`Timestamp`]. What is kept in Redis is
//! counted in Redis's own time (see `store/time.rs`), so that instances whose clocks differ agree.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, Datelike, Timelike, Utc};

/// A moment in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// From seconds since the Unix epoch.
    #[must_use]
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    #[must_use]
    pub fn secs(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// How long after `earlier` this is; zero where it isn't after.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339 in UTC, as it stands in answers; the epoch where its year is none of four digits.
    #[must_use]
    pub fn rfc3339(self) -> Rfc3339 {
        // Without the zone: each look at a part of a zoned time reckons the whole of it anew.
        let utc = self.to_utc().naive_utc();
        let utc = if (0..=9999).contains(&utc.year()) { utc } else { DateTime::UNIX_EPOCH.naive_utc() };
        let year = utc.year().unsigned_abs();
        let [y1, y2] = digits(year / 100);
        let [y3, y4] = digits(year % 100);
        let [mo1, mo2] = digits(utc.month());
        let [d1, d2] = digits(utc.day());
        let [h1, h2] = digits(utc.hour());
        let [mi1, mi2] = digits(utc.minute());
        let [s1, s2] = digits(utc.second());
        Rfc3339([
            y1, y2, y3, y4, b'-', mo1, mo2, b'-', d1, d2, b'T', h1, h2, b':', mi1, mi2, b':', s1, s2, b'Z',
        ])
    }

    /// The moment as a calendar date and time; the epoch where it is out of the calendar's range.
    #[must_use]
    pub fn to_utc(self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.0).unwrap_or(DateTime::UNIX_EPOCH)
    }
}

/// The two digits of a number below 100.
fn digits(number: u32) -> [u8; 2] {
    let [tens, ..] = (number / 10).to_le_bytes();
    let [ones, ..] = (number % 10).to_le_bytes();
    [b'0' + tens, b'0' + ones]
}

/// A moment as text. A list of counts holds hundreds of them: they are written without a formatter and
/// without an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rfc3339([u8; 20]);

impl Rfc3339 {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and signs are ASCII")
    }
}

impl std::fmt::Display for Rfc3339 {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A duration in whole milliseconds, as Redis and atomics take it.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// The wall clock, which may jump.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment; never jumps and never goes back.
    fn monotonic(&self) -> Duration;

    /// The time that stores are to use instead of their own, or `None` to let them use their own.
    ///
    /// Only a test's clock answers `Some`: three hours then pass without waiting for them.
    fn overrides_stores(&self) -> Option<Timestamp> {
        None
    }
}

/// The machine's own clocks.
#[derive(Debug)]
pub struct SystemClock {
    started: std::time::Instant,
}

impl SystemClock {
    /// A clock whose monotonic side begins now.
    #[must_use]
    pub fn start() -> Arc<Self> {
        Arc::new(Self { started: std::time::Instant::now() })
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that asks the wall clock")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

/// A clock that moves only when told to, for tests of windows, sweeps and jumps.
#[derive(Debug)]
pub struct ManualClock {
    wall: AtomicI64,
    monotonic: AtomicI64,
}

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Arc<Self> {
        // The monotonic side begins an hour in, so that "an hour ago" can be told.
        Arc::new(Self { wall: AtomicI64::new(now.millis()), monotonic: AtomicI64::new(3_600_000) })
    }

    /// Lets `duration` pass.
    pub fn advance(&self, duration: Duration) {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        self.wall.fetch_add(millis, Ordering::SeqCst);
        self.monotonic.fetch_add(millis, Ordering::SeqCst);
    }

    /// Sets the wall clock off by `millis` while no time passes, as an operator or NTP may.
    pub fn jump(&self, millis: i64) {
        self.wall.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.wall.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.monotonic.load(Ordering::SeqCst)).unwrap_or(0))
    }

    fn overrides_stores(&self) -> Option<Timestamp> {
        Some(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_rfc_3339_in_utc() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
            (253_402_300_800, "1970-01-01T00:00:00Z"),
            (i64::MAX, "1970-01-01T00:00:00Z"),
            (i64::MIN, "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(Timestamp::from_secs(secs).rfc3339().as_str(), text);
        }
        assert_eq!(Timestamp::from_millis(1_999).rfc3339().to_string(), "1970-01-01T00:00:01Z");
    }
}
