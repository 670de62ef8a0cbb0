//! The laws of headcount, each on every backend that has it, on real stores.
//!
//! `scripts/test` starts the servers; a test's data is its own by key prefix, database or file.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![expect(unreachable_pub, reason = "a test binary has no outside")]

mod delivery;
mod doctor;
mod drain;
mod plays_laws;
mod presence_laws;
mod presence_redis;
mod process;
mod redis_scripts;
mod routes;
mod world;
