//! How often a video was played: each play is counted exactly once, however often it is sent.
//!
//! `in_sqlite` counts in one transaction on disk; `in_redis` counts a delta in Redis that `flush`
//! moves to Postgres. Both obey the laws in `tests/it/plays_laws.rs`.

pub mod audit;
pub mod flush;
#[cfg(feature = "kafka")]
pub mod in_kafka;
pub mod in_redis;
pub mod in_sqlite;
pub mod postgres;

use async_trait::async_trait;

use crate::{
    clock::Timestamp,
    error::StoreError,
    ids::{PlayId, VideoId, ViewerId},
};

/// One play, as a player reports it. At least one of `viewer` and `play_id` is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Play {
    /// What was played.
    pub video: VideoId,
    /// Who played it: a second play by the same viewer within the dedupe window counts nothing.
    pub viewer: Option<ViewerId>,
    /// Which playback it was: sent again within the dedupe window it counts nothing.
    pub play_id: Option<PlayId>,
}

/// What became of a play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is counted.
    Counted,
    /// It was counted before.
    Duplicate,
    /// It is taken; whether it counts is decided later.
    Accepted,
}

/// How often one video was played, and how far that can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayCount {
    /// Plays; `None` where no number can be vouched for, not even an old one.
    pub plays: Option<u64>,
    /// Different viewers among them, estimated within about 1 %.
    pub unique_viewers: Option<u64>,
    /// When the numbers were right.
    pub as_of: Option<Timestamp>,
    /// Whether they may have changed since without the service knowing.
    pub stale: bool,
}

impl PlayCount {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { plays: None, unique_viewers: None, as_of: None, stale: true };
}

/// Unique viewers as they may be told of a video with so many plays. Plays may have come without a
/// viewer, or before viewers were kept: then a 0 would be made up.
fn honest_viewers(viewers: u64, plays: u64) -> Option<u64> {
    (viewers > 0 || plays == 0).then_some(viewers)
}

/// Where plays are counted.
#[async_trait]
pub trait Plays: Send + Sync {
    /// Counts a play once, and answers when that is as safe as `plays.ack` promises.
    ///
    /// # Errors
    /// The store is away or full. Whether the play was counted may be unknown; sending it again
    /// is safe.
    async fn record(&self, play: Play) -> Result<Recorded, StoreError>;

    /// How often each of `videos` was played, in order. Never fails: what can't be known is said
    /// in the answer. Stores nothing about the ids asked for.
    async fn counts(&self, videos: &[VideoId]) -> Vec<PlayCount>;

    /// How full the fullest queue before the store is, from 0 to 1.
    fn fullness(&self) -> f64 {
        0.0
    }
}
