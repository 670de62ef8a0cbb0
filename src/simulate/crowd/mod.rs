//! The audience at work: sends what is due, takes what comes back, sends again what failed.
//!
//! One task owns all of it and holds a bounded number of requests in flight. Beats are due at fixed
//! moments, whatever became of those before: a slow service is not let off lightly. A beat that failed is
//! sent again until the viewer's next one is due, which does the same work.

mod answers;
mod errand;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until},
};

use self::errand::{Errand, Event, Landed, Outcome, Place, What};
use super::{
    audience::{Audience, Change, Seat, Viewer, Visit},
    client::Client,
    ledger::Ledger,
    pace::Pace,
    report::Progress,
    schedule::Schedule,
    targets::Targets,
};

/// Who sits where, what they are to do next, and which of it is under way.
pub(super) struct Crowd {
    audience: Audience,
    client: Arc<Client>,
    start: Instant,
    seats: Vec<Place>,
    schedule: Schedule<Event>,
    /// For each target, what is due and waits for a free slot. A viewer has at most one beat here and
    /// one play of each video, so it is bounded by the audience.
    waiting: Vec<VecDeque<(Instant, Errand)>>,
    in_flight: Vec<usize>,
    most_in_flight: usize,
    targets: Targets,
    flights: JoinSet<Landed>,
    /// The change that is due next, with its number.
    upcoming: Option<(u32, Change)>,
    obey_next: bool,
    /// The shortest interval that the service asked for, in seconds: its usual one.
    usual: u64,
    pub(super) pace: Pace,
    beating: bool,
    playing: bool,
    last_of_leavers: Option<Instant>,
    /// Beats that were due while the viewer's last one still waited for a slot, and so were not sent.
    pub(super) missed: u64,
    pub(super) ledger: Ledger,
    pub(super) progress: Progress,
    ticks: Interval,
}

