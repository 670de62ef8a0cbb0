//! Reads totals: what the database holds, as Redis keeps it, plus what isn't there yet.
//!
//! Reads that come together share one pipeline. Where Redis doesn't keep what the database holds,
//! `misses` finds out.
//!
//! Unique viewers are the larger of what Redis's sketch counts and what the database said when this
//! instance last asked: at first sight of a video, after an hour (five minutes where Redis has no
//! sketch), on every new connection to Redis, and when the sketch counts less than it did. In the
//! steady state the sketch has in it what the database knows (the flush sees to that) and is the
//! larger one; where Redis lost it, or it ran out, the database's is. Where neither is known the
//! answer is none, never a made-up 0.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::join_all;
use metrics::Counter;
use redis::Value;
use tokio::sync::watch;

use super::{
    TOTAL_LIFE,
    misses::{Learnt, Miss, Misses},
    shown::{Found, Look, Refresh, Shown},
};
use crate::{
    batch::{Batcher, Bounds},
    count_reads::CountReads,
    error::{Part, StoreError},
    ids::{Partition, VideoId},
    lifecycle::Lifecycle,
    plays::{PlayCount, honest_viewers, postgres::Ledger},
    store::redis::{Redis, reply},
};

/// Videos that may wait to be read, and those in one pipeline.
const READS: Bounds = Bounds { waiting: 50_000, batch: 1_000, prompt: false };

/// Videos whose total may wait to be found out, and those in one statement.
const MISSES: Bounds = Bounds { waiting: 10_000, batch: 500, prompt: false };

/// What Redis keeps of one video.
#[derive(Clone, Copy, Debug)]
struct Kept {
    total: Option<u64>,
    delta: u64,
    sketch: u64,
    epoch: u64,
}

/// Answers how often videos were played.
pub(super) struct Reader {
    shown: Arc<Shown>,
    reads: Arc<Batcher<VideoId, Kept>>,
    misses: Arc<Batcher<Miss, Learnt>>,
    /// How long an answer whose total is known waits for the database to tell unique viewers.
    patience: Duration,
    tiers: CountReads,
}

impl Reader {
    pub(super) fn start(
        lifecycle: &Lifecycle,
        redis: Redis,
        ledger: Ledger,
        shown: Arc<Shown>,
        patience: Duration,
    ) -> Self {
        let misses = Arc::new(Misses::new(redis.clone(), ledger.clone()));
        let misses = Batcher::start(lifecycle, "play-misses", Part::Postgres, MISSES, move |missed| {
            let misses = misses.clone();
            async move { misses.find_out(missed).await }
        });
        let reads = Batcher::start(lifecycle, "play-reads", Part::Redis, READS, move |videos| {
            let (redis, ledger) = (redis.clone(), ledger.clone());
            async move { read(&redis, &ledger, &videos).await }
        });
        Self { shown, reads, misses, patience, tiers: CountReads::of("plays") }
    }

    /// How often each of `videos` was played, in order.
    pub(super) async fn counts(&self, videos: &[VideoId]) -> Vec<PlayCount> {
        let mut counts = vec![PlayCount::UNKNOWN; videos.len()];
        let mut asked = Vec::new();
        let mut joined = Vec::new();
        let (now, mut known) = (self.shown.now(), 0);
        for (index, video) in videos.iter().enumerate() {
            match self.shown.look(video, now) {
                Look::Known(count) => {
                    known += 1;
                    counts[index] = count;
                }
                Look::Join(answer) => joined.push((index, answer)),
                Look::Ask(refresh) => asked.push((index, self.ask(video, refresh))),
            }
        }
        self.tiers.local.increment(known);
        let (indexes, answers): (Vec<usize>, Vec<_>) = asked.into_iter().unzip();
        for (index, count) in indexes.into_iter().zip(join_all(answers).await) {
            counts[index] = count;
        }
        for (index, answer) in joined {
            counts[index] = self.join(&videos[index], answer).await;
        }
        counts
    }

    /// Waits for the answer that another read is getting. Where that one is given up (its caller went
    /// away), this one asks itself.
    async fn join(&self, video: &VideoId, answer: watch::Receiver<Option<PlayCount>>) -> PlayCount {
        let mut answer = answer;
        loop {
            if let Ok(Some(count)) = answer.wait_for(Option::is_some).await.map(|count| *count) {
                self.tiers.local.increment(1);
                return count;
            }
            match self.shown.look(video, self.shown.now()) {
                Look::Known(count) => {
                    self.tiers.local.increment(1);
                    return count;
                }
                Look::Join(another) => answer = another,
                Look::Ask(refresh) => return self.ask(video, refresh).await,
            }
        }
    }

    async fn ask(&self, video: &VideoId, refresh: Refresh) -> PlayCount {
        let found = self.find(video, &refresh).await;
        let answer = self.shown.finish(refresh, found.as_ref().ok().map(|(found, _)| *found));
        match found {
            Ok((_, from)) if !answer.stale => from.increment(1),
            Ok(_) => self.tiers.stale.increment(1),
            Err(error) => {
                tracing::debug!(video = %video, error = %error, "the plays of {video} can't be read");
                let tier = if answer.plays.is_some() { &self.tiers.stale } else { &self.tiers.unknown };
                tier.increment(1);
            }
        }
        answer
    }

