//! Plays taken by Kafka's log, and counted from there.
//!
//! `producer` answers a play when the brokers have it. `record` is how it stands in the log.

pub(in crate::plays) mod hyperloglog;
pub mod record;
pub mod window;
