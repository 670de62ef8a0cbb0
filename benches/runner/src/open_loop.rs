//! Requests at a given rate, whether or not the server keeps up: as an audience sends them.
//!
//! Latencies count from when a request should have been sent. One that had to wait for a free connection
//! waited for the server as well, and one that never got an answer is among them with the status 0.

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

/// How long what is due is still sent when the time is over, and then how long answers are waited for: what
/// is open after that hangs.
const GRACE: Duration = Duration::from_secs(5);

/// The status of a request without an answer.
pub(crate) const UNANSWERED: u16 = 0;

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
    /// It was the n-th.
    pub(crate) number: u64,
    /// When it should have been sent, from the beginning.
    pub(crate) due: f64,
    /// How much later it was.
    pub(crate) lag: f64,
    /// From when it should have been sent until it was answered.
    pub(crate) latency: f64,
    /// [`UNANSWERED`] where there was no answer.
    pub(crate) status: u16,
    pub(crate) has_retry_after: bool,
}

/// What came of it.
pub(crate) struct Ended {
    /// Every request that was due until the end, whatever became of it.
    pub(crate) sent: Vec<Sent>,
    /// Of these, so many were still open when nobody waited for them any more.
    pub(crate) open: usize,
    /// And so many found no free connection until then.
    pub(crate) never_begun: usize,
    /// Requests a second that were really sent before the end.
    pub(crate) asked: f64,
}

struct Shared {
    traffic: Traffic,
    began: Instant,
    next: Cell<u64>,
    until: Cell<Option<Instant>>,
    /// Nothing more is begun.
    is_over: Cell<bool>,
    sent: RefCell<Vec<Sent>>,
    /// What each connection is at, and when that was sent.
    open: RefCell<Vec<Option<(u64, Instant)>>>,
}

impl Shared {
    #[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
    fn due(&self, number: u64) -> Instant {
        self.began + Duration::from_secs_f64(number as f64 / self.traffic.rate)
    }

    /// One that ended now, or is given up.
    fn sent(&self, number: u64, sent_at: Instant, status: u16, has_retry_after: bool) -> Sent {
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        let due = self.due(number);
        Sent {
            number,
            due: millis(due - self.began),
            lag: millis(sent_at - due),
            latency: millis(due.elapsed()),
            status,
            has_retry_after,
        }
    }
}

/// Traffic under way.
pub(crate) struct Running {
    shared: Rc<Shared>,
    tasks: JoinSet<()>,
}

impl Traffic {
    pub(crate) fn start(self) -> Running {
        self.start_on(Vec::new())
    }

    /// On these connections, and new ones beyond.
    fn start_on(self, open: Vec<Connection>) -> Running {
        let connections = self.connections;
        let mut open = open.into_iter();
        let shared = Rc::new(Shared {
            traffic: self,
            began: Instant::now() + Duration::from_millis(50),
            next: Cell::new(0),
            until: Cell::new(None),
            is_over: Cell::new(false),
            sent: RefCell::default(),
            open: RefCell::new(vec![None; connections]),
        });
        let mut tasks = JoinSet::new();
        for connection in 0..connections {
            tasks.spawn_local(send(Rc::clone(&shared), connection, open.next()));
        }
        Running { shared, tasks }
    }

    /// Sends for so long, once all connections are there; what came of it.
    pub(crate) async fn run(self, length: Duration) -> anyhow::Result<Ended> {
        let mut connections = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            connections.push(Connection::open(self.server).await?);
        }
        let running = self.start_on(connections);
        tokio::time::sleep(length).await;
        Ok(running.end().await)
    }
}

impl Running {
    /// Milliseconds since the beginning, as in [`Sent::due`].
    pub(crate) fn now(&self) -> f64 {
        self.shared.began.elapsed().as_secs_f64() * 1e3
    }

    /// Sends no more than what is due by now, and waits for answers.
    pub(crate) async fn end(mut self) -> Ended {
        let now = Instant::now();
        let shared = &self.shared;
        shared.until.set(Some(now));
        while let Ok(Some(_)) = timeout_at(now + GRACE, self.tasks.join_next()).await {}
        shared.is_over.set(true);
        while let Ok(Some(_)) = timeout_at(now + 2 * GRACE, self.tasks.join_next()).await {}
        self.tasks.shutdown().await;

        let mut sent = shared.sent.take();
        let ended = sent.len();
        let hanging = shared.open.take().into_iter().flatten();
        sent.extend(hanging.map(|(number, sent_at)| shared.sent(number, sent_at, UNANSWERED, false)));
        let open = sent.len() - ended;
        let length = now.saturating_duration_since(shared.began).as_secs_f64();
        let in_time = sent.iter().filter(|sent| sent.due + sent.lag < length * 1e3).count();
        // Connections take requests in turn: what nobody took are the last ones.
        let left = (shared.next.get()..).take_while(|number| shared.due(*number) < now);
        let before = sent.len();
        sent.extend(left.map(|number| shared.sent(number, Instant::now(), UNANSWERED, false)));
        #[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
        let asked = in_time as f64 / length;
        Ended { never_begun: sent.len() - before, sent, open, asked }
    }
}

async fn send(shared: Rc<Shared>, place: usize, mut connection: Option<Connection>) {
    while !shared.is_over.get() {
        let number = shared.next.get();
        shared.next.set(number + 1);
        let due = shared.due(number);
        sleep_until(due).await;
        if shared.until.get().is_some_and(|until| due >= until) {
            return;
        }
        let sent_at = Instant::now();
        shared.open.borrow_mut()[place] = Some((number, sent_at));
        let (status, has_retry_after) = exchange(&shared.traffic, &mut connection, number).await;
        shared.open.borrow_mut()[place] = None;
        shared.sent.borrow_mut().push(shared.sent(number, sent_at, status, has_retry_after));
    }
}

async fn exchange(traffic: &Traffic, kept: &mut Option<Connection>, number: u64) -> (u16, bool) {
    let request = (traffic.request)(number);
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => match Connection::open(traffic.server).await {
            Ok(connection) => connection,
            Err(_) => return (UNANSWERED, false),
        },
    };
    let Ok(answer) = connection.exchange(&request).await else { return (UNANSWERED, false) };
    let (said, is_last) = ((answer.status, answer.has_retry_after), answer.is_last);
    if !is_last {
        *kept = Some(connection);
    }
    said
}
