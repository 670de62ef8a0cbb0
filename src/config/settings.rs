//! What each setting may be: the one table behind every complaint about a value.
//!
//! `config/default.toml` says the same in words, with the reasons; a test keeps their names equal.

use std::{fmt, net::SocketAddr, time::Duration};

use super::{SecretUrl, kafka};

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const MINUTE: Duration = secs(60);
const HOUR: Duration = secs(3_600);
const DAY: Duration = secs(86_400);

/// Every setting by its full name, in the order of `config/default.toml`.
pub(super) const SETTINGS: &[(&str, Allowed)] = &[
    ("backend", Allowed::OneOf(&["embedded", "redis"])),
    ("server.listen", Allowed::Address),
    ("server.drain_delay", Allowed::Time(Duration::ZERO, secs(300))),
    ("server.drain", Allowed::Time(secs(1), HOUR)),
    ("server.request_timeout", Allowed::Time(millis(100), secs(300))),
    ("server.max_connections", Allowed::Number(16, 1_000_000)),
    ("server.header_timeout", Allowed::Time(secs(1), secs(300))),
    ("server.body_timeout", Allowed::Time(millis(100), secs(300))),
    ("server.write_timeout", Allowed::Time(secs(1), secs(300))),
    ("server.max_delay", Allowed::Time(millis(5), secs(10))),
    ("ops.listen", Allowed::Address),
    ("log.filter", Allowed::LogFilter),
    ("log.format", Allowed::OneOf(&["text", "json"])),
    ("embedded.path", Allowed::Path),
    ("embedded.snapshot_every", Allowed::Time(secs(1), MINUTE)),
    ("embedded.max_viewers", Allowed::Number(1, 100_000_000)),
    ("redis.topology", Allowed::OneOf(&["single", "sentinel", "cluster"])),
    ("redis.url", Allowed::RedisUrl),
    ("redis.urls", Allowed::RedisUrls),
    ("redis.sentinel_master", Allowed::Name),
    ("redis.ca_file", Allowed::PathOrNone),
    ("redis.client_cert_file", Allowed::PathOrNone),
    ("redis.client_key_file", Allowed::PathOrNone),
    ("redis.prefix", Allowed::KeyPrefix),
    ("redis.deadline", Allowed::Time(millis(50), MINUTE)),
    ("redis.connect_timeout", Allowed::Time(millis(100), MINUTE)),
    ("redis.batch_min_age", Allowed::Time(Duration::ZERO, MINUTE)),
    ("redis.wait_replicas", Allowed::Number(0, 16)),
    ("postgres.url", Allowed::PostgresUrl),
    ("postgres.max_connections", Allowed::Number(2, 1_000)),
    ("postgres.deadline", Allowed::Time(millis(50), MINUTE)),
    ("postgres.migrate", Allowed::Flag),
    ("postgres.prepared_statements", Allowed::Flag),
    ("kafka.brokers", Allowed::Brokers),
    ("kafka.topic", Allowed::Topic),
    ("kafka.dead_letter_topic", Allowed::Topic),
    ("kafka.group", Allowed::Group),
    ("kafka.partitions", Allowed::Number(1, 1_000)),
    ("kafka.replication", Allowed::Number(1, 9)),
    ("kafka.deadline", Allowed::Time(millis(500), MINUTE)),
    ("kafka.consume", Allowed::Flag),
    ("kafka.window", Allowed::Time(millis(10), MINUTE)),
    ("kafka.window_records", Allowed::Number(1, 100_000)),
    ("presence.identity", Allowed::OneOf(&["user", "device"])),
    ("presence.window", Allowed::Time(secs(5), HOUR)),
    ("presence.heartbeat_every", Allowed::Time(secs(1), secs(600))),
    ("presence.shards", Allowed::AutoOrPowerOfTwo(1_024)),
    ("presence.viewers_per_shard", Allowed::Number(10, 400)),
    ("presence.pin_video_to_slot", Allowed::Flag),
    ("presence.ack", Allowed::OneOf(&["received", "stored"])),
    ("presence.linger", Allowed::Time(millis(10), secs(2))),
    ("presence.batch", Allowed::Number(1, 100_000)),
    ("presence.max_merged", Allowed::Number(1_000, 10_000_000)),
    ("presence.cached_videos", Allowed::Number(100, 10_000_000)),
    ("plays.ack", Allowed::OneOf(&["stored", "received"])),
    ("plays.wait", Allowed::Flag),
    ("plays.linger", Allowed::Time(secs(1), secs(3))),
    ("plays.dedupe_window", Allowed::Time(secs(1), Duration::from_secs(7 * DAY.as_secs()))),
    ("plays.max_pending", Allowed::Number(100, 1_000_000)),
    ("plays.cached_videos", Allowed::Number(100, 10_000_000)),
    ("plays.timezone", Allowed::TimeZone),
    ("jobs.sweep_every", Allowed::Time(secs(1), secs(600))),
    ("jobs.flush_every", Allowed::Time(millis(100), secs(600))),
    ("videos.unknown", Allowed::OneOf(&["accept", "reject"])),
];

