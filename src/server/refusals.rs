//! What is refused before it reaches a route: how it is counted, told and answered.

use std::time::Duration;

use axum::response::Response;
use hyper::{
    body::Incoming,
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are as many connections as there may be.
    Connections,
    /// Requests wait too long already.
    Load,
    /// This is no HTTP/1.
    Malformed,
    /// The request line and headers are too long, or too many.
    HeadTooLarge,
    /// The request line and headers didn't come in time.
    HeadTooSlow,
    /// The answers were not read in time: there is nobody to tell.
    Unread,
}

impl Refused {
    fn reason(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Load => "load",
            Self::Malformed | Self::HeadTooLarge => "malformed",
            Self::HeadTooSlow => "slow_head",
            Self::Unread => "slow_reader",
        }
    }

    /// Counts one more.
    pub(super) fn count(self) {
        metrics::counter!("headcount_http_refused_total", "reason" => self.reason()).increment(1);
    }
}

/// At most so often the same is told again.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Tells of what goes on and on, once a minute.
#[derive(Default)]
pub(super) struct Told(Mutex<Option<Instant>>);

impl Told {
    /// Whether now is the time to say it.
    pub(super) fn again(&self) -> bool {
        let mut told = self.0.lock();
        let now = Instant::now();
        let again = told.is_none_or(|told| now.duration_since(told) > TELL_AGAIN);
        if again {
            *told = Some(now);
        }
        again
    }
}

/// For so long and so many bytes a peer that was answered is listened to: what it sent and nobody read
/// would reset the connection, and the answer with it.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: u64 = 1 << 20;

/// Sends `answer` on a connection whose request can't be had, and ends it.
pub(super) async fn refuse(mut stream: TcpStream, mut answer: Response) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    // Written by hyper, like every other answer: in reply to a request that stands for the real one.
    let request = &b"GET / HTTP/1.1\r\n\r\n"[..];
    let answer = Mutex::new(Some(answer));
    let service = service_fn(move |_: hyper::Request<Incoming>| {
        std::future::ready(answer.lock().take().ok_or(std::io::Error::other("it is said once")))
    });
    let exchange = tokio::io::join(request, &mut stream);
    // After that request comes nothing: half a connection is enough.
    let sending = http1::Builder::new().half_close(true).serve_connection(TokioIo::new(exchange), service);
    if tokio::time::timeout(FAREWELL, sending).await.is_ok() {
        part(stream, true).await;
    }
}

/// Closes a connection so that the last answer arrives. `is_speaking` where the peer may go on.
pub(super) async fn part(mut stream: TcpStream, is_speaking: bool) {
    let mut first = [0; 1];
    let unread = stream.try_read(&mut first).is_ok_and(|count| count > 0);
    // Where it fails, the peer is gone already.
    if stream.shutdown().await.is_ok() && (unread || is_speaking) {
        let mut rest = stream.take(FAREWELL_BYTES);
        let mut nowhere = tokio::io::sink();
        let reading = tokio::io::copy(&mut rest, &mut nowhere);
        let _ = tokio::time::timeout(FAREWELL, reading).await;
    }
}

/// Ends a connection at once, with what is still to be sent on it.
pub(super) fn cut(stream: &TcpStream) {
    // One that can't be set is closed in the ordinary way.
    let _ = stream.set_zero_linger();
}
