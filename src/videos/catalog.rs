//! Whether an id is a video, remembered both ways.
//!
//! A video that is there stays there, so that is remembered for long, and longer while the store
//! fails; one that is not may be made at any moment.

use std::{collections::HashMap, sync::Arc, time::Duration};

use moka::sync::Cache;

use super::VideoStore;
use crate::{clock::Clock, config::Unknown, error::StoreError, ids::VideoId, single_flight::SingleFlight};

/// How long a video is taken to be there without a look.
const THERE: Duration = Duration::from_secs(600);

/// How long it is while the store can't be asked.
const THERE_UNASKED: Duration = Duration::from_secs(3_600);

/// How long an id is taken to be no video.
const ABSENT: Duration = Duration::from_secs(2);

/// Ids remembered each way, about 150 bytes each.
const MOST: u64 = 100_000;

/// Which videos there are. Clones share what is remembered.
#[derive(Clone)]
pub struct Catalog {
    store: Arc<dyn VideoStore>,
    unknown: Unknown,
    clock: Arc<dyn Clock>,
    /// Each with the monotonic time of the look.
    there: Cache<VideoId, Duration>,
    absent: Cache<VideoId, Duration>,
    flights: SingleFlight<bool>,
}

impl Catalog {
    /// The videos of `store`; every id is one where `unknown` says so.
    #[must_use]
    pub fn new(store: Arc<dyn VideoStore>, unknown: Unknown, clock: Arc<dyn Clock>) -> Self {
        let (there, absent) = (Cache::new(MOST), Cache::new(MOST));
        Self { store, unknown, clock, there, absent, flights: SingleFlight::default() }
    }

    /// Whether every id is a video, so that none has to be looked up.
    #[must_use]
    pub fn takes_all(&self) -> bool {
        self.unknown == Unknown::Accept
    }

