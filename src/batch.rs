//! Group commit: requests that come in while a batch is under way form the next one.
//!
//! No timer: alone a request goes at once, under load batches grow by themselves. The queue is
//! bounded; a request that finds it full is refused at once.

use std::{future::Future, sync::Arc, time::Instant};

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};

use crate::{
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
};

/// Sends single requests in batches.
#[derive(Debug)]
pub struct Batcher<Q, A> {
    queue: mpsc::Sender<Waiting<Q, A>>,
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
        Self { queue: self.queue.clone(), name: self.name, part: self.part }
    }
}

/// The bounds of a [`Batcher`].
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests that may wait.
    pub waiting: usize,
    /// Requests in one batch.
    pub batch: usize,
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
        let batcher = Arc::new(Self { queue, name, part });
        let stopping = lifecycle.stopping(Phase::Writers);
        lifecycle.spawn(Phase::Writers, name, work(waiting, bounds.batch, name, part, run, stopping));
        batcher
    }

    /// Sends a request with the next batch and waits for its answer.
    ///
    /// # Errors
    /// The queue is full, the batch failed, or the service is stopping.
    pub async fn submit(&self, request: Q) -> Result<A, StoreError> {
        let (answer, answered) = oneshot::channel();
        match self.queue.try_send(Waiting { request, answer }) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(StoreError::unavailable(self.part, "stopping"))),
            Err(TrySendError::Full(_)) => Err(StoreError::Full { part: self.part, queue: self.name }),
            Err(TrySendError::Closed(_)) => Err(StoreError::unavailable(self.part, "stopping")),
        }
    }
}

async fn work<Q, A, F, R>(
    mut queue: mpsc::Receiver<Waiting<Q, A>>,
    most: usize,
    name: &'static str,
    part: Part,
    run: F,
    stopping: tokio_util::sync::CancellationToken,
) where
    F: Fn(Vec<Q>) -> R,
    R: Future<Output = Vec<Result<A, StoreError>>>,
{
    let mut taken = Vec::new();
    loop {
        tokio::select! {
            biased;
            count = queue.recv_many(&mut taken, most) => if count == 0 { return },
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
        let results = run(requests).await;
        metrics::histogram!("headcount_batch_duration_seconds", "store" => part.name(), "batch" => name)
            .record(began.elapsed().as_secs_f64());
        for (answer, result) in answers.into_iter().zip(results) {
            // A caller that gave up waiting is no failure.
            let _ = answer.send(result);
        }
    }
}
