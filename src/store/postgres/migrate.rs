//! Brings the schema up to date, by one instance at a time.
//!
//! All of it happens in one transaction on one connection, so that it also works through a pooler in
//! transaction mode. What is missing is only ever added: instances of the release before go on
//! working on the new schema.

use std::{borrow::Cow, time::Duration};

use sqlx::{
    Connection, PgConnection, SqlSafeStr,
    migrate::{Migration, MigrationType, Migrator},
};

use super::Postgres;
use crate::error::{Part, StoreError};

/// The advisory lock that whoever migrates holds, the same for every version of the service.
const LOCK: i64 = i64::from_be_bytes(*b"hdcount\0");

/// How long whoever finds the lock taken waits before the next try.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_secs(2);

/// Every step of the schema: version, name, statements.
const STEPS: &[(i64, &str, &str)] = &[
    (1, "videos and plays", include_str!("../../../migrations/postgres/0001_videos_and_plays.sql")),
    (2, "conservation", include_str!("../../../migrations/postgres/0002_conservation.sql")),
    (3, "kafka", include_str!("../../../migrations/postgres/0003_kafka.sql")),
];

/// The steps, as sqlx applies them.
#[must_use]
pub fn migrations() -> Migrator {
    let step = |(version, name, sql): &(i64, &'static str, &'static str)| {
        let sql: &'static str = sql;
        Migration::new(*version, Cow::Borrowed(*name), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let mut migrator = Migrator::with_migrations(STEPS.iter().map(step).collect());
    // The lock is ours, taken by trying. A newer instance may have gone further already.
    migrator.set_locking(false).set_ignore_missing(true);
    migrator
}

impl Postgres {
    /// Applies what is missing of the schema; waits while another instance does.
    ///
    /// # Errors
    /// The server is away or refused a step.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut wait = RETRY_FIRST;
        // Trying beats waiting for the lock: a session that waits holds a snapshot meanwhile, and an
        // index that is built concurrently would wait for that snapshot for ever.
        while !self.try_migrate().await? {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
        self.shared.migrated.send_replace(true);
        Ok(())
    }

    /// One attempt; `false` where another holds the lock.
    async fn try_migrate(&self) -> Result<bool, StoreError> {
        let failed = |error: sqlx::Error| self.failed(&error);
        let connecting = PgConnection::connect_with(&self.shared.options);
        let mut connection = tokio::time::timeout(self.shared.deadline, connecting)
            .await
            .map_err(|_elapsed| StoreError::unavailable(Part::Postgres, "it doesn't answer"))?
            .map_err(failed)?;
        let mut transaction = connection.begin().await.map_err(failed)?;
        // Steps on a large table take their time, and "exists already" is no news.
        // A client that was stopped must not hold the lock, though.
        let idle = self.shared.deadline.as_millis();
        let limits = format!(
            "set local statement_timeout = 0; set local client_min_messages = warning; \
             set local idle_in_transaction_session_timeout = {idle}"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(limits)).execute(&mut *transaction).await.map_err(failed)?;
        self.forget_prepared(&mut transaction).await.map_err(failed)?;
        let locked: bool = sqlx::query_scalar("select pg_try_advisory_xact_lock($1)")
            .bind(LOCK)
            .persistent(false)
            .fetch_one(&mut *transaction)
            .await
            .map_err(failed)?;
        if locked {
            let applied = migrations().run_direct(None, &mut *transaction, false).await;
            applied.map_err(|error| StoreError::unexpected(Part::Postgres, error))?;
            self.forget_prepared(&mut transaction).await.map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)?;
        // It is done; a connection that can't say goodbye is no failure.
        let _ = connection.close().await;
        Ok(locked)
    }

    /// sqlx prepares the statements of its bookkeeping under names that another client of the same
    /// pooled connection may have used, or will.
    async fn forget_prepared(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if !self.shared.prepared {
            sqlx::raw_sql("deallocate all").execute(connection).await?;
        }
        Ok(())
    }

    pub(super) async fn migrate_when_up(self) {
        let mut wait = RETRY_FIRST;
        let mut told = false;
        while let Err(error) = self.migrate().await {
            if error.is_transient() {
                tracing::debug!(error = %error, "the schema can't be looked at yet");
            } else if !std::mem::replace(&mut told, true) {
                tracing::error!(error = %error, "the schema can't be brought up to date; trying on");
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
        tracing::info!("the schema is up to date");
    }
}