/// The values a setting takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Allowed {
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A duration, both ends included.
    Time(Duration, Duration),
    /// A whole number, both ends included.
    Number(u64, u64),
    /// The word `auto`, or a power of two up to this one.
    AutoOrPowerOfTwo(u64),
    /// `true` or `false`.
    Flag,
    /// Where to listen.
    Address,
    /// Directives of `EnvFilter`.
    LogFilter,
    /// A path of the file system.
    Path,
    /// One, or nothing.
    PathOrNone,
    /// Where Redis is.
    RedisUrl,
    /// Where several of them are, with commas in between; may be empty.
    RedisUrls,
    /// Where Postgres is.
    PostgresUrl,
    /// What somebody is called.
    Name,
    /// What stands in front of every Redis key.
    KeyPrefix,
    /// An IANA time zone.
    TimeZone,
    /// Where Kafka is.
    Brokers,
    /// A topic of Kafka's.
    Topic,
    /// A consumer group of Kafka's.
    Group,
    /// Whatever librdkafka takes; it may be a secret.
    Property,
    /// Nothing: headcount sets it itself.
    OurProperty,
}

/// What is allowed for `name`, if there is such a setting.
pub(super) fn allowed(name: &str) -> Option<Allowed> {
    if let Some(property) = name.strip_prefix(kafka::PROPERTIES) {
        let ours = kafka::is_ours(property);
        return Some(if ours { Allowed::OurProperty } else { Allowed::Property });
    }
    SETTINGS.iter().find_map(|(known, allowed)| (*known == name).then_some(*allowed))
}