impl Crowd {
    pub(super) fn new(
        audience: Audience,
        client: Arc<Client>,
        most_in_flight: usize,
        obey_next: bool,
    ) -> Self {
        let targets = client.targets();
        let mut ticks = interval(Duration::from_millis(500));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            start: Instant::now(),
            seats: Vec::with_capacity(audience.seats() as usize),
            schedule: Schedule::new(),
            waiting: vec![VecDeque::new(); targets],
            in_flight: vec![0; targets],
            most_in_flight,
            targets: Targets::new(targets),
            flights: JoinSet::new(),
            upcoming: None,
            obey_next,
            usual: u64::MAX,
            pace: Pace::over(audience.duration()),
            beating: true,
            playing: true,
            last_of_leavers: None,
            missed: 0,
            ledger: Ledger::new(audience.videos().count()),
            progress: Progress::new(audience.duration()),
            ticks,
            audience,
            client,
        }
    }

    /// The clock of the plan begins to run: everybody is seated.
    pub(super) fn enter(&mut self) {
        // A million take a while to be seated; the first of them would be late.
        const SEATING: Duration = Duration::from_micros(3);
        self.start = Instant::now() + SEATING * self.audience.seats();
        self.progress.begin();
        // A copy, as seating changes what the plan is read from.
        let audience = self.audience.clone();
        self.schedule.reserve(audience.seats() as usize * (1 + audience.plays_per_viewer() as usize));
        for visit in audience.first() {
            self.seats.push(self.place(&visit));
            self.expect(&visit);
        }
        self.expect_change(0);
    }

    /// When the last change is over.
    pub(super) fn end(&self) -> Instant {
        self.start + self.audience.duration()
    }

    /// When a leaver last left, or was last heard of in an answer to a request still under way.
    pub(super) fn last_of_leavers(&self) -> Option<Instant> {
        self.last_of_leavers
    }

    /// Viewers of each video.
    pub(super) fn present(&self) -> Vec<u64> {
        let mut present = vec![0; self.audience.videos().count()];
        for place in &self.seats {
            present[place.video.index()] += 1;
        }
        present
    }

    /// Goes on until `until` is done; cancelled, it leaves everything in order.
    pub(super) async fn drive<Until: Future>(&mut self, until: Until) -> Until::Output {
        const IDLE: Duration = Duration::from_hours(1);
        let mut until = std::pin::pin!(until);
        loop {
            let now = Instant::now();
            self.take_due(now);
            self.send_waiting(now);
            let next = self.schedule.next_at().unwrap_or(now + IDLE);

            tokio::select! {
                output = &mut until => return output,
                Some(landed) = self.flights.join_next() => {
                    self.landed(landed);
                    while let Some(landed) = self.flights.try_join_next() {
                        self.landed(landed);
                    }
                }
                () = sleep_until(next) => {}
                _ = self.ticks.tick() => self.show(),
            }
        }
    }

    /// Ends the beats; plays go on being tried.
    pub(super) fn stop_beats(&mut self) {
        // Or a viewer whose leaving is not yet seen to would play after it.
        self.take_due(self.end());
        self.beating = false;
        self.schedule.retain(|event| match event {
            Event::Play(..) => true,
            Event::Again(errand) => errand.is_play(),
            Event::Beat(..) | Event::Change => false,
        });
        for queue in &mut self.waiting {
            queue.retain(|(_, errand)| errand.is_play());
        }
    }

    /// Writes off the plays that are still unanswered, once those in flight have landed. What else is
    /// in flight is waited for only when there are no more beats.
    pub(super) async fn end_plays(&mut self) {
        self.playing = false;
        let ledger = &mut self.ledger;
        let mut write_off = |errand: &Errand| {
            if errand.is_play() {
                ledger.play_unanswered(errand.video, errand.tried);
            }
            !errand.is_play()
        };
        self.schedule.retain(|event| match event {
            Event::Again(errand) => write_off(errand),
            // Was not even begun.
            Event::Play(..) => false,
            Event::Beat(..) | Event::Change => true,
        });
        for queue in &mut self.waiting {
            queue.retain(|(_, errand)| write_off(errand));
        }
        // Ends by itself: every request has its timeout, and none is sent again.
        while self.ledger.open() > 0 || !self.beating && !self.flights.is_empty() {
            self.drive(sleep(Duration::from_millis(20))).await;
        }
    }

    fn place(&self, visit: &Visit) -> Place {
        let target = visit.viewer.0 % self.targets.len() as u64;
        Place {
            viewer: visit.viewer,
            video: visit.video,
            target: u32::try_from(target).expect("it is under the number of targets"),
            round: 0,
            beat_waits: false,
            not_before: 0,
        }
    }

    fn expect(&mut self, visit: &Visit) {
        let Visit { seat, viewer, .. } = *visit;
        self.schedule.push(self.start + visit.enters, Event::Beat(seat, viewer));
        for &(at, video) in &visit.plays {
            self.schedule.push(self.start + at, Event::Play(seat, viewer, video));
        }
    }

    fn expect_change(&mut self, number: u32) {
        self.upcoming = self.audience.change(number).map(|change| (number, change));
        if let Some((_, change)) = &self.upcoming {
            self.schedule.push(self.start + change.at, Event::Change);
        }
    }

    fn is_here(&self, seat: Seat, viewer: Viewer) -> bool {
        self.seats[seat.index()].viewer == viewer
    }

    fn take_due(&mut self, now: Instant) {
        while let Some((due, event)) = self.schedule.pop_due(now) {
            self.happens(due, event);
        }
    }

    fn happens(&mut self, due: Instant, event: Event) {
        match event {
            Event::Beat(seat, viewer) if self.is_here(seat, viewer) => self.beat_is_due(due, seat),
            Event::Play(seat, viewer, video) if self.is_here(seat, viewer) => {
                let target = self.seats[seat.index()].target as usize;
                let what = What::Play;
                self.ledger.play_begun();
                let errand = Errand { what, seat, viewer, video, target, failures: 0, tried: false };
                self.waiting[target].push_back((due, errand));
            }
            Event::Beat(..) | Event::Play(..) => {}
            Event::Again(errand) => self.is_due_again(due, *errand),
            Event::Change => {
                let Some((number, change)) = self.upcoming.take() else { return };
                self.last_of_leavers = Some(Instant::now());
                self.seats[change.next.seat.index()] = self.place(&change.next);
                self.expect(&change.next);
                if let Some(next) = number.checked_add(1) {
                    self.expect_change(next);
                }
            }
        }
    }

    fn beat_is_due(&mut self, due: Instant, seat: Seat) {
        let place = &mut self.seats[seat.index()];
        let later = self.start + Duration::from_millis(std::mem::take(&mut place.not_before).into());
        if later > due {
            self.schedule.push(later, Event::Beat(seat, place.viewer));
            return;
        }
        self.schedule.push(due + self.audience.heartbeat_every(), Event::Beat(seat, place.viewer));
        if place.beat_waits {
            self.missed += 1;
            return;
        }
        place.round = place.round.wrapping_add(1);
        place.beat_waits = true;
        let &mut Place { viewer, video, target, round, .. } = place;
        let target = target as usize;
        let errand =
            Errand { what: What::Beat { round }, seat, viewer, video, target, failures: 0, tried: false };
        self.waiting[target].push_back((due, errand));
    }

    fn is_due_again(&mut self, due: Instant, errand: Errand) {
        match errand.what {
            What::Beat { .. } if !self.is_wanted(&errand) => return,
            What::Beat { .. } => self.seats[errand.seat.index()].beat_waits = true,
            What::Play => {}
        }
        self.waiting[errand.target].push_back((due, errand));
    }

    /// A beat is not when its viewer has left, or has had another one due since. A play is to the end.
    fn is_wanted(&self, errand: &Errand) -> bool {
        match errand.what {
            What::Beat { round } => {
                self.beating
                    && self.is_here(errand.seat, errand.viewer)
                    && self.seats[errand.seat.index()].round == round
            }
            What::Play => self.playing,
        }
    }

    fn send_waiting(&mut self, now: Instant) {
        for queue in 0..self.waiting.len() {
            while let Some(&(due, errand)) = self.waiting[queue].front() {
                if self.is_wanted(&errand) {
                    let target = self.targets.pick(queue, now);
                    if self.in_flight[target] >= self.most_in_flight {
                        break;
                    }
                    self.send(due, Errand { target, ..errand });
                }
                self.waiting[queue].pop_front();
            }
        }
    }

    fn send(&mut self, due: Instant, errand: Errand) {
        self.in_flight[errand.target] += 1;
        if !errand.is_play() {
            let place = &mut self.seats[errand.seat.index()];
            place.beat_waits = false;
            place.target = number(errand.target);
        }
        let client = Arc::clone(&self.client);
        self.flights.spawn(async move {
            let Errand { target, viewer, video, .. } = errand;
            let outcome = match errand.what {
                What::Beat { .. } => Outcome::Beat(client.beat(target, due, viewer, video).await),
                What::Play => Outcome::Play(client.play(target, due, viewer, video).await),
            };
            Landed { errand, outcome }
        });
    }

    fn show(&mut self) {
        let waiting = self.waiting.iter().map(VecDeque::len).sum();
        self.progress.show(self.client.stats.totals(), self.flights.len(), waiting);
    }
}

/// A target's number as a seat keeps it.
fn number(target: usize) -> u32 {
    u32::try_from(target).expect("there are no more targets than a command line holds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_viewer_takes_little_memory() {
        let to_come = crate::simulate::schedule::size_of_entry::<Event>();
        let viewer = size_of::<Place>() + 2 * to_come;
        assert!(viewer <= 128, "{viewer} bytes: a place, a beat and a play to come");
    }
}
