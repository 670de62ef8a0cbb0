//! What was just counted, so that sending it again is answered without a transaction.
//!
//! A note is only an economy: what it doesn't know, the table does.

use std::time::Duration;

use quick_cache::sync::Cache;

use super::decide::{TimedPlay, is_within};
use crate::{
    clock::Timestamp,
    ids::{PlayId, VideoId, ViewerId},
    plays::Play,
};

/// Notes kept, about 200 bytes each.
const MOST: usize = 50_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Seen {
    Viewer(VideoId, ViewerId),
    Play(VideoId, PlayId),
}

impl Seen {
    fn of(play: &Play) -> impl Iterator<Item = Self> {
        let viewer = play.viewer.clone().map(|viewer| Self::Viewer(play.video.clone(), viewer));
        let play_id = play.play_id.clone().map(|id| Self::Play(play.video.clone(), id));
        viewer.into_iter().chain(play_id)
    }
}

/// Notes of plays whose count is on disk.
#[derive(Debug)]
pub(super) struct Notes {
    window: Duration,
    counted: Cache<Seen, Timestamp>,
}

impl Notes {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, counted: Cache::new(MOST) }
    }

    /// Whether a play is known to have been counted within the window.
    pub(super) fn knows(&self, timed: &TimedPlay) -> bool {
        let counted = |seen| self.counted.get(&seen).is_some_and(|at| is_within(self.window, at, timed.at));
        Seen::of(&timed.play).any(counted)
    }

    /// Takes note of a play that is counted and on disk.
    pub(super) fn take(&self, timed: &TimedPlay) {
        for seen in Seen::of(&timed.play) {
            self.counted.insert(seen, timed.at);
        }
    }
}
