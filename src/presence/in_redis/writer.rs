//! Carries merged beats to Redis: one writer an instance, one pipeline at a time.
//!
//! A batch belongs to the connection it is formed for, and to the moment: what couldn't be sent is
//! put back and formed anew, so that no old time is written over a newer one by a late socket.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    form::Form,
    map::ShardMap,
    merge::{Mark, Merge, Round, What},
    moves::Moved,
    notes::Notes,
    send::{Learnt, Outcome},
    since::Known,
};
use crate::{
    clock::Timestamp,
    config::{self, Ack},
    error::{Part, StoreError},
    presence::Beat,
    store::redis::Redis,
};

/// Older than this when it is written, a beat may be older than what another instance wrote; and
/// an answer that took longer says nothing about the present.
pub(super) const LATE: Duration = Duration::from_secs(2);

/// A round leaves early where it has gathered so many batches: the more beats leave together, the more of
/// them share a command, and a round a second is soon enough.
const EARLY: usize = 10;

/// How long the writer waits before it tries again what Redis didn't take.
const RETRY: Duration = Duration::from_millis(100);

/// The life of a shard beyond the window: two sweeps must be able to see what is in it.
pub(crate) fn shard_life(settings: &config::Presence, jobs: &config::Jobs) -> Duration {
    settings.window + note_life(settings) + jobs.sweep_every * 2
}

/// How long what was registered is left alone.
pub(crate) fn note_life(settings: &config::Presence) -> Duration {
    settings.heartbeat_every.min(Duration::from_secs(30))
}

/// The way of beats to Redis.
pub(super) struct Writer {
    pub(super) redis: Redis,
    pub(super) form: Form,
    pub(super) map: ShardMap,
    ack: Ack,
    linger: Duration,
    batch: usize,
    /// Beats of a round that leaves before its time.
    early: usize,
    note_life: Duration,
    merge: Mutex<Merge>,
    wake: Notify,
    /// The last round failed: beats are refused, and still merged.
    failing: AtomicBool,
}

impl Writer {
    pub(super) fn new(
        redis: Redis,
        map: ShardMap,
        known: Known,
        presence: &config::Presence,
        jobs: &config::Jobs,
    ) -> Self {
        Self {
            form: Form {
                redis: redis.clone(),
                known,
                window: presence.window,
                life: shard_life(presence, jobs),
            },
            redis,
            map,
            ack: presence.ack,
            linger: presence.linger,
            batch: presence.batch,
            early: (EARLY * presence.batch).min(presence.max_merged / 2),
            note_life: note_life(presence),
            merge: Mutex::new(Merge::new(presence.max_merged)),
            wake: Notify::new(),
            failing: AtomicBool::new(false),
        }
    }

    /// Merges a beat and answers when `presence.ack` says so.
    pub(super) async fn beat(&self, beat: Beat) -> Result<(), StoreError> {
        let now = self.redis.clock().now();
        if self.ack == Ack::Stored {
            return self.written(beat, now, What::Beat).await;
        }
        let full = {
            let mut merge = self.merge.lock();
            merge.put(beat, now, What::Beat)?;
            merge.len() >= self.early
        };
        if full {
            self.wake.notify_one();
        }
        self.is_well()
    }

    /// Merges a goodbye and answers when it is in Redis.
    pub(super) async fn leave(&self, beat: Beat) -> Result<(), StoreError> {
        let now = self.redis.clock().now();
        self.written(beat, now, What::Leave).await
    }

