//! The lines of the bench, in the order in which they run.

mod backoff;
mod count;
mod embedded;
mod flush;
mod growth;
mod heartbeat;
mod memory;
mod overload;
mod peers;
mod play;
mod soak;
mod sweep;

use clap::ValueEnum;

use crate::bench::Bench;

/// One line: what `--only` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Line {
    /// Heartbeats answered at once ÷ an empty handler, with 64 and 256 connections
    Heartbeat,
    /// Heartbeats answered when Redis has them ÷ an empty handler
    Stored,
    /// Plays without and with viewers, and repeated ones ÷ an empty handler
    Play,
    /// Counts of one video ÷ an empty handler; of 100 in one call ÷ of one
    Count,
    /// Headcount beside axum with a pool, and fastify with ioredis
    Peers,
    /// Heartbeats and plays of the embedded backend ÷ an empty handler
    Embedded,
    /// Redis's memory a viewer: one video's at once and grown, and of cold videos
    Memory,
    /// The sweep of a million viewers, of one video and of 100,000
    Sweep,
    /// The flush of 100,000 videos, and what traffic notices of it
    Flush,
    /// Twice what the machine can do
    Overload,
    /// Viewers who ask for twice what can be done and beat less often when they are told to; only with --only
    Backoff,
    /// The service's memory at full load: 45 s, or ten minutes where it is named with --only
    Soak,
    /// 10,000, 100,000 and 1,000,000 viewers; about ten minutes, and only with --only
    Growth,
}

impl Line {
    pub(crate) async fn run(self, bench: &Bench) -> anyhow::Result<()> {
        match self {
            Self::Heartbeat => heartbeat::received(bench).await,
            Self::Stored => heartbeat::stored(bench).await,
            Self::Play => play::run(bench).await,
            Self::Count => count::run(bench).await,
            Self::Peers => peers::run(bench).await,
            Self::Embedded => embedded::run(bench).await,
            Self::Memory => memory::run(bench).await,
            Self::Sweep => sweep::run(bench).await,
            Self::Flush => flush::run(bench).await,
            Self::Overload => overload::run(bench).await,
            Self::Backoff => backoff::run(bench).await,
            Self::Soak => soak::run(bench).await,
            Self::Growth => growth::run(bench).await,
        }
    }

    /// Whether a run without `--only` has it: these take minutes each.
    pub(crate) fn is_default(self) -> bool {
        !matches!(self, Self::Backoff | Self::Growth)
    }
}
