//! Connections: accepted, kept as long as they are of use, and closed so that a stop is not held up.
//!
//! axum's own `serve` waits for ever, for players that vanished as for a stop: a phone that left its
//! network would cost a file descriptor until the process ends. hyper's timer for that costs every
//! request an allocation; one tick a connection does the same. Nothing here is without a bound: so
//! many connections, so much time for a request to come and for its answer to be taken, so many bytes
//! read ahead.

mod conversation;
pub mod pressure;
mod refusals;
#[cfg(test)]
mod tests;
mod wire;

use std::{sync::Arc, time::Duration};

use axum::{Router, response::Response};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::refusals::Refused;
use self::{conversation::Conversation, pressure::Gate, refusals::Told};

/// How long to wait when no connection can be accepted, most often for lack of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Connections over the limit that are told so; one more is closed without a word. Probes get through
/// on these.
const EXCESS: usize = 64;

/// What peers of a listener are held to.
#[derive(Clone)]
pub struct Door {
    /// Connections at a time.
    pub connections: usize,
    /// How long the request line and headers may take to come, from their first byte on.
    pub header_timeout: Duration,
    /// How long an answer may take to be read.
    pub write_timeout: Duration,
    /// Refuses requests while there is too much to do.
    pub gate: Option<Arc<Gate>>,
    /// The answers to what is refused.
    pub refuse: fn(Refused) -> Response,
}

/// Serves `router` until `stopping`; then accepts no more, finishes what is under way within
/// `patience`, and cuts off what is left.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    door: Door,
    stopping: CancellationToken,
    patience: Duration,
) {
    let connections = TaskTracker::new();
    let cut_off = CancellationToken::new();
    let (no_more, too_many) = (Told::default(), Told::default());
    let most = door.connections;
    let conversation =
        Conversation { router, door: Arc::new(door), connections: connections.clone(), excess: false };
    while let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _)) => {
                let open = connections.len();
                let excess = open >= most;
                if excess && too_many.again() {
                    tracing::warn!(
                        http.connections = open,
                        "{open} connections are open, and server.max_connections is {most}: \
                         further ones are answered 503 and closed"
                    );
                }
                if open >= most + EXCESS {
                    Refused::Connections.count();
                    continue;
                }
                // Tokens of its own: polling a shared one takes a lock that all would wait for.
                let conversation =
                    Conversation { excess, ..conversation.clone() }.hold(stream, stopping.child_token());
                let cut_off = cut_off.child_token();
                connections.spawn(async move { cut_off.run_until_cancelled(conversation).await });
            }
            // The peer was gone before it was our turn.
            Err(error) if is_peers_own(&error) => {}
            Err(error) => {
                // At the limit every connection that ends lets one in, so "again" would be said often.
                if no_more.again() {
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

/// File descriptors that are for something else: listeners, logs, files, connections to Redis.
const OTHER_FILES: usize = 64;

/// How many of the `wanted` connections there may be beside so many `others`: the limit of open files
/// is raised as far as it goes, as every one of them is a file.
#[must_use]
pub fn affordable(wanted: usize, others: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // Where it may not be raised, it stays as it was.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    let Some(files) = getrlimit(Resource::Nofile).current else { return wanted };
    let most = room(usize::try_from(files).unwrap_or(usize::MAX), others);
    if most < wanted {
        tracing::warn!(
            "server.max_connections is {wanted}, but only {files} files may be open: taken for {most} \
             (raise it with ulimit -n, or LimitNOFILE of systemd)"
        );
    }
    wanted.min(most)
}

/// How many connections so many files leave room for. Both listeners may have some over their limit.
fn room(files: usize, others: usize) -> usize {
    files.saturating_sub(2 * EXCESS + OTHER_FILES + others).max(1)
}
