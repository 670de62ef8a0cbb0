//! Viewers in this process's memory, with a snapshot on disk.
//!
//! The map is split by video, each shard behind a lock of its own that is held for one operation
//! or one bounded step of a long one, never while waiting.

mod doubt;
mod saver;
mod snapshot;
mod sweep;
#[cfg(test)]
mod tests;
mod viewers;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use self::{
    doubt::Doubt,
    saver::Saver,
    snapshot::{Found, Saved},
    sweep::{Ranked, Sweep},
    viewers::Shard,
};
use super::{Beat, OnlineCount, Presence, Ranking, rhythm::Rhythm};
use crate::{
    clock::{Clock, Timestamp, millis},
    count_reads::CountReads,
    error::{Part, StoreError},
    ids::VideoId,
    jobs::Job,
    store::{
        sqlite::{Sqlite, store_error},
        time::StoreClock,
    },
};

/// One for each value of a byte.
const SHARDS: usize = 256;

/// What can be set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a viewer is online after a beat.
    pub window: Duration,
    /// How often players are told to beat.
    pub heartbeat_every: Duration,
    /// From sweep to sweep.
    pub sweep_every: Duration,
    /// From snapshot to snapshot.
    pub snapshot_every: Duration,
    /// Viewers, at most.
    pub max_viewers: usize,
}

/// Who is watching, in memory.
pub struct InMemoryPresence {
    shards: Box<[Mutex<Shard>]>,
    settings: Settings,
    time: StoreClock,
    /// In all shards together.
    viewers: AtomicUsize,
    /// Monotonic milliseconds at which the last complete pass began.
    swept: AtomicU64,
    ranked: ArcSwap<Ranked>,
    doubt: Doubt,
    rhythm: Arc<Rhythm>,
    sweeping: tokio::sync::Mutex<()>,
    reads: CountReads,
}

impl InMemoryPresence {
    /// Restores what was saved, as far as it is within the window, and sweeps it.
    ///
    /// # Errors
    /// The snapshot can't be read from the file at all.
    pub async fn open(
        settings: Settings,
        sqlite: &Sqlite,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, StoreError> {
        let rhythm = Arc::new(Rhythm::new(settings.heartbeat_every, settings.window, clock.clone()));
        let time = StoreClock::new(clock, rhythm.clone());
        let now = time.follow_host();
        let found = snapshot::load(sqlite).await.map_err(store_error)?;
        let doubt = Doubt::of(&found, &settings, &rhythm, now, time.monotonic());
        // From here on a crash forgets: who is found now may not be all at the next start.
        let doubted_until = now + doubt.lasts(time.monotonic());
        let at = found.saved.map_or(now, |saved| saved.at);
        let begun = Saved { at, doubted_until, complete: false };
        snapshot::store(sqlite, Vec::new(), Some(begun)).await.map_err(store_error)?;
        let presence = Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            settings,
            viewers: AtomicUsize::new(0),
            swept: AtomicU64::new(millis(time.monotonic())),
            ranked: ArcSwap::from_pointee(Ranked { at: now, videos: Vec::new() }),
            doubt,
            rhythm,
            sweeping: tokio::sync::Mutex::new(()),
            reads: CountReads::of("online"),
            time,
        };
        presence.restore(found, now);
        presence.sweep().await;
        Ok(Arc::new(presence))
    }

    /// What must run for the numbers to stay right, and to survive.
    #[must_use]
    pub fn jobs(self: &Arc<Self>, sqlite: &Sqlite) -> Vec<Arc<dyn Job>> {
        let saver = Saver::new(self.clone(), sqlite.clone(), self.settings.snapshot_every);
        vec![Arc::new(Sweep(self.clone())), Arc::new(saver)]
    }

    fn restore(&self, found: Found, now: Timestamp) {
        if let Some(saved) = found.saved {
            let lasts = self.doubt.lasts(self.time.monotonic());
            tracing::info!(
                snapshot.age_s = now.since(saved.at).as_secs(),
                presence.doubted_for_s = lasts.as_secs(),
                "restoring the viewers of {}",
                saved.at.rfc3339(),
            );
        }
        let oldest = now - self.settings.window;
        for (video, viewers) in found.viewers {
            for (viewer, last) in viewers.into_iter().filter(|(_, last)| *last >= oldest) {
                // Those that were taken before are kept, whatever the limit is now.
                let admit = || {
                    self.viewers.fetch_add(1, Ordering::Relaxed);
                    true
                };
                let beat = Beat { video: video.clone(), viewer };
                self.shard(&video).lock().beat(beat, last.min(now), admit);
            }
        }
    }

