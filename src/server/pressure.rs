//! Too much to do: how that is noticed, and what is done about it.
//!
//! A request waits before anybody looks at it: its bytes in the socket, then its task behind the
//! others. That wait is measured by a request of our own, a byte through a socket every 20 ms. Where it
//! stays over `server.max_delay`, a share of the requests is refused at once, before their bodies are
//! read: as large a share as it takes for the others to wait no longer (a controller with an integral
//! and a proportional part, since a queue that isn't served adds up). Long before, and by the depth of
//! the queues before the stores as well, players are asked to beat less often.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tokio_util::sync::CancellationToken;

use super::refusals::Told;

/// How often the wait is measured.
const EVERY: Duration = Duration::from_millis(20);

/// The shortest of so many waits counts: a single long one is a hiccup.
const WAITS: usize = 3;

/// By how much of all requests the refused share changes in a second of waits twice as long as they
/// may be...
const INTEGRAL: f64 = 1.0;

/// ...and at once.
const PROPORTIONAL: f64 = 0.2;

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

/// A queue before a store: how full it is, from 0 to 1.
pub type Queue = Arc<dyn Fn() -> f64 + Send + Sync>;

/// The pressure as players are told of it: smoothed, or they would be sent to and fro together. What another
/// interval brings is seen only after one, so it rises as quickly as players beat, and falls as quickly as
/// the slowest of them do.
#[derive(Debug)]
pub struct Pulse {
    pressure: f64,
    rising: Duration,
    falling: Duration,
}

impl Pulse {
    /// Of players who beat every `usual`, and down to three times a `window`.
    #[must_use]
    pub fn new(usual: Duration, window: Duration) -> Self {
        Self { pressure: 0.0, rising: usual, falling: usual.max(window / 3) }
    }

    fn take(&mut self, level: f64, after: Duration) -> f64 {
        let pace = if level > self.pressure { self.rising } else { self.falling };
        self.pressure += (level - self.pressure) * (1.0 - (-after.div_duration_f64(pace)).exp());
        self.pressure
    }
}

/// Measures until `stopping`: for the gate, and for `press`, which is told the pressure from 0 to 1 and
/// answers how often players are asked to beat now.
pub async fn watch(
    gate: Arc<Gate>,
    queues: Vec<Queue>,
    mut pulse: Pulse,
    press: impl Fn(f64) -> Duration,
    stopping: CancellationToken,
) {
    let mut probe = match Probe::new() {
        Ok(probe) => probe,
        Err(error) => {
            tracing::error!(error = %error, "overload can't be measured: {error}; no request is refused for it");
            return stopping.cancelled().await;
        }
    };
    let delay = metrics::gauge!("headcount_scheduling_delay_seconds");
    let asked = metrics::gauge!("headcount_next_heartbeat_seconds");
    let (told, mut last) = (Told::default(), Instant::now());
    while stopping.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        let Ok(waited) = probe.wait().await else { continue };
        let after = last.elapsed();
        last = Instant::now();
        gate.observe(waited, after);
        let fullest = queues.iter().map(|queue| queue()).fold(gate.level(), f64::max);
        delay.set(waited.as_secs_f64());
        asked.set(press(pulse.take(fullest.clamp(0.0, 1.0), after)).as_secs_f64());
        if gate.refused() > 0.0 && told.again() {
            tracing::warn!(
                http.delay_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                http.refused = gate.refused(),
                "there is too much to do: requests wait {} ms until they are looked at, and some are refused",
                waited.as_millis(),
            );
        }
    }
}

/// A request of our own.
struct Probe {
    near: UnixStream,
    far: UnixStream,
}

