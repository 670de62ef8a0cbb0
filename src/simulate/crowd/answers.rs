//! What the crowd makes of what comes back: remember it, or try again somewhere else.

use std::time::Duration;

use tokio::{task::JoinError, time::Instant};

use super::{
    Crowd,
    errand::{Errand, Event, Landed, Outcome},
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
        let asked = answer.next_heartbeat_seconds.map(Duration::from_secs);
        if let Some(asked) = asked
            && asked > self.audience.heartbeat_every()
            && self.obey_next
            && self.is_wanted(&errand)
        {
            self.seats[errand.seat.index()].not_before = Some(now + asked);
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
                self.seats[errand.seat.index()].target = next.target;
            }
            self.client.stats.retried(errand.kind());
            let wait = wait_before_retry(next.failures, failure.retry_after(), rand::random());
            self.schedule.push(now + wait, Event::Send(next));
        } else if errand.is_play() {
            self.ledger.play_unanswered(errand.video, next.tried);
        }
    }
}
