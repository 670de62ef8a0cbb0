//! Reads counts from Redis: those that are asked for together share one pipeline.

mod load;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use redis::Cmd;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    cache::{AtHand, Counts, Entry, Loaded},
    map::ShardMap,
    since::Memory,
    walk::Walker,
};
use crate::{
    clock::Timestamp,
    config,
    count_reads::CountReads,
    ids::{Partition, VideoId},
    presence::{OnlineCount, rhythm::Rhythm},
    store::{keys::Keys, redis::Redis},
};

/// Reads that may wait; beyond it the last good number is the answer.
const WAITING: usize = 20_000;

/// Reads in one pipeline.
const TOGETHER: usize = 1_000;

/// How long refreshes that nobody waits for are gathered: hot videos fall due one by one, and a round
/// trip for each would cost more than all the rest of reading.
const GATHER: Duration = Duration::from_millis(20);

/// Reads counts, through what is at hand.
pub(super) struct Reader {
    redis: Redis,
    map: ShardMap,
    walker: Walker,
    memory: Memory,
    counts: Counts,
    queue: mpsc::Sender<Asked>,
    deadline: Duration,
    sweep_every: Duration,
    rhythm: Arc<Rhythm>,
    reads: CountReads,
}

/// Somebody asks how many watch a video.
pub(super) struct Asked {
    video: VideoId,
    at: Duration,
    /// Nobody waits where a number was at hand and is only refreshed.
    answer: Option<oneshot::Sender<OnlineCount>>,
}