impl Probe {
    fn new() -> std::io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        Ok(Self { near, far })
    }

    /// How long a byte waits until it is looked at.
    async fn wait(&mut self) -> std::io::Result<Duration> {
        self.near.write_all(&[1]).await?;
        let sent = Instant::now();
        // Asked for more than there is, so that the next has to be waited for as well: what fills its
        // buffer is read on without a look whether there is more.
        let mut read = [0; 8];
        let count = self.far.read(&mut read).await?;
        debug_assert!(count > 0, "the other end is open");
        Ok(sent.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::rhythm::Rhythm;

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

    /// One server, its queue and what comes twice as fast as it can be done.
    #[test]
    fn at_twice_what_can_be_done_those_let_in_wait_little_and_most_of_the_capacity_is_theirs() {
        const MICROS: u64 = 20;
        const REFUSED_MICROS: u64 = 6;
        let gate = Gate::new(MOST);
        let mut queue = std::collections::VecDeque::new();
        let (mut now, mut next_arrival, mut next_look) = (0_u64, 0_u64, 0_u64);
        let (mut waits, mut refused) = (Vec::new(), 0_u64);
        while now < 20_000_000 {
            while next_arrival <= now {
                queue.push_back(next_arrival);
                next_arrival += MICROS / 2;
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
            // The first seconds are for finding the share.
            let settled = now > 3_000_000;
            if gate.admits() {
                if settled {
                    waits.push(now - came);
                }
                now += MICROS;
            } else {
                refused += u64::from(settled);
                now += REFUSED_MICROS;
            }
        }
        waits.sort_unstable();
        let (accepted, p99) = (waits.len(), waits[waits.len() * 99 / 100]);
        assert!(p99 <= 50_000, "p99 {p99} µs");
        // 17 s of 50,000 a second, less what refusing costs.
        assert!((425_000..=525_000).contains(&accepted), "{accepted}");
        assert!(refused > 1_000_000, "{refused}");
    }

    #[test]
    fn players_are_slowed_down_soon_and_let_loose_slowly_and_never_by_leaps() {
        let mut pulse = Pulse::new(Duration::from_secs(30), Duration::from_secs(600));
        let mut before = 0.0;
        for _ in 0..4_500 {
            let now = pulse.take(1.0, EVERY);
            assert!(now >= before && now - before < 0.001, "{before} to {now}");
            before = now;
        }
        assert!(before > 0.9, "{before} after three beats");
        for _ in 0..10_000 {
            let now = pulse.take(0.0, EVERY);
            assert!(now <= before && before - now < 0.001, "{before} to {now}");
            before = now;
        }
        assert!((0.3..0.4).contains(&before), "{before} after the longest interval");
        for _ in 0..50_000 {
            before = pulse.take(0.0, EVERY);
        }
        assert!(before < 0.01, "{before} after five more");
    }

    #[tokio::test]
    async fn each_byte_is_waited_for_anew() {
        let mut probe = Probe::new().unwrap();
        for _ in 0..100 {
            assert!(probe.wait().await.unwrap() > Duration::ZERO);
        }
    }

    #[tokio::test]
    async fn while_a_queue_is_full_players_are_told_to_wait_longer_and_then_less_again() {
        let (usual, window) = (Duration::from_secs(30), Duration::from_secs(600));
        let rhythm = Rhythm::new(usual, window, crate::clock::SystemClock::start());
        let full = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let queue = {
            let full = full.clone();
            Arc::new(move || if full.load(Ordering::Relaxed) { 1.0 } else { 0.0 }) as Queue
        };
        let stopping = CancellationToken::new();
        // So patient that the machine this runs on has no part in it.
        let gate = Arc::new(Gate::new(Duration::from_secs(3_600)));
        let press = |pressure| {
            rhythm.press(pressure);
            rhythm.next()
        };
        // Beats every three seconds, for this to take no longer than that.
        let pulse = Pulse::new(Duration::from_secs(3), Duration::from_secs(9));
        let watching = watch(gate, vec![queue], pulse, press, stopping.clone());
        let told = async {
            while rhythm.next() < Duration::from_secs(31) {
                tokio::time::sleep(EVERY).await;
            }
            let most = rhythm.next();
            full.store(false, Ordering::Relaxed);
            while rhythm.next() >= most {
                tokio::time::sleep(EVERY).await;
            }
            stopping.cancel();
        };
        tokio::join!(watching, told);
    }
}
