//! What a store can answer instead of what it was asked for.
//!
//! The one thing callers act on is whether asking again may help; the cause goes to the log.

use std::fmt;

/// The parts of the service that can fail apart from each other, as `/readyz` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The Redis server.
    Redis,
    /// The Postgres server.
    Postgres,
    /// The brokers of Kafka.
    Kafka,
    /// The `SQLite` file of the embedded backend.
    Sqlite,
    /// Presence held in memory by the embedded backend.
    Memory,
}

impl Part {
    /// The name used in answers, metrics and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Kafka => "kafka",
            Self::Sqlite => "sqlite",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Why a store did not do what it was asked. Cheap to clone: one failure may answer many callers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Asking again may help: the store is away, slow, full or loading. Whether the request
    /// took effect is unknown, so only requests that are safe to repeat may be repeated.
    #[error("{part} is unavailable: {reason}")]
    Unavailable {
        /// Which store.
        part: Part,
        /// What it said or didn't say; for the log.
        reason: std::sync::Arc<str>,
    },
    /// A queue in front of the store is at its limit; nothing was done.
    #[error("{part} is overloaded: {queue} is full")]
    Full {
        /// The store the queue leads to.
        part: Part,
        /// The queue, as `headcount_queue_depth` names it.
        queue: &'static str,
    },
    /// Asking again won't help: an answer that makes no sense, a broken invariant.
    #[error("{part} answered unexpectedly: {reason}")]
    Unexpected {
        /// Which store.
        part: Part,
        /// What was wrong; for the log.
        reason: std::sync::Arc<str>,
    },
}

impl StoreError {
    /// A failure that may pass.
    pub fn unavailable(part: Part, reason: impl fmt::Display) -> Self {
        Self::Unavailable { part, reason: reason.to_string().into() }
    }

    /// A failure that won't pass by itself.
    pub fn unexpected(part: Part, reason: impl fmt::Display) -> Self {
        Self::Unexpected { part, reason: reason.to_string().into() }
    }

    /// Whether asking again may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Unexpected { .. })
    }

    /// The store that failed.
    #[must_use]
    pub fn part(&self) -> Part {
        match self {
            Self::Unavailable { part, .. } | Self::Full { part, .. } | Self::Unexpected { part, .. } => *part,
        }
    }
}