    async fn written(&self, beat: Beat, now: Timestamp, what: What) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut merge = self.merge.lock();
            merge.put(beat.clone(), now, what)?;
            self.is_well()?;
            merge.wait(beat, answer);
        }
        self.wake.notify_one();
        answered.await.unwrap_or_else(|_| Err(StoreError::unavailable(Part::Redis, "stopping")))
    }

    /// Whether beats reach Redis just now.
    fn is_well(&self) -> Result<(), StoreError> {
        if self.failing.load(Ordering::Relaxed) {
            return Err(StoreError::unavailable(Part::Redis, "beats don't reach it"));
        }
        self.redis.check_connected()
    }

    /// How full the merge is, from 0 to 1.
    pub(super) fn fullness(&self) -> f64 {
        self.merge.lock().fullness()
    }

    /// Whether a beat has been waiting for over two seconds.
    pub(super) fn beats_waited(&self) -> bool {
        let oldest = self.merge.lock().oldest();
        oldest.is_some_and(|oldest| self.redis.clock().now().since(oldest) > LATE)
    }

    /// The writer's task: rounds until it is told to stop and nothing is left to write.
    pub(super) async fn run(self: Arc<Self>, stopping: CancellationToken) {
        let mut partly = false;
        let mut learnt = Learnt { notes: Notes::new(self.note_life), moved: Moved::default() };
        loop {
            if partly {
                // What a node that is away didn't take is not tried again at once, whoever waits for more.
                let _ = stopping.run_until_cancelled(tokio::time::sleep(RETRY)).await;
            }
            self.wait_for_work(&stopping).await;
            let round = self.merge.lock().take();
            #[expect(clippy::cast_precision_loss, reason = "a gauge; merges are far below 2^52")]
            metrics::gauge!("headcount_queue_depth", "queue" => "beats").set(round.marks.len() as f64);
            let written =
                if round.marks.is_empty() { Written::All } else { self.write(round, &mut learnt).await };
            // What some nodes of a cluster don't take is written later, and no reason to refuse the rest.
            self.failing.store(written == Written::Nothing, Ordering::Relaxed);
            partly = written == Written::Some;
            if stopping.is_cancelled() {
                let left = self.merge.lock().len();
                if left == 0 {
                    return;
                }
                if written != Written::All {
                    tracing::warn!(beats.left = left, "stopping with {left} beats that redis didn't take");
                    return;
                }
            }
        }
    }

    async fn wait_for_work(&self, stopping: &CancellationToken) {
        if stopping.is_cancelled() {
            return;
        }
        if self.failing.load(Ordering::Relaxed) {
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stopping.cancelled() => {}
            }
            return;
        }
        // Somebody who waits for the answer is not made to wait for more beats as well.
        if self.merge.lock().anybody_waits() {
            return;
        }
        tokio::select! {
            () = self.wake.notified() => {}
            () = tokio::time::sleep(self.linger) => {}
            () = stopping.cancelled() => {}
        }
    }

    /// Writes a round in batches; what fails in passing is put back.
    async fn write(&self, round: Round, learnt: &mut Learnt) -> Written {
        let mut failed: HashSet<Beat> = HashSet::new();
        let (mut error, mut tried) = (None, 0);
        // Who beat so long ago is offline by now; in a long outage that is most of them.
        let (now, window) = (self.redis.clock().now(), self.form.window);
        let mut marks = round.marks.into_iter().filter(|(_, mark)| now.since(mark.at) <= window);
        loop {
            // Ordering more at once would keep requests waiting.
            let mut some: Vec<(Beat, Mark)> = marks.by_ref().take(self.early).collect();
            if some.is_empty() {
                break;
            }
            if some.len() > self.batch {
                // Neighbours share a command, so they should leave in one batch.
                some.sort_by_cached_key(|(beat, _)| neighbourhood(beat));
            }
            let mut some = some.into_iter();
            while some.len() > 0 {
                let batch: Vec<(Beat, Mark)> = some.by_ref().take(self.batch).collect();
                tried += batch.len();
                let began = std::time::Instant::now();
                #[expect(clippy::cast_precision_loss, reason = "a histogram; batches are far below 2^52")]
                metrics::histogram!("headcount_batch_size", "batch" => "beats").record(batch.len() as f64);
                let outcome = match self.redis.connection() {
                    Ok(connection) => self.write_batch(&connection, batch, learnt).await,
                    Err(cause) => Outcome::failed(cause, batch),
                };
                metrics::histogram!("headcount_batch_duration_seconds", "store" => "redis", "batch" => "beats")
                    .record(began.elapsed().as_secs_f64());
                failed.extend(outcome.again.iter().map(|(beat, _)| beat.clone()));
                failed.extend(outcome.refused);
                self.merge.lock().put_back(outcome.again.into_iter().chain(outcome.elsewhere));
                error = outcome.error.or(error);
            }
        }
        for (beat, answer) in round.waiting {
            let result = match &error {
                Some(error) if failed.contains(&beat) => Err(error.clone()),
                _ => Ok(()),
            };
            // A caller that gave up waiting is no failure.
            let _ = answer.send(result);
        }
        match error {
            Some(error) if error.is_transient() && failed.len() >= tried => Written::Nothing,
            Some(error) if error.is_transient() => Written::Some,
            _ => Written::All,
        }
    }
}

/// How much of a round Redis took, but for what it will never take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    All,
    Some,
    Nothing,
}

/// Orders beats by video and, whatever power of two the number of its shards is, by shard: that is told by
/// the lowest bits of a viewer's hash.
fn neighbourhood(beat: &Beat) -> (u64, u64) {
    (xxh3_64(beat.video.as_str().as_bytes()), beat.viewer.hash64().reverse_bits())
}
