//! What the crowd makes of what comes back: remember it, or try again somewhere else.

use std::time::Duration;

use tokio::{task::JoinError, time::Instant};

use super::{
    Crowd,
    errand::{Errand, Event, Landed, Outcome},
    number,
};
use crate::simulate::client::{BeatAnswer, Failure, wait_before_retry};

impl Crowd {
    pub(super) fn landed(&mut self, landed: Result<Landed, JoinError>) {
        let Landed { errand, outcome } = match landed {
            Ok(landed) => landed,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only dropping the set cancels a request, and the set is in use.
                Err(_) => return,
            },
        };
        let now = Instant::now();
        self.in_flight[errand.target] -= 1;
        if !errand.is_play() && !self.is_here(errand.seat, errand.viewer) {
            self.last_of_leavers = Some(now);
        }
        match outcome {
            Outcome::Beat(Ok(answer)) => self.beat_landed(errand, &answer, now),
            Outcome::Play(Ok(answer)) => {
                self.targets.heard(errand.target, true, now);
                self.ledger.play_answered(errand.video, answer, errand.tried);
            }
            Outcome::Beat(Err(failure)) | Outcome::Play(Err(failure)) => self.failed(errand, &failure, now),
        }
    }

    fn beat_landed(&mut self, errand: Errand, answer: &BeatAnswer, now: Instant) {
        self.targets.heard(errand.target, true, now);
        self.ledger.beat_answered(errand.video, answer.online);
        let asked = answer.next_heartbeat_seconds.unwrap_or_default();
        self.pace.beat(now.saturating_duration_since(self.start), asked);
        if asked == 0 {
            return;
        }
        self.usual = self.usual.min(asked);
        let every = self.audience.heartbeat_every();
        let wanted = interval(every, Duration::from_secs(asked), self.usual, self.obey_next);
        if wanted > every && self.is_wanted(&errand) {
            let at = (now + wanted).saturating_duration_since(self.start).as_millis();
            self.seats[errand.seat.index()].not_before = u32::try_from(at).unwrap_or(u32::MAX);
        }
    }

    fn failed(&mut self, errand: Errand, failure: &Failure, now: Instant) {
        self.targets.heard(errand.target, failure.is_answer(), now);
        let next = Errand {
            target: self.targets.after(errand.target),
            failures: errand.failures.saturating_add(1),
            tried: errand.tried || failure.may_have_worked(),
            ..errand
        };
        if failure.is_transient() && self.is_wanted(&errand) {
            if !errand.is_play() {
                self.seats[errand.seat.index()].target = number(next.target);
            }
            self.client.stats.retried(errand.kind());
            let wait = wait_before_retry(next.failures, failure.retry_after(), rand::random());
            self.schedule.push(now + wait, Event::Again(Box::new(next)));
        } else if errand.is_play() {
            self.ledger.play_unanswered(errand.video, next.tried);
        }
    }
}

/// How long a viewer who beats `every` waits after it was asked for `asked`, by a service that usually
/// asks for `usual` seconds: as much longer as `asked` is than that, or, `literally`, so long.
fn interval(every: Duration, asked: Duration, usual: u64, literally: bool) -> Duration {
    if literally {
        return asked;
    }
    // However rarely the viewer beats anyway, no more rarely than was asked for.
    let longer = asked.div_duration_f64(Duration::from_secs(usual));
    every.mul_f64(longer).min(asked.max(every))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_slows_down_as_much_as_is_asked_for_and_not_at_the_usual_interval() {
        let secs = Duration::from_secs;
        assert_eq!(interval(secs(5), secs(30), 30, false), secs(5));
        assert_eq!(interval(secs(5), secs(120), 30, false), secs(20));
        assert_eq!(interval(secs(60), secs(120), 30, false), secs(120));
        assert_eq!(interval(secs(300), secs(120), 30, false), secs(300));
        assert_eq!(interval(secs(5), secs(30), 30, true), secs(30));
    }
}
