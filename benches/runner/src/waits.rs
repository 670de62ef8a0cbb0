//! What another client of Redis waits while something else is at work there.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{figures::percentile, world::Redis};

/// Between two looks: often enough to meet whatever blocks for longer.
const EVERY: Duration = Duration::from_millis(1);

/// Asks Redis all the time, from when it is made until it is dropped.
pub(crate) struct Waits {
    seen: Rc<RefCell<Vec<f64>>>,
    /// Ends when it is dropped.
    _looking: JoinSet<()>,
}

/// In milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Waited {
    pub(crate) median: f64,
    pub(crate) p999: f64,
    pub(crate) longest: f64,
}

impl Waits {
    pub(crate) async fn watch(redis: &Redis) -> anyhow::Result<Self> {
        let connection = redis.connect().await?;
        let seen = Rc::default();
        let mut looking = JoinSet::new();
        looking.spawn_local(look(connection, Rc::clone(&seen)));
        Ok(Self { seen, _looking: looking })
    }

    /// What was waited since the last call.
    pub(crate) fn take(&self) -> Waited {
        let mut seen = self.seen.take();
        Waited {
            median: percentile(&mut seen, 0.5),
            p999: percentile(&mut seen, 0.999),
            longest: percentile(&mut seen, 1.0),
        }
    }
}

async fn look(mut connection: MultiplexedConnection, seen: Rc<RefCell<Vec<f64>>>) {
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
        seen.borrow_mut().push(began.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(EVERY).await;
    }
}
