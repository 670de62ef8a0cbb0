//! Stands between the service and a server, and breaks the way in the ways networks do.

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// What the way does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Carries everything.
    Open,
    /// Carries what is asked; answers are lost.
    Deaf,
    /// Carries nothing and says nothing.
    Stalled,
    /// Breaks every connection and makes none.
    Cut,
    /// Breaks a connection as soon as this was asked on it, which still arrives.
    CutAfter(&'static str),
}

/// A way to a server.
pub struct Proxy {
    port: u16,
    way: Arc<watch::Sender<Way>>,
    // Dropped with the proxy: ends its connections.
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Opens a way to the server of `url`.
    pub async fn to(url: &str) -> Self {
        let url = url::Url::parse(url).unwrap();
        let target = (url.host_str().unwrap().to_owned(), url.port().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let way = Arc::new(watch::Sender::new(Way::Open));
        let mut tasks = JoinSet::new();
        let ways = way.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                if *ways.borrow() != Way::Cut {
                    connections.spawn(carry(client, target.clone(), ways.subscribe()));
                }
            }
        });
        Self { port, way, _tasks: tasks }
    }

    /// `url`, by this way.
    #[must_use]
    pub fn by(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port)).unwrap();
        url.to_string()
    }

    /// Changes the way, also of connections that are there.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn carry(mut client: TcpStream, target: (String, u16), mut way: watch::Receiver<Way>) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        let now = *way.borrow_and_update();
        if now == Way::Cut {
            return;
        }
        tokio::select! {
            changed = way.changed() => if changed.is_err() { return },
            read = client.read(&mut asked), if now != Way::Stalled => {
                let Ok(length @ 1..) = read else { return };
                if server.write_all(&asked[..length]).await.is_err() {
                    return;
                }
                if let Way::CutAfter(text) = now
                    && asked[..length].windows(text.len()).any(|bytes| bytes == text.as_bytes())
                {
                    // Until the server has done it: it answers, and nobody hears.
                    let _ = server.read(&mut answered).await;
                    return;
                }
            }
            read = server.read(&mut answered), if now != Way::Stalled => {
                let Ok(length @ 1..) = read else { return };
                if now != Way::Deaf && client.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}