    async fn find(&self, video: &VideoId, refresh: &Refresh) -> Result<(Found, &Counter), StoreError> {
        let kept = self.reads.submit(video.clone()).await?;
        let Kept { sketch, epoch, .. } = kept;
        let (plays, told, from) = match kept.total {
            Some(total) => (total.saturating_add(kept.delta), None, &self.tiers.cache),
            None => match self.misses.submit(Miss::Total(video.clone())).await? {
                Learnt::Total { plays, unique_viewers } => (plays, unique_viewers, &self.tiers.live),
                Learnt::UniqueViewers(_) => {
                    return Err(StoreError::unexpected(Part::Redis, "unique viewers for a total"));
                }
            },
        };
        let viewers = match told {
            Some(viewers) => Some(refresh.take_note(viewers, sketch, epoch)),
            None => match refresh.viewers(sketch, epoch) {
                Some(viewers) => Some(viewers),
                None => match self.ask_database(video).await {
                    Some(viewers) => Some(refresh.take_note(viewers, sketch, epoch)),
                    None => refresh.viewers_at_least(sketch),
                },
            },
        };
        let unique_viewers = viewers.and_then(|viewers| honest_viewers(viewers, plays));
        Ok((Found { plays, unique_viewers }, from))
    }

    /// What the database knows of unique viewers; a known total doesn't wait for it for long.
    async fn ask_database(&self, video: &VideoId) -> Option<u64> {
        let asking = self.misses.submit(Miss::UniqueViewers(video.clone()));
        match tokio::time::timeout(self.patience, asking).await {
            Ok(Ok(Learnt::UniqueViewers(viewers))) => Some(viewers),
            _ => None,
        }
    }
}

/// Reads what Redis keeps of `videos`, in one pipeline.
async fn read(redis: &Redis, ledger: &Ledger, videos: &[VideoId]) -> Vec<Result<Kept, StoreError>> {
    let mut kept = vec![Err(StoreError::unexpected(Part::Redis, "a video has no answer")); videos.len()];
    let connection = match redis.connection() {
        Ok(connection) => connection,
        Err(error) => return vec![Err(error); videos.len()],
    };
    let keys = redis.keys();
    let mut by_partition: HashMap<Partition, Vec<usize>> = HashMap::new();
    for (index, video) in videos.iter().enumerate() {
        by_partition.entry(video.partition()).or_default().push(index);
    }
    let by_partition: Vec<(Partition, Vec<usize>)> = by_partition.into_iter().collect();
    // While the database fails, what it holds can't be read again: what Redis keeps must not run out.
    let prolong = ledger.postgres().is_down();
    let mut commands = Vec::new();
    for (partition, indexes) in &by_partition {
        let mut counts = redis::cmd("MGET");
        let mut others = Vec::with_capacity(indexes.len());
        for video in indexes.iter().map(|index| &videos[*index]) {
            let total = keys.total(*partition, video);
            counts.arg(&total).arg(keys.delta(*partition, video));
            let mut sketch = redis::cmd("PFCOUNT");
            sketch.arg(keys.unique_viewers(*partition, video));
            others.push(sketch);
            if prolong {
                let mut expire = redis::cmd("EXPIRE");
                expire.arg(total).arg(TOTAL_LIFE.as_secs());
                others.push(expire);
            }
        }
        commands.push(counts);
        commands.extend(others);
    }
    let mut answers = match connection.pipe(commands).await {
        Ok(answers) => answers.into_iter(),
        Err(error) => return vec![Err(error); videos.len()],
    };
    for (_, indexes) in &by_partition {
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let counts: Result<Vec<Option<String>>, StoreError> = reply(next());
        for (place, index) in indexes.iter().enumerate() {
            let sketch: Result<u64, StoreError> = reply(next());
            if prolong {
                next();
            }
            let pair =
                counts.as_ref().map_err(Clone::clone).map(|counts| counts.get(2 * place..2 * place + 2));
            kept[*index] = pair.and_then(|pair| match pair {
                Some([total, delta]) => Ok(Kept {
                    total: total.as_deref().map(number).transpose()?,
                    delta: delta.as_deref().map(number).transpose()?.unwrap_or(0),
                    // One that is no sketch counts nothing, which the flush logs.
                    sketch: sketch.unwrap_or(0),
                    epoch: connection.epoch(),
                }),
                _ => Err(StoreError::unexpected(Part::Redis, "MGET answered too little")),
            });
        }
    }
    kept
}

/// Reads a count that Redis keeps as text.
pub(super) fn number(text: &str) -> Result<u64, StoreError> {
    text.parse()
        .map_err(|_| StoreError::unexpected(Part::Redis, format!("a count that is no number: {text:?}")))
}
