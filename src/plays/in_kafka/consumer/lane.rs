//! One part of the topic, counted window by window.
//!
//! Whatever happens between two steps, the next try begins with what the database says: a window is
//! repeated until the answer is that it is counted, or that the position has moved.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use metrics::counter;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Again, Counting, Taken, lag::Lag};
use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    failpoint,
    plays::{
        in_kafka::window::Window,
        postgres::{
            positions::{Place, Position},
            window::{Outcome, Rules, Tally},
        },
    },
};

/// How often something is looked after while no record comes.
const IDLE: Duration = Duration::from_secs(1);

/// When what was seen is forgotten: after so many plays, or so long, whichever is first. One go forgets
/// more than these have brought, also where a backlog of years is counted within an hour.
const FORGET_AFTER: u64 = 20_000;
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// How a lane ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Everything that was taken is counted, or somebody else's.
    Done,
    /// The database is behind what this lane has counted: it came back older than it was.
    Rewound,
}

/// Tells Kafka how far a part is counted.
pub(super) type Tell = Box<dyn Fn(&Place, i64) -> Result<(), StoreError> + Send + Sync>;

/// One part of the topic.
pub(super) struct Lane {
    pub(super) counting: Arc<Counting>,
    pub(super) place: Place,
    pub(super) position: Position,
    /// Records before this one are not for this lane.
    pub(super) from: i64,
    /// Ends when no more are wanted.
    pub(super) records: mpsc::Receiver<Taken>,
    /// Cancelled where the part is somebody else's: what isn't counted yet is theirs.
    pub(super) given_up: CancellationToken,
    pub(super) lag: Lag,
    pub(super) tell: Tell,
}

/// What is remembered from one window to the next.
struct Care {
    /// Whether Redis's totals may lack something of what was counted before.
    unraised: bool,
    counted: u64,
    forgot: Instant,
}

impl Lane {
    /// Counts until there is no more to come.
    pub(super) async fn run(mut self) -> Ended {
        let unraised = self.position.unraised_since.is_some();
        // What whoever had this part before left to be forgotten is forgotten first.
        let mut care = Care { unraised, counted: FORGET_AFTER, forgot: Instant::now() };
        self.lag.counted(self.place.partition, self.position.next_offset, None);
        self.attend(&mut care).await;
        while let Some(taken) = self.gather(&mut care).await {
            match self.count(taken, &mut care).await {
                Some(Ended::Done) => {}
                Some(Ended::Rewound) => return Ended::Rewound,
                None => break,
            }
        }
        Ended::Done
    }

