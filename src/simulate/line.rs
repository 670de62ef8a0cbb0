//! Connections to one target, kept for the next request: what a beat costs here is mostly the kernel's.
//!
//! For `http` only; with TLS requests go through `reqwest`, which costs several times as much.

use std::{pin::pin, time::Duration};

use axum::body::{Body, Bytes};
use futures::future::{Either, select};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1::{self, Connection, SendRequest},
    header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use url::Url;

use super::client::Failure;

/// No answer to a beat or a play is longer.
const LONGEST_ANSWER: usize = 1 << 20;

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Bytes,
}

/// The connections to one target that nobody uses.
#[derive(Debug)]
pub(super) struct Lines {
    host: String,
    port: u16,
    /// `Host`, as every request carries it.
    name: HeaderValue,
    free: Mutex<Vec<Line>>,
}

/// One connection. Nobody drives it while it is free.
#[derive(Debug)]
struct Line {
    sender: SendRequest<Body>,
    connection: Connection<TokioIo<TcpStream>, Body>,
}

/// Why a request on a line that was used before brought nothing.
enum Lost {
    /// It was closed meanwhile, before anything was sent.
    Unsent,
    /// Anything else.
    Failed(Failure),
}

impl Lines {
    /// To a target over plain HTTP; `None` for any other.
    pub(super) fn to(target: &Url) -> Option<Self> {
        let host = target.host_str().filter(|_| target.scheme() == "http")?;
        let port = target.port_or_known_default()?;
        let name = HeaderValue::try_from(format!("{host}:{port}")).ok()?;
        // An IPv6 address stands in brackets in a URL.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self { host, port, name, free: Mutex::default() })
    }

    /// POSTs JSON and reads the answer.
    pub(super) async fn post(&self, path: &str, json: String) -> Result<Reply, Failure> {
        let json = Bytes::from(json);
        loop {
            let free = self.free.lock().pop();
            let is_new = free.is_none();
            let mut line = match free {
                Some(line) => line,
                None => self.connect().await?,
            };
            match line.exchange(self.request(path, json.clone())?).await {
                Ok(reply) => {
                    if !line.sender.is_closed() {
                        self.free.lock().push(line);
                    }
                    return Ok(reply);
                }
                // Kept longer than the target keeps it: nothing has happened, so it is no retry.
                Err(Lost::Unsent) if !is_new => {}
                Err(Lost::Unsent) => return Err(Failure::Broken),
                Err(Lost::Failed(failure)) => return Err(failure),
            }
        }
    }

    async fn connect(&self) -> Result<Line, Failure> {
        let connect = TcpStream::connect((self.host.as_str(), self.port));
        let stream = connect.await.map_err(|_| Failure::Connect)?;
        // Requests are small and complete. One that can't be set is seen when it is used.
        let _ = stream.set_nodelay(true);
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| Failure::Connect)?;
        Ok(Line { sender, connection })
    }

    fn request(&self, path: &str, json: Bytes) -> Result<Request<Body>, Failure> {
        Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(HOST, self.name.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Body::from(json))
            // A path that can't be sent: the options were checked, so it is the target's own.
            .map_err(|_| Failure::Connect)
    }
}

impl Line {
    async fn exchange(&mut self, request: Request<Body>) -> Result<Reply, Lost> {
        let Self { sender, connection } = self;
        let exchange = pin!(exchange(sender, request));
        match select(exchange, connection).await {
            Either::Left((reply, _)) => reply,
            // What the connection had read by its end may be the whole answer.
            Either::Right((_ended, exchange)) => exchange.await,
        }
    }
}

async fn exchange(sender: &mut SendRequest<Body>, request: Request<Body>) -> Result<Reply, Lost> {
    let broken = |_| Lost::Failed(Failure::Broken);
    sender.ready().await.map_err(|_| Lost::Unsent)?;
    let response = sender.send_request(request).await;
    let response = response
        .map_err(|error| if error.is_canceled() { Lost::Unsent } else { Lost::Failed(Failure::Broken) })?;
    let (head, body) = response.into_parts();
    let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = axum::body::to_bytes(Body::new(body), LONGEST_ANSWER).await.map_err(broken)?;
    Ok(Reply { status: head.status, retry_after: retry_after.map(Duration::from_secs), body })
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        task::JoinSet,
    };

    use super::*;

    async fn lines() -> (Lines, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap());
        (Lines::to(&target.parse().unwrap()).unwrap(), listener)
    }

    async fn answer(stream: &mut TcpStream, answer: &str) {
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_is_used_again_until_it_is_closed_and_then_another() {
        let (lines, listener) = lines().await;
        let (closed, wait_until_closed) = tokio::sync::oneshot::channel();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            for _ in 0..2 {
                answer(&mut first, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
            }
            drop(first);
            closed.send(()).unwrap();
            let (mut second, _) = listener.accept().await.unwrap();
            answer(&mut second, "HTTP/1.1 503 Busy\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n").await;
        });
        for _ in 0..2 {
            let reply = lines.post("/a", "{}".into()).await.unwrap();
            assert_eq!((reply.status.as_u16(), &*reply.body), (200, &b"{}"[..]));
        }
        wait_until_closed.await.unwrap();
        // The end is on its way, over loopback: it is there once it can be read.
        let free = lines.free.lock().pop().unwrap();
        let Line { sender, connection } = free;
        let _ = connection.await;
        assert!(sender.is_closed());
        let reply = lines.post("/a", "{}".into()).await.unwrap();
        assert_eq!((reply.status.as_u16(), reply.retry_after), (503, Some(Duration::from_secs(3))));
        server.join_all().await;
    }

    #[tokio::test]
    async fn an_answer_cut_off_is_a_broken_one_and_nobody_there_is_no_connection() {
        let (lines, listener) = lines().await;
        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream, "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{").await;
        });
        assert_eq!(lines.post("/a", "{}".into()).await.unwrap_err(), Failure::Broken);
        server.join_all().await;
        assert_eq!(lines.post("/a", "{}".into()).await.unwrap_err(), Failure::Connect);
    }

    #[test]
    fn only_plain_http_is_spoken_here() {
        assert!(Lines::to(&"https://host".parse().unwrap()).is_none());
        assert_eq!(Lines::to(&"http://[::1]:80/base".parse().unwrap()).unwrap().host, "::1");
    }
}
