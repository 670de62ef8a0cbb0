//! One connection in use, every statement with a deadline, and what its errors mean.

use std::time::Duration;

use sqlx::{
    FromRow,
    pool::PoolConnection,
    postgres::{PgArguments, PgRow},
    query::{Query, QueryAs},
};

use super::{Lane, Postgres, Seen, explained};
use crate::error::{Part, StoreError};

/// Added to the server's own limit, so that it is the server that ends a statement that is too slow.
const MARGIN: Duration = Duration::from_millis(500);

/// The code of what a read-only server says to a write.
const READ_ONLY: &str = "25006";

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The row can't take what it was given: out of range, a constraint, a trigger's refusal.
    #[error("{0}")]
    Row(StoreError),
    /// It met another transaction (deadlock, serialization): the whole transaction may be repeated.
    #[error("{0}")]
    Conflict(StoreError),
    /// Anything else.
    #[error("{0}")]
    Store(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Row(error) | Failure::Conflict(error) | Failure::Store(error) => error,
        }
    }
}

/// A connection taken from a pool. One that is dropped before [`Session::end`] may be in the middle
/// of something and is closed, which also undoes its transaction.
pub struct Session {
    connection: PoolConnection<sqlx::Postgres>,
    postgres: Postgres,
    in_transaction: bool,
    /// Whether nothing is under way on it, so that the pool may have it back.
    idle: bool,
}

impl Session {
    pub(super) async fn open(postgres: Postgres, lane: Lane) -> Result<Self, StoreError> {
        let away = || StoreError::unavailable(Part::Postgres, "it doesn't answer");
        let first_look = postgres.sees(|seen| seen != Seen::Unknown);
        let known = tokio::time::timeout(postgres.shared.deadline, first_look).await;
        if known.is_err() || postgres.is_down() {
            return Err(away());
        }
        let pool = match lane {
            Lane::Reads => &postgres.shared.reads,
            Lane::Flush => &postgres.shared.flush,
            Lane::Audit => &postgres.shared.audit,
        };
        // The pool tries to connect until its own limit; the keeper may know better before.
        let connection = tokio::select! {
            connection = pool.acquire() => connection.map_err(|error| postgres.failed(&error))?,
            () = postgres.sees(|seen| seen == Seen::Down) => return Err(away()),
        };
        let mut session = Self { connection, postgres, in_transaction: false, idle: true };
        if !session.postgres.shared.prepared {
            // A pooler in transaction mode may run what prepares a statement and what executes it on
            // two servers, unless they are in one transaction.
            session.begin().await?;
        }
        Ok(session)
    }

    /// Begins a transaction, if none is open yet.
    pub(super) async fn begin(&mut self) -> Result<(), Failure> {
        if self.in_transaction {
            return Ok(());
        }
        self.raw("begin isolation level read committed").await?;
        self.in_transaction = true;
        if !self.postgres.shared.prepared {
            let limit = self.postgres.shared.deadline.as_millis();
            let text = sqlx::AssertSqlSafe(format!(
                "set local statement_timeout = {limit}; set local idle_in_transaction_session_timeout = {limit}"
            ));
            let within = self.limit();
            self.idle = false;
            let sent = tokio::time::timeout(within, sqlx::raw_sql(text).execute(&mut *self.connection)).await;
            self.settle(sent)?;
        }
        Ok(())
    }

    /// Runs a statement that takes no arguments and answers nothing.
    ///
    /// # Errors
    /// It failed; the transaction, if there is one, is lost.
    pub async fn raw(&mut self, sql: &'static str) -> Result<(), Failure> {
        let within = self.limit();
        self.idle = false;
        let sent = tokio::time::timeout(within, sqlx::raw_sql(sql).execute(&mut *self.connection)).await;
        self.settle(sent).map(drop)
    }

    /// Runs a statement and says how many rows it touched.
    ///
    /// # Errors
    /// It failed; the transaction, if there is one, is lost.
    pub async fn execute(&mut self, query: Query<'_, sqlx::Postgres, PgArguments>) -> Result<u64, Failure> {
        let within = self.limit();
        self.idle = false;
        let query = query.persistent(self.postgres.shared.prepared);
        let sent = tokio::time::timeout(within, query.execute(&mut *self.connection)).await;
        self.settle(sent).map(|done| done.rows_affected())
    }