    /// The records of the next window; `None` where there are none to come.
    async fn gather(&mut self, care: &mut Care) -> Option<Vec<Taken>> {
        let settings = &self.counting.settings;
        let (time, most) = (settings.window, settings.window_records);
        let given_up = self.given_up.clone();
        let mut taken = Vec::new();
        loop {
            let coming = tokio::time::timeout(IDLE, self.records.recv_many(&mut taken, most));
            match given_up.run_until_cancelled(coming).await? {
                Ok(0) => return None,
                Ok(_) => break,
                Err(_idle) => self.attend(care).await,
            }
        }
        let until = Instant::now() + time;
        while taken.len() < most {
            let left = most - taken.len();
            let coming = tokio::time::timeout_at(until, self.records.recv_many(&mut taken, left));
            match given_up.run_until_cancelled(coming).await? {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        Some(taken)
    }

    /// Counts what was gathered; `None` where that was given up.
    async fn count(&mut self, taken: Vec<Taken>, care: &mut Care) -> Option<Ended> {
        let Some(last) = taken.last().map(|taken| taken.offset) else { return Some(Ended::Done) };
        self.put_aside(&taken).await?;
        let mut offsets = VecDeque::with_capacity(taken.len());
        let mut plays = Vec::with_capacity(taken.len());
        for taken in taken.into_iter().filter(|taken| taken.offset >= self.from) {
            if let Ok(received) = taken.content {
                offsets.push_back(taken.offset);
                plays.push(received);
            }
        }
        let mut window = Window { began: self.position.next_offset, next: last + 1, plays };
        let at = window.plays.last().map(|received| received.at);
        let mut again = Again::default();
        while window.next > self.from {
            match self.apply(&window, care).await {
                Ok(Outcome::Counted(tally)) => {
                    self.counting.trouble.over();
                    self.counted(&window, at, &tally, care).await;
                    break;
                }
                // Somebody else has counted here, or this call did and its answer was lost.
                Ok(Outcome::Moved(at)) if at >= window.began => match self.look_again().await {
                    Ok(position) => {
                        care.unraised = true;
                        self.from = position.next_offset;
                        let known = offsets.partition_point(|offset| *offset < self.from);
                        offsets.drain(..known);
                        window.plays.drain(..known);
                        window.began = position.next_offset;
                        self.position = position;
                        self.lag.counted(self.place.partition, self.from, None);
                    }
                    Err(error) => {
                        self.counting.trouble.failed(&error);
                        again.wait(&self.given_up).await?;
                    }
                },
                Ok(Outcome::Moved(_)) => return Some(Ended::Rewound),
                Err(error) => {
                    self.counting.trouble.failed(&error);
                    again.wait(&self.given_up).await?;
                }
            }
        }
        self.attend(care).await;
        Some(Ended::Done)
    }

    async fn apply(&self, window: &Window, care: &Care) -> Result<Outcome, StoreError> {
        let _turn = self.counting.turns.acquire().await;
        let began = Instant::now();
        let rules = Rules {
            dedupe_window: self.counting.dedupe_window,
            all_raised: !care.unraised || self.counting.raiser.is_none(),
        };
        let outcome = self.counting.ledger.apply_window(&self.position, window, rules).await?;
        metrics::histogram!("headcount_kafka_window_duration_seconds").record(began.elapsed().as_secs_f64());
        Ok(outcome)
    }

    async fn look_again(&self) -> Result<Position, StoreError> {
        let reading = self.counting.ledger.position(&self.place);
        failpoint::step("window.look", Part::Postgres, reading).await
    }

    /// What can't be read is in the dead-letter topic before the offset moves past it.
    async fn put_aside(&self, taken: &[Taken]) -> Option<()> {
        for (offset, letter) in taken
            .iter()
            .filter(|taken| taken.offset >= self.from)
            .filter_map(|taken| Some((taken.offset, taken.content.as_ref().err()?)))
        {
            let mut again = Again::default();
            loop {
                let putting = self.counting.letters.put(&self.place, offset, letter);
                let Err(error) = failpoint::step("window.letter", Part::Kafka, putting).await else { break };
                self.counting.trouble.failed(&error);
                again.wait(&self.given_up).await?;
            }
            counter!("headcount_kafka_counted_total", "outcome" => "unreadable").increment(1);
        }
        Some(())
    }

    async fn counted(&mut self, window: &Window, at: Option<Timestamp>, tally: &Tally, care: &mut Care) {
        counter!("headcount_kafka_counted_total", "outcome" => "counted").increment(tally.counted);
        counter!("headcount_kafka_counted_total", "outcome" => "duplicate").increment(tally.duplicates);
        self.position.next_offset = window.next;
        self.position.unraised_since = tally.unraised_since;
        self.from = window.next;
        care.counted += tally.counted;
        self.lag.counted(self.place.partition, window.next, at);
        if let Some(raiser) = &self.counting.raiser
            && !care.unraised
            && let Err(error) = raiser.raise(&tally.videos).await
        {
            tracing::debug!(error = %error, "totals in redis are raised later");
            care.unraised = true;
        }
        let telling = async { (self.tell)(&self.place, window.next) };
        if let Err(error) = failpoint::step("window.tell", Part::Kafka, telling).await {
            tracing::debug!(error = %error, "kafka isn't told how far its log is counted");
        }
    }

    /// What is not urgent: totals that Redis doesn't know yet, and who was seen long ago.
    async fn attend(&mut self, care: &mut Care) {
        let raiser = self.counting.raiser.as_ref().filter(|raiser| care.unraised && raiser.can_raise());
        if let Some(raiser) = raiser {
            let raised = match self.position.unraised_since {
                Some(since) => raiser.catch_up(&self.position, since).await,
                None => Ok(()),
            };
            match raised {
                Ok(()) => (care.unraised, self.position.unraised_since) = (false, None),
                Err(error) => tracing::debug!(error = %error, "totals in redis are raised later"),
            }
        }
        if care.counted >= FORGET_AFTER || (care.counted > 0 && care.forgot.elapsed() >= FORGET_EVERY) {
            (care.counted, care.forgot) = (0, Instant::now());
            let forgetting = self.counting.ledger.forget_seen(&self.position, self.counting.dedupe_window);
            if let Err(error) = failpoint::step("window.forget", Part::Postgres, forgetting).await {
                tracing::debug!(error = %error, "who was seen long ago is forgotten later");
            }
        }
    }
}
