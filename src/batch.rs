//! Group commit: requests that come in while a batch is under way form the next one.
//!
//! No timer: alone a request goes at once, under load batches grow by themselves. The queue is
//! bounded: by what it may hold and, where it is prompt, by what the store takes within [`STANDING`]
//! while that doesn't keep up, as a longer queue makes every answer later and none more. A request
//! that finds it full is refused at once.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use crate::{
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
};

/// How long the queue may take to be served while it doesn't get shorter...
const STANDING: Duration = Duration::from_millis(20);

/// ...for longer than this: a burst, or a store that pauses, is waited for.
const NOT_SHORTER_FOR: Duration = Duration::from_millis(200);

/// However slow the store, so many may wait.
const LEAST: usize = 64;

/// Sends single requests in batches.
#[derive(Debug)]
pub struct Batcher<Q, A> {
    queue: mpsc::Sender<Waiting<Q, A>>,
    /// Requests that may wait now.
    bound: Arc<AtomicUsize>,
    name: &'static str,
    part: Part,
}

#[derive(Debug)]
struct Waiting<Q, A> {
    request: Q,
    answer: oneshot::Sender<Result<A, StoreError>>,
}

impl<Q, A> Clone for Batcher<Q, A> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bound: self.bound.clone(), name: self.name, part: self.part }
    }
}

/// The bounds of a [`Batcher`].
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests that may wait.
    pub waiting: usize,
    /// Requests in one batch.
    pub batch: usize,
    /// Whether a queue that stands is cut to what is served in time; else requests wait on.
    pub prompt: bool,
}

impl<Q: Send + 'static, A: Send + 'static> Batcher<Q, A> {
    /// Starts the task that hands batches to `run`, one at a time. `run` answers with one result a
    /// request, in order.
    pub fn start<F, R>(
        lifecycle: &Lifecycle,
        name: &'static str,
        part: Part,
        bounds: Bounds,
        run: F,
    ) -> Arc<Self>
    where
        F: Fn(Vec<Q>) -> R + Send + Sync + 'static,
        R: Future<Output = Vec<Result<A, StoreError>>> + Send + 'static,
    {
        let (queue, waiting) = mpsc::channel(bounds.waiting);
        let bound = Arc::new(AtomicUsize::new(bounds.waiting));
        let batcher = Arc::new(Self { queue, bound: bound.clone(), name, part });
        let stopping = lifecycle.stopping(Phase::Writers);
        lifecycle.spawn(Phase::Writers, name, work(waiting, bounds, bound, name, part, run, stopping));
        batcher
    }

    /// Sends a request with the next batch and waits for its answer.
    ///
    /// # Errors
    /// The queue is full, the batch failed, or the service is stopping.
    pub async fn submit(&self, request: Q) -> Result<A, StoreError> {
        if waiting(&self.queue) >= self.bound.load(Ordering::Relaxed) {
            return Err(StoreError::Full { part: self.part, queue: self.name });
        }
        let (answer, answered) = oneshot::channel();
        match self.queue.try_send(Waiting { request, answer }) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(StoreError::unavailable(self.part, "stopping"))),
            Err(TrySendError::Full(_)) => Err(StoreError::Full { part: self.part, queue: self.name }),
            Err(TrySendError::Closed(_)) => Err(StoreError::unavailable(self.part, "stopping")),
        }
    }

    /// How full the queue is, from 0 to 1: 1 where requests are refused.
    #[must_use]
    pub fn fullness(&self) -> f64 {
        share(waiting(&self.queue), self.bound.load(Ordering::Relaxed))
    }
}

/// How many wait in a queue.
fn waiting<T>(queue: &mpsc::Sender<T>) -> usize {
    queue.max_capacity() - queue.capacity()
}

/// How full a queue is, from 0 to 1.
pub(crate) fn fullness<T>(queue: &mpsc::Sender<T>) -> f64 {
    share(waiting(queue), queue.max_capacity())
}

#[expect(clippy::cast_precision_loss, reason = "a share; queues are far below 2^52")]
fn share(waiting: usize, of: usize) -> f64 {
    waiting as f64 / of as f64
}

/// Whether a queue stands, and how long it may be then.
#[derive(Debug, Default)]
struct Standing {
    since: Option<Instant>,
}

