mod counting;
mod failures;
mod received;

use std::{path::Path, time::Duration};

use futures::future::join_all;
use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::*;
use crate::{
    clock::{ManualClock, Timestamp},
    ids::{PlayId, ViewerId},
    lifecycle::{Phase, Stopped},
};

const WINDOW: Duration = Duration::from_secs(1_800);
const JUST_WITHIN: Duration = Duration::from_millis(1_799_999);

struct World {
    folder: TempDir,
    clock: Arc<ManualClock>,
    lifecycle: Lifecycle,
    sqlite: Sqlite,
    plays: SqlitePlays,
    prune: Arc<dyn Job>,
}

fn settings() -> config::Plays {
    config::Plays {
        wait: false,
        ack: Ack::Stored,
        linger: Duration::from_secs(1),
        dedupe_window: WINDOW,
        max_pending: 10_000,
        cached_videos: 1_000,
        timezone: chrono_tz::Tz::UTC,
    }
}

impl World {
    async fn new() -> Self {
        Self::with(settings()).await
    }

    async fn with(settings: config::Plays) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        Self::open(tempfile::tempdir().unwrap(), settings, clock).await
    }

    async fn open(folder: TempDir, settings: config::Plays, clock: Arc<ManualClock>) -> Self {
        let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
        let sqlite = Sqlite::open(folder.path()).await.unwrap();
        let plays = SqlitePlays::start(&sqlite, &settings, &lifecycle, clock.clone());
        let prune = SqlitePlays::prune_job(&sqlite, &settings, clock.clone());
        sqlite.close_at_stop(&lifecycle);
        Self { folder, clock, lifecycle, sqlite, plays, prune }
    }

    /// What a process finds that is started after this one was killed now.
    async fn after_a_kill(&self, settings: config::Plays) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["headcount.db", "headcount.db-wal"] {
            std::fs::copy(self.folder.path().join(name), folder.path().join(name)).unwrap();
        }
        Self::open(folder, settings, self.clock.clone()).await
    }

    async fn plays_of(&self, video: &str) -> Option<u64> {
        self.count(video).await.plays
    }

    async fn count(&self, video: &str) -> PlayCount {
        self.plays.counts(&[VideoId::parse(video).unwrap()]).await[0]
    }

    /// A connection of somebody else to the same file.
    async fn intruder(&self) -> SqliteConnection {
        let file = self.folder.path().join("headcount.db");
        let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(20));
        SqliteConnection::connect_with(&options).await.unwrap()
    }

    /// One transaction, without what is kept in memory beside it.
    async fn count_on_disk(&self, plays: impl Iterator<Item = Play>) -> Vec<Result<bool, StoreError>> {
        self.plays.books.ledger.record(&timed(plays, self.clock.now()), |_, _| {}).await
    }

    /// The estimate as it is on disk.
    async fn unique_viewers(&self, video: &str) -> u64 {
        let row = sqlx::query_scalar::<_, i64>("select unique_viewers from videos where video_id = ?");
        row.bind(video).fetch_one(self.sqlite.readers()).await.unwrap().unsigned_abs()
    }

    async fn rows(&self, table: &'static str) -> i64 {
        let count = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
        sqlx::query_scalar(count).fetch_one(self.sqlite.readers()).await.unwrap()
    }

    /// What is remembered of what was seen.
    async fn seen(&self) -> i64 {
        self.rows("play_seen").await + self.rows("play_seen_lately").await
    }

    async fn until_plays_are(&self, video: &str, wanted: u64) {
        let limit = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.plays_of(video).await != Some(wanted) {
            assert!(tokio::time::Instant::now() < limit, "never {wanted} plays of {video}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn play(video: &str, viewer: &str, play_id: &str) -> Play {
    Play {
        video: VideoId::parse(video).unwrap(),
        viewer: (!viewer.is_empty()).then(|| ViewerId::from_stored(viewer)),
        play_id: (!play_id.is_empty()).then(|| PlayId::parse(play_id).unwrap()),
    }
}

fn timed(plays: impl IntoIterator<Item = Play>, at: Timestamp) -> Vec<TimedPlay> {
    plays.into_iter().map(|play| TimedPlay { play, at }).collect()
}

async fn execute(connection: &mut SqliteConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.unwrap();
}