impl Reader {
    pub(super) fn new(
        redis: Redis,
        map: ShardMap,
        walker: Walker,
        rhythm: Arc<Rhythm>,
        config: &config::Config,
    ) -> (Arc<Self>, mpsc::Receiver<Asked>) {
        let (queue, asked) = mpsc::channel(WAITING);
        let reader = Arc::new(Self {
            walker,
            redis,
            map,
            memory: Memory::new(rhythm.clone()),
            counts: Counts::new(config.presence.cached_videos, config.presence.window),
            queue,
            deadline: config.redis.deadline,
            sweep_every: config.jobs.sweep_every,
            rhythm,
            reads: CountReads::of("online"),
        });
        (reader, asked)
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How full the queue of reads is, from 0 to 1.
    pub(super) fn fullness(&self) -> f64 {
        crate::batch::fullness(&self.queue)
    }

    /// How many watch each video, from what is at hand or from Redis.
    pub(super) async fn online(&self, videos: &[VideoId]) -> Vec<OnlineCount> {
        let now = self.redis.clock().monotonic();
        let mut counts = Vec::with_capacity(videos.len());
        let mut waiting = Vec::new();
        for (index, video) in videos.iter().enumerate() {
            let at_hand = self.counts.find(video).and_then(|entry| self.at_hand(video, &entry, now));
            counts.push(at_hand.unwrap_or_else(|| {
                let (answer, answered) = oneshot::channel();
                if self.ask(video, now, Some(answer)).is_err() {
                    return self.gone(video);
                }
                waiting.push((index, answered));
                OnlineCount::UNKNOWN
            }));
        }
        if !waiting.is_empty() {
            let wait_until = tokio::time::Instant::now() + self.deadline;
            for (index, answered) in waiting {
                counts[index] = match tokio::time::timeout_at(wait_until, answered).await {
                    Ok(Ok(count)) => count,
                    Ok(Err(_)) | Err(_) => self.gone(&videos[index]),
                };
            }
        }
        counts
    }

    /// The number at hand, if it may be shown; has it refreshed where it is time.
    pub(super) fn at_hand(&self, video: &VideoId, entry: &Entry, now: Duration) -> Option<OnlineCount> {
        let count = match entry.at_hand(now) {
            AtHand::Nothing => return None,
            AtHand::Fresh(count) => count,
            AtHand::Refresh(count) => {
                if self.ask(video, now, None).is_err() {
                    entry.not_refreshed();
                }
                count
            }
        };
        self.reads.local.increment(1);
        Some(count)
    }

    fn ask(
        &self,
        video: &VideoId,
        at: Duration,
        answer: Option<oneshot::Sender<OnlineCount>>,
    ) -> Result<(), ()> {
        self.queue.try_send(Asked { video: video.clone(), at, answer }).map_err(drop)
    }

    fn gone(&self, video: &VideoId) -> OnlineCount {
        let count = self.counts.last_good(video, self.redis.clock().monotonic());
        let tier = if count.online.is_some() { &self.reads.stale } else { &self.reads.unknown };
        tier.increment(1);
        count
    }

    /// The reader's task: what is asked while one pipeline is under way goes into the next.
    pub(super) async fn run(self: Arc<Self>, mut queue: mpsc::Receiver<Asked>, stopping: CancellationToken) {
        let mut asked = Vec::new();
        loop {
            tokio::select! {
                biased;
                count = queue.recv_many(&mut asked, TOGETHER) => if count == 0 { return },
                () = stopping.cancelled(), if !queue.is_closed() => { queue.close(); continue }
            }
            // At its end nothing is cut short but the gathering.
            let _ = tokio::time::timeout(GATHER, gather(&mut queue, &mut asked)).await;
            self.serve(std::mem::take(&mut asked)).await;
        }
    }

    async fn serve(&self, asked: Vec<Asked>) {
        // One read answers all who ask for a video, and those who asked before the last one ended.
        let wanted: BTreeSet<VideoId> = asked
            .iter()
            .filter(|asked| self.counts.entry(&asked.video).read_since(asked.at).is_none())
            .map(|asked| asked.video.clone())
            .collect();
        let wanted: Vec<VideoId> = wanted.into_iter().collect();
        let loaded = match self.redis.connection() {
            Ok(connection) => self.load(&connection, &wanted).await,
            Err(error) => Err(error),
        };
        let loaded = loaded.unwrap_or_else(|error| {
            tracing::debug!(error = %error, "counts were not read");
            vec![Loaded::Gone; wanted.len()]
        });
        let now = self.redis.clock().monotonic();
        for (video, loaded) in wanted.iter().zip(loaded) {
            self.counts.take(video, loaded, now);
        }
        for Asked { video, at, answer } in asked {
            let entry = self.counts.entry(&video);
            entry.not_refreshed();
            if let Some(answer) = answer {
                let count = entry.read_since(at).unwrap_or_else(|| self.gone(&video));
                // A caller that gave up waiting is no failure.
                let _ = answer.send(count);
            }
        }
    }

    /// When the last full sweep of each partition began and whether any of them can't be trusted.
    pub(super) fn sweeps(
        &self,
        stamps: &[(Option<i64>, Option<String>)],
        now: Timestamp,
    ) -> (Option<Timestamp>, bool) {
        let trusts = Partition::all()
            .zip(stamps)
            .map(|(partition, (swept, since))| self.trust(partition, *swept, since.as_deref(), now));
        let stale = trusts.filter(|trust| !trust.swept || trust.doubtful).count() > 0;
        let as_of = stamps.iter().filter_map(|(swept, _)| swept.map(Timestamp::from_secs)).min();
        (as_of, stale)
    }
}

/// Adds what comes in, until somebody waits or there is enough for one pipeline.
async fn gather(queue: &mut mpsc::Receiver<Asked>, asked: &mut Vec<Asked>) {
    let mut looked_at = 0;
    while asked.len() < TOGETHER && asked[looked_at..].iter().all(|asked| asked.answer.is_none()) {
        looked_at = asked.len();
        if queue.recv_many(asked, TOGETHER - looked_at).await == 0 {
            return;
        }
    }
}

/// Asks when a partition was last swept and since when its data is there.
pub(crate) fn stamps(keys: &Keys, partition: Partition) -> Cmd {
    let mut stamps = redis::cmd("MGET");
    stamps.arg(keys.swept(partition)).arg(keys.since(partition));
    stamps
}
