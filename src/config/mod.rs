//! The settings, as types; `config/default.toml` documents each one.
//!
//! [`load`](load::load) reads and checks them; past it no setting can be out of its range.

mod check;
pub mod invalid;
pub mod kafka;
pub mod load;
mod settings;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;

/// Everything that can be set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the numbers are kept.
    pub backend: BackendKind,
    /// The public listener and the stop.
    pub server: Server,
    /// The operators' listener.
    pub ops: Ops,
    /// Log lines.
    pub log: Log,
    /// The embedded backend.
    pub embedded: Embedded,
    /// The Redis of the redis backend.
    pub redis: Redis,
    /// The Postgres of the redis backend.
    pub postgres: Postgres,
    /// The Kafka in front of it.
    pub kafka: kafka::Kafka,
    /// Who is watching.
    pub presence: Presence,
    /// How often it was played.
    pub plays: Plays,
    /// What runs by itself.
    pub jobs: Jobs,
    /// Which videos there are.
    pub videos: Videos,
}

/// Where the numbers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Memory and `SQLite`, in this process.
    Embedded,
    /// Redis and Postgres.
    Redis,
}

impl BackendKind {
    /// The word that sets it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Redis => "redis",
        }
    }
}

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Address of the public listener.
    pub listen: SocketAddr,
    /// From the signal to the closing of the listener.
    #[serde(with = "humantime_serde")]
    pub drain_delay: Duration,
    /// From the signal to the exit, at most.
    #[serde(with = "humantime_serde")]
    pub drain: Duration,
    /// The longest a request may take.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Connections at a time.
    pub max_connections: usize,
    /// The longest a request line and headers may take to come.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// The longest a body may take to come.
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// The longest an answer may wait to be read.
    #[serde(with = "humantime_serde")]
    pub write_timeout: Duration,
    /// How long requests may wait until they are looked at.
    #[serde(with = "humantime_serde")]
    pub max_delay: Duration,
}

/// `[ops]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ops {
    /// Address of the operators' listener.
    pub listen: SocketAddr,
}

/// `[log]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Directives of `tracing-subscriber`'s `EnvFilter`.
    pub filter: String,
    /// For whom lines are written.
    pub format: LogFormat,
}

/// For whom log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For a collector.
    Json,
}

/// `[embedded]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedded {
    /// The `SQLite` file, or the folder it is in.
    pub path: PathBuf,
    /// How often viewers are saved.
    #[serde(with = "humantime_serde")]
    pub snapshot_every: Duration,
    /// Viewers held in memory, at most.
    pub max_viewers: usize,
}

/// `[redis]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// What is there: one server, one that sentinels name, or a cluster.
    pub topology: Topology,
    /// Address, user and password.
    pub url: SecretUrl,
    /// Addresses of sentinels, or of some nodes of a cluster.
    #[serde(deserialize_with = "separated")]
    pub urls: Vec<SecretUrl>,
    /// What sentinels call the primary.
    pub sentinel_master: String,
    /// Whose signature a server's certificate must have; empty for the public authorities.
    pub ca_file: PathBuf,
    /// What this client shows to a server that wants to know it; empty for nothing.
    pub client_cert_file: PathBuf,
    /// The key of that certificate.
    pub client_key_file: PathBuf,
    /// In front of every key.
    pub prefix: String,
    /// The longest a call may take.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// The longest a connection may take to be made.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// How old a batch is before it is applied.
    #[serde(with = "humantime_serde")]
    pub batch_min_age: Duration,
    /// On how many replicas a batch is before it is applied.
    pub wait_replicas: u32,
}

/// What kind of Redis is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// One server.
    Single,
    /// One primary at a time, which sentinels name.
    Sentinel,
    /// Several primaries, each with a part of the keys.
    Cluster,
}

/// Addresses with commas between them.
fn separated<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<SecretUrl>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(settings::addresses(&text).map(SecretUrl::new).collect())
}

impl Redis {
    /// The setting that says where Redis is, and what it says, without secrets.
    #[must_use]
    pub fn addresses(&self) -> (&'static str, String) {
        if self.topology == Topology::Single {
            return ("redis.url", self.url.redacted());
        }
        let urls: Vec<String> = self.urls.iter().map(SecretUrl::redacted).collect();
        ("redis.urls", urls.join(","))
    }

    /// Whether certificates are looked at.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.url.is_tls() || self.urls.iter().any(SecretUrl::is_tls)
    }
}

