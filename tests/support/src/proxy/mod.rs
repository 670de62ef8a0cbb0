//! Stands between the service and a server, and breaks the way in the ways networks do.

mod carry;
mod dark;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use self::{carry::carry, dark::Crowd};

/// What the way does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Carries everything.
    Open,
    /// Carries everything, each piece so much later.
    Late(Duration),
    /// Carries the first piece of each connection so much later, and then everything.
    LateToBegin(Duration),
    /// Carries what is asked; answers are lost.
    Deaf,
    /// Carries nothing and says nothing; connections are still made.
    Stalled,
    /// Carries nothing and says nothing, and nobody answers who wants to connect: packets are dropped.
    Dark,
    /// Breaks every connection and makes none.
    Cut,
    /// Breaks a connection as soon as this was asked on it, which still arrives.
    CutAfter(&'static str),
    /// From when this was asked on a connection, no answer comes on it; others are carried.
    DeafAfter(&'static str),
    /// Carries so many bytes more of what is asked, breaks the connection of the last of them, and
    /// is open again.
    CutAsked(usize),
    /// Carries so many bytes more of what is answered, breaks the connection of the last of them, and
    /// is open again.
    CutAnswered(usize),
}

/// A way to a server.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    // Dropped with the proxy: ends its connections.
    _tasks: JoinSet<()>,
}

struct Shared {
    way: watch::Sender<Way>,
    /// Bytes carried since the way was set.
    asked: AtomicUsize,
    answered: AtomicUsize,
}

/// Where the server is.
#[derive(Clone, Debug)]
enum Target {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Proxy {
    /// Opens a way to the server of `url`, which may be a unix socket.
    pub async fn to(url: &str) -> Self {
        let url = url::Url::parse(url).unwrap();
        let target = match url.host_str() {
            Some(host) if !host.is_empty() => Target::Tcp(host.to_owned(), url.port().unwrap()),
            _ => Target::Unix(url.path().into()),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let way = watch::Sender::new(Way::Open);
        let shared = Arc::new(Shared { way, asked: AtomicUsize::new(0), answered: AtomicUsize::new(0) });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, target, shared.clone()));
        Self { port, shared, _tasks: tasks }
    }

    /// `url`, by this way.
    #[must_use]
    pub fn by(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap();
        if url.scheme() == "unix" {
            return format!("redis://127.0.0.1:{}", self.port);
        }
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port)).unwrap();
        url.to_string()
    }

    /// Changes the way, also of connections that are there, and counts bytes anew.
    pub fn set(&self, way: Way) {
        self.shared.asked.store(0, Ordering::SeqCst);
        self.shared.answered.store(0, Ordering::SeqCst);
        self.shared.way.send_replace(way);
    }

    /// What the way does now: one that breaks once is open after it.
    #[must_use]
    pub fn way(&self) -> Way {
        *self.shared.way.borrow()
    }

    /// How many bytes were asked since the way was set.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// How many bytes were answered since the way was set.
    #[must_use]
    pub fn answered(&self) -> usize {
        self.shared.answered.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, target: Target, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut way = shared.way.subscribe();
    loop {
        let now = *way.borrow_and_update();
        if now == Way::Dark {
            // Nobody gets in while those who stand in the door are there.
            let _crowd = Crowd::before(&listener).await;
            if way.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            changed = way.changed() => if changed.is_err() { return },
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { return };
                if now != Way::Cut {
                    connections.spawn(carry(client, target.clone(), shared.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
