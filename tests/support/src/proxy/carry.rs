//! One connection through a proxy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
};

use super::{Shared, Target, Way};

/// How long a server that was left may take to notice.
const FAREWELL: Duration = Duration::from_secs(10);

/// The way on to the server.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn connect(target: Target) -> std::io::Result<Box<dyn Stream>> {
    Ok(match target {
        Target::Tcp(host, port) => Box::new(TcpStream::connect((host, port)).await?),
        Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
    })
}

/// Ends what is asked and waits until the server has done all of it and hung up as well: what was done
/// is then to be seen.
async fn leave(mut server: Box<dyn Stream>) {
    let _ = server.shutdown().await;
    let mut rest = [0; 4_096];
    let hung_up = async { while server.read(&mut rest).await.is_ok_and(|length| length > 0) {} };
    let _ = tokio::time::timeout(FAREWELL, hung_up).await;
}

pub(super) async fn carry(mut client: TcpStream, target: Target, shared: Arc<Shared>) {
    let Ok(mut server) = connect(target).await else { return };
    let mut way = shared.way.subscribe();
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let (mut deaf, mut begun) = (false, false);
    loop {
        let now = *way.borrow_and_update();
        if now == Way::Cut {
            return;
        }
        let moves = !matches!(now, Way::Stalled | Way::Dark);
        tokio::select! {
            changed = way.changed() => if changed.is_err() { return },
            read = client.read(&mut asked), if moves => {
                let Ok(length @ 1..) = read else { return };
                let most = if let Way::CutAsked(most) = now { most } else { usize::MAX };
                let (carried, last) = within(&shared.asked, length, most);
                wait(now).await;
                if let (Way::LateToBegin(by), false) = (now, std::mem::replace(&mut begun, true)) {
                    tokio::time::sleep(by).await;
                }
                if server.write_all(&asked[..carried]).await.is_err() {
                    return;
                }
                if last {
                    shared.open_again(now);
                    return leave(server).await;
                }
                match now {
                    Way::CutAfter(text) if holds(&asked[..length], text) => {
                        // Until the server has done it: it answers, and nobody hears.
                        let _ = server.read(&mut answered).await;
                        return;
                    }
                    Way::DeafAfter(text) => deaf |= holds(&asked[..length], text),
                    _ => {}
                }
            }
            read = server.read(&mut answered), if moves => {
                let Ok(length @ 1..) = read else { return };
                let most = if let Way::CutAnswered(most) = now { most } else { usize::MAX };
                let (carried, last) = within(&shared.answered, length, most);
                wait(now).await;
                if now != Way::Deaf && !deaf && client.write_all(&answered[..carried]).await.is_err() {
                    return;
                }
                if last {
                    shared.open_again(now);
                    return leave(server).await;
                }
            }
        }
    }
}

/// How many of `length` bytes are carried where `most` are in all, and whether they are the last.
fn within(counted: &AtomicUsize, length: usize, most: usize) -> (usize, bool) {
    let before = counted.fetch_add(length, Ordering::SeqCst);
    let left = most.saturating_sub(before);
    (left.min(length), left <= length)
}

async fn wait(way: Way) {
    if let Way::Late(by) = way {
        tokio::time::sleep(by).await;
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

impl Shared {
    /// What breaks once has broken.
    fn open_again(&self, way: Way) {
        self.way.send_if_modified(|now| {
            let same = *now == way;
            if same {
                *now = Way::Open;
            }
            same
        });
    }
}
