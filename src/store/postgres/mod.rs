//! The way to Postgres: one pool for reads, one for the flush, one connection for what takes long, and
//! a keeper that knows whether the server answers.
//!
//! The pools connect when first used, so the service starts while Postgres is away. A pool alone
//! would let each call wait out its whole deadline then; the keeper lets calls fail at once instead,
//! and lets them through again as soon as the server is back.

mod keeper;
mod migrate;
mod session;
#[cfg(test)]
pub(crate) mod tests;

use std::{str::FromStr, sync::Arc, time::Duration};

use sqlx::{
    ConnectOptions, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::{Notify, watch};

pub use self::{
    migrate::migrations,
    session::{Failure, Session},
};
use crate::{
    config,
    error::{Part, StoreError},
};

/// For whom a connection is: reads can't starve the flush, nor the flush the reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Requests.
    Reads,
    /// The flush and the upkeep.
    Flush,
    /// The audit, which takes its time: one connection, beside the others and only while it is used.
    Audit,
}

/// Whether the server answers, as the keeper sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// No keeper runs: every call tries for itself.
    Unwatched,
    /// The keeper has not had an answer of either kind yet.
    Unknown,
    /// It answers.
    Up,
    /// It doesn't: calls fail at once.
    Down,
}

/// The way to Postgres. Clones share the pools.
#[derive(Clone)]
pub struct Postgres {
    shared: Arc<Shared>,
}

struct Shared {
    options: PgConnectOptions,
    reads: PgPool,
    flush: PgPool,
    audit: PgPool,
    deadline: Duration,
    /// Whether statements may stay prepared. If not, a pooler may hand each transaction to another
    /// server connection, and every statement has to be in one.
    prepared: bool,
    /// Whether the schema is brought up to date at start.
    migrates: bool,
    seen: watch::Sender<Seen>,
    migrated: watch::Sender<bool>,
    /// A call failed in a way that may mean the server is gone: the keeper looks.
    doubt: Notify,
}

impl Postgres {
    /// Prepares the way; nothing is sent before the first call.
    ///
    /// # Errors
    /// `url` is no Postgres address.
    pub fn new(settings: &config::Postgres) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(settings.url.expose())
            // The error's own text may repeat the URL, and the URL may hold a password.
            .map_err(|_| StoreError::unexpected(Part::Postgres, "postgres.url can't be read"))?
            .application_name("headcount")
            // PgBouncer refuses this parameter, and no number here is a float.
            .extra_float_digits(None)
            .disable_statement_logging();
        let options =
            if settings.prepared_statements { options } else { options.statement_cache_capacity(0) };
        // Two connections do a whole fleet's flush in most places; a third of the pool, at least one.
        let flush = (settings.max_connections * 3 / 10).max(1);
        let reads = settings.max_connections.saturating_sub(flush).max(1);
        let pool = |connections| {
            let limit = session_limits(settings.deadline);
            let prepared = settings.prepared_statements;
            PgPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(settings.deadline)
                .after_connect(move |connection, _| {
                    let limit = limit.clone();
                    Box::pin(async move {
                        // Behind a pooler this would stick to a connection that others share; there
                        // each transaction sets it for itself.
                        if prepared {
                            sqlx::raw_sql(sqlx::AssertSqlSafe(limit)).execute(connection).await?;
                        }
                        Ok(())
                    })
                })
                .connect_lazy_with(options.clone())
        };
        Ok(Self {
            shared: Arc::new(Shared {
                reads: pool(reads),
                flush: pool(flush),
                audit: pool(1),
                deadline: settings.deadline,
                prepared: settings.prepared_statements,
                migrates: settings.migrate,
                seen: watch::Sender::new(Seen::Unwatched),
                // With postgres.migrate = false the operator has done it.
                migrated: watch::Sender::new(!settings.migrate),
                doubt: Notify::new(),
                options,
            }),
        })
    }

    /// How many connections a lane has at most.
    #[must_use]
    pub fn connections(&self, lane: Lane) -> usize {
        let pool = match lane {
            Lane::Reads => &self.shared.reads,
            Lane::Flush => &self.shared.flush,
            Lane::Audit => &self.shared.audit,
        };
        pool.options().get_max_connections() as usize
    }

    /// Whether the server is known to fail. Calls fail at once meanwhile.
    #[must_use]
    pub fn is_down(&self) -> bool {
        *self.shared.seen.borrow() == Seen::Down
    }

    /// Whether the schema is there, as far as this process is to see to it.
    #[must_use]
    pub fn is_migrated(&self) -> bool {
        *self.shared.migrated.borrow()
    }

    /// Takes a connection for one statement after the other, outside a transaction where the server
    /// is reached directly.
    ///
    /// # Errors
    /// The server is away, or all connections are in use.
    pub async fn session(&self, lane: Lane) -> Result<Session, StoreError> {
        Session::open(self.clone(), lane).await
    }

    /// Takes a connection and begins a READ COMMITTED transaction on it.
    ///
    /// # Errors
    /// As [`Postgres::session`].
    pub async fn transaction(&self, lane: Lane) -> Result<Session, StoreError> {
        let mut session = self.session(lane).await?;
        session.begin().await?;
        Ok(session)
    }

    /// Takes a connection and begins a transaction on it whose statements all read of one moment. It
    /// can't write.
    ///
    /// # Errors
    /// As [`Postgres::session`].
    pub async fn snapshot(&self, lane: Lane) -> Result<Session, StoreError> {
        let mut session = self.transaction(lane).await?;
        session.raw("set transaction isolation level repeatable read, read only").await?;
        Ok(session)
    }

    /// Asks whether it takes writes.
    ///
    /// # Errors
    /// It doesn't, or said nothing within the deadline.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let mut session = self.session(Lane::Reads).await?;
        // A standby says so here as well.
        let asked = sqlx::query_as("select current_setting('transaction_read_only') = 'on'");
        let read_only: Vec<(bool,)> = session.fetch_all(asked).await?;
        if read_only == [(true,)] {
            session.discard();
            return Err(StoreError::unavailable(Part::Postgres, "it is read-only"));
        }
        session.end().await?;
        Ok(())
    }
}

/// Why there is no connection, for whoever runs this.
#[must_use]
pub fn explained(error: &sqlx::Error) -> String {
    crate::tls::explained(&error.to_string(), "sslrootcert in postgres.url")
}

/// The statements that bound how long later ones may take, and how long a client that was stopped, or
/// whose host is gone without a word, may hold rows that others wait for. And the isolation, which a
/// database may have another default for: single statements would then fail where they meet others.
fn session_limits(limit: Duration) -> String {
    let (millis, secs) = (limit.as_millis(), limit.as_secs().max(1));
    format!(
        "set default_transaction_isolation = 'read committed'; \
         set statement_timeout = {millis}; set idle_in_transaction_session_timeout = {millis}; \
         set tcp_keepalives_idle = {secs}; set tcp_keepalives_interval = {secs}; \
         set tcp_keepalives_count = 2; set tcp_user_timeout = {}",
        millis * 3
    )
}
