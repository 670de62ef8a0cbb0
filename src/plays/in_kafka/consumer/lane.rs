//! One part of the topic, counted window by window.
//!
//! Whatever happens between two steps, the next try begins with what the database says: a window is
//! repeated until the answer is that it is counted, or that the position has moved.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt as _, stream::FuturesUnordered};
use metrics::counter;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Again, Counting, Taken, dead_letters::Letter, lag::Lag, piece::Piece};
use crate::{
    error::{Part, StoreError},
    failpoint,
    plays::{
        in_kafka::{raise::Raiser, window::Window},
        postgres::{
            positions::{Place, Position},
            window::{Outcome, Rules, Tally},
        },
    },
};

/// How often something is looked after while no record comes.
const IDLE: Duration = Duration::from_secs(1);

/// When what was seen is forgotten: after so many plays, or so long, whichever is first. One go forgets
/// more than was brought, also where a backlog of years is counted within an hour.
const FORGET_AFTER: u64 = 20_000;
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// Letters that are on their way to the dead-letter topic at once.
const LETTERS_AT_ONCE: usize = 100;

/// Bytes of letters with which a window is full: beyond them only what a part's queue holds is in memory.
const LETTERS_MOST: usize = 8 * 1_024 * 1_024;

/// How long raising what was missed waits after it failed: it looks at all that was counted since.
const RAISE_FIRST: Duration = Duration::from_secs(1);
const RAISE_LAST: Duration = Duration::from_secs(30);

/// What another Redis may lack of what the one before it was told: a replica that was promoted is behind by
/// much less, and one that was started again has it on disk but for a second or two.
const REDIS_LACKS: TimeDelta = TimeDelta::seconds(60);

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
    /// The connection to Redis on which totals were raised last.
    epoch: Option<u64>,
    /// When raising what was missed is tried next, and how long the wait after that is.
    raise_at: Instant,
    raise_wait: Duration,
    counted: u64,
    forgot: Instant,
    /// Plays in one transaction: fewer after one that took too long.
    most: usize,
}

