//! What headcount's tests share: servers of a test's own, and ways to them that break.
//!
//! `scripts/with-services` starts the servers that most tests share; what would disturb others there
//! is done to one of these.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod certificates;
mod own_cluster;
mod own_kafka;
mod own_postgres;
mod own_redis;
pub mod own_sentinels;
mod proxy;

use std::time::Duration;

pub use self::{
    certificates::{Authority, Issued},
    own_cluster::OwnCluster,
    own_kafka::OwnKafka,
    own_postgres::OwnPostgres,
    own_redis::OwnRedis,
    own_sentinels::OwnSentinels,
    proxy::{Proxy, Way},
};

/// Longer than any fact a test waits for takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a fact, for as long as a slow machine may need.
pub async fn eventually(fact: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < until, "it never came true: {fact}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A connection of a test's own, which waits longer for an answer than the half second that redis-rs
/// begins with: machines that test are slow at times.
///
/// # Errors
/// There is none to be had.
pub async fn redis_connection(url: &str) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
    let patient = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE / 6))
        .set_response_timeout(Some(PATIENCE / 6));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await
}

/// The address of a server that `scripts/with-services` started.
#[expect(clippy::disallowed_methods, reason = "how scripts/with-services hands servers to tests")]
#[must_use]
pub fn service(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run scripts/test"))
}
