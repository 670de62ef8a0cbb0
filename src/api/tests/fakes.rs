//! Stores that live in a map and do as they are told.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::now;
use crate::{
    error::StoreError,
    health::{Health, HealthCheck},
    ids::{PARTITIONS, Partition, VideoId, ViewerId},
    plays::{
        Play, PlayCount, Plays, Recorded,
        audit::{Books, Reading, Terms},
    },
    presence::{Beat, OnlineCount, Presence, Ranking},
    videos::VideoStore,
};

/// Viewers in a map. Some videos are special: `panic` and `hang` do what they say, and so does a
/// beat for `away`.
#[derive(Default)]
pub(super) struct FakePresence {
    pub(super) viewers: Mutex<HashMap<VideoId, HashSet<ViewerId>>>,
    /// What is answered instead of counting.
    pub(super) told: Mutex<HashMap<VideoId, OnlineCount>>,
    pub(super) failing: Mutex<Option<StoreError>>,
    /// The ids of each call for counts.
    pub(super) asked: Mutex<Vec<Vec<VideoId>>>,
    pub(super) ranking: Mutex<Option<Ranking>>,
}

impl FakePresence {
    pub(super) fn viewers_of(&self, video: &str) -> Vec<String> {
        let viewers = self.viewers.lock();
        let found = viewers.get(&super::video(video)).into_iter().flatten();
        let mut found: Vec<String> = found.map(ToString::to_string).collect();
        found.sort();
        found
    }

    pub(super) fn tell(&self, video: &str, online: Option<u64>, stale: bool) {
        let count = OnlineCount { online, as_of: online.map(|_| now()), stale };
        self.told.lock().insert(super::video(video), count);
    }

    fn refusal(&self, beat: &Beat) -> Option<StoreError> {
        let away = StoreError::unavailable(crate::error::Part::Redis, "10.0.0.7 refused");
        let special = (beat.video.as_str() == "away").then_some(away);
        self.failing.lock().clone().or(special)
    }

    fn count(&self, video: &VideoId) -> OnlineCount {
        if let Some(told) = self.told.lock().get(video) {
            return *told;
        }
        let online = self.viewers.lock().get(video).map_or(0, HashSet::len) as u64;
        OnlineCount { online: Some(online), as_of: Some(now()), stale: false }
    }
}

#[async_trait]
impl Presence for FakePresence {
    async fn beat(&self, beat: Beat) -> Result<u64, StoreError> {
        match beat.video.as_str() {
            "panic" => panic!("the address of a secret is 10.0.0.7"),
            "hang" => std::future::pending().await,
            _ => {}
        }
        if let Some(error) = self.refusal(&beat) {
            return Err(error);
        }
        let mut viewers = self.viewers.lock();
        let viewers = viewers.entry(beat.video).or_default();
        viewers.insert(beat.viewer);
        Ok(viewers.len() as u64)
    }

    async fn beat_many(&self, beats: Vec<Beat>) -> Vec<Result<(), StoreError>> {
        let mut results = Vec::new();
        for beat in beats {
            results.push(self.beat(beat).await.map(|_| ()));
        }
        results
    }

    async fn leave(&self, beat: Beat) -> Result<OnlineCount, StoreError> {
        if let Some(error) = self.refusal(&beat) {
            return Err(error);
        }
        if let Some(viewers) = self.viewers.lock().get_mut(&beat.video) {
            viewers.remove(&beat.viewer);
        }
        Ok(self.count(&beat.video))
    }

    async fn online(&self, videos: &[VideoId]) -> Vec<OnlineCount> {
        self.asked.lock().push(videos.to_vec());
        videos.iter().map(|video| self.count(video)).collect()
    }

    async fn top(&self, limit: usize) -> Ranking {
        let ranking = self.ranking.lock().clone();
        let mut ranking = ranking.unwrap_or(Ranking { videos: Vec::new(), as_of: None, stale: true });
        ranking.videos.truncate(limit);
        ranking
    }

    fn next_heartbeat(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// Plays in a map; a play of `later` is decided later.
#[derive(Default)]
pub(super) struct FakePlays {
    pub(super) recorded: Mutex<Vec<Play>>,
    pub(super) told: Mutex<HashMap<VideoId, PlayCount>>,
    pub(super) failing: Mutex<Option<StoreError>>,
    pub(super) asked: Mutex<Vec<Vec<VideoId>>>,
}

impl FakePlays {
    pub(super) fn tell(&self, video: &str, plays: Option<u64>, unique_viewers: Option<u64>, stale: bool) {
        let count = PlayCount { plays, unique_viewers, as_of: plays.map(|_| now()), stale };
        self.told.lock().insert(super::video(video), count);
    }
}

#[async_trait]
impl Plays for FakePlays {
    async fn record(&self, play: Play) -> Result<Recorded, StoreError> {
        if let Some(error) = self.failing.lock().clone() {
            return Err(error);
        }
        let later = play.video.as_str() == "later";
        let mut recorded = self.recorded.lock();
        let duplicate = recorded.contains(&play);
        recorded.push(play);
        Ok(match (later, duplicate) {
            (true, _) => Recorded::Accepted,
            (false, true) => Recorded::Duplicate,
            (false, false) => Recorded::Counted,
        })
    }

    async fn counts(&self, videos: &[VideoId]) -> Vec<PlayCount> {
        self.asked.lock().push(videos.to_vec());
        let told = self.told.lock();
        let count = |video| told.get(video).copied().unwrap_or(PlayCount::UNKNOWN);
        videos.iter().map(count).collect()
    }
}

/// Knows the videos whose id begins with `known`; asked for `unreachable`, it is away.
pub(super) struct FakeVideos;

#[async_trait]
impl VideoStore for FakeVideos {
    async fn existing(&self, videos: &[VideoId]) -> Result<HashSet<VideoId>, StoreError> {
        if videos.iter().any(|video| video.as_str() == "unreachable") {
            return Err(StoreError::unavailable(crate::error::Part::Postgres, "10.0.0.8 refused"));
        }
        Ok(videos.iter().filter(|video| video.as_str().starts_with("known")).cloned().collect())
    }
}

/// Finds what it is told to.
#[derive(Default)]
pub(super) struct FakeHealth {
    pub(super) found: Mutex<Health>,
    pub(super) looks: AtomicUsize,
    pub(super) panicking: AtomicBool,
    pub(super) hanging: Mutex<Option<tokio_util::sync::CancellationToken>>,
}

#[async_trait]
impl HealthCheck for FakeHealth {
    async fn check(&self) -> Health {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let hanging = self.hanging.lock().clone();
        if let Some(until) = hanging {
            until.cancelled().await;
        }
        assert!(!self.panicking.swap(false, Ordering::SeqCst), "the check panics once");
        self.found.lock().clone()
    }
}

/// Books in which it is written what they are told.
pub(super) struct FakeBooks {
    pub(super) found: Mutex<Result<Reading, StoreError>>,
    pub(super) takes: Mutex<std::time::Duration>,
}

impl Default for FakeBooks {
    fn default() -> Self {
        Self { found: Mutex::new(Ok([Some(Terms::default()); PARTITIONS as usize])), takes: Mutex::default() }
    }
}

#[async_trait]
impl Books for FakeBooks {
    async fn read(&self) -> Result<Reading, StoreError> {
        let takes = *self.takes.lock();
        tokio::time::sleep(takes).await;
        self.found.lock().clone()
    }

    async fn adjust(&self, _: &[(Partition, i128)], _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}
