//! Whether Redis does what it is here for: run a script that writes and reads.

use uuid::Uuid;

use super::{
    redis::{Redis, reply},
    script::LuaScript,
};
use crate::{
    error::{Part, StoreError},
    ids::{PARTITIONS, Partition},
};

/// Writes and reads back.
pub static PROBE: LuaScript = LuaScript::new("probe", include_str!("lua/probe.lua"));

/// How long what a probe wrote stays.
const LIFE_SECONDS: &str = "60";

/// How much of Redis works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Works {
    /// All of it.
    Whole,
    /// Some nodes of a cluster.
    Partly,
}

/// Writes to Redis and reads it back; in a cluster, something of every partition.
///
/// # Errors
/// Redis is away, takes no writes, or gave back something else.
pub async fn probe(redis: &Redis) -> Result<Works, StoreError> {
    let connection = redis.connection()?;
    let written = Uuid::now_v7().to_string();
    let partitions = if redis.is_cluster() { usize::from(PARTITIONS) } else { 1 };
    let calls = Partition::all()
        .take(partitions)
        .map(|partition| PROBE.call(&[redis.keys().probe(partition)], &[written.as_str(), LIFE_SECONDS]));
    let (mut works, mut failed) = (0, None);
    for answer in connection.pipe(calls.collect()).await? {
        match reply::<String>(answer) {
            // Instances share the keys, but a script is one step.
            Ok(read) if read == written => works += 1,
            Ok(_) => failed = Some(StoreError::unexpected(Part::Redis, "it forgot a write")),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if works == 0 => Err(error),
        None if connection.is_whole() => Ok(Works::Whole),
        _ => Ok(Works::Partly),
    }
}
