//! Reads totals: kept for a second, read once however many ask, and the last good one when SQLite
//! fails.
//!
//! A play counted here puts the new total in place, so a reader never sees it fall.

use std::{sync::Arc, time::Duration};

use moka::sync::Cache;

use super::tables::{self, Total};
use crate::{
    clock::{Clock, Timestamp},
    count_reads::CountReads,
    error::StoreError,
    ids::VideoId,
    plays::{PlayCount, honest_viewers},
    single_flight::SingleFlight,
    store::sqlite::Sqlite,
};

/// How long a total is served without a look at the table. Only this process writes, so it is for
/// changes made by hand.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Kept {
    total: Total,
    at: Timestamp,
    /// Monotonic.
    read: Duration,
    /// Whether nothing has happened since that may have changed it unseen.
    certain: bool,
}

/// Totals of videos. Clones share what is kept.
#[derive(Clone)]
pub(super) struct Totals {
    sqlite: Sqlite,
    clock: Arc<dyn Clock>,
    kept: Cache<VideoId, Kept>,
    flights: SingleFlight<Total>,
    reads: CountReads,
}

impl Totals {
    pub(super) fn new(sqlite: Sqlite, clock: Arc<dyn Clock>, most: u64) -> Self {
        let kept = Cache::new(most);
        Self { sqlite, clock, kept, flights: SingleFlight::default(), reads: CountReads::of("plays") }
    }

    /// The totals of `videos`, in order.
    pub(super) async fn of(&self, videos: &[VideoId]) -> Vec<PlayCount> {
        let now = self.clock.monotonic();
        let mut counts = Vec::with_capacity(videos.len());
        let mut misses = Vec::new();
        for (index, video) in videos.iter().enumerate() {
            let fresh =
                self.kept.get(video).filter(|kept| kept.certain && now.saturating_sub(kept.read) < FRESH);
            if fresh.is_none() {
                misses.push(index);
            }
            counts.push(fresh.map_or(PlayCount::UNKNOWN, |kept| known(kept.total, kept.at, false)));
        }
        self.reads.local.increment((videos.len() - misses.len()) as u64);
        if misses.is_empty() {
            return counts;
        }
        let wanted: Vec<VideoId> = misses.iter().map(|index| videos[*index].clone()).collect();
        for (index, read) in misses.into_iter().zip(self.read(&wanted).await) {
            let last_good = self.kept.get(&videos[index]);
            counts[index] = match (read, last_good) {
                // A read may have begun before a play that was answered meanwhile.
                (Ok(total), kept) => {
                    self.reads.live.increment(1);
                    let later = kept.filter(|kept| kept.total.plays > total.plays);
                    let total = later.map_or(total, |kept| kept.total);
                    known(total, self.clock.now(), false)
                }
                (Err(_), Some(kept)) if kept.total.plays > 0 => {
                    self.reads.stale.increment(1);
                    known(kept.total, kept.at, true)
                }
                (Err(_), _) => {
                    self.reads.unknown.increment(1);
                    PlayCount::UNKNOWN
                }
            };
        }
        counts
    }

    /// Takes the total that a commit answered with. Reads that began before it are not kept.
    pub(super) fn put(&self, video: &VideoId, total: Total) {
        self.flights.bar(video, || {
            if self.kept.contains_key(video) {
                self.kept.insert(video.clone(), self.kept_now(total));
            }
        });
    }

    /// A commit failed in a way that leaves open whether it happened.
    pub(super) fn doubt(&self, video: &VideoId) {
        self.flights.bar(video, || {
            if let Some(kept) = self.kept.get(video) {
                self.kept.insert(video.clone(), Kept { certain: false, ..kept });
            }
        });
    }

    async fn read(&self, videos: &[VideoId]) -> Vec<Result<Total, StoreError>> {
        let sqlite = self.sqlite.clone();
        let keep = self.clone();
        self.flights
            .read(
                videos,
                move |videos| async move { tables::totals(&sqlite, &videos).await },
                move |video, total| keep.kept.insert(video.clone(), keep.kept_now(*total)),
            )
            .await
    }

    fn kept_now(&self, total: Total) -> Kept {
        Kept { total, at: self.clock.now(), read: self.clock.monotonic(), certain: true }
    }
}

fn known(total: Total, at: Timestamp, stale: bool) -> PlayCount {
    let unique_viewers = honest_viewers(total.unique_viewers, total.plays);
    PlayCount { plays: Some(total.plays), unique_viewers, as_of: Some(at), stale }
}
