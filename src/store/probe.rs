//! Whether Redis does what it is here for: run a script that writes and reads.

use uuid::Uuid;

use super::{redis::Redis, script::LuaScript};
use crate::{
    error::{Part, StoreError},
    ids::Partition,
};

/// Writes and reads back.
pub static PROBE: LuaScript = LuaScript::new("probe", include_str!("lua/probe.lua"));

/// How long what a probe wrote stays.
const LIFE_SECONDS: &str = "60";

/// Writes to Redis and reads it back.
///
/// # Errors
/// Redis is away, takes no writes, or gave back something else.
pub async fn probe(redis: &Redis) -> Result<(), StoreError> {
    let connection = redis.connection()?;
    let partition = Partition::all().next().expect("there is a partition");
    let written = Uuid::now_v7().to_string();
    let call = PROBE.call(&[redis.keys().probe(partition)], &[written.as_str(), LIFE_SECONDS]);
    let read: String = connection.query(call).await?;
    // Instances share the key, but a script is one step.
    if read == written { Ok(()) } else { Err(StoreError::unexpected(Part::Redis, "it forgot a write")) }
}
