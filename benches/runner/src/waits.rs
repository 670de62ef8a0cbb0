//! What another client of Redis waits while something else is at work there.
//!
//! It asks from a thread of its own: the runner's is busy with the measuring, and that isn't Redis's doing.

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use headcount_support::redis_connection;
use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::{figures::percentile, world::Redis};

/// Between two looks: often enough to meet whatever blocks for longer.
const EVERY: Duration = Duration::from_millis(1);

/// Asks Redis all the time, from when it is made until it is dropped.
pub(crate) struct Waits {
    /// The thread ends when it is dropped.
    seen: Receiver<f64>,
}

/// In milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Waited {
    pub(crate) looks: u32,
    pub(crate) median: f64,
    pub(crate) p999: f64,
    pub(crate) longest: f64,
}

impl Waits {
    pub(crate) async fn watch(redis: &Redis) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (url, (waited, seen)) = (redis.url(), channel());
        let (connected, is_connected) = oneshot::channel();
        thread::Builder::new().name("waits".to_owned()).spawn(move || {
            runtime.block_on(async {
                match redis_connection(&url).await {
                    Ok(connection) => {
                        // Where nobody waits for this any more, nobody takes the first look either.
                        let _ = connected.send(Ok(()));
                        look(connection, &waited).await;
                    }
                    Err(error) => drop(connected.send(Err(error))),
                }
            });
        })?;
        is_connected.await.context("the thread that looks has ended")??;
        Ok(Self { seen })
    }

    /// What was waited since the last call.
    pub(crate) fn take(&self) -> Waited {
        let mut seen: Vec<f64> = self.seen.try_iter().collect();
        Waited {
            looks: u32::try_from(seen.len()).unwrap_or(u32::MAX),
            median: percentile(&mut seen, 0.5),
            p999: percentile(&mut seen, 0.999),
            longest: percentile(&mut seen, 1.0),
        }
    }
}

async fn look(mut connection: MultiplexedConnection, waited: &Sender<f64>) {
    let mut is_ping = false;
    loop {
        is_ping = !is_ping;
        let mut command = redis::cmd(if is_ping { "PING" } else { "GET" });
        if !is_ping {
            command.arg("somebody-else");
        }
        let began = Instant::now();
        if command.query_async::<redis::Value>(&mut connection).await.is_err() {
            return; // the measurement it belongs to is over
        }
        if waited.send(began.elapsed().as_secs_f64() * 1e3).is_err() {
            return;
        }
        tokio::time::sleep(EVERY).await;
    }
}