impl Lane {
    /// Counts until there is no more to come.
    pub(super) async fn run(mut self) -> Ended {
        let now = Instant::now();
        let mut care = Care {
            unraised: self.position.unraised_since.is_some(),
            epoch: self.counting.raiser.as_ref().and_then(Raiser::epoch),
            raise_at: now,
            raise_wait: RAISE_FIRST,
            // What whoever had this part before left to be forgotten is forgotten first.
            counted: FORGET_AFTER,
            forgot: now,
            most: self.counting.settings.window_records,
        };
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
        let (time, most) = (self.counting.settings.window, care.most);
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
        while taken.len() < most && taken.iter().map(Taken::letter_bytes).sum::<usize>() < LETTERS_MOST {
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
        let piece = Piece::of(self.position.next_offset, last + 1, self.from, taken);
        // The next one last.
        let mut left = vec![piece];
        let mut again = Again::default();
        while let Some(mut piece) = left.pop() {
            if piece.window.next <= self.from {
                continue;
            }
            match self.apply(&piece, care).await {
                Ok(Outcome::Counted(tally)) => {
                    self.counting.trouble.over(self.place.partition);
                    again = Again::default();
                    self.counted(&piece.window, &tally, care).await;
                    continue;
                }
                // Somebody else has counted here, or this call did and its answer was lost.
                Ok(Outcome::Moved(at)) if at >= piece.window.began => match self.look_again().await {
                    Ok(position) => {
                        care.unraised = true;
                        self.from = position.next_offset;
                        piece.skip_to(self.from);
                        for piece in &mut left {
                            piece.skip_to(self.from);
                        }
                        left.push(piece);
                        self.position = position;
                        self.lag.counted(self.place.partition, self.from, None);
                        continue;
                    }
                    Err(error) => self.counting.trouble.failed(self.place.partition, &error),
                },
                Ok(Outcome::Moved(_)) => return Some(Ended::Rewound),
                Err(error) => {
                    self.counting.trouble.failed(self.place.partition, &error);
                    if care.most < piece.plays() {
                        let (first, second) = piece.halves();
                        left.push(second);
                        piece = first;
                    }
                }
            }
            left.push(piece);
            again.wait(&self.given_up).await?;
        }
        self.attend(care).await;
        Some(Ended::Done)
    }

    /// What takes as long as a statement may is tried in halves from then on: the same again would take as
    /// long. It grows again while it is quick.
    async fn apply(&self, piece: &Piece, care: &mut Care) -> Result<Outcome, StoreError> {
        let _turn = self.counting.turns.acquire().await;
        let began = Instant::now();
        let rules = Rules {
            dedupe_window: self.counting.dedupe_window,
            all_raised: !care.unraised || self.counting.raiser.is_none(),
        };
        let outcome = self.counting.ledger.apply_window(&self.position, &piece.window, rules).await;
        if outcome.is_ok() {
            let took = began.elapsed().as_secs_f64();
            metrics::histogram!("headcount_kafka_window_duration_seconds").record(took);
            care.most = (care.most + care.most / 4 + 1).min(self.counting.settings.window_records);
        } else if began.elapsed() >= self.counting.too_slow {
            care.most = (piece.plays() / 2).max(1);
        }
        outcome
    }

    async fn look_again(&self) -> Result<Position, StoreError> {
        let reading = self.counting.ledger.position(&self.place);
        failpoint::step("window.look", Part::Postgres, reading).await
    }

    /// What can't be read is in the dead-letter topic before the offset moves past it.
    async fn put_aside(&self, taken: &[Taken]) -> Option<()> {
        let mut putting = FuturesUnordered::new();
        for taken in taken.iter().filter(|taken| taken.offset >= self.from) {
            let Err(letter) = &taken.content else { continue };
            if putting.len() == LETTERS_AT_ONCE {
                putting.next().await.flatten()?;
            }
            putting.push(self.put_one_aside(taken.offset, letter));
        }
        while let Some(put) = putting.next().await {
            put?;
        }
        Some(())
    }

    async fn put_one_aside(&self, offset: i64, letter: &Letter) -> Option<()> {
        let mut again = Again::default();
        loop {
            let putting = self.counting.letters.put(&self.place, offset, letter);
            let Err(error) = failpoint::step("window.letter", Part::Kafka, putting).await else { break };
            self.counting.trouble.failed(self.place.partition, &error);
            again.wait(&self.given_up).await?;
        }
        counter!("headcount_kafka_counted_total", "outcome" => "unreadable").increment(1);
        Some(())
    }

    async fn counted(&mut self, window: &Window, tally: &Tally, care: &mut Care) {
        counter!("headcount_kafka_counted_total", "outcome" => "counted").increment(tally.counted);
        counter!("headcount_kafka_counted_total", "outcome" => "duplicate").increment(tally.duplicates);
        self.look_at_redis(care);
        let missed = if care.unraised { self.position.unraised_since } else { None };
        self.position.next_offset = window.next;
        self.position.unraised_since = earliest(missed, tally.unraised_since);
        if let Some(reached) = window.reached() {
            self.position.reached = Some(reached.to_utc());
        }
        self.from = window.next;
        care.counted += tally.counted;
        let at = window.plays.last().map(|received| received.at);
        self.lag.counted(self.place.partition, window.next, at);
        // Also where earlier ones are missing: what is raised now isn't missing later.
        if let Some(raiser) = &self.counting.raiser
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

    /// Another connection may be to a Redis that lacks what the one before had answered: one that came back
    /// older, or a replica that was behind.
    fn look_at_redis(&mut self, care: &mut Care) {
        let Some(epoch) = self.counting.raiser.as_ref().and_then(Raiser::epoch) else { return };
        if care.epoch.replace(epoch).is_none_or(|before| before == epoch) {
            return;
        }
        if let Some(reached) = self.position.reached {
            let lacks_since = reached.checked_sub_signed(REDIS_LACKS);
            self.position.unraised_since = earliest(self.position.unraised_since, lacks_since);
            (care.unraised, care.raise_at, care.raise_wait) = (true, Instant::now(), RAISE_FIRST);
        }
    }

    /// What is not urgent: totals that Redis doesn't know yet, and who was seen long ago.
    async fn attend(&mut self, care: &mut Care) {
        self.look_at_redis(care);
        let is_time = care.unraised && care.raise_at <= Instant::now();
        let raiser = self.counting.raiser.as_ref().filter(|raiser| is_time && raiser.epoch().is_some());
        if let Some(raiser) = raiser {
            let raised = match self.position.unraised_since {
                Some(since) => raiser.catch_up(&self.position, since).await,
                None => Ok(()),
            };
            match raised {
                Ok(()) => {
                    (care.unraised, self.position.unraised_since) = (false, None);
                    care.raise_wait = RAISE_FIRST;
                }
                Err(error) => {
                    tracing::debug!(error = %error, "totals in redis are raised later");
                    care.raise_at = Instant::now() + care.raise_wait;
                    care.raise_wait = (2 * care.raise_wait).min(RAISE_LAST);
                }
            }
        }
        if care.counted >= FORGET_AFTER || (care.counted > 0 && care.forgot.elapsed() >= FORGET_EVERY) {
            let brought = std::mem::take(&mut care.counted);
            care.forgot = Instant::now();
            let (ledger, window) = (&self.counting.ledger, self.counting.dedupe_window);
            let forgetting = ledger.forget_seen(&self.position, window, brought);
            if let Err(error) = failpoint::step("window.forget", Part::Postgres, forgetting).await {
                tracing::debug!(error = %error, "who was seen long ago is forgotten later");
            }
        }
    }
}

fn earliest(one: Option<DateTime<Utc>>, other: Option<DateTime<Utc>>) -> Option<DateTime<Utc>> {
    one.into_iter().chain(other).min()
}
