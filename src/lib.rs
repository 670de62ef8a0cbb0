//! headcount answers two questions for a video site: how many people are watching this video now,
//! and how often was it played.
//!
//! `ARCHITECTURE.md` walks through a heartbeat and a play; `config/default.toml` documents every
//! setting.

pub mod api;
pub mod app;
pub mod backend;
pub mod batch;
pub mod cli;
pub mod clock;
pub mod config;
pub mod count_reads;
pub mod doctor;
pub mod error;
mod failpoint;
pub mod health;
pub mod ids;
pub mod jobs;
pub mod lifecycle;
pub mod plays;
pub mod presence;
pub mod server;
pub mod simulate;
pub mod single_flight;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod videos;
