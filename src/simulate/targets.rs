//! Which instance a request goes to: the viewer's own, unless that one doesn't answer.
//!
//! Stands for the load balancer in front of a real deployment. Without it every viewer of a killed
//! instance would have to find out alone, at five seconds each, and be counted as gone meanwhile.

use std::time::Duration;

use tokio::time::Instant;

/// How often an instance that doesn't answer is tried again.
const PROBE_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Targets {
    states: Vec<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Answers,
    /// The last thing heard was nothing. One request at a time goes there, to see.
    Silent {
        next_probe: Instant,
    },
}

impl Targets {
    pub(super) fn new(number: usize) -> Self {
        Self { states: vec![State::Answers; number] }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn after(&self, target: usize) -> usize {
        (target + 1) % self.states.len()
    }

    /// `wanted`, or the next one that answers, or `wanted` if none does.
    pub(super) fn pick(&mut self, wanted: usize, now: Instant) -> usize {
        let number = self.states.len();
        let mut in_turn = (wanted..number).chain(0..wanted);
        let usable = in_turn.find(|&target| match &mut self.states[target] {
            State::Answers => true,
            State::Silent { next_probe } if *next_probe <= now => {
                *next_probe = now + PROBE_EVERY;
                true
            }
            State::Silent { .. } => false,
        });
        usable.unwrap_or(wanted)
    }

    /// An answer is an answer, even 503.
    pub(super) fn heard(&mut self, target: usize, answered: bool, now: Instant) {
        self.states[target] = match self.states[target] {
            _ if answered => State::Answers,
            State::Answers => State::Silent { next_probe: now + PROBE_EVERY },
            silent @ State::Silent { .. } => silent,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_where_they_belong_while_there_are_answers() {
        let now = Instant::now();
        let mut targets = Targets::new(3);
        assert_eq!([0, 1, 2].map(|wanted| targets.pick(wanted, now)), [0, 1, 2]);
    }

    #[test]
    fn a_silent_instance_is_left_but_for_a_probe() {
        let now = Instant::now();
        let mut targets = Targets::new(3);
        targets.heard(2, false, now);

        assert_eq!(targets.pick(2, now), 0, "the next one, around the corner");
        let later = now + PROBE_EVERY;
        assert_eq!(targets.pick(2, later), 2, "one request to see whether it is back");
        assert_eq!(targets.pick(2, later), 0, "and only one");

        targets.heard(2, true, later);
        assert_eq!(targets.pick(2, later), 2);
    }

    #[test]
    fn silence_everywhere_stops_nobody() {
        let now = Instant::now();
        let mut targets = Targets::new(2);
        targets.heard(0, false, now);
        targets.heard(1, false, now);
        assert_eq!([0, 1].map(|wanted| targets.pick(wanted, now)), [0, 1]);
    }
}
