//! What one connection has lately registered, so that not every beat has to.
//!
//! A note carries the time *before* its command was sent and is taken only after success; it dies
//! with its connection, since the next may lead to other data.

use std::{collections::HashMap, time::Duration};

use ahash::RandomState;

use crate::ids::{PARTITIONS, Partition, VideoId};

/// Above so many notes of one kind the old ones are thrown out, and above twice that all of them:
/// forgetting one costs a command.
const MANY: usize = 500_000;

/// The notes of one connection.
pub(super) struct Notes {
    epoch: u64,
    /// How long a note is good for.
    good_for: Duration,
    expiry: HashMap<(VideoId, u32), Duration, RandomState>,
    registry: HashMap<VideoId, Duration, RandomState>,
    since: [Option<Duration>; PARTITIONS as usize],
}

impl Notes {
    pub(super) fn new(good_for: Duration) -> Self {
        Self {
            epoch: 0,
            good_for,
            expiry: HashMap::default(),
            registry: HashMap::default(),
            since: Default::default(),
        }
    }

    /// Forgets everything unless it was learnt on the connection `epoch`.
    pub(super) fn belong_to(&mut self, epoch: u64) {
        if self.epoch != epoch {
            *self = Self::new(self.good_for);
            self.epoch = epoch;
        }
    }

    pub(super) fn wants_expiry(&self, video: &VideoId, shard: u32, now: Duration) -> bool {
        // No allocation-free lookup by a borrowed pair; the id's clone is one counter.
        self.is_old(self.expiry.get(&(video.clone(), shard)), now)
    }

    pub(super) fn wants_registry(&self, video: &VideoId, now: Duration) -> bool {
        self.is_old(self.registry.get(video), now)
    }

    pub(super) fn wants_since(&self, partition: Partition, now: Duration) -> bool {
        self.is_old(self.since[partition.index()].as_ref(), now)
    }

    pub(super) fn expiry_set(&mut self, video: &VideoId, shard: u32, sent: Duration) {
        forget_old(&mut self.expiry, sent, self.good_for);
        self.expiry.insert((video.clone(), shard), sent);
    }

    pub(super) fn registered(&mut self, video: &VideoId, sent: Duration) {
        forget_old(&mut self.registry, sent, self.good_for);
        self.registry.insert(video.clone(), sent);
    }

    pub(super) fn since_told(&mut self, partition: Partition, sent: Duration) {
        self.since[partition.index()] = Some(sent);
    }

    fn is_old(&self, noted: Option<&Duration>, now: Duration) -> bool {
        noted.is_none_or(|noted| now.saturating_sub(*noted) >= self.good_for)
    }
}

fn forget_old<K>(notes: &mut HashMap<K, Duration, RandomState>, now: Duration, good_for: Duration) {
    // `capacity` grows in doublings, so the pass over all notes comes seldom.
    if notes.len() >= MANY && notes.len() == notes.capacity() {
        notes.retain(|_, noted| now.saturating_sub(*noted) < good_for);
        if notes.len() >= 2 * MANY {
            notes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_good_for_its_time_and_for_its_connection() {
        let mut notes = Notes::new(Duration::from_secs(30));
        let video = VideoId::parse("film").unwrap();
        let at = Duration::from_secs;
        notes.belong_to(1);
        assert!(notes.wants_registry(&video, at(100)));
        notes.registered(&video, at(100));
        notes.expiry_set(&video, 3, at(100));
        assert!(!notes.wants_registry(&video, at(129)));
        assert!(notes.wants_registry(&video, at(130)));
        assert!(!notes.wants_expiry(&video, 3, at(129)));
        assert!(notes.wants_expiry(&video, 4, at(129)));

        notes.belong_to(1);
        assert!(!notes.wants_registry(&video, at(101)));
        notes.belong_to(2);
        assert!(notes.wants_registry(&video, at(101)));
    }
}