impl Allowed {
    /// Whether a value, as text, is one of those.
    pub(super) fn takes(self, text: &str) -> bool {
        match self {
            Self::OneOf(words) => words.contains(&text),
            Self::Time(from, to) => {
                humantime::parse_duration(text).is_ok_and(|time| (from..=to).contains(&time))
            }
            Self::Number(from, to) => text.parse().is_ok_and(|number| (from..=to).contains(&number)),
            Self::AutoOrPowerOfTwo(to) => {
                text == "auto"
                    || text.parse().is_ok_and(|number: u64| number.is_power_of_two() && number <= to)
            }
            Self::Flag => matches!(text, "true" | "false"),
            Self::Address => text.parse::<SocketAddr>().is_ok(),
            Self::LogFilter => is_log_filter(text),
            Self::Path => !text.is_empty() && !text.contains('\0'),
            Self::PathOrNone | Self::Property => !text.contains('\0'),
            Self::RedisUrl => is_redis_url(text),
            Self::RedisUrls => addresses(text).all(is_redis_url),
            Self::Name => (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()),
            Self::PostgresUrl => is_postgres_url(text),
            Self::KeyPrefix => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
                text.len() <= 64 && text.bytes().all(plain)
            }
            Self::TimeZone => text.parse::<chrono_tz::Tz>().is_ok(),
            Self::Brokers => text.is_empty() || text.split(',').all(kafka::is_broker),
            Self::Topic => kafka::is_topic(text),
            Self::Group => matches!(text.len(), 1..=255) && text.bytes().all(|byte| byte.is_ascii_graphic()),
            Self::OurProperty => false,
        }
    }

    /// A value as it may be shown: an address without what is secret in it.
    pub(super) fn show(self, text: &str) -> String {
        match self {
            Self::RedisUrl | Self::PostgresUrl => format!("{:?}", SecretUrl::new(text).redacted()),
            Self::Property | Self::OurProperty => "a value that is not shown".to_owned(),
            Self::RedisUrls => {
                let shown: Vec<String> = addresses(text).map(|url| SecretUrl::new(url).redacted()).collect();
                format!("{:?}", shown.join(","))
            }
            _ => format!("{text:?}"),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                formatter.write_str(&quoted.join(" or "))
            }
            Self::Time(from, to) => {
                let (from, to) = (humantime::format_duration(*from), humantime::format_duration(*to));
                write!(
                    formatter,
                    "a duration from {from} to {to}, written like \"500ms\", \"30s\" or \"10m\""
                )
            }
            Self::Number(from, to) => write!(formatter, "a whole number from {from} to {to}"),
            Self::AutoOrPowerOfTwo(to) => write!(formatter, "\"auto\", or a power of two from 1 to {to}"),
            Self::Flag => formatter.write_str("true or false"),
            Self::Address => {
                formatter.write_str("an IP address and a port, such as \"127.0.0.1:8080\" or \"[::]:8080\"")
            }
            Self::LogFilter => formatter.write_str(
                "a level (error, warn, info, debug, trace, off) or directives such as \
                 \"info,headcount::presence=debug\"",
            ),
            Self::Path => formatter.write_str("a path"),
            Self::PathOrNone => formatter.write_str("a path, or \"\""),
            Self::RedisUrl => formatter.write_str(
                "redis://, rediss:// or unix://, such as \"redis://user:password@host:6379/0\" \
                 (special characters of a password percent-encoded)",
            ),
            Self::RedisUrls => formatter.write_str(
                "redis:// or rediss:// addresses with commas between them (a comma in a password \
                 percent-encoded), or a list of them",
            ),
            Self::Name => formatter.write_str("1 to 64 visible ASCII characters"),
            Self::PostgresUrl => formatter.write_str(
                "postgres://, such as \"postgres://user:password@host:5432/database?sslmode=verify-full\" \
                 (special characters of a password percent-encoded)",
            ),
            Self::KeyPrefix => formatter.write_str("up to 64 bytes of A-Z a-z 0-9 . _ - :"),
            Self::TimeZone => formatter.write_str("an IANA time zone, such as \"UTC\" or \"Asia/Shanghai\""),
            Self::Brokers => {
                formatter.write_str("\"host:port\", several of them with commas between, or \"\"")
            }
            Self::Topic => formatter.write_str("1 to 249 bytes of A-Z a-z 0-9 . _ -"),
            Self::Group => formatter.write_str("1 to 255 bytes of visible ASCII, without spaces"),
            Self::Property => formatter.write_str("text without NUL"),
            Self::OurProperty => {
                formatter.write_str("nothing, as headcount sets it itself: its promises rest on it")
            }
        }
    }
}

/// `EnvFilter` takes a misspelt level for the name of a target and then shows nothing else, so a
/// word alone must be a level.
fn is_log_filter(text: &str) -> bool {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let is_word = |directive: &str| directive.bytes().all(|byte| byte.is_ascii_alphabetic());
    let words_are_levels = text
        .split(',')
        .map(str::trim)
        .filter(|directive| is_word(directive))
        .all(|word| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word)));
    words_are_levels && tracing_subscriber::EnvFilter::builder().parse(text).is_ok()
}

/// What is between the commas.
pub(super) fn addresses(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|address| !address.is_empty())
}

fn is_redis_url(text: &str) -> bool {
    let scheme = text.split("://").next().unwrap_or_default();
    let named = matches!(scheme, "redis" | "rediss" | "valkey" | "valkeys" | "unix");
    // What the driver would take for "don't look whose certificate it is", and then refuse to do.
    let named = named && !text.ends_with("#insecure");
    named && redis::Client::open(text).is_ok()
}

fn is_postgres_url(text: &str) -> bool {
    let scheme = text.split("://").next().unwrap_or_default();
    matches!(scheme, "postgres" | "postgresql") && text.parse::<sqlx::postgres::PgConnectOptions>().is_ok()
}
