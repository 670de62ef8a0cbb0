//! Too much to do: how that is noticed, and what is done about it.
//!
//! A request waits before anybody looks at it: its bytes in the socket, then its task behind the
//! others. That wait is measured by a request of our own, a byte through a socket every 20 ms, from a thread
//! that doesn't wait with them: what hasn't come back yet has waited for so long already. Where it stays over
//! `server.max_delay`, a share of the requests is refused at once, before their bodies are
//! read: as large a share as it takes for the others to wait no longer (a controller with an integral
//! and a proportional part, since a queue that isn't served adds up). Long before, and by the depth of
//! the queues before the stores as well, players are asked to beat less often.

mod gate;
mod probe;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

pub use self::gate::Gate;
use super::refusals::Told;

/// How often the wait is measured.
const EVERY: Duration = Duration::from_millis(20);

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
    pulse: Pulse,
    press: impl Fn(f64) -> Duration,
    stopping: CancellationToken,
) {
    let echo = match probe::measure(gate.clone()) {
        Ok(echo) => echo,
        Err(error) => {
            tracing::error!(error = %error, "overload can't be measured: {error}; no request is refused for it");
            return stopping.cancelled().await;
        }
    };
    // The thread ends when nobody answers it any more.
    let telling = tell(&gate, queues, pulse, press);
    let _ = stopping.run_until_cancelled(async { tokio::join!(probe::answer(echo), telling) }).await;
}

/// Tells what was measured: players, operators, the log.
async fn tell(gate: &Gate, queues: Vec<Queue>, mut pulse: Pulse, press: impl Fn(f64) -> Duration) {
    let delay = metrics::gauge!("headcount_scheduling_delay_seconds");
    let asked = metrics::gauge!("headcount_next_heartbeat_seconds");
    let (told, mut last) = (Told::default(), Instant::now());
    loop {
        tokio::time::sleep(EVERY).await;
        let after = last.elapsed();
        last = Instant::now();
        let waited = gate.waited();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::presence::rhythm::Rhythm;

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
    async fn while_a_queue_is_full_players_are_told_to_wait_longer_and_then_less_again() {
        let (usual, window) = (Duration::from_secs(30), Duration::from_secs(600));
        let rhythm = Rhythm::new(usual, window, crate::clock::SystemClock::start());
        let full = Arc::new(AtomicBool::new(true));
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
