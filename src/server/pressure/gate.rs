//! Refuses as large a share of the requests as it takes for the others not to wait too long.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;

/// The shortest of so many measurements counts: one that is over by the next is a hiccup.
const WAITS: usize = 3;

/// By how much of all requests the refused share changes in a second of waits twice as long as they
/// may be...
const INTEGRAL: f64 = 1.0;

/// ...and at once.
const PROPORTIONAL: f64 = 0.4;

/// Some are let through whatever happens: one that is refused again and again is let in at last.
const MOST_REFUSED: f64 = 0.95;

/// Decides whether a request is let in.
pub struct Gate {
    /// Of 2³² requests, so many are refused.
    share: AtomicU32,
    /// Refuses evenly: when it flows over, a request is refused.
    debt: AtomicU32,
    control: Mutex<Control>,
}

struct Control {
    /// How long requests may wait, in seconds.
    most: f64,
    /// The last waits, in seconds.
    waits: [f64; WAITS],
    next: usize,
    integral: f64,
}

impl Gate {
    /// For waits of up to `most`.
    #[must_use]
    pub fn new(most: Duration) -> Self {
        let control = Control { most: most.as_secs_f64(), waits: [0.0; WAITS], next: 0, integral: 0.0 };
        Self { share: AtomicU32::new(0), debt: AtomicU32::new(0), control: Mutex::new(control) }
    }

    /// Whether the next request is let in.
    pub fn admits(&self) -> bool {
        let share = self.share.load(Ordering::Relaxed);
        share == 0 || self.debt.fetch_add(share, Ordering::Relaxed).checked_add(share).is_some()
    }

    /// Takes note of a wait, so long after the one before.
    pub fn observe(&self, waited: Duration, after: Duration) {
        let share = self.control.lock().observe(waited.as_secs_f64(), after.as_secs_f64());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share is 0 to under 1, and so under 2^32"
        )]
        self.share.store((share * f64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }

    /// How long requests wait until they are looked at, as it was last measured.
    #[must_use]
    pub fn waited(&self) -> Duration {
        let control = self.control.lock();
        let last = (control.next + WAITS - 1) % WAITS;
        Duration::from_secs_f64(control.waits[last])
    }

    /// The share of requests that is refused.
    #[must_use]
    pub fn refused(&self) -> f64 {
        f64::from(self.share.load(Ordering::Relaxed)) / f64::from(u32::MAX)
    }

    /// How near the wait is to what it may be: 1 where requests are refused.
    #[must_use]
    pub fn level(&self) -> f64 {
        let control = self.control.lock();
        if control.integral > 0.0 { 1.0 } else { (control.wait() / control.most).min(1.0) }
    }
}

impl Control {
    fn wait(&self) -> f64 {
        self.waits.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn observe(&mut self, waited: f64, after: f64) -> f64 {
        self.waits[self.next] = waited;
        self.next = (self.next + 1) % WAITS;
        let over = (self.wait() / self.most - 1.0).clamp(-1.0, 2.0);
        // However long nothing was measured, it is one measurement.
        self.integral = (self.integral + INTEGRAL * over * after.min(0.2)).clamp(0.0, MOST_REFUSED);
        (self.integral + PROPORTIONAL * over).clamp(0.0, MOST_REFUSED)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::EVERY, *};

    const MOST: Duration = Duration::from_millis(20);

    fn refused_of(gate: &Gate, requests: u32) -> u32 {
        (0..requests).map(|_| u32::from(!gate.admits())).sum()
    }

    fn observe(gate: &Gate, waited: u64, times: u32) {
        for _ in 0..times {
            gate.observe(Duration::from_millis(waited), EVERY);
        }
    }

    #[test]
    fn nothing_is_refused_while_waits_are_short_and_none_for_a_single_long_one() {
        let gate = Gate::new(MOST);
        observe(&gate, 19, 1_000);
        assert_eq!(refused_of(&gate, 1_000), 0);
        observe(&gate, 5_000, 1);
        assert_eq!(refused_of(&gate, 1_000), 0);
    }

    #[test]
    fn the_longer_requests_wait_the_more_are_refused_but_never_all_and_none_when_it_is_over() {
        let gate = Gate::new(MOST);
        let mut before = 0;
        for _ in 0..10 {
            observe(&gate, 30, 10);
            let refused = refused_of(&gate, 10_000);
            assert!(refused >= before, "{refused} after {before}");
            before = refused;
        }
        assert!(before > 5_000, "{before}");
        observe(&gate, 1_000, 1_000);
        assert!((9_490..=9_510).contains(&refused_of(&gate, 10_000)), "evenly");
        observe(&gate, 0, 100);
        assert_eq!(refused_of(&gate, 1_000), 0);
    }

    /// One server, its queue and what comes twice as fast as it can be done, from one moment to the next:
    /// how long those let in wait, and how many there are of 20 s.
    fn overloaded(micros: u64, refused_micros: u64) -> (Vec<u64>, u64) {
        let gate = Gate::new(MOST);
        let mut queue = std::collections::VecDeque::new();
        let (mut now, mut next_arrival, mut next_look) = (0_u64, 0_u64, 0_u64);
        let (mut waits, mut refused) = (Vec::new(), 0_u64);
        while now < 20_000_000 {
            while next_arrival <= now {
                queue.push_back(next_arrival);
                next_arrival += micros / 2;
            }
            if now >= next_look {
                let waited = queue.front().map_or(0, |came| now - came);
                gate.observe(Duration::from_micros(waited), EVERY);
                next_look += 20_000;
            }
            let Some(came) = queue.pop_front() else {
                now = next_arrival;
                continue;
            };
            if gate.admits() {
                waits.push(now - came);
                now += micros;
            } else {
                refused += 1;
                now += refused_micros;
            }
        }
        waits.sort_unstable();
        (waits, refused)
    }

    #[test]
    fn at_twice_what_can_be_done_those_let_in_wait_little_and_most_of_the_capacity_is_theirs() {
        for (micros, refused_micros) in [(20, 6), (200, 6), (2_000, 20)] {
            let (waits, refused) = overloaded(micros, refused_micros);
            let (p99, accepted) = (waits[waits.len() * 99 / 100], waits.len() as u64);
            assert!(p99 <= 50_000, "of {micros} µs each: p99 {p99} µs");
            // What is left for them once all others are refused.
            let all = 2 * 20_000_000 / micros;
            let possible = (20_000_000 - all * refused_micros) / (micros - refused_micros);
            assert!(accepted * 100 >= possible * 95, "{accepted} of {possible}");
            assert!(refused >= possible, "{refused} refused, {accepted} accepted");
        }
    }
}
