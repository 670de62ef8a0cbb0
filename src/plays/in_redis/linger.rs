//! `plays.ack = "received"`: plays are answered at once and wait here, merged, for a moment.
//!
//! A play leaves after half of `plays.linger`, so that in good times all are in Redis before it is
//! over; plays that can't be sent are tried again, which is safe. Once the oldest has waited for
//! longer than `plays.linger` no more are taken: an instance that is killed loses no more than that.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::record::Writer;
use crate::{
    batch::Bounds,
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
    plays::Play,
};

/// What queue it is, in metrics and errors.
const NAME: &str = "plays";

/// How long a failed batch waits before it is sent again.
const RETRY: Duration = Duration::from_millis(100);

/// Plays that are answered for and not in Redis yet.
pub(super) struct Linger {
    writer: Arc<Writer>,
    bounds: Bounds,
    /// `plays.linger`.
    longest: Duration,
    queue: Mutex<Queue>,
    woken: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Play, Instant)>,
    /// Those being sent, and since when the oldest of them is here.
    sending: usize,
    sending_since: Option<Instant>,
    closed: bool,
}

impl Linger {
    pub(super) fn start(
        lifecycle: &Lifecycle,
        writer: Arc<Writer>,
        bounds: Bounds,
        linger: Duration,
    ) -> Arc<Self> {
        let queue = Mutex::default();
        let this = Arc::new(Self { writer, bounds, longest: linger, queue, woken: Notify::new() });
        let stopping = lifecycle.stopping(Phase::Writers);
        lifecycle.spawn(Phase::Writers, NAME, this.clone().work(stopping));
        this
    }

    /// How full the queue is, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share; queues are far below 2^52")]
    pub(super) fn fullness(&self) -> f64 {
        let queue = self.queue.lock();
        (queue.waiting.len() + queue.sending) as f64 / self.bounds.waiting as f64
    }

    /// Takes a play to be counted within `plays.linger`.
    pub(super) fn take(&self, play: Play) -> Result<(), StoreError> {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(StoreError::unavailable(Part::Redis, "stopping"));
        }
        if queue.waiting.len() + queue.sending >= self.bounds.waiting {
            return Err(StoreError::Full { part: Part::Redis, queue: NAME });
        }
        let oldest = queue.sending_since.or(queue.waiting.front().map(|(_, since)| *since));
        if oldest.is_some_and(|since| now.saturating_duration_since(since) > self.longest) {
            return Err(StoreError::unavailable(Part::Redis, "plays wait longer than plays.linger"));
        }
        queue.waiting.push_back((play, now));
        if queue.waiting.len() == 1 || queue.waiting.len() == self.bounds.batch {
            self.woken.notify_one();
        }
        Ok(())
    }

    async fn work(self: Arc<Self>, stopping: CancellationToken) {
        loop {
            let due = self.queue.lock().waiting.front().map(|(_, since)| *since + self.longest / 2);
            tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                () = self.wait_until(due) => {}
            }
            if !self.send().await {
                stopping.run_until_cancelled(tokio::time::sleep(RETRY)).await;
            }
        }
        self.queue.lock().closed = true;
        // They were answered as accepted: it is for server.drain to say how long they are worth waiting.
        let mut told = false;
        while !self.queue.lock().waiting.is_empty() {
            if !self.send().await {
                if !std::mem::replace(&mut told, true) {
                    let left = self.queue.lock().waiting.len();
                    tracing::error!(
                        plays.left = left,
                        "the stop waits for redis to take {left} accepted plays"
                    );
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Returns when there is something to send: the oldest is due, or a batch is full.
    async fn wait_until(&self, due: Option<Instant>) {
        if self.queue.lock().waiting.len() >= self.bounds.batch {
            return;
        }
        match due {
            Some(due) => {
                let _ = tokio::time::timeout_at(due.into(), self.full()).await;
            }
            None => self.woken.notified().await,
        }
    }

    async fn full(&self) {
        loop {
            self.woken.notified().await;
            if self.queue.lock().waiting.len() >= self.bounds.batch {
                return;
            }
        }
    }

    /// Sends what is due; `false` where some of it has to be sent again.
    async fn send(&self) -> bool {
        let taken: Vec<(Play, Instant)> = {
            let mut queue = self.queue.lock();
            let oldest = queue.waiting.front().map(|(_, since)| *since);
            let full = queue.waiting.len() >= self.bounds.batch;
            if !full && !queue.closed && oldest.is_none_or(|since| since.elapsed() < self.longest / 2) {
                return true;
            }
            let count = queue.waiting.len().min(self.bounds.batch);
            queue.sending = count;
            queue.sending_since = oldest;
            queue.waiting.drain(..count).collect()
        };
        let (plays, since): (Vec<Play>, Vec<Instant>) = taken.into_iter().unzip();
        let began = Instant::now();
        let results = self.writer.write(&plays).await;
        measure(plays.len(), began.elapsed());

        let mut again = Vec::new();
        for ((play, since), result) in plays.into_iter().zip(since).zip(results) {
            match result {
                Err(error) if error.is_transient() => again.push((play, since)),
                Err(error) => {
                    metrics::counter!("headcount_plays_lost_total").increment(1);
                    tracing::error!(video = %play.video, error = %error, "a play that was accepted can't be counted");
                }
                Ok(_) => {}
            }
        }
        let sent = again.is_empty();
        let mut queue = self.queue.lock();
        queue.sending = 0;
        queue.sending_since = None;
        for waiting in again.into_iter().rev() {
            queue.waiting.push_front(waiting);
        }
        #[expect(clippy::cast_precision_loss, reason = "a gauge; queues are far below 2^52")]
        metrics::gauge!("headcount_queue_depth", "queue" => NAME).set(queue.waiting.len() as f64);
        sent
    }
}

fn measure(plays: usize, took: Duration) {
    #[expect(clippy::cast_precision_loss, reason = "a histogram; batches are far below 2^52")]
    metrics::histogram!("headcount_batch_size", "batch" => NAME).record(plays as f64);
    metrics::histogram!("headcount_batch_duration_seconds", "store" => Part::Redis.name(), "batch" => NAME)
        .record(took.as_secs_f64());
}
