//! Whether the viewers in memory are all there are.
//!
//! After a time without the service, or without what it had saved, they are not: players beat in
//! vain, or to a process that is gone. Two of the longest beat intervals later all have beaten
//! again; until then the numbers from before are the better ones.

use std::{collections::HashMap, time::Duration};

use arc_swap::ArcSwapOption;

use super::{
    Settings,
    snapshot::{Found, Saved},
};
use crate::{clock::Timestamp, ids::VideoId, presence::rhythm::Rhythm, store::time::TOLERATED_SKEW};

#[derive(Debug)]
pub(super) struct Doubt {
    /// Monotonic.
    until: Duration,
    before: ArcSwapOption<Before>,
}

/// The numbers from before.
#[derive(Debug)]
struct Before {
    at: Timestamp,
    viewers: HashMap<VideoId, u64>,
}

impl Doubt {
    /// What a snapshot leaves in doubt that is found at `now`, or at `monotonic` on the other clock.
    pub(super) fn of(
        found: &Found,
        settings: &Settings,
        rhythm: &Rhythm,
        now: Timestamp,
        monotonic: Duration,
    ) -> Self {
        let over_after = rhythm.doubt();
        let lasts = match found.saved {
            _ if found.damaged => over_after,
            None => Duration::ZERO,
            // After a crash those who came since the last save are missing.
            // What it says instead of an end is how long that is, where players were slowed down.
            Some(saved) if !saved.complete => over_after.max(saved.doubted_until.since(saved.at)),
            Some(saved) if is_too_old(saved, settings, now) => over_after,
            Some(saved) => saved.doubted_until.since(now).min(over_after),
        };
        let before = found.saved.filter(|_| !lasts.is_zero()).map(|saved| {
            let oldest = saved.at - settings.window;
            let mut viewers: HashMap<VideoId, u64> = HashMap::new();
            for (video, last_beats) in &found.viewers {
                let online = last_beats.iter().filter(|(_, last)| *last >= oldest).count();
                *viewers.entry(video.clone()).or_default() += online as u64;
            }
            Before { at: saved.at, viewers }.into()
        });
        Self { until: monotonic + lasts, before: ArcSwapOption::new(before) }
    }

    /// For how much longer it lasts.
    pub(super) fn lasts(&self, monotonic: Duration) -> Duration {
        self.until.saturating_sub(monotonic)
    }

    /// How many watched a video before, and when that was right, unless that is over a window ago.
    pub(super) fn before(
        &self,
        video: &VideoId,
        now: Timestamp,
        window: Duration,
    ) -> Option<(u64, Timestamp)> {
        let before = self.before.load();
        let before = before.as_ref().filter(|before| now.since(before.at) <= window)?;
        Some((*before.viewers.get(video)?, before.at))
    }

    /// Forgets the numbers from before once they are of no more use.
    pub(super) fn tidy(&self, monotonic: Duration) {
        if self.lasts(monotonic).is_zero() {
            self.before.store(None);
        }
    }
}

/// Whether so much time has passed that beats were missed, or it can't be told how much.
fn is_too_old(saved: Saved, settings: &Settings, now: Timestamp) -> bool {
    let bearable = settings.sweep_every * 5 / 2;
    now.since(saved.at) > bearable || saved.at.since(now) > TOLERATED_SKEW
}