/// `[postgres]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    /// Address, user and password.
    pub url: SecretUrl,
    /// Connections, at most.
    pub max_connections: u32,
    /// The longest a connection or a statement is waited for.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// Whether the schema is brought up to date at start.
    pub migrate: bool,
    /// Whether statements stay prepared on the server.
    pub prepared_statements: bool,
}

/// `[presence]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Presence {
    /// Who is one viewer.
    pub identity: Identity,
    /// How long a viewer is online after a beat.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// How often players are told to beat.
    #[serde(with = "humantime_serde")]
    pub heartbeat_every: Duration,
    /// Hashes a video.
    pub shards: Shards,
    /// Viewers in each hash of a video, where the audience decides how many hashes there are.
    pub viewers_per_shard: u32,
    /// Whether all shards of a video are on one node of a cluster.
    pub pin_video_to_slot: bool,
    /// When a beat is answered.
    pub ack: Ack,
    /// How long beats are merged.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Beats in a batch that is full.
    pub batch: usize,
    /// Beats merged while the store is away, at most.
    pub max_merged: usize,
    /// Videos whose count is kept ready.
    pub cached_videos: usize,
}

/// In how many hashes Redis keeps the viewers of one video.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Word")]
pub enum Shards {
    /// As many as its audience asks for.
    Auto,
    /// So many for every video, a power of two.
    Fixed(u32),
}

/// A number, which a file gives as it is and a variable as text, or a word.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Number(u32),
    Text(String),
}

impl TryFrom<Word> for Shards {
    type Error = std::num::ParseIntError;

    fn try_from(word: Word) -> Result<Self, Self::Error> {
        match word {
            Word::Number(shards) => Ok(Self::Fixed(shards)),
            Word::Text(text) if text == "auto" => Ok(Self::Auto),
            Word::Text(text) => text.parse().map(Self::Fixed),
        }
    }
}

/// Who is one viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    /// A user, on however many devices.
    User,
    /// Each device of a user.
    Device,
}

/// When a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ack {
    /// As soon as it is in this process.
    Received,
    /// When the store has it.
    Stored,
}

/// `[plays]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plays {
    /// When a play is answered.
    pub ack: Ack,
    /// Whether a play is on `redis.wait_replicas` replicas before it is answered.
    pub wait: bool,
    /// How long plays are merged with `ack = "received"`.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Within which a second play counts nothing.
    #[serde(with = "humantime_serde")]
    pub dedupe_window: Duration,
    /// Plays waiting for the store, at most.
    pub max_pending: usize,
    /// Videos whose total is kept ready.
    pub cached_videos: usize,
    /// Where a day begins.
    pub timezone: chrono_tz::Tz,
}

/// `[jobs]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    /// From sweep to sweep of a partition, for the whole fleet.
    #[serde(with = "humantime_serde")]
    pub sweep_every: Duration,
    /// From flush to flush.
    #[serde(with = "humantime_serde")]
    pub flush_every: Duration,
}

/// `[videos]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Videos {
    /// What happens with an id that the database doesn't know.
    pub unknown: Unknown,
}

/// What happens with an id that the database doesn't know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unknown {
    /// It is counted.
    Accept,
    /// It is answered 404.
    Reject,
}

/// An address that may hold a password: `Debug` shows it without.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Wraps an address.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole address, for the driver that connects to it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether it names another database of a Redis than 0.
    pub(super) fn has_database(&self) -> bool {
        redis::IntoConnectionInfo::into_connection_info(self.0.as_str())
            .is_ok_and(|info| info.redis_settings().db() != 0)
    }

    /// Whether it is reached by TLS from the first byte on.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        ["rediss://", "valkeys://"].iter().any(|scheme| self.0.starts_with(scheme))
    }

    /// The address without user, password and query, for logs and reports. One whose parts can't be
    /// told apart for certain isn't shown at all: what looks like a path may be half a password.
    #[must_use]
    pub fn redacted(&self) -> String {
        const HIDDEN: &str = "an address that can't be read";
        let Ok(url) = url::Url::parse(&self.0) else { return HIDDEN.into() };
        let rest = url[url::Position::BeforePath..].contains('@');
        if url.cannot_be_a_base() || rest {
            return HIDDEN.into();
        }
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
    }
}

impl std::fmt::Debug for SecretUrl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.redacted())
    }
}
