//! The socket under a connection: notes what comes and goes, for the look at every tick, and keeps
//! hyper's own empty refusals from being sent.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::refusals::Refused;

/// What came and went on one connection. Only its own task writes here.
#[derive(Default)]
pub(super) struct Traffic {
    taken: AtomicU64,
    answered: AtomicU64,
    /// Something came that no request was made of yet.
    begun: AtomicBool,
    /// What is to be sent doesn't fit into the socket.
    blocked: AtomicBool,
    /// How often all that was to be sent was.
    sent: AtomicU64,
    /// Of the last request's body some may be on its way that nobody waits for.
    unread: AtomicBool,
}

impl Traffic {
    /// A request is whole, but for its body.
    pub(super) fn take(self: &Arc<Self>) -> Owed {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.begun.store(false, Ordering::Relaxed);
        self.unread.store(false, Ordering::Relaxed);
        Owed(self.clone())
    }

    /// The body of that request.
    pub(super) fn body(self: &Arc<Self>, incoming: Incoming) -> Rest {
        Rest { incoming, is_over: false, traffic: self.clone() }
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    pub(super) fn owes(&self) -> bool {
        self.taken() != self.answered.load(Ordering::Relaxed)
    }

    /// Whether a request has begun to come. The beginning that came in one packet with the request
    /// before it isn't known of; where no more comes, the connection is as idle as any other.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether the last request was answered before its body was read to the end.
    pub(super) fn left_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// Something was read.
    pub(super) fn came(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// So much of what was `wanted` was written.
    pub(super) fn went(&self, written: &Poll<io::Result<usize>>, wanted: usize) {
        match written {
            Poll::Pending => self.blocked.store(true, Ordering::Relaxed),
            Poll::Ready(Ok(count)) => {
                self.blocked.store(false, Ordering::Relaxed);
                // A body that came late belonged to what is answered here.
                self.begun.store(false, Ordering::Relaxed);
                if *count == wanted {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                }
            }
            Poll::Ready(Err(_)) => {}
        }
    }
}

/// Counts an answer also when the request was given up.
pub(super) struct Owed(Arc<Traffic>);

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// The body of a request: notes when it is given up before its end.
pub(super) struct Rest {
    incoming: Incoming,
    is_over: bool,
    traffic: Arc<Traffic>,
}

impl Body for Rest {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(context);
        self.is_over |= matches!(frame, Poll::Ready(None));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if !self.is_over && !self.incoming.is_end_stream() {
            self.traffic.unread.store(true, Ordering::Relaxed);
        }
    }
}

/// A socket that notes its traffic.
pub(super) struct Wire {
    stream: TcpStream,
    traffic: Arc<Traffic>,
    /// What hyper was about to refuse with an empty answer.
    caught: Option<Refused>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, traffic: Arc<Traffic>) -> Self {
        Self { stream, traffic, caught: None }
    }

    /// The socket, and what is still to be refused on it.
    pub(super) fn into_parts(self) -> (TcpStream, Option<Refused>) {
        (self.stream, self.caught)
    }

    /// Whether `bytes` may go out. Hyper answers what it can't parse by itself, with no body, after
    /// everything before it has been sent; no answer of the service begins like that. An error ends
    /// the connection there, and the refusal is written in its place.
    fn may_go(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.caught = own_refusal(bytes);
        if self.caught.is_some() { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }
}

/// What hyper refuses with these bytes, if it is that.
fn own_refusal(bytes: &[u8]) -> Option<Refused> {
    const OWN: [(&[u8], Refused); 2] = [
        (b"400 Bad Request\r\n", Refused::Malformed),
        (b"431 Request Header Fields Too Large\r\n", Refused::HeadTooLarge),
    ];
    let rest = bytes.strip_prefix(b"HTTP/1.1 4").or_else(|| bytes.strip_prefix(b"HTTP/1.0 4"))?;
    let (headers, refused) =
        OWN.iter().find_map(|(line, refused)| Some((rest.strip_prefix(&line[1..])?, *refused)))?;
    (headers.starts_with(b"content-length: 0\r\n") || headers.starts_with(b"connection: close\r\n"))
        .then_some(refused)
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.traffic.came();
        }
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.may_go(bytes)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.traffic.went(&written, bytes.len());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.may_go(pieces.first().map_or(&[], |piece| piece))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.traffic.went(&written, pieces.iter().map(|piece| piece.len()).sum());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Left to the end of the conversation, which may have something to say yet.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_without_a_body_is_hypers_own() {
        let own = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(own_refusal(own), Some(Refused::Malformed));
        let large = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(own_refusal(large), Some(Refused::HeadTooLarge));
        for ours in [
            &b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"[..],
            b"HTTP/1.1 404 Not Found\r\nconnection: close\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n",
            b"",
        ] {
            assert_eq!(own_refusal(ours), None);
        }
    }
}
