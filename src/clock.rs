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

use chrono::{DateTime, SecondsFormat, Utc};

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

    /// RFC 3339 in UTC, as it stands in answers.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        self.to_utc().to_rfc3339_opts(SecondsFormat::Secs, true)
    }

    /// The moment as a calendar date and time; the epoch where it is out of the calendar's range.
    #[must_use]
    pub fn to_utc(self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.0).unwrap_or(DateTime::UNIX_EPOCH)
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
