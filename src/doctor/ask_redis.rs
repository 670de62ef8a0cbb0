//! Asks a Redis what it is and how it is set, over a connection of its own.

use std::time::{Duration, Instant};

use futures::future::join_all;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, aio::MultiplexedConnection};

use super::{Answer, redis::Facts};
use crate::{
    clock::Clock,
    config,
    store::redis::{address::explained, primaries},
};

/// An answer that takes longer isn't waited for: a doctor is no request.
const PATIENCE: Duration = Duration::from_secs(5);

/// What there is: each primary with its facts or why there is no way to it, and the slots of a cluster
/// that nobody has.
pub(super) struct Asked {
    pub(super) primaries: Vec<(String, Answer<Facts>)>,
    pub(super) uncovered: usize,
}

/// Asks every primary.
pub(super) async fn ask_all(settings: &config::Redis, clock: &dyn Clock) -> Answer<Asked> {
    let connect = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(PATIENCE));
    let (there, uncovered) = primaries(settings, &connect).await.map_err(|error| error.to_string())?;
    let asked = there
        .iter()
        .map(async |(address, client)| (address.clone(), ask(settings, client, &connect, clock).await));
    Ok(Asked { primaries: join_all(asked).await, uncovered })
}

/// The facts, or why there is no way to this Redis.
async fn ask(
    settings: &config::Redis,
    client: &Client,
    connect: &AsyncConnectionConfig,
    clock: &dyn Clock,
) -> Answer<Facts> {
    let connection = client
        .get_multiplexed_async_connection_with_config(connect)
        .await
        .map_err(|error| explained(&error.to_string(), client))?;
    let mut asking = Asking { connection };
    let pong = redis::cmd("PING").query_async::<String>(&mut asking.connection).await;
    let writes = match pong {
        Ok(_pong) => Ok(()),
        // A Redis that can't save refuses even this, and answers whatever else is asked.
        Err(error) if error.code() == Some("MISCONF") => Err(error.to_string()),
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        Err(error) => return Err(explained(&error.to_string(), client)),
    };
    Ok(Facts {
        writes,
        info: asking.query(redis::cmd("INFO")).await,
        policy: asking.setting("maxmemory-policy").await,
        fsync: asking.setting("appendfsync").await,
        lazy_rewrite: asking.setting("no-appendfsync-on-rewrite").await,
        snapshots: asking.setting("save").await,
        script: asking.script().await,
        ahead: asking.ahead(clock).await,
        wait: if settings.wait_replicas > 0 { Some(asking.wait().await) } else { None },
    })
}

struct Asking {
    connection: MultiplexedConnection,
}

impl Asking {
    async fn query<T: FromRedisValue>(&mut self, command: Cmd) -> Answer<T> {
        command.query_async(&mut self.connection).await.map_err(|error| error.to_string())
    }

    /// The value of a setting. A user who may not ask (an ACL, a renamed command) gets an error; so
    /// does one who asks for a setting that isn't there.
    async fn setting(&mut self, name: &str) -> Answer<String> {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(name);
        let pairs: Vec<String> = self.query(get).await?;
        pairs.into_iter().nth(1).ok_or_else(|| format!("CONFIG knows no {name}"))
    }

    async fn script(&mut self) -> Answer<()> {
        let (mut load, mut call) = (redis::cmd("SCRIPT"), redis::cmd("EVALSHA"));
        load.arg("LOAD").arg("return 1");
        let hash: String = self.query(load).await?;
        call.arg(hash).arg(0);
        self.query::<i64>(call).await.map(drop)
    }

    /// Whether replicas may be waited for; for none of them here, so that it doesn't take its time.
    async fn wait(&mut self) -> Answer<()> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(0).arg(1);
        self.query::<i64>(wait).await.map(drop)
    }

    async fn ahead(&mut self, clock: &dyn Clock) -> Answer<(i64, Duration)> {
        let asked = Instant::now();
        let (secs, micros): (i64, i64) = self.query(redis::cmd("TIME")).await?;
        let took = asked.elapsed();
        let theirs = secs.saturating_mul(1_000).saturating_add(micros / 1_000);
        let ours = clock.now() - took / 2;
        Ok((theirs.saturating_sub(ours.millis()), took))
    }
}