impl Standing {
    /// How many of `most` may wait, after a batch of `served` took `took` and left `left` waiting.
    fn bound(&mut self, most: usize, served: usize, took: Duration, left: usize, now: Instant) -> usize {
        let in_time = (STANDING.as_secs_f64() / took.as_secs_f64().max(1e-6)).min(1e6);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a batch is far below 2^52, and the factor between 0 and a million"
        )]
        let bearable = ((served as f64 * in_time) as usize).max(LEAST);
        // Half of it already is more than would be there if the store kept up.
        if left < bearable / 2 {
            self.since = None;
            return most;
        }
        let since = *self.since.get_or_insert(now);
        if now - since >= NOT_SHORTER_FOR { bearable.min(most) } else { most }
    }
}

async fn work<Q, A, F, R>(
    mut queue: mpsc::Receiver<Waiting<Q, A>>,
    bounds: Bounds,
    bound: Arc<AtomicUsize>,
    name: &'static str,
    part: Part,
    run: F,
    stopping: tokio_util::sync::CancellationToken,
) where
    F: Fn(Vec<Q>) -> R,
    R: Future<Output = Vec<Result<A, StoreError>>>,
{
    let mut taken = Vec::new();
    let mut standing = Standing::default();
    loop {
        tokio::select! {
            biased;
            count = queue.recv_many(&mut taken, bounds.batch) => if count == 0 { return },
            // Closing lets what is queued still come out above; then it is over.
            () = stopping.cancelled(), if !queue.is_closed() => { queue.close(); continue }
        }
        #[expect(clippy::cast_precision_loss, reason = "a gauge; queues are far below 2^52")]
        metrics::gauge!("headcount_queue_depth", "queue" => name).set(queue.len() as f64);
        #[expect(clippy::cast_precision_loss, reason = "a histogram; batches are far below 2^52")]
        metrics::histogram!("headcount_batch_size", "batch" => name).record(taken.len() as f64);
        let (requests, answers): (Vec<Q>, Vec<_>) =
            taken.drain(..).map(|waiting| (waiting.request, waiting.answer)).unzip();
        let began = Instant::now();
        let served = requests.len();
        let results = run(requests).await;
        let (now, left) = (Instant::now(), queue.len());
        let took = now - began;
        metrics::histogram!("headcount_batch_duration_seconds", "store" => part.name(), "batch" => name)
            .record(took.as_secs_f64());
        if bounds.prompt {
            bound.store(standing.bound(bounds.waiting, served, took, left, now), Ordering::Relaxed);
        }
        for (answer, result) in answers.into_iter().zip(results) {
            // A caller that gave up waiting is no failure.
            let _ = answer.send(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 10_000;
    const MILLI: Duration = Duration::from_millis(1);

    /// What is allowed after `batches` of so many that took so long, each with as many left.
    fn bound_after(batches: u32, served: usize, took: Duration, left: usize) -> usize {
        let (mut standing, mut now, mut bound) = (Standing::default(), Instant::now(), MOST);
        for _ in 0..batches {
            now += took;
            bound = standing.bound(MOST, served, took, left, now);
        }
        bound
    }

    #[test]
    fn a_queue_that_stands_is_cut_to_what_is_served_in_time_and_a_burst_is_not() {
        assert_eq!(bound_after(4, 2_000, 40 * MILLI, 5_000), MOST, "for 160 ms only");
        assert_eq!(bound_after(40, 2_000, 40 * MILLI, 5_000), 1_000);
        assert_eq!(bound_after(40, 2_000, 40 * MILLI, 400), MOST, "it gets shorter");
        assert_eq!(bound_after(400, 1, MILLI, 30), MOST, "few wait");
        assert_eq!(bound_after(40, 50, 500 * MILLI, 5_000), LEAST, "the store hangs");
    }

    #[test]
    fn a_queue_that_was_cut_is_whole_again_once_it_is_served() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        standing.bound(MOST, 2_000, 40 * MILLI, 5_000, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(standing.bound(MOST, 2_000, 40 * MILLI, 999, later), 1_000);
        assert_eq!(standing.bound(MOST, 900, 18 * MILLI, 100, later), MOST);
    }
}
