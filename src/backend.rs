//! The only file that names concrete stores.

use std::sync::Arc;

use crate::{
    clock::Clock,
    config::{BackendKind, Config},
    health::HealthCheck,
    jobs::Job,
    lifecycle::Lifecycle,
    plays::{Plays, in_sqlite::SqlitePlays},
    presence::{
        Presence,
        in_memory::{self, InMemoryPresence},
    },
    store::sqlite::Sqlite,
    videos::{VideoStore, in_sqlite::SqliteVideos},
};

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

/// Opens the configured stores. Their jobs are not started yet.
///
/// # Errors
/// A store can't be used as it is configured.
pub async fn open(config: &Config, lifecycle: &Lifecycle, clock: Arc<dyn Clock>) -> anyhow::Result<Stores> {
    match config.backend {
        BackendKind::Embedded => open_embedded(config, lifecycle, clock).await,
        BackendKind::Redis => anyhow::bail!("backend = \"redis\" is not in this build"),
    }
}

/// Opens memory and the `SQLite` file of this process.
///
/// # Errors
/// The file can't be used, or another process has it.
pub async fn open_embedded(
    config: &Config,
    lifecycle: &Lifecycle,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Stores> {
    let sqlite = Sqlite::open(&config.embedded.path).await?;
    let settings = in_memory::Settings {
        window: config.presence.window,
        heartbeat_every: config.presence.heartbeat_every,
        sweep_every: config.jobs.sweep_every,
        snapshot_every: config.embedded.snapshot_every,
        max_viewers: config.embedded.max_viewers,
    };
    let presence = InMemoryPresence::open(settings, &sqlite, clock.clone()).await?;
    let mut jobs = presence.jobs(&sqlite);
    jobs.push(SqlitePlays::prune_job(&sqlite, &config.plays, clock.clone()));
    let plays = SqlitePlays::start(&sqlite, &config.plays, lifecycle, clock);
    sqlite.close_at_stop(lifecycle);
    Ok(Stores {
        presence,
        plays: Arc::new(plays),
        videos: Arc::new(SqliteVideos::new(sqlite.clone())),
        health: Arc::new(sqlite),
        jobs,
    })
}
