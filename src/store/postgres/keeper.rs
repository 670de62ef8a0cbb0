//! Looks whether Postgres answers, so that nobody else has to wait to find out that it doesn't.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::{Postgres, Seen, explained};
use crate::{
    lifecycle::{Lifecycle, Phase},
    store::attempts::first_to_end,
};

/// How often an idle server is asked for a sign of life.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long the keeper waits between attempts while the server is away.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_millis(500);

impl Postgres {
    /// Starts the task that watches the server and, where `postgres.migrate` says so, the one that
    /// brings the schema up to date as soon as there is one.
    pub fn start(&self, lifecycle: &Lifecycle) {
        self.shared.seen.send_replace(Seen::Unknown);
        let keeper = self.clone();
        let stopping = lifecycle.stopping(Phase::Links);
        lifecycle.spawn(Phase::Links, "postgres-link", async move {
            stopping.run_until_cancelled(keeper.keep()).await;
        });
        if self.shared.migrates {
            let migrating = self.clone();
            let stopping = lifecycle.stopping(Phase::Links);
            lifecycle.spawn(Phase::Links, "postgres-migrations", async move {
                stopping.run_until_cancelled(migrating.migrate_when_up()).await;
                // A task may only end when its phase does.
                stopping.cancelled().await;
            });
        }
    }

    async fn keep(self) {
        let mut wait = RETRY_FIRST;
        loop {
            match self.answers().await {
                Ok(()) => {
                    if self.shared.seen.send_replace(Seen::Up) == Seen::Down {
                        tracing::info!("postgres is back");
                    }
                    wait = RETRY_FIRST;
                    let _ = tokio::time::timeout(PROBE_EVERY, self.shared.doubt.notified()).await;
                }
                Err(reason) => {
                    if self.shared.seen.send_replace(Seen::Down) != Seen::Down {
                        tracing::warn!(
                            error = %reason, "postgres can't be used; plays wait in redis, or in kafka's log, meanwhile"
                        );
                    }
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(RETRY_LAST);
                }
            }
        }
    }

    /// Asks on a connection that nobody uses, or else on one of its own: one that is only busy
    /// elsewhere says nothing.
    async fn answers(&self) -> Result<(), String> {
        let within = self.shared.deadline;
        if let Some(mut idle) = self.shared.reads.try_acquire() {
            if matches!(tokio::time::timeout(within, idle.ping()).await, Ok(Ok(()))) {
                return Ok(());
            }
            idle.close_on_drop();
        }
        let fresh = async {
            let mut connection = first_to_end(|| PgConnection::connect_with(&self.shared.options)).await?;
            connection.ping().await?;
            connection.close().await
        };
        match tokio::time::timeout(within, fresh).await {
            Ok(ended) => ended.map_err(|error| explained(&error)),
            Err(_elapsed) => Err("it doesn't answer".to_owned()),
        }
    }
}