    /// Runs a statement and reads all rows it answers.
    ///
    /// # Errors
    /// It failed; the transaction, if there is one, is lost.
    pub async fn fetch_all<O>(
        &mut self,
        query: QueryAs<'_, sqlx::Postgres, O, PgArguments>,
    ) -> Result<Vec<O>, Failure>
    where
        O: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let within = self.limit();
        self.idle = false;
        let query = query.persistent(self.postgres.shared.prepared);
        let sent = tokio::time::timeout(within, query.fetch_all(&mut *self.connection)).await;
        self.settle(sent)
    }

    /// Commits the transaction, if there is one, and gives the connection back.
    ///
    /// # Errors
    /// Whether the transaction is committed is unknown.
    pub async fn end(mut self) -> Result<(), Failure> {
        if self.in_transaction {
            self.raw("commit").await?;
            self.in_transaction = false;
        }
        Ok(())
    }

    /// Undoes the transaction and gives the connection back.
    pub async fn roll_back(mut self) {
        if self.in_transaction && self.raw("rollback").await.is_ok() {
            self.in_transaction = false;
        }
    }

    /// Closes the connection: the next one may find the server mended.
    pub(super) fn discard(mut self) {
        self.idle = false;
    }

    fn limit(&self) -> Duration {
        self.postgres.shared.deadline + MARGIN
    }

    fn settle<T>(&mut self, sent: Result<Result<T, sqlx::Error>, impl Sized>) -> Result<T, Failure> {
        match sent {
            Ok(Ok(done)) => {
                self.idle = true;
                Ok(done)
            }
            Ok(Err(error)) => {
                // The server refused and waits for more; anything else leaves the connection in doubt.
                // One that is read-only stays so when the server is mended.
                self.idle =
                    error.as_database_error().is_some_and(|said| said.code().as_deref() != Some(READ_ONLY));
                Err(self.postgres.meaning(&error))
            }
            Err(_elapsed) => {
                self.postgres.shared.doubt.notify_one();
                let error = StoreError::unavailable(Part::Postgres, "no answer within postgres.deadline");
                Err(Failure::Store(error))
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.idle || self.in_transaction {
            self.connection.close_on_drop();
        }
    }
}

impl Postgres {
    /// Returns once what the keeper sees is as wanted.
    async fn sees(&self, wanted: impl Fn(Seen) -> bool) {
        // The sender lives in `self`: it can't be gone.
        let _ = self.shared.seen.subscribe().wait_for(|seen| wanted(*seen)).await;
    }

    /// What an error means for the caller; one that casts doubt on the server wakes the keeper.
    pub(super) fn failed(&self, error: &sqlx::Error) -> StoreError {
        self.meaning(error).into()
    }

    fn meaning(&self, error: &sqlx::Error) -> Failure {
        let sqlx::Error::Database(said) = error else {
            self.shared.doubt.notify_one();
            return Failure::Store(StoreError::unavailable(Part::Postgres, explained(error)));
        };
        let code = said.code().unwrap_or_default().into_owned();
        let text = format!("{code} {}", said.message());
        match code.as_str() {
            "40001" | "40P01" => Failure::Conflict(StoreError::unavailable(Part::Postgres, text)),
            // Shut down, starting up, too many connections, unknown user or database, no schema yet,
            // read-only, cancelled for its time: all may be over the next time.
            _ if matches!(code.get(..2), Some("08" | "25" | "28" | "3D" | "53" | "55" | "57" | "58"))
                || code == "42P01" =>
            {
                self.shared.doubt.notify_one();
                Failure::Store(StoreError::unavailable(Part::Postgres, text))
            }
            _ if matches!(code.get(..2), Some("22" | "23" | "P0")) => {
                Failure::Row(StoreError::unexpected(Part::Postgres, text))
            }
            _ => Failure::Store(StoreError::unexpected(Part::Postgres, text)),
        }
    }

    /// Runs one statement and reads all rows it answers.
    ///
    /// # Errors
    /// The server is away or refused.
    pub async fn fetch_all<O>(
        &self,
        lane: Lane,
        query: QueryAs<'_, sqlx::Postgres, O, PgArguments>,
    ) -> Result<Vec<O>, StoreError>
    where
        O: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let mut session = self.session(lane).await?;
        let rows = session.fetch_all(query).await?;
        session.end().await?;
        Ok(rows)
    }
}
