//! Makes a connection, watches over it, and makes the next one.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use redis::Cmd;

use super::{Connection, Live, Redis, address::explained, info_field, reply};
use crate::{
    error::{Part, StoreError},
    store::attempts::first_to_end,
};

/// How often the keeper looks whether an idle connection still answers, and what time it is there.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long the keeper waits after a failed attempt: well again at most a second after Redis is.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_millis(500);

impl Redis {
    pub(super) async fn keep(self) {
        let quiet = self.shared.beside;
        let mut wait = RETRY_FIRST;
        let mut told = false;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    if told && !quiet {
                        tracing::info!("redis is back");
                    }
                    (wait, told) = (RETRY_FIRST, false);
                    self.watch(&connection).await;
                }
                Err(error) => {
                    if !told && !quiet {
                        tracing::warn!(error = %error, "redis can't be used; trying on");
                    }
                    told = true;
                    self.shared.failure.store(Some(Arc::new(reason(&error))));
                }
            }
            self.shared.current.store(None);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
    }

    /// Makes a connection fit for use: to a primary, loaded, greeted.
    async fn connect(&self) -> Result<Connection, StoreError> {
        let shared = &self.shared;
        let inner = first_to_end(|| {
            shared.way.client.get_multiplexed_async_connection_with_config(&shared.way.connect)
        })
        .await
        .map_err(|error| {
            StoreError::unavailable(Part::Redis, explained(&error.to_string(), &shared.way.client))
        })?;
        let mut connection = Connection {
            live: Arc::new(Live { epoch: 0, run_id: "".into(), inner, broken: AtomicBool::new(false) }),
            shared: shared.clone(),
        };
        let [server, role] = connection
            .pipe_array([info("server"), info("replication")])
            .await
            // The first that is said on it: a server may only now have hung up.
            .map_err(|error| {
                StoreError::unavailable(Part::Redis, explained(&reason(&error), &shared.way.client))
            })?;
        let role: String = reply(role)?;
        if info_field(&role, "role") == Some("slave") {
            return Err(StoreError::unavailable(Part::Redis, "READONLY it is a replica and takes no writes"));
        }
        let server: String = reply(server)?;
        let run_id = info_field(&server, "run_id").unwrap_or("unknown").into();
        connection.load_scripts().await?;
        self.probe(&connection).await?;

        let epoch = *shared.epoch.borrow() + 1;
        let inner = connection.live.inner.clone();
        connection.live = Arc::new(Live { epoch, run_id, inner, broken: AtomicBool::new(false) });
        let greeters = shared.greeters.lock().clone();
        for greeter in greeters {
            greeter.greet(&connection).await?;
        }
        shared.note_end_of_outage();
        shared.failure.store(None);
        shared.current.store(Some(connection.live.clone()));
        shared.epoch.send_replace(epoch);
        Ok(connection)
    }

    /// Returns when the connection can't be used any more.
    async fn watch(&self, connection: &Connection) {
        while !connection.is_broken() {
            let broke = tokio::time::timeout(PROBE_EVERY, self.shared.broke.notified()).await.is_ok();
            if !broke && self.probe(connection).await.is_err() {
                connection.give_up("the probe failed");
            }
        }
    }

    async fn probe(&self, connection: &Connection) -> Result<(), StoreError> {
        if self.shared.beside {
            // The question may have stood behind a WAIT: the answer is no measure of the time.
            return connection.query::<(i64, i64)>(redis::cmd("TIME")).await.map(drop);
        }
        connection.observe_time().await
    }
}

fn info(section: &str) -> Cmd {
    let mut command = redis::cmd("INFO");
    command.arg(section);
    command
}

/// The error without what every error of this store begins with.
fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { reason, .. } | StoreError::Unexpected { reason, .. } => reason.to_string(),
        StoreError::Full { .. } => error.to_string(),
    }
}
