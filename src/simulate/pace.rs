//! How often the viewers beat in the course of a run, and what the service asked for meanwhile: so that
//! a run shows how load falls where players are asked to slow down.

use std::{fmt, time::Duration};

/// Parts into which a run is divided.
const PARTS: u32 = 12;

/// What came in each part of a run.
#[derive(Debug)]
pub(super) struct Pace {
    part: Duration,
    parts: [Part; PARTS as usize],
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    beats: u64,
    /// The longest interval asked for, in seconds.
    asked: u64,
}

impl Pace {
    /// For a run of `duration`.
    pub(super) fn over(duration: Duration) -> Self {
        Self { part: duration / PARTS, parts: [Part::default(); PARTS as usize] }
    }

    /// A beat was answered at this time of the run, with the interval to keep. What comes after the run
    /// isn't part of it.
    pub(super) fn beat(&mut self, at: Duration, asked: u64) {
        let index = at.as_nanos() / self.part.as_nanos().max(1);
        let part = usize::try_from(index).ok().and_then(|index| self.parts.get_mut(index));
        if let Some(part) = part {
            part.beats += 1;
            part.asked = part.asked.max(asked);
        }
    }

    /// Whether the service asked for a longer interval at some time than at another.
    pub(super) fn was_slowed(&self) -> bool {
        let asked = self.parts.iter().map(|part| part.asked).filter(|asked| *asked > 0);
        asked.clone().min() < asked.max()
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "beats/s, and the interval that was asked for:")?;
        for (part, number) in self.parts.iter().zip(0_u32..) {
            #[expect(clippy::cast_precision_loss, reason = "a rate to be read by people")]
            let rate = part.beats as f64 / self.part.as_secs_f64().max(1e-9);
            let from = (self.part * number).as_secs_f64();
            write!(formatter, "\n  from {from:>6.1} s  {rate:>9.1}/s  {:>4} s", part.asked)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_run_has_its_rate_and_what_was_asked_for() {
        let mut pace = Pace::over(Duration::from_secs(120));
        for second in 0..120 {
            pace.beat(Duration::from_secs(second), 30);
        }
        assert!(!pace.was_slowed());
        pace.beat(Duration::from_secs(119), 60);
        pace.beat(Duration::from_secs(120), 90);
        assert!(pace.was_slowed());
        let text = pace.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 13);
        assert_eq!(lines[1], "  from    0.0 s        1.0/s    30 s");
        assert_eq!(lines[12], "  from  110.0 s        1.1/s    60 s");
    }
}