    /// Whether each of `videos` is one, in order. All that must be looked up are looked up together.
    ///
    /// # Errors
    /// The store is away, and not all of them were there within the last hour.
    pub async fn known(&self, videos: &[VideoId]) -> Result<Vec<bool>, StoreError> {
        if self.takes_all() {
            return Ok(vec![true; videos.len()]);
        }
        let mut answers: Vec<Option<bool>> = videos.iter().map(|video| self.remembered(video)).collect();
        let mut missing: Vec<VideoId> = Vec::new();
        for (video, _) in videos.iter().zip(&answers).filter(|(_, answer)| answer.is_none()) {
            if !missing.contains(video) {
                missing.push(video.clone());
            }
        }
        if !missing.is_empty() {
            let mut found = HashMap::new();
            for (video, looked_up) in missing.iter().zip(self.look_up(&missing).await) {
                let is_there = looked_up.or_else(|error| {
                    if self.is_remembered(&self.there, video, THERE_UNASKED) { Ok(true) } else { Err(error) }
                });
                found.insert(video, is_there?);
            }
            for (video, answer) in videos.iter().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
                *answer = found.get(video).copied();
            }
        }
        Ok(answers.into_iter().map(Option::unwrap_or_default).collect())
    }

    fn remembered(&self, video: &VideoId) -> Option<bool> {
        if self.is_remembered(&self.there, video, THERE) {
            Some(true)
        } else if self.is_remembered(&self.absent, video, ABSENT) {
            Some(false)
        } else {
            None
        }
    }

    fn is_remembered(&self, cache: &Cache<VideoId, Duration>, video: &VideoId, most: Duration) -> bool {
        cache.get(video).is_some_and(|looked| self.clock.monotonic().saturating_sub(looked) < most)
    }

    async fn look_up(&self, videos: &[VideoId]) -> Vec<Result<bool, StoreError>> {
        let store = self.store.clone();
        let keep = self.clone();
        self.flights
            .read(
                videos,
                move |videos| async move {
                    let existing = store.existing(&videos).await?;
                    Ok(videos.iter().map(|video| existing.contains(video)).collect())
                },
                move |video, is_there| {
                    let cache = if *is_there { &keep.there } else { &keep.absent };
                    cache.insert(video.clone(), keep.clock.monotonic());
                },
            )
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use async_trait::async_trait;
    use futures::future::join_all;
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        clock::{ManualClock, Timestamp},
        error::Part,
    };

    #[derive(Default)]
    struct Rows {
        there: Mutex<HashSet<VideoId>>,
        asked: Mutex<Vec<Vec<VideoId>>>,
        away: Mutex<bool>,
    }

    #[async_trait]
    impl VideoStore for Rows {
        async fn existing(&self, videos: &[VideoId]) -> Result<HashSet<VideoId>, StoreError> {
            self.asked.lock().push(videos.to_vec());
            tokio::task::yield_now().await;
            if *self.away.lock() {
                return Err(StoreError::unavailable(Part::Sqlite, "away"));
            }
            let there = self.there.lock();
            Ok(videos.iter().filter(|video| there.contains(*video)).cloned().collect())
        }
    }

    impl Rows {
        fn with(videos: &[&str]) -> Arc<Self> {
            let rows = Self::default();
            rows.there.lock().extend(ids(videos));
            Arc::new(rows)
        }

        fn asked(&self) -> Vec<Vec<VideoId>> {
            std::mem::take(&mut *self.asked.lock())
        }
    }

    fn ids(videos: &[&str]) -> Vec<VideoId> {
        videos.iter().map(|id| VideoId::parse(id).unwrap()).collect()
    }

    fn catalog(rows: &Arc<Rows>, unknown: Unknown) -> (Catalog, Arc<ManualClock>) {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        (Catalog::new(rows.clone(), unknown, clock.clone()), clock)
    }

    #[tokio::test]
    async fn every_id_is_a_video_where_unknown_ones_are_accepted() {
        let rows = Rows::with(&[]);
        let (catalog, _) = catalog(&rows, Unknown::Accept);
        assert_eq!(catalog.known(&ids(&["a", "b"])).await.unwrap(), [true, true]);
        assert!(rows.asked().is_empty());
    }

    #[tokio::test]
    async fn all_that_is_not_remembered_is_asked_for_once_and_together() {
        let rows = Rows::with(&["a"]);
        let (catalog, _) = catalog(&rows, Unknown::Reject);
        assert_eq!(catalog.known(&ids(&["a", "b", "a"])).await.unwrap(), [true, false, true]);
        assert_eq!(rows.asked(), [ids(&["a", "b"])]);
        assert_eq!(catalog.known(&ids(&["c", "a", "b"])).await.unwrap(), [false, true, false]);
        assert_eq!(rows.asked(), [ids(&["c"])]);
    }

    #[tokio::test]
    async fn look_ups_at_the_same_time_are_one() {
        let rows = Rows::with(&["a"]);
        let (catalog, _) = catalog(&rows, Unknown::Reject);
        let videos = ids(&["a"]);
        for known in join_all((0..20).map(|_| catalog.known(&videos))).await {
            assert_eq!(known.unwrap(), [true]);
        }
        assert_eq!(rows.asked().len(), 1);
    }

    #[tokio::test]
    async fn a_video_that_is_made_is_known_within_two_seconds_and_for_ten_minutes() {
        let rows = Rows::with(&[]);
        let (catalog, clock) = catalog(&rows, Unknown::Reject);
        let videos = ids(&["a"]);
        assert_eq!(catalog.known(&videos).await.unwrap(), [false]);
        rows.there.lock().extend(videos.clone());
        clock.advance(Duration::from_millis(1_999));
        assert_eq!(catalog.known(&videos).await.unwrap(), [false]);
        clock.advance(Duration::from_millis(1));
        assert_eq!(catalog.known(&videos).await.unwrap(), [true]);
        rows.asked();
        clock.advance(Duration::from_millis(599_999));
        assert_eq!(catalog.known(&videos).await.unwrap(), [true]);
        assert!(rows.asked().is_empty());
        clock.advance(Duration::from_millis(1));
        assert_eq!(catalog.known(&videos).await.unwrap(), [true]);
        assert_eq!(rows.asked().len(), 1);
    }

    #[tokio::test]
    async fn while_the_store_is_away_a_video_that_was_there_still_is_for_an_hour() {
        let rows = Rows::with(&["a"]);
        let (catalog, clock) = catalog(&rows, Unknown::Reject);
        catalog.known(&ids(&["a", "b"])).await.unwrap();
        *rows.away.lock() = true;
        clock.advance(Duration::from_secs(3_599));
        assert_eq!(catalog.known(&ids(&["a"])).await.unwrap(), [true]);
        assert!(catalog.known(&ids(&["a", "b"])).await.unwrap_err().is_transient());
        clock.advance(Duration::from_secs(1));
        assert!(catalog.known(&ids(&["a"])).await.is_err());
        *rows.away.lock() = false;
        assert_eq!(catalog.known(&ids(&["a", "b"])).await.unwrap(), [true, false]);
    }
}
