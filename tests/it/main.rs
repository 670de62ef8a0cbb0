//! The laws of headcount, each on every backend that has it, on real stores.
//!
//! `scripts/test` starts the servers; a test's data is its own by key prefix, database or file.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![expect(unreachable_pub, reason = "a test binary has no outside")]

/// Makes each law a test on each backend, in a module that names it.
macro_rules! on_every_backend {
    ($($law:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test] async fn $law() { super::$law(crate::world::World::embedded().await).await })+
        }
        mod redis {
            $(#[tokio::test] async fn $law() { super::$law(crate::world::World::redis().await).await })+
        }
        mod cluster {
            $(#[tokio::test] async fn $law() { super::$law(crate::world::World::cluster().await).await })+
        }
        mod pinned {
            $(#[tokio::test] async fn $law() { super::$law(crate::world::World::pinned().await).await })+
        }
    };
}

mod cluster;
mod conservation;
mod delivery;
mod doctor;
mod documents;
mod drain;
mod durability;
mod fleet;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "failpoints")]
mod kill_matrix;
mod load;
mod network;
mod network_load;
mod no_cliff;
mod plays_laws;
mod postgres_trouble;
mod presence_laws;
mod presence_redis;
mod process;
mod readiness;
mod redis_scripts;
mod redis_trouble;
mod redis_trouble_data;
mod rights;
mod routes;
mod secrets;
mod sentinel;
mod shards;
mod shards_memory;
mod shards_property;
mod tls;
mod world;
