//! The pass that drops viewers who left and ranks the videos that are left.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use async_trait::async_trait;

use super::{
    InMemoryPresence,
    viewers::{Rule, Walk},
};
use crate::{
    clock::{Timestamp, millis},
    error::StoreError,
    ids::VideoId,
    jobs::Job,
};

/// Videos in the ranking.
const RANKED: usize = 200;

/// What a pass found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Swept {
    pub(super) videos: usize,
    pub(super) seen: usize,
    pub(super) removed: usize,
}

/// The most watched videos of a pass.
#[derive(Debug)]
pub(super) struct Ranked {
    /// When the pass began.
    pub(super) at: Timestamp,
    pub(super) videos: Vec<(VideoId, u64)>,
}

/// The job "sweep".
pub(super) struct Sweep(pub(super) Arc<InMemoryPresence>);

#[async_trait]
impl Job for Sweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn first_in(&self) -> Duration {
        // Opening the store has swept already.
        self.every()
    }

    fn every(&self) -> Duration {
        self.0.settings.sweep_every
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        self.0.sweep().await;
        Ok(None)
    }
}

impl InMemoryPresence {
    /// One pass over everything. Beats go on meanwhile.
    pub(super) async fn sweep(&self) -> Swept {
        let _alone = self.sweeping.lock().await;
        let began = Instant::now();
        let now = self.time.follow_host();
        let monotonic = self.time.monotonic();
        let mut swept = Swept::default();
        let mut top = Top::default();
        for shard in &self.shards {
            let mut walk = Walk::whole();
            loop {
                let rule = self.rule(now);
                let step = {
                    let mut shard = shard.lock();
                    let step = shard.prune(&mut walk, rule, |video, viewers| top.offer(video, viewers));
                    swept.videos += if step.done { shard.videos() } else { 0 };
                    step
                };
                self.viewers.fetch_sub(step.removed, Ordering::Relaxed);
                swept.seen += step.seen;
                swept.removed += step.removed;
                tokio::task::yield_now().await;
                if step.done {
                    break;
                }
            }
        }
        self.swept.store(millis(monotonic), Ordering::Relaxed);
        self.ranked.store(Arc::new(Ranked { at: now, videos: top.into_ranked() }));
        self.doubt.tidy(monotonic);
        self.report(swept, now, began.elapsed());
        swept
    }

    /// Whom a pass that began at `began` may remove now.
    pub(super) fn rule(&self, began: Timestamp) -> Rule {
        // The look at the host's clock comes first: it is what sees a jump.
        let now = self.time.follow_host();
        let removed_before = self.time.may_remove().then_some(began - self.settings.window);
        Rule { removed_before, now }
    }

    fn report(&self, swept: Swept, at: Timestamp, took: Duration) {
        let left = self.viewers.load(Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "gauges; numbers of viewers are far below 2^52")]
        {
            metrics::gauge!("headcount_online_fields").set(left as f64);
            metrics::gauge!("headcount_active_videos").set(swept.videos as f64);
            metrics::gauge!("headcount_sweep_last_success_timestamp_seconds").set(at.secs() as f64);
        }
        metrics::histogram!("headcount_sweep_duration_seconds").record(took);
        metrics::counter!("headcount_sweep_removed_total").increment(swept.removed as u64);
        tracing::info!(
            sweep.videos = swept.videos,
            sweep.seen = swept.seen,
            sweep.removed = swept.removed,
            sweep.left = left,
            sweep.duration_ms = millis(took),
            "swept {} videos: {} viewers left",
            swept.videos,
            swept.removed,
        );
    }
}

/// The [`RANKED`] greatest of what it is offered.
#[derive(Default)]
struct Top {
    least_first: BinaryHeap<Reverse<(u64, Reverse<VideoId>)>>,
}

impl Top {
    fn offer(&mut self, video: &VideoId, viewers: u64) {
        if self.least_first.len() == RANKED {
            let Some(Reverse((least, _))) = self.least_first.peek() else { return };
            if *least >= viewers {
                return;
            }
            self.least_first.pop();
        }
        self.least_first.push(Reverse((viewers, Reverse(video.clone()))));
    }

    /// Greatest first; of equal ones the smaller id.
    fn into_ranked(self) -> Vec<(VideoId, u64)> {
        let mut told = HashSet::new();
        let greatest_first = self.least_first.into_sorted_vec().into_iter();
        greatest_first
            .map(|Reverse((viewers, Reverse(video)))| (video, viewers))
            // A video that was moved during the pass was seen twice.
            .filter(|(video, _)| told.insert(video.clone()))
            .collect()
    }
}
