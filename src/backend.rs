//! The only file that names concrete stores.

use std::sync::Arc;

use crate::{health::HealthCheck, jobs::Job, plays::Plays, presence::Presence, videos::VideoStore};

/// The stores the program works on, whichever backend is configured.
#[derive(Clone)]
pub struct Stores {
    /// Who is watching.
    pub presence: Arc<dyn Presence>,
    /// How often it was played.
    pub plays: Arc<dyn Plays>,
    /// Which videos there are.
    pub videos: Arc<dyn VideoStore>,
    /// Whether the stores do their work.
    pub health: Arc<dyn HealthCheck>,
    /// What must run by itself for the numbers to stay right. Not started yet: tests step them.
    pub jobs: Vec<Arc<dyn Job>>,
}
