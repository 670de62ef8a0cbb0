//! Unique viewers outlive Redis: the sketch of each video is kept in the database as well.
//!
//! Each flush keeps the sketches of its videos. Before this process keeps one for the first time in
//! a run of Redis, what the database holds is merged into Redis's, so that a Redis that came back
//! empty, or a sketch that ran out, goes on from what was known. The database takes no sketch that
//! counts fewer viewers than it knows of; one that it didn't take is merged and brought again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use moka::sync::Cache;
use parking_lot::Mutex;

use super::SKETCH_LIFE;
use crate::{
    error::StoreError,
    ids::{Partition, VideoId},
    plays::postgres::Ledger,
    store::{
        redis::{Connection, Redis, reply},
        script::LuaScript,
    },
};

/// Merges a kept sketch into the one in Redis.
pub static MERGE: LuaScript = LuaScript::new("uv_merge", include_str!("../lua/uv_merge.lua"));

/// A larger sketch is a dense one, of 12 KiB: kept at most once in [`DENSE_EVERY`].
const DENSE: usize = 3 * 1_024;
const DENSE_EVERY: Duration = Duration::from_secs(60);

/// Videos in one pipeline and in one statement: 3 MB where all sketches are dense.
const AT_ONCE: usize = 250;

/// Videos of one partition whose sketch is remembered to be kept later; beyond, their next play will.
const OWED: usize = 10_000;

/// Notes are forgotten long before a sketch in Redis can run out.
const NOTE_LIFE: Duration = Duration::from_secs(24 * 3_600);

/// Keeps unique viewers in the database.
pub struct Sketches {
    redis: Redis,
    ledger: Ledger,
    notes: Cache<VideoId, Note>,
    owed: Mutex<HashMap<Partition, HashSet<VideoId>>>,
}

/// What this process did about one video.
#[derive(Clone)]
struct Note {
    /// The run of Redis in whose sketch the database's is.
    run: Arc<str>,
    /// The unique viewers that were kept last.
    kept: Option<i64>,
    /// When a dense sketch was kept last.
    dense_at: Option<Duration>,
}

impl Sketches {
    /// Remembers what it did for up to `remembered` videos.
    #[must_use]
    pub fn new(redis: Redis, ledger: Ledger, remembered: u64) -> Self {
        let notes = Cache::builder().max_capacity(remembered).time_to_live(NOTE_LIFE).build();
        Self { redis, ledger, notes, owed: Mutex::default() }
    }

    /// Keeps the sketches of `videos`, those that are due; the others are owed.
    ///
    /// # Errors
    /// Redis or the database is away; what wasn't kept is owed.
    pub async fn keep(
        &self,
        connection: &Connection,
        partition: Partition,
        videos: Vec<VideoId>,
    ) -> Result<(), StoreError> {
        let (due, later): (Vec<_>, Vec<_>) =
            videos.into_iter().partition(|video| self.is_due(connection, video));
        self.owe(partition, later);
        self.keep_due(connection, partition, &due).await
    }

    /// Keeps what is owed and due by now; with `at_once` also what isn't due.
    ///
    /// # Errors
    /// As [`Sketches::keep`].
    pub async fn keep_owed(
        &self,
        connection: &Connection,
        partition: Partition,
        at_once: bool,
    ) -> Result<(), StoreError> {
        let owed = self.owed.lock().remove(&partition).unwrap_or_default();
        let (due, later): (Vec<_>, Vec<_>) =
            owed.into_iter().partition(|video| at_once || self.is_due(connection, video));
        self.owe(partition, later);
        self.keep_due(connection, partition, &due).await
    }

    fn is_due(&self, connection: &Connection, video: &VideoId) -> bool {
        let now = self.redis.clock().monotonic();
        let note = self.note(connection, video);
        note.and_then(|note| note.dense_at).is_none_or(|at| now.saturating_sub(at) >= DENSE_EVERY)
    }

    fn note(&self, connection: &Connection, video: &VideoId) -> Option<Note> {
        self.notes.get(video).filter(|note| *note.run == *connection.run_id())
    }

    fn owe(&self, partition: Partition, videos: impl IntoIterator<Item = VideoId>) {
        let mut owed = self.owed.lock();
        let owed = owed.entry(partition).or_default();
        for video in videos {
            if owed.len() < OWED {
                owed.insert(video);
            }
        }
    }

