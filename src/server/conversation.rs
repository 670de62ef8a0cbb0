//! One connection, from its first byte to its end.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request, response::Response};
use futures::future::Either;
use hyper::{
    body::Incoming,
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;

use super::{
    Door,
    refusals::{Refused, cut, part, refuse},
    wire::{Traffic, Wire},
};

/// How often a connection is looked at, at most.
const TICK: Duration = Duration::from_secs(5);

/// So long a connection is kept without a request: 11 minutes, since a load balancer may send one on a
/// connection that has been idle for ten.
const IDLE: Duration = Duration::from_secs(11 * 60);

/// While most of the connections there may be are there, one that is idle makes room for another.
const IDLE_IN_A_CROWD: Duration = Duration::from_secs(10);

/// As long as nothing has come on a connection yet, it gets no more than this.
const MUTE: Duration = Duration::from_secs(30);

/// How long one connection too many is kept: for one answer.
const TOO_MANY: Duration = Duration::from_secs(2);

/// How often, and for how long, one that owes nothing is looked at while the service stops: a request
/// may be on its way.
const STOPPING_TICK: Duration = Duration::from_millis(500);
const STOPPING: Duration = Duration::from_secs(1);

/// Bytes of a request line and its headers, and of what is read ahead of a slow handler.
const BUFFER: usize = 32 * 1024;

/// Who speaks, and with whom.
#[derive(Clone)]
pub(super) struct Conversation {
    pub(super) router: Router,
    pub(super) door: Arc<Door>,
    pub(super) connections: TaskTracker,
    /// One too many: it is answered once, that there are too many.
    pub(super) excess: bool,
}

/// Why a conversation is over.
enum Over {
    /// The peer broke off, spoke no HTTP, or all is said.
    Said(Result<(), hyper::Error>),
    /// A request began and didn't come.
    HeadTooSlow,
    /// An answer isn't taken.
    Unread,
    /// Nothing comes.
    Silence,
}

impl Conversation {
    /// Serves one connection until either side has had enough of it.
    pub(super) async fn hold(self, stream: TcpStream, stopping: CancellationToken) {
        let _open = Open::begin();
        // Answers are small and complete: waiting for more to send would only delay them. One that can't
        // be set belongs to a connection that is gone already.
        let _ = stream.set_nodelay(true);
        let traffic = Arc::new(Traffic::default());
        let wire = TokioIo::new(Wire::new(stream, traffic.clone()));
        let service = service_fn({
            let (this, traffic) = (self.clone(), traffic.clone());
            move |request: hyper::Request<Incoming>| this.answer(request, &traffic)
        });
        let mut connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(BUFFER)
            .keep_alive(!self.excess)
            .serve_connection(wire, service);

        let mut look = Look::new(&self, &traffic);
        let mut ticks = ticks(look.tick);
        let mut stopped = false;
        let over = loop {
            tokio::select! {
                ended = std::pin::Pin::new(&mut connection) => break Over::Said(ended),
                () = stopping.cancelled(), if !stopped => {
                    stopped = true;
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                    look.last_words();
                    ticks = self::ticks(STOPPING_TICK);
                }
                _ = ticks.tick() => if let Some(over) = look.look() { break over },
            }
        };
        let (stream, caught) = connection.into_parts().io.into_inner().into_parts();
        self.end(stream, over, caught, traffic.left_unread()).await;
    }

    async fn end(&self, stream: TcpStream, over: Over, caught: Option<Refused>, left_unread: bool) {
        let is_http2 = hyper::Error::is_parse_version_h2;
        let refused = match &over {
            Over::Said(Err(error)) if is_http2(error) => Some(Refused::Malformed),
            Over::Said(_) => caught,
            Over::HeadTooSlow => Some(Refused::HeadTooSlow),
            Over::Unread => Some(Refused::Unread),
            Over::Silence => None,
        };
        if let Some(refused) = refused {
            refused.count();
        }
        match (over, refused) {
            (_, Some(Refused::Unread)) => cut(&stream),
            (_, Some(refused)) => refuse(stream, (self.door.refuse)(refused)).await,
            (Over::Said(Ok(())), None) => part(stream, left_unread).await,
            _ => {}
        }
    }

    fn answer(
        &self,
        request: hyper::Request<Incoming>,
        traffic: &Arc<Traffic>,
    ) -> impl Future<Output = Result<Response, Infallible>> + use<> {
        let owed = traffic.take();
        let request = request.map(|body| traffic.body(body));
        let answer = if let Some(refused) = self.refusal(&request) {
            Either::Left(std::future::ready(Ok(self.refused(refused))))
        } else {
            let request: Request = request.map(Body::new);
            Either::Right(self.router.clone().call(request))
        };
        async move {
            let answer = answer.await;
            drop(owed);
            answer
        }
    }

    /// Why a request isn't even looked at. A probe always is: it would take "too much to do" for
    /// "not ready", and the other instances would get the load of this one as well.
    fn refusal<B>(&self, request: &hyper::Request<B>) -> Option<Refused> {
        let refused = if self.excess {
            Refused::Connections
        } else if self.door.gate.as_ref().is_some_and(|gate| !gate.admits()) {
            Refused::Load
        } else {
            return None;
        };
        (!matches!(request.uri().path(), "/livez" | "/readyz")).then_some(refused)
    }

    fn refused(&self, refused: Refused) -> Response {
        refused.count();
        let mut answer = (self.door.refuse)(refused);
        if self.excess {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }

    fn is_crowded(&self) -> bool {
        self.connections.len() > self.door.connections / 8 * 7
    }
}

/// A connection that is open, as the metrics count it.
struct Open(metrics::Gauge);

impl Open {
    fn begin() -> Self {
        let open = metrics::gauge!("headcount_http_connections");
        open.increment(1.0);
        Self(open)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// What is seen of a connection at each tick. What lasts over a limit may last for up to two ticks more.
struct Look<'a> {
    conversation: &'a Conversation,
    traffic: &'a Traffic,
    tick: Duration,
    taken: u64,
    sent: u64,
    /// Since when nothing has changed of what is waited for.
    active: Instant,
    began: Option<Instant>,
    blocked: Option<Instant>,
    /// Told to end.
    last: bool,
}

impl<'a> Look<'a> {
    fn new(conversation: &'a Conversation, traffic: &'a Traffic) -> Self {
        let door = &conversation.door;
        let most = if conversation.excess { TOO_MANY } else { TICK };
        Self {
            conversation,
            traffic,
            tick: door.header_timeout.min(door.write_timeout).div_f64(2.0).min(most),
            taken: 0,
            sent: 0,
            active: Instant::now(),
            began: None,
            blocked: None,
            last: false,
        }
    }

    fn last_words(&mut self) {
        self.last = true;
        self.active = Instant::now();
    }

    fn look(&mut self) -> Option<Over> {
        let (now, door) = (Instant::now(), &self.conversation.door);
        let (taken, sent, owes) = (self.traffic.taken(), self.traffic.sent(), self.traffic.owes());
        let news = taken != self.taken;
        let moved = sent != self.sent;
        (self.taken, self.sent) = (taken, sent);

        let lasts = |since: &mut Option<Instant>, is_so: bool| {
            *since = if is_so { since.or(Some(now)) } else { None };
            since.map_or(Duration::ZERO, |since| now - since)
        };
        if lasts(&mut self.blocked, self.traffic.is_blocked() && !moved) >= door.write_timeout {
            return Some(Over::Unread);
        }
        // Nor is an answer broken into that waits to be read.
        let begun = self.traffic.has_begun() && !owes && !news && !self.traffic.is_blocked();
        if lasts(&mut self.began, begun) >= door.header_timeout {
            return Some(Over::HeadTooSlow);
        }
        if owes || news || self.blocked.is_some() {
            self.active = now;
        }
        let patience = match taken {
            _ if self.last => STOPPING,
            _ if self.conversation.excess => TOO_MANY,
            // What has begun has a limit of its own.
            _ if self.began.is_some() => return None,
            0 => MUTE,
            _ if self.conversation.is_crowded() => IDLE_IN_A_CROWD,
            _ => IDLE,
        };
        (now - self.active >= patience).then_some(Over::Silence)
    }
}

/// Ticks whose first comes after one period.
fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_has_begun_is_not_refused_amidst_an_answer_that_waits_to_be_read() {
        let door = Door {
            connections: 100,
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            gate: None,
            refuse: crate::api::refuse,
        };
        let (door, connections) = (Arc::new(door), TaskTracker::new());
        let conversation = Conversation { router: Router::new(), door, connections, excess: false };
        let traffic = Arc::new(Traffic::default());
        let mut look = Look::new(&conversation, &traffic);
        drop(traffic.take());
        traffic.went(&Poll::Pending, 100);
        traffic.came();
        for _ in 0..6 {
            assert!(look.look().is_none());
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        assert!(matches!(look.look(), Some(Over::Unread)));

        let mut look = Look::new(&conversation, &traffic);
        traffic.went(&Poll::Ready(Ok(100)), 100);
        traffic.came();
        // The first sees the request before.
        for _ in 0..4 {
            assert!(look.look().is_none());
            tokio::time::advance(Duration::from_secs(4)).await;
        }
        assert!(matches!(look.look(), Some(Over::HeadTooSlow)));
    }
}
