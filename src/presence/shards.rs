//! In which shard a viewer of a video is, and which shards a count of the video covers.
//!
//! This is the one place that knows how many shards a video has; today every video has
//! `presence.shards` of them.

use crate::ids::{VideoId, ViewerId};

/// How the viewers of each video are spread over hashes.
#[derive(Clone, Copy, Debug)]
pub struct Shards {
    fixed: u32,
}

/// The shards of one video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// A power of two.
    count: u32,
}

impl Shards {
    /// Every video has `count` shards, a power of two.
    #[must_use]
    pub fn fixed(count: u32) -> Self {
        Self { fixed: count.next_power_of_two() }
    }

    /// The shards of `video`.
    #[must_use]
    pub fn places(self, _video: &VideoId) -> Places {
        Places { count: self.fixed }
    }
}

impl Places {
    /// Where a beat of `viewer` is written. A mask, not a remainder: no hash has a sign here.
    #[must_use]
    pub fn of(self, viewer: &ViewerId) -> u32 {
        let mask = u64::from(self.count - 1);
        u32::try_from(viewer.hash64() & mask).expect("masked to fewer bits than a u32 has")
    }

    /// Every shard a count must cover.
    #[must_use]
    pub fn all(self) -> std::ops::Range<u32> {
        0..self.count
    }

    /// Whether one `HLEN` is the whole count.
    #[must_use]
    pub fn is_single(self) -> bool {
        self.count == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::UserId;

    #[test]
    fn every_viewer_has_one_shard_below_the_count() {
        for count in [1, 2, 16, 1_024] {
            let places = Shards::fixed(count).places(&VideoId::parse("film").unwrap());
            let mut used = vec![false; count as usize];
            for number in 0..20_000 {
                let viewer = ViewerId::of_user(&UserId::parse(&format!("u{number}")).unwrap());
                let shard = places.of(&viewer);
                assert_eq!(shard, places.of(&viewer));
                used[shard as usize] = true;
            }
            assert!(used.iter().all(|used| *used), "{count}");
        }
    }
}
