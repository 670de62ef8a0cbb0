//! Every Redis key, in one place: the whole key space on one screen.
//!
//! `{p}` is the partition in a hash tag: what a script must do at once, for one video, lies in one Cluster
//! slot. On one server a call may take several partitions, or shards, together. The prefix in front isolates
//! deployments (and tests) that share a Redis; it can hold no braces.
//!
//! | key | type | life |
//! | --- | --- | --- |
//! | `video:online:<videoId>:<shard>` | hash, viewer → last beat in Unix seconds; `<videoId>` in braces with `presence.pin_video_to_slot` | window + T + 2 sweeps |
//! | `video:online-count:<videoId>` | string, `<viewers> <time the walk began>` | 600 s |
//! | `video:active:{p}` | zset, videoId → last registered beat | members leave by sweep |
//! | `video:rank:{p}` | zset, most watched videos → count | replaced whole by each sweep |
//! | `video:swept:{p}` | string, Redis time at which the last full sweep began | none |
//! | `video:since:{p}` | string, `<time> <run id> <new\|again>` | none |
//! | `video:{shards}:map` | hash, videoId (of more than one shard) or `*` → shards now and before | members leave by sweep |
//! | `video:{shards}:version` | string, grows with every change of the map | none |
//! | `video:{shards}:pinned` | string, `true` or `false`: what `presence.pin_video_to_slot` is | as that of a shard |
//! | `video:slowed` | string, there while players may beat more slowly than usual | a window from then |
//! | `video:views:delta:{p}:<videoId>` | string, plays not yet in the database | gone at 0 |
//! | `video:views:dirty:{p}` | set, videos with a delta | members leave at 0 |
//! | `video:views:batch:{p}` | hash, `#id`, `#at`, `#tries`, video → plays | until settled |
//! | `video:views:settled:{p}` | string, id of the last settled batch, then a mark of totals raised since | none |
//! | `video:views:refused:{p}` | set, videos whose delta the database refused | until mended |
//! | `video:views:total:{p}:<videoId>` | string, total in the database | 1 h |
//! | `video:views:seen:{p}:<videoId>:u:<viewer>`, `…:p:<playId>` | string, token of the call that counted it | dedupe window |
//! | `video:views:uv:{p}:<videoId>` | `HyperLogLog` | 30 days after the last play |
//! | `video:views:sketch:{p}:<videoId>` | `HyperLogLog` on its way back from Postgres | 60 s |
//! | `task:lock:sweep:{p}`, `task:lock:flush:{p}` | string, owner token | its lease |
//! | `task:waited:{p}` | string, written behind plays that wait for replicas | 60 s |
//! | `task:probe:{p}` | string, what `/readyz` last wrote | 60 s |

use crate::ids::{Partition, PlayId, VideoId, ViewerId};

/// Makes the keys of one deployment.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: std::sync::Arc<str>,
    pinned: bool,
}

impl Keys {
    /// Keys with `prefix` in front of each, those of a video's shards `pinned` to one slot of a cluster or
    /// not.
    #[must_use]
    pub fn new(prefix: &str, pinned: bool) -> Self {
        Self { prefix: prefix.into(), pinned }
    }

    /// Whether the shards of a video are pinned to one slot.
    #[must_use]
    pub fn pinned(&self) -> bool {
        self.pinned
    }

    /// Hash, viewer → last beat in Unix seconds.
    #[must_use]
    pub fn online(&self, video: &VideoId, shard: u32) -> String {
        if self.pinned {
            format!("{}video:online:{{{video}}}:{shard}", self.prefix)
        } else {
            format!("{}video:online:{video}:{shard}", self.prefix)
        }
    }

    /// String, the count of a video of more than one shard and when its walk began.
    #[must_use]
    pub fn online_count(&self, video: &VideoId) -> String {
        format!("{}video:online-count:{video}", self.prefix)
    }

    /// Sorted set, the videos somebody may be watching → last registered beat.
    #[must_use]
    pub fn active(&self, partition: Partition) -> String {
        format!("{}video:active:{{{partition}}}", self.prefix)
    }

    /// Sorted set, the partition's most watched videos → count.
    #[must_use]
    pub fn rank(&self, partition: Partition) -> String {
        format!("{}video:rank:{{{partition}}}", self.prefix)
    }

    /// String, when the last full sweep began.
    #[must_use]
    pub fn swept(&self, partition: Partition) -> String {
        format!("{}video:swept:{{{partition}}}", self.prefix)
    }

    /// String, since when presence is here and in which run of Redis.
    #[must_use]
    pub fn since(&self, partition: Partition) -> String {
        format!("{}video:since:{{{partition}}}", self.prefix)
    }

    /// Hash, videos of more than one shard, and `*` for all → their number now and before.
    #[must_use]
    pub fn shards_map(&self) -> String {
        format!("{}video:{{shards}}:map", self.prefix)
    }

    /// String, grows with every change of the map.
    #[must_use]
    pub fn shards_version(&self) -> String {
        format!("{}video:{{shards}}:version", self.prefix)
    }

    /// String, whether the shards of a video are pinned to one slot.
    #[must_use]
    pub fn shards_pinned(&self) -> String {
        format!("{}video:{{shards}}:pinned", self.prefix)
    }

