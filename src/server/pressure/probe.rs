//! A request of our own, again and again: how long it waits until it is looked at.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{EVERY, Gate};

/// Starts the thread that measures, for as long as what it sends is answered at the end that is returned.
pub(super) fn measure(gate: Arc<Gate>) -> std::io::Result<tokio::net::UnixStream> {
    let (mut near, far) = UnixStream::pair()?;
    near.set_read_timeout(Some(EVERY))?;
    far.set_nonblocking(true)?;
    let far = tokio::net::UnixStream::from_std(far)?;
    std::thread::Builder::new().name("pressure".to_owned()).spawn(move || {
        let mut last = Instant::now();
        while let Ok(waited) = round_trip(&mut near, &gate, &mut last) {
            gate.observe(waited, last.elapsed());
            last = Instant::now();
            std::thread::sleep(EVERY);
        }
    })?;
    Ok(far)
}

/// How long a byte waited until it was looked at; before it is, the gate is told how long it has waited yet.
fn round_trip(near: &mut UnixStream, gate: &Gate, last: &mut Instant) -> std::io::Result<Duration> {
    let sent = Instant::now();
    near.write_all(&[1])?;
    loop {
        match near.read(&mut [0]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(sent.elapsed()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                gate.observe(sent.elapsed(), last.elapsed());
                *last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends each byte back, once it is its turn among the requests.
pub(super) async fn answer(mut far: tokio::net::UnixStream) {
    // Asked for more than there is, so that the next has to be waited for as well: what fills its
    // buffer is read on without a look whether there is more.
    let mut read = [0; 8];
    while let Ok(1..) = far.read(&mut read).await {
        if far.write_all(&read[..1]).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_has_not_come_back_is_known_to_wait_while_nobody_looks_at_anything() {
        let gate = Arc::new(Gate::new(EVERY));
        let echo = measure(gate.clone()).unwrap();
        let mut answering = tokio::task::JoinSet::new();
        answering.spawn(answer(echo));
        // The one worker is kept from all else, as by requests that each take their time.
        let jam = gate.clone();
        answering.spawn(async move {
            while jam.refused() < 0.5 {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        while answering.len() > 1 {
            answering.join_next().await.unwrap().unwrap();
        }
        while gate.refused() > 0.0 {
            tokio::time::sleep(EVERY).await;
        }
    }
}
