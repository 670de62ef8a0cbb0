//! Connections: accepted, kept as long as they are of use, and closed so that a stop is not held up.
//!
//! axum's own `serve` waits for ever, for players that vanished as for a stop: a phone that left its
//! network would cost a file descriptor until the process ends. hyper's timer for that costs every
//! request an allocation; one tick a connection does the same.

#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;

/// How often a connection is looked at.
const TICK: Duration = Duration::from_secs(30);

/// Looks without a new request after which a connection is closed: 11 minutes, since a load balancer
/// may send a request on one that has been idle for ten.
const IDLE_TICKS: u32 = 22;

/// As long as nothing has come on a connection yet, it gets no more than one whole tick.
const MUTE_TICKS: u32 = 2;

/// How often, and for how many times, one that owes nothing is looked at while the service stops: a
/// request may be on its way.
const STOPPING_TICK: Duration = Duration::from_millis(500);
const STOPPING_TICKS: u32 = 2;

/// A lack of file descriptors is told so often.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// How long to wait when no connection can be accepted, most often for lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves `router` until `stopping`; then accepts no more, finishes what is under way within
/// `patience`, and cuts off what is left.
pub async fn serve(listener: TcpListener, router: Router, stopping: CancellationToken, patience: Duration) {
    let connections = TaskTracker::new();
    let cut_off = CancellationToken::new();
    let mut told: Option<Instant> = None;
    while let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                // A token of its own: polling a shared one takes a lock that all would wait for.
                let conversation = converse(stream, router.clone(), stopping.child_token());
                let cut_off = cut_off.clone();
                connections.spawn(async move { cut_off.run_until_cancelled(conversation).await });
            }
            // The peer was gone before it was our turn.
            Err(error) if is_peers_own(&error) => {}
            Err(error) => {
                // At the limit every connection that ends lets one in, so "again" would be said often.
                if told.is_none_or(|told| told.elapsed() > TELL_AGAIN) {
                    told = Some(Instant::now());
                    tracing::error!(error = %error, "no connection can be accepted; trying on");
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(patience, connections.wait()).await.is_err() {
        tracing::warn!(http.connections = connections.len(), "cutting off requests that don't end");
        cut_off.cancel();
        connections.wait().await;
    }
}

fn is_peers_own(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};

    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// What came and went on one connection.
#[derive(Default)]
struct Traffic {
    taken: AtomicU64,
    answered: AtomicU64,
}

impl Traffic {
    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn owes(&self) -> bool {
        self.taken() != self.answered.load(Ordering::Relaxed)
    }
}

/// Counts an answer also when the request was given up.
struct Owed(Arc<Traffic>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves one connection until either side has had enough of it.
async fn converse(stream: TcpStream, router: Router, stopping: CancellationToken) {
    // Answers are small and complete: waiting for more to send would only delay them. One that can't
    // be set belongs to a connection that is gone already.
    let _ = stream.set_nodelay(true);
    let traffic = Arc::new(Traffic::default());
    let service = service_fn({
        let traffic = traffic.clone();
        move |request: hyper::Request<Incoming>| answer(router.clone(), request, &traffic)
    });
    let connection =
        http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);

    let mut ticks = ticks(TICK);
    let mut stopped = false;
    let mut idle = 0;
    let mut seen = 0;
    loop {
        tokio::select! {
            // An error is the peer's: it broke off, or spoke no HTTP.
            _ended = connection.as_mut() => return,
            () = stopping.cancelled(), if !stopped => {
                stopped = true;
                idle = 0;
                connection.as_mut().graceful_shutdown();
                ticks = self::ticks(STOPPING_TICK);
            }
            _ = ticks.tick() => {
                let taken = traffic.taken();
                idle = if traffic.owes() || taken != seen { 0 } else { idle + 1 };
                seen = taken;
                let most = match (stopped, taken) {
                    (true, _) => STOPPING_TICKS,
                    (false, 0) => MUTE_TICKS,
                    (false, _) => IDLE_TICKS,
                };
                if idle >= most {
                    return;
                }
            }
        }
    }
}

/// Ticks whose first comes after one period.
fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn answer(
    mut router: Router,
    request: hyper::Request<Incoming>,
    traffic: &Arc<Traffic>,
) -> impl Future<Output = Result<Response, Infallible>> + use<> {
    traffic.taken.fetch_add(1, Ordering::Relaxed);
    let owed = Owed(traffic.clone());
    let request: Request = request.map(Body::new);
    let answer = router.call(request);
    async move {
        let answer = answer.await;
        drop(owed);
        answer
    }
}
