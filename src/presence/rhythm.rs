//! In which rhythm players are asked to beat, and the slowest that may still be kept.
//!
//! Under pressure they are asked to beat less often, down to three times a window. That changes what
//! "everybody has had the time to beat twice" means, for as long as anybody may still keep to it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    clock::{Clock, millis},
    store::time::Caution,
};

/// Hidden browser tabs beat about once a minute, whatever they were told.
const HIDDEN_TAB_BEAT: Duration = Duration::from_secs(60);

/// Up to this pressure, of 1, players keep their usual rhythm.
const AT_EASE: f64 = 0.5;

/// The rhythm of the players of this instance.
pub struct Rhythm {
    usual: Duration,
    slowest: Duration,
    window: Duration,
    clock: Arc<dyn Clock>,
    /// What players are asked for, in milliseconds.
    next: AtomicU64,
    /// When they were last asked for more than they may take anyway: monotonic milliseconds and 1, or
    /// 0 for never.
    slowed: AtomicU64,
    /// Until when players of other instances may keep a slower rhythm: monotonic milliseconds.
    heard: AtomicU64,
}

impl Rhythm {
    /// A beat every `usual`, and three a window at least.
    #[must_use]
    pub fn new(usual: Duration, window: Duration, clock: Arc<dyn Clock>) -> Self {
        let slowest = (window / 3).max(usual);
        let next = AtomicU64::new(millis(usual));
        Self { usual, slowest, window, clock, next, slowed: AtomicU64::new(0), heard: AtomicU64::new(0) }
    }

    /// How long to wait until the next beat.
    #[must_use]
    pub fn next(&self) -> Duration {
        Duration::from_millis(self.next.load(Ordering::Relaxed))
    }

    /// Asks for what fits a pressure from 0 to 1.
    pub fn press(&self, pressure: f64) {
        let share = ((pressure - AT_EASE) / (1.0 - AT_EASE)).clamp(0.0, 1.0);
        let next = self.usual + self.slowest.saturating_sub(self.usual).mul_f64(share);
        if next > self.usually_longest() {
            self.slowed.store(millis(self.clock.monotonic()) + 1, Ordering::Relaxed);
        }
        self.next.store(millis(next), Ordering::Relaxed);
    }

    /// The longest time that may pass between two beats of somebody who is watching: after players
    /// were slowed down, for a whole window the longest they may have been asked for.
    #[must_use]
    pub fn longest_interval(&self) -> Duration {
        let usually = self.usually_longest();
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
        let is_slowed = self.own_lasts().is_some() || self.clock.monotonic() < heard;
        if is_slowed { usually.max(self.slowest) } else { usually }
    }

    /// For how much longer players may keep to a slower rhythm that they were asked for here.
    #[must_use]
    pub fn own_lasts(&self) -> Option<Duration> {
        let slowed = Duration::from_millis(self.slowed.load(Ordering::Relaxed).checked_sub(1)?);
        (slowed + self.window).checked_sub(self.clock.monotonic())
    }

    /// Players of another instance may keep to a slower rhythm for so much longer.
    pub fn heard(&self, lasts: Duration) {
        self.heard.fetch_max(millis(self.clock.monotonic() + lasts), Ordering::Relaxed);
    }

    /// So long after a gap a low number isn't believed: everybody has beaten twice by then.
    #[must_use]
    pub fn doubt(&self) -> Duration {
        self.longest_interval() * 2
    }

    /// For how long nobody is removed after a jump of a clock: two beats of those who don't hide.
    #[must_use]
    pub fn caution(&self) -> Duration {
        let slowed = self.longest_interval() > self.usually_longest();
        2 * if slowed { self.slowest } else { self.usual.max(self.next()) }
    }

    fn usually_longest(&self) -> Duration {
        self.usual.max(HIDDEN_TAB_BEAT)
    }
}

impl From<Arc<Rhythm>> for Caution {
    fn from(rhythm: Arc<Rhythm>) -> Self {
        Self::of(move || rhythm.caution())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, Timestamp};

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn rhythm() -> (Rhythm, Arc<ManualClock>) {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        (Rhythm::new(secs(30), secs(600), clock.clone()), clock)
    }

    #[test]
    fn the_interval_grows_with_the_pressure_to_a_third_of_the_window_and_comes_back() {
        let (rhythm, _) = rhythm();
        assert_eq!(rhythm.next(), secs(30));
        let mut before = secs(30);
        for percent in 0..=100 {
            rhythm.press(f64::from(percent) / 100.0);
            let next = rhythm.next();
            assert!(next >= before && next <= before + secs(4), "{before:?} to {next:?}");
            assert!(percent > 50 || next == secs(30), "{next:?} at ease");
            before = next;
        }
        assert_eq!(before, secs(200));
        rhythm.press(0.0);
        assert_eq!(rhythm.next(), secs(30));
    }

    #[test]
    fn a_window_of_three_beats_leaves_no_room_to_slow_down() {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let rhythm = Rhythm::new(secs(30), secs(90), clock);
        rhythm.press(1.0);
        assert_eq!((rhythm.next(), rhythm.longest_interval()), (secs(30), secs(60)));
    }

    #[test]
    fn a_slow_rhythm_is_reckoned_with_until_nobody_can_keep_to_it_any_more() {
        let (rhythm, clock) = rhythm();
        assert_eq!(
            (rhythm.longest_interval(), rhythm.doubt(), rhythm.caution()),
            (secs(60), secs(120), secs(60))
        );
        // No slower than a hidden tab.
        rhythm.press(0.58);
        assert_eq!(rhythm.longest_interval(), secs(60));
        assert_eq!(rhythm.caution(), 2 * rhythm.next(), "two beats, as they are asked for");
        rhythm.press(0.7);
        assert_eq!(
            (rhythm.longest_interval(), rhythm.doubt(), rhythm.caution()),
            (secs(200), secs(400), secs(400))
        );
        rhythm.press(0.0);
        clock.advance(secs(600));
        assert_eq!(rhythm.longest_interval(), secs(200));
        clock.advance(secs(1));
        assert_eq!((rhythm.longest_interval(), rhythm.caution()), (secs(60), secs(60)));
        rhythm.heard(secs(100));
        rhythm.heard(secs(50));
        clock.advance(secs(99));
        assert_eq!(rhythm.longest_interval(), secs(200));
        clock.advance(secs(1));
        assert_eq!(rhythm.longest_interval(), secs(60));
    }
}