    async fn keep_due(
        &self,
        connection: &Connection,
        partition: Partition,
        videos: &[VideoId],
    ) -> Result<(), StoreError> {
        for (index, chunk) in videos.chunks(AT_ONCE).enumerate() {
            if let Err(error) = self.keep_chunk(connection, partition, chunk).await {
                self.owe(partition, videos[index * AT_ONCE..].iter().cloned());
                return Err(error);
            }
        }
        Ok(())
    }

    async fn keep_chunk(
        &self,
        connection: &Connection,
        partition: Partition,
        videos: &[VideoId],
    ) -> Result<(), StoreError> {
        let new = videos.iter().filter(|video| self.note(connection, video).is_none());
        self.merge(connection, partition, new.cloned().collect()).await?;
        let refused = self.keep_once(connection, partition, videos).await?;
        // The note was wrong: what the database has is not in there.
        self.merge(connection, partition, refused.clone()).await?;
        self.keep_once(connection, partition, &refused).await.map(drop)
    }

    /// Merges what the database holds into Redis, and notes it.
    async fn merge(
        &self,
        connection: &Connection,
        partition: Partition,
        videos: Vec<VideoId>,
    ) -> Result<(), StoreError> {
        if videos.is_empty() {
            return Ok(());
        }
        let sketches = self.ledger.sketches(&videos).await?;
        let keys = self.redis.keys();
        let life = SKETCH_LIFE.as_secs().to_string();
        let call = |(video, sketch): &(VideoId, Vec<u8>)| {
            let keys = [keys.unique_viewers(partition, video), keys.sketch(partition, video)];
            MERGE.call(&keys, &[sketch.as_slice(), life.as_bytes()])
        };
        let turn = self.redis.turn().await;
        let answers = connection.pipe(sketches.iter().map(call).collect()).await?;
        drop(turn);
        for ((video, _), answer) in sketches.iter().zip(answers) {
            let said: String = reply(answer)?;
            if !said.is_empty() {
                tracing::error!(
                    video = %video, redis.said = said,
                    "unique viewers of {video} can't be merged with those in the database"
                );
            }
        }
        let run: Arc<str> = connection.run_id().into();
        for video in videos {
            self.notes.insert(video, Note { run: run.clone(), kept: None, dense_at: None });
        }
        Ok(())
    }

    /// Keeps the sketches of `videos` that changed; answers those that the database didn't take.
    async fn keep_once(
        &self,
        connection: &Connection,
        partition: Partition,
        videos: &[VideoId],
    ) -> Result<Vec<VideoId>, StoreError> {
        let keys: Vec<String> =
            videos.iter().map(|video| self.redis.keys().unique_viewers(partition, video)).collect();
        let ask = |name, key| {
            let mut command = redis::cmd(name);
            command.arg(key);
            command
        };
        let turn = self.redis.turn().await;
        let counts = connection.pipe(keys.iter().map(|key| ask("PFCOUNT", key)).collect()).await?;
        drop(turn);
        let mut changed = Vec::new();
        for ((video, key), count) in videos.iter().zip(&keys).zip(counts) {
            match reply::<i64>(count) {
                Ok(count) if count > 0 => {
                    if self.note(connection, video).and_then(|note| note.kept) != Some(count) {
                        changed.push((video, key, count));
                    }
                }
                Ok(_) => {}
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    tracing::error!(video = %video, error = %error, "unique viewers of {video} can't be read");
                }
            }
        }
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        // Read after the counts: a sketch holds at least the viewers it is said to.
        let turn = self.redis.turn().await;
        let bytes = connection.pipe(changed.iter().map(|(_, key, _)| ask("GET", *key)).collect()).await?;
        drop(turn);
        let mut sketches = Vec::with_capacity(changed.len());
        for ((video, _, count), bytes) in changed.into_iter().zip(bytes) {
            if let Some(bytes) = reply::<Option<Vec<u8>>>(bytes)? {
                sketches.push((video.clone(), count, bytes));
            }
        }
        let kept = self.ledger.keep_sketches(&sketches).await?;
        let now = self.redis.clock().monotonic();
        let run: Arc<str> = connection.run_id().into();
        let mut refused = Vec::new();
        for (video, count, bytes) in sketches {
            if kept.contains(&video) {
                let dense_at = (bytes.len() > DENSE).then_some(now);
                self.notes.insert(video, Note { run: run.clone(), kept: Some(count), dense_at });
            } else {
                self.notes.invalidate(&video);
                refused.push(video);
            }
        }
        Ok(refused)
    }
}
