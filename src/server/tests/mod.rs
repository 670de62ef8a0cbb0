//! What a connection is promised, over real sockets.

mod limits;

use std::sync::atomic::{AtomicU64, Ordering};

use axum::routing::{get, post};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
    time::Instant,
};

use super::*;

const LONG: Duration = Duration::from_secs(60);

/// What [`Running::start`] holds its peers to.
fn door() -> Door {
    Door {
        connections: 100,
        header_timeout: Duration::from_secs(10),
        write_timeout: Duration::from_secs(30),
        gate: None,
        refuse: crate::api::refuse,
    }
}

/// An answer that fills sockets.
const LARGE: usize = 1 << 20;

struct Running {
    address: std::net::SocketAddr,
    stopping: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
    release: Arc<Notify>,
    entered: Arc<Notify>,
    /// How many large answers were made.
    large: Arc<AtomicU64>,
}

impl Running {
    /// A server with a route that answers at once and one that answers when told to.
    async fn start(patience: Duration) -> Self {
        Self::behind(door(), patience).await
    }

    async fn behind(door: Door, patience: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (release, entered) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = {
            let (release, entered) = (release.clone(), entered.clone());
            move || async move {
                entered.notify_one();
                release.notified().await;
                "slow"
            }
        };
        let large = Arc::new(AtomicU64::new(0));
        let count = large.clone();
        let router = Router::new()
            .route("/quick", get(async || "quick").post(async |body: String| body))
            .route("/slow", get(slow))
            .route("/livez", get(async || "alive"))
            .route("/deaf", post(async || (axum::http::StatusCode::PAYLOAD_TOO_LARGE, "too much")))
            .route(
                "/large",
                get(async move || {
                    count.fetch_add(1, Ordering::Relaxed);
                    vec![b'x'; LARGE]
                }),
            )
            .route("/{name}", get(async |uri: axum::http::Uri| uri.path().to_owned()));
        let stopping = CancellationToken::new();
        let ended = TaskTracker::new().spawn(serve(listener, router, door, stopping.clone(), patience));
        Self { address, stopping, ended, release, entered, large }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn stopped(self) {
        tokio::time::timeout(LONG, self.ended).await.expect("it stops").unwrap();
    }
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn ask(stream: &mut TcpStream, path: &str) {
    send(stream, &format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
}

/// Reads until the text is there.
async fn expect(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        let mut piece = [0; 1024];
        let count = tokio::time::timeout(LONG, stream.read(&mut piece)).await.expect("an answer").unwrap();
        assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&read).into_owned()
}

/// Reads to the end of the connection.
async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset is an end as well.
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut text)).await.expect("it is closed");
    String::from_utf8_lossy(&text).into_owned()
}

async fn expect_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await.expect("it is closed");
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
}

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    for _ in 0..3 {
        ask(&mut stream, "/quick").await;
        expect(&mut stream, "quick").await;
    }
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_those_that_never_spoke() {
    let running = Running::start(LONG).await;
    let mut kept = running.connect().await;
    ask(&mut kept, "/quick").await;
    expect(&mut kept, "quick").await;
    let mut mute = running.connect().await;
    let mut stuck = running.connect().await;
    send(&mut stuck, "GET /quick HTT").await;
    // The server has all three once it answers a later one.
    let mut later = running.connect().await;
    ask(&mut later, "/quick").await;
    expect(&mut later, "quick").await;

    running.stopping.cancel();
    for stream in [&mut kept, &mut mute, &mut stuck, &mut later] {
        expect_end(stream).await;
    }
    running.stopped().await;
}

#[tokio::test]
async fn a_stop_accepts_no_more_and_finishes_what_is_under_way() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    ask(&mut stream, "/slow").await;
    running.entered.notified().await;
    running.stopping.cancel();
    // As soon as the listener is closed; until then the connection may still be taken.
    while TcpStream::connect(running.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!running.ended.is_finished());
    running.release.notify_one();
    expect(&mut stream, "connection: close").await;
    running.stopped().await;
}

#[tokio::test]
async fn a_request_that_does_not_end_is_cut_off_when_patience_is_over() {
    let running = Running::start(Duration::from_millis(100)).await;
    let mut stream = running.connect().await;
    ask(&mut stream, "/slow").await;
    running.entered.notified().await;
    running.stopping.cancel();
    expect_end(&mut stream).await;
    running.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanished_is_let_go() {
    let running = Running::start(LONG).await;
    // The clock stands until everybody waits for it, so this takes no time.
    let began = Instant::now();
    let mut mute = running.connect().await;
    let mut byte = [0];
    assert_eq!(mute.read(&mut byte).await.unwrap(), 0);
    let seconds = began.elapsed().as_secs();
    assert!((30..=60).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_outlives_a_balancers_ten_idle_minutes_but_not_much_more() {
    let running = Running::start(LONG).await;
    let mut stream = running.connect().await;
    ask(&mut stream, "/quick").await;
    let mut answer = [0; 1024];
    assert!(stream.read(&mut answer).await.unwrap() > 0);
    let began = Instant::now();
    assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    assert!((10.0..13.0).contains(&minutes), "{minutes}");
}

#[test]
fn files_are_left_for_the_stores_and_the_operators() {
    assert_eq!(room(65_536, 139), 65_536 - 128 - 64 - 139);
    assert_eq!(room(256, 139), 1, "so few that there is room for nothing");
}