    /// String, there while players somewhere may keep a slower rhythm than usual.
    #[must_use]
    pub fn slowed(&self) -> String {
        format!("{}video:slowed", self.prefix)
    }

    /// String, plays of one video not yet in the database.
    #[must_use]
    pub fn delta(&self, partition: Partition, video: &VideoId) -> String {
        format!("{}video:views:delta:{{{partition}}}:{video}", self.prefix)
    }

    /// Set, the videos with a delta.
    #[must_use]
    pub fn dirty(&self, partition: Partition) -> String {
        format!("{}video:views:dirty:{{{partition}}}", self.prefix)
    }

    /// Hash, the batch on its way to the database.
    #[must_use]
    pub fn batch(&self, partition: Partition) -> String {
        format!("{}video:views:batch:{{{partition}}}", self.prefix)
    }

    /// String, the id of the last settled batch.
    #[must_use]
    pub fn settled(&self, partition: Partition) -> String {
        format!("{}video:views:settled:{{{partition}}}", self.prefix)
    }

    /// Set, the videos whose delta the database refused.
    #[must_use]
    pub fn refused(&self, partition: Partition) -> String {
        format!("{}video:views:refused:{{{partition}}}", self.prefix)
    }

    /// String, what the database holds for one video.
    #[must_use]
    pub fn total(&self, partition: Partition, video: &VideoId) -> String {
        format!("{}video:views:total:{{{partition}}}:{video}", self.prefix)
    }

    /// String, this viewer's play of the video was counted.
    #[must_use]
    pub fn seen_viewer(&self, partition: Partition, video: &VideoId, viewer: &ViewerId) -> String {
        format!("{}video:views:seen:{{{partition}}}:{video}:u:{viewer}", self.prefix)
    }

    /// String, this playback of the video was counted.
    #[must_use]
    pub fn seen_play(&self, partition: Partition, video: &VideoId, play: &PlayId) -> String {
        format!("{}video:views:seen:{{{partition}}}:{video}:p:{play}", self.prefix)
    }

    /// `HyperLogLog`, the unique viewers of one video.
    #[must_use]
    pub fn unique_viewers(&self, partition: Partition, video: &VideoId) -> String {
        format!("{}video:views:uv:{{{partition}}}:{video}", self.prefix)
    }

    /// `HyperLogLog`, the sketch from Postgres while it is merged into [`Self::unique_viewers`].
    #[must_use]
    pub fn sketch(&self, partition: Partition, video: &VideoId) -> String {
        format!("{}video:views:sketch:{{{partition}}}:{video}", self.prefix)
    }

    /// String, who sweeps the partition.
    #[must_use]
    pub fn sweep_lock(&self, partition: Partition) -> String {
        format!("{}task:lock:sweep:{{{partition}}}", self.prefix)
    }

    /// String, who flushes the partition.
    #[must_use]
    pub fn flush_lock(&self, partition: Partition) -> String {
        format!("{}task:lock:flush:{{{partition}}}", self.prefix)
    }

    /// String, what the readiness probe last wrote.
    #[must_use]
    pub fn probe(&self, partition: Partition) -> String {
        format!("{}task:probe:{{{partition}}}", self.prefix)
    }

    /// String, written behind plays that wait for replicas.
    #[must_use]
    pub fn waited(&self, partition: Partition) -> String {
        format!("{}task:waited:{{{partition}}}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ids::UserId, store::redis::slot_of};

    proptest! {
        /// [cluster] Whatever ids and prefix are taken, the keys of a script are of one slot.
        #[test]
        fn what_is_done_at_once_is_in_one_slot_of_a_cluster(
            video in "[A-Za-z0-9._-]{1,64}",
            viewer in "[!-~]{1,64}",
            play in "[!-~]{1,64}",
            prefix in "[A-Za-z0-9._:-]{0,64}",
        ) {
            let keys = Keys::new(&prefix, true);
            let video = VideoId::parse(&video).unwrap();
            let viewer = ViewerId::of_user(&UserId::parse(&viewer).unwrap());
            let (play, p) = (PlayId::parse(&play).unwrap(), video.partition());
            let together = [
                keys.delta(p, &video), keys.dirty(p), keys.batch(p), keys.settled(p), keys.refused(p),
                keys.total(p, &video), keys.seen_viewer(p, &video, &viewer), keys.seen_play(p, &video, &play),
                keys.unique_viewers(p, &video), keys.sketch(p, &video), keys.flush_lock(p), keys.waited(p),
                keys.active(p), keys.rank(p), keys.swept(p), keys.since(p), keys.sweep_lock(p), keys.probe(p),
            ];
            let slots = together.map(|key| slot_of(key.as_bytes()));
            prop_assert!(slots.iter().all(|slot| *slot == slots[0]), "{slots:?}");
            let shards = [0, 1, 1_023].map(|shard| slot_of(keys.online(&video, shard).as_bytes()));
            prop_assert!(shards.iter().all(|slot| *slot == shards[0]), "pinned: {shards:?}");
            let map = [keys.shards_map(), keys.shards_version(), keys.shards_pinned()];
            let map = map.map(|key| slot_of(key.as_bytes()));
            prop_assert!(map.iter().all(|slot| *slot == map[0]), "{map:?}");
        }
    }
}
