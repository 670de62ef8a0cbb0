//! Connections to the stores. No rule of the domain lives here.

mod attempts;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod keys;
pub mod lock;
pub mod postgres;
pub mod probe;
pub mod redis;
pub mod script;
pub mod sqlite;
pub mod time;
