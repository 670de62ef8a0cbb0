mod laws;
mod restart;

use tempfile::TempDir;

use super::*;
use crate::{clock::ManualClock, ids::ViewerId};

const MINUTE: Duration = Duration::from_secs(60);

struct World {
    folder: TempDir,
    clock: Arc<ManualClock>,
    sqlite: Sqlite,
    presence: Arc<InMemoryPresence>,
}

fn settings() -> Settings {
    Settings {
        window: Duration::from_secs(600),
        heartbeat_every: Duration::from_secs(30),
        sweep_every: MINUTE,
        snapshot_every: Duration::from_secs(10),
        max_viewers: 1_000_000,
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn video(id: &str) -> VideoId {
    VideoId::parse(id).unwrap()
}

fn beat(id: &str, viewer: &str) -> Beat {
    Beat { video: video(id), viewer: ViewerId::from_stored(viewer) }
}

impl World {
    async fn new() -> Self {
        Self::with(settings()).await
    }

    async fn with(settings: Settings) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        Self::open(tempfile::tempdir().unwrap(), settings, clock).await
    }

    async fn open(folder: TempDir, settings: Settings, clock: Arc<ManualClock>) -> Self {
        let sqlite = Sqlite::open(folder.path()).await.unwrap();
        let presence = InMemoryPresence::open(settings, &sqlite, clock.clone()).await.unwrap();
        Self { folder, clock, sqlite, presence }
    }

    /// A stop, and the next process on the same file `later`.
    async fn restart(self, later: Duration) -> Self {
        for job in self.presence.jobs(&self.sqlite) {
            job.finish().await;
        }
        self.crash(later).await
    }

    /// The end of this process without a stop, and the next one on the same file `later`.
    async fn crash(self, later: Duration) -> Self {
        self.sqlite.close().await;
        self.clock.advance(later);
        Self::open(self.folder, settings(), self.clock).await
    }

    async fn run(&self, job: &str) {
        for found in self.presence.jobs(&self.sqlite).iter().filter(|found| found.name() == job) {
            found.run().await.unwrap();
        }
    }

    /// Lets time pass as it does, with a sweep each minute.
    async fn minutes(&self, minutes: u32) {
        for _ in 0..minutes {
            self.clock.advance(MINUTE);
            self.run("sweep").await;
        }
    }

    async fn beat(&self, id: &str, viewer: &str) -> u64 {
        self.presence.beat(beat(id, viewer)).await.unwrap()
    }

    async fn online(&self, id: &str) -> OnlineCount {
        self.presence.online(&[video(id)]).await[0]
    }

    fn fresh(&self, online: u64) -> OnlineCount {
        OnlineCount { online: Some(online), as_of: Some(self.clock.now()), stale: false }
    }

    fn held(&self) -> (usize, usize) {
        let videos = self.presence.shards.iter().map(|shard| shard.lock().videos()).sum();
        (videos, self.presence.viewers.load(Ordering::Relaxed))
    }
}
