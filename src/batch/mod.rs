//! Group commit: requests that come in while a batch is under way form the next one.
//!
//! No timer: alone a request goes at once, under load batches grow by themselves. With a store that
//! takes its time for each batch, however small, about as many wait after each batch as it answered,
//! and the next one answers them all: that is how it should be. The queue is bounded by what it may
//! hold. Where it is prompt and one full batch after the other leaves more than the next can take, the
//! store doesn't keep up, and no more than one batch may wait: a longer queue makes every answer later
//! and none more, a shorter one would have the store do less than it can. A request that finds the
//! queue full is refused at once.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::Instant,
};

use crate::{
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
};

/// The store must fail to keep up for so long to be taken for overloaded, and keep up for so long to be
/// trusted again: a burst, or a store that pauses, is waited for.
const LASTING: Duration = Duration::from_millis(50);

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
    /// Requests in one batch. Under overload an answer comes after two of them at most.
    pub batch: usize,
    /// Whether no more than a batch may wait while the store doesn't keep up; else requests wait on.
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

/// Whether the store keeps up.
#[derive(Debug, Default)]
struct Pace {
    overloaded: bool,
    /// Since when it has looked otherwise.
    otherwise: Option<Instant>,
}

impl Pace {
    /// How many may wait, after a batch of `served` that left `left` waiting.
    fn bound(&mut self, bounds: Bounds, served: usize, left: usize, now: Instant) -> usize {
        // Fewer would be answered by the next batch together, whatever a batch costs.
        let behind = served >= bounds.batch && left >= bounds.batch;
        if behind == self.overloaded {
            self.otherwise = None;
        } else if now - *self.otherwise.get_or_insert(now) >= LASTING {
            *self = Self { overloaded: behind, otherwise: None };
        }
        if self.overloaded { bounds.batch.min(bounds.waiting) } else { bounds.waiting }
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
    let mut pace = Pace::default();
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
        metrics::histogram!("headcount_batch_duration_seconds", "store" => part.name(), "batch" => name)
            .record((now - began).as_secs_f64());
        if bounds.prompt {
            bound.store(pace.bound(bounds, served, left, now), Ordering::Relaxed);
        }
        for (answer, result) in answers.into_iter().zip(results) {
            // A caller that gave up waiting is no failure.
            let _ = answer.send(result);
        }
    }
}

#[cfg(test)]
mod tests;
