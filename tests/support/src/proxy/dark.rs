//! A listener that nobody gets through to: who asks to connect hears nothing, as where a firewall drops
//! packets.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

/// Connections that may wait to be accepted while the way is open.
const WAITING: i32 = 1_024;

/// Whoever isn't connected by then has found the queue full.
const CONNECTS_WITHIN: Duration = Duration::from_millis(200);

/// Fills the queue of a listener that accepts nothing: the kernel drops what else asks to connect.
pub(super) struct Crowd<'a> {
    listener: &'a TcpListener,
    _standing: Vec<TcpStream>,
}

impl<'a> Crowd<'a> {
    pub(super) async fn before(listener: &'a TcpListener) -> Self {
        SockRef::from(listener).listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut standing = Vec::new();
        while let Ok(connected) = tokio::time::timeout(CONNECTS_WITHIN, TcpStream::connect(address)).await {
            standing.push(connected.unwrap());
        }
        Self { listener, _standing: standing }
    }
}

impl Drop for Crowd<'_> {
    fn drop(&mut self) {
        SockRef::from(self.listener).listen(WAITING).unwrap();
    }
}
