//! Who is watching: beats come in, counts go out.
//!
//! A viewer is online while the last beat is at most one window old. `in_memory` keeps viewers in
//! this process, `in_redis` in sharded hashes that any number of instances share; both obey the
//! laws in `tests/it/presence_laws.rs`.

pub mod in_memory;
pub mod in_redis;
pub mod rhythm;
pub mod shards;
pub mod sweep;
mod tally;

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    clock::Timestamp,
    error::StoreError,
    ids::{VideoId, ViewerId},
};

/// "This viewer is playing this video."
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Beat {
    /// What is played.
    pub video: VideoId,
    /// Who plays it.
    pub viewer: ViewerId,
}

/// How many are watching one video, and how far that can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlineCount {
    /// Viewers; `None` where no number can be vouched for, not even an old one.
    pub online: Option<u64>,
    /// When the number was right.
    pub as_of: Option<Timestamp>,
    /// Whether it may have changed since without the service knowing.
    pub stale: bool,
}

impl OnlineCount {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { online: None, as_of: None, stale: true };
}

/// The most watched videos, most watched first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// Videos and their viewers.
    pub videos: Vec<(VideoId, u64)>,
    /// When the oldest part of it was right; `None` before the first sweep.
    pub as_of: Option<Timestamp>,
    /// Whether some partition was not swept for two intervals.
    pub stale: bool,
}

/// Where viewers are kept.
#[async_trait]
pub trait Presence: Send + Sync {
    /// Takes one beat and answers how many watch the video, this viewer included: at least 1.
    ///
    /// # Errors
    /// The store is away or full. The beat may still be merged and take effect once it is back.
    async fn beat(&self, beat: Beat) -> Result<u64, StoreError>;

    /// Takes many beats, one result each, in order. One that is refused doesn't touch the others.
    async fn beat_many(&self, beats: Vec<Beat>) -> Vec<Result<(), StoreError>>;

    /// Forgets a viewer before the window is over. A viewer who isn't there stays not there.
    ///
    /// # Errors
    /// The store is away; the viewer then leaves with the window.
    async fn leave(&self, beat: Beat) -> Result<OnlineCount, StoreError>;

    /// How many watch each of `videos`, in order. Never fails: what can't be known is said in the
    /// answer. Stores nothing about the ids asked for.
    async fn online(&self, videos: &[VideoId]) -> Vec<OnlineCount>;

    /// The most watched videos, at most `limit`.
    async fn top(&self, limit: usize) -> Ranking;

    /// How long players should wait before they beat again; longer while the service is loaded.
    fn next_heartbeat(&self) -> Duration;

    /// Takes note of how much there is to do, from 0 to 1.
    fn press(&self, _pressure: f64) {}

    /// How full the fullest queue before the store is, from 0 to 1.
    fn fullness(&self) -> f64 {
        0.0
    }
}