    fn shard(&self, video: &VideoId) -> &Mutex<Shard> {
        &self.shards[usize::from(xxh3_64(video.as_str().as_bytes()).to_le_bytes()[0])]
    }

    /// Takes a beat and answers how many viewers are held for its video.
    fn take(&self, beat: Beat, now: Timestamp) -> Result<u64, StoreError> {
        let admit = || {
            let admitted = self.viewers.fetch_add(1, Ordering::Relaxed) < self.settings.max_viewers;
            if !admitted {
                self.viewers.fetch_sub(1, Ordering::Relaxed);
            }
            admitted
        };
        let counted = self.shard(&beat.video).lock().beat(beat, now, admit);
        counted.ok_or(StoreError::Full { part: Part::Memory, queue: "viewers" })
    }

    /// Whether a sweep vouches for what is held.
    fn is_swept(&self) -> bool {
        let swept = Duration::from_millis(self.swept.load(Ordering::Relaxed));
        self.time.monotonic().saturating_sub(swept) <= 2 * self.settings.sweep_every
    }

    async fn count(&self, video: &VideoId, now: Timestamp) -> OnlineCount {
        let swept = self.is_swept();
        if !swept {
            self.prune(video, now).await;
        }
        let held = self.shard(video).lock().count(video);
        self.judge(video, held, now, swept)
    }

    /// Removes the viewers of one video who left.
    async fn prune(&self, video: &VideoId, now: Timestamp) {
        let mut to_see = usize::MAX;
        loop {
            let rule = self.rule(now);
            let step = self.shard(video).lock().prune_video(video, &mut to_see, rule);
            self.viewers.fetch_sub(step.removed, Ordering::Relaxed);
            if step.done {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// How far the number of viewers held for a video can be trusted.
    fn judge(&self, video: &VideoId, held: u64, now: Timestamp, swept: bool) -> OnlineCount {
        let doubted = !self.doubt.lasts(self.time.monotonic()).is_zero();
        if swept && !doubted {
            self.reads.local.increment(1);
            return OnlineCount { online: Some(held), as_of: Some(now), stale: false };
        }
        let before = if doubted { self.doubt.before(video, now, self.settings.window) } else { None };
        let (online, as_of) = before.filter(|(before, _)| *before >= held).unwrap_or((held, now));
        if online == 0 {
            self.reads.unknown.increment(1);
            return OnlineCount::UNKNOWN;
        }
        let tier = if doubted { &self.reads.stale } else { &self.reads.live };
        tier.increment(1);
        OnlineCount { online: Some(online), as_of: Some(as_of), stale: true }
    }
}

#[async_trait]
impl Presence for InMemoryPresence {
    async fn beat(&self, beat: Beat) -> Result<u64, StoreError> {
        let now = self.time.follow_host();
        let video = beat.video.clone();
        let held = self.take(beat, now)?;
        if self.is_swept() && self.doubt.lasts(self.time.monotonic()).is_zero() {
            return Ok(held);
        }
        // The one who beats is there, whatever else can be told.
        Ok(self.count(&video, now).await.online.unwrap_or(1).max(1))
    }

    async fn beat_many(&self, beats: Vec<Beat>) -> Vec<Result<(), StoreError>> {
        let now = self.time.follow_host();
        beats.into_iter().map(|beat| self.take(beat, now).map(drop)).collect()
    }

    async fn leave(&self, beat: Beat) -> Result<OnlineCount, StoreError> {
        let now = self.time.follow_host();
        if self.shard(&beat.video).lock().leave(&beat, now) {
            self.viewers.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(self.count(&beat.video, now).await)
    }

    async fn online(&self, videos: &[VideoId]) -> Vec<OnlineCount> {
        let now = self.time.follow_host();
        let mut counts = Vec::with_capacity(videos.len());
        for video in videos {
            counts.push(self.count(video, now).await);
        }
        counts
    }

    async fn top(&self, limit: usize) -> Ranking {
        let ranked = self.ranked.load();
        let videos = ranked.videos.iter().take(limit).cloned().collect();
        let doubted = !self.doubt.lasts(self.time.monotonic()).is_zero();
        Ranking { videos, as_of: Some(ranked.at), stale: doubted || !self.is_swept() }
    }

    fn next_heartbeat(&self) -> Duration {
        self.rhythm.next()
    }

    fn press(&self, pressure: f64) {
        self.rhythm.press(pressure);
    }
}
