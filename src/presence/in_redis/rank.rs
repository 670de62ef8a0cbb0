//! The most watched videos, from the rankings that the sweeps leave.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::read::{Reader, stamps};
use crate::{
    error::StoreError,
    ids::{PARTITIONS, Partition, VideoId},
    presence::Ranking,
    store::redis::{Redis, reply},
};

/// The most that may be asked for.
const MOST: usize = 100;

/// For how long a ranking is served again.
const FRESH: Duration = Duration::from_secs(1);

/// The ranking at hand.
pub(super) struct Rank {
    redis: Redis,
    reader: Arc<Reader>,
    keep: Duration,
    /// Held while it is read, so that those who ask meanwhile share the answer.
    at_hand: Mutex<Option<(Ranking, Duration)>>,
}

impl Rank {
    pub(super) fn new(redis: Redis, reader: Arc<Reader>, keep: Duration) -> Self {
        Self { redis, reader, keep, at_hand: Mutex::default() }
    }

    /// The first `limit` videos.
    pub(super) async fn top(&self, limit: usize) -> Ranking {
        let mut at_hand = self.at_hand.lock().await;
        let now = self.redis.clock().monotonic();
        let age = |noted: Duration| now.saturating_sub(noted);
        if at_hand.as_ref().is_none_or(|(_, noted)| age(*noted) > FRESH) {
            match self.read().await {
                Ok(ranking) => *at_hand = Some((ranking, now)),
                Err(error) => {
                    tracing::debug!(error = %error, "the ranking was not read");
                    if let Some((ranking, noted)) = &*at_hand
                        && age(*noted) <= self.keep
                    {
                        return first(&Ranking { stale: true, ..ranking.clone() }, limit);
                    }
                    return Ranking { videos: Vec::new(), as_of: None, stale: true };
                }
            }
        }
        at_hand.as_ref().map_or_else(
            || Ranking { videos: Vec::new(), as_of: None, stale: true },
            |(ranking, _)| first(ranking, limit),
        )
    }

    async fn read(&self) -> Result<Ranking, StoreError> {
        let connection = self.redis.connection()?;
        let keys = self.redis.keys();
        let mut commands: Vec<_> = Partition::all().map(|partition| stamps(keys, partition)).collect();
        commands.extend(Partition::all().map(|partition| {
            let mut range = redis::cmd("ZREVRANGE");
            range.arg(keys.rank(partition)).arg(0).arg(MOST - 1).arg("WITHSCORES");
            range
        }));
        let mut values = connection.pipe(commands).await?;
        let ranks = values.split_off(usize::from(PARTITIONS));
        let stamps = values.into_iter().map(reply).collect::<Result<Vec<_>, _>>()?;
        let mut videos: Vec<(VideoId, u64)> = Vec::new();
        for rank in ranks {
            for (video, viewers) in reply::<Vec<(String, u64)>>(rank)? {
                // A member that is no video id was not put there by a sweep.
                videos.extend(VideoId::parse(&video).ok().map(|video| (video, viewers)));
            }
        }
        videos.sort_by(|(left, few), (right, many)| many.cmp(few).then_with(|| left.cmp(right)));
        videos.truncate(MOST);
        let (as_of, stale) = self.reader.sweeps(&stamps, self.redis.clock().now());
        Ok(Ranking { videos, as_of, stale })
    }
}

fn first(ranking: &Ranking, limit: usize) -> Ranking {
    let videos = ranking.videos.iter().take(limit).cloned().collect();
    Ranking { videos, ..*ranking }
}
