//! Requests at a given rate, whether or not the server keeps up: as an audience sends them.
//!
//! Latencies count from when a request should have been sent. One that had to wait for a free connection
//! waited for the server as well.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

use crate::http::Connection;

/// How long answers are waited for when the time is over.
const GRACE: Duration = Duration::from_secs(5);

/// What to send.
pub(crate) struct Traffic {
    pub(crate) server: SocketAddr,
    /// Requests a second.
    pub(crate) rate: f64,
    /// Connections, kept. With too few, requests wait for one.
    pub(crate) connections: usize,
    /// The n-th request.
    pub(crate) request: Box<dyn Fn(u64) -> Vec<u8>>,
}

/// One request, times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// When it should have been sent, from the beginning.
    pub(crate) due: f64,
    /// How much later it was.
    pub(crate) lag: f64,
    /// From when it should have been sent until it was answered.
    pub(crate) latency: f64,
    /// 0 where there was no answer.
    pub(crate) status: u16,
    pub(crate) has_retry_after: bool,
}

struct Shared {
    traffic: Traffic,
    began: Instant,
    next: Cell<u64>,
    until: Cell<Option<Instant>>,
    sent: RefCell<Vec<Sent>>,
}

/// Traffic under way.
pub(crate) struct Running {
    shared: Rc<Shared>,
    tasks: JoinSet<()>,
}

impl Traffic {
    pub(crate) fn start(self) -> Running {
        let connections = self.connections;
        let shared = Rc::new(Shared {
            traffic: self,
            began: Instant::now() + Duration::from_millis(50),
            next: Cell::new(0),
            until: Cell::new(None),
            sent: RefCell::default(),
        });
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            tasks.spawn_local(send(Rc::clone(&shared)));
        }
        Running { shared, tasks }
    }

    /// Sends for so long; what came of it.
    pub(crate) async fn run(self, length: Duration) -> Vec<Sent> {
        let running = self.start();
        tokio::time::sleep(length).await;
        running.end().await
    }
}

impl Running {
    /// Milliseconds since the beginning, as in [`Sent::due`].
    pub(crate) fn now(&self) -> f64 {
        self.shared.began.elapsed().as_secs_f64() * 1e3
    }

    /// Sends no more, and waits for answers.
    pub(crate) async fn end(mut self) -> Vec<Sent> {
        let now = Instant::now();
        self.shared.until.set(Some(now));
        while let Ok(Some(_)) = timeout_at(now + GRACE, self.tasks.join_next()).await {}
        self.tasks.shutdown().await;
        self.shared.sent.take()
    }
}

async fn send(shared: Rc<Shared>) {
    let mut connection = None;
    loop {
        let number = shared.next.get();
        shared.next.set(number + 1);
        #[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
        let due = shared.began + Duration::from_secs_f64(number as f64 / shared.traffic.rate);
        sleep_until(due).await;
        if shared.until.get().is_some_and(|until| due >= until) {
            return;
        }
        let lag = due.elapsed();
        let (status, has_retry_after) = exchange(&shared.traffic, &mut connection, number).await;
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let sent = Sent {
            due: millis(due - shared.began),
            lag: millis(lag),
            latency: millis(due.elapsed()),
            status,
            has_retry_after,
        };
        shared.sent.borrow_mut().push(sent);
    }
}

async fn exchange(traffic: &Traffic, kept: &mut Option<Connection>, number: u64) -> (u16, bool) {
    let request = (traffic.request)(number);
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => match Connection::open(traffic.server).await {
            Ok(connection) => connection,
            Err(_) => return (0, false),
        },
    };
    let Ok(answer) = connection.exchange(&request).await else { return (0, false) };
    let (said, is_last) = ((answer.status, answer.has_retry_after), answer.is_last);
    if !is_last {
        *kept = Some(connection);
    }
    said
}
