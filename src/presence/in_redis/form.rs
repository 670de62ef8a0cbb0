//! Turns a batch of beats into the commands of one pipeline.
//!
//! Order matters: a video is registered before its viewer is written, so that no viewer is ever
//! outside the sweep; the stamp comes before both, so that a gap in the data is dated before it is
//! filled.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use ahash::RandomState;
use redis::Cmd;

use super::{
    map::Copied,
    merge::{Mark, What},
    notes::Notes,
    since::{Cause, Known},
    writer::LATE,
};
use crate::{
    clock::Timestamp,
    ids::{PARTITIONS, Partition, VideoId, ViewerId},
    presence::Beat,
    store::{
        redis::{Connection, Redis},
        script::LuaScript,
    },
};

/// Writes late beats.
pub(crate) static BEAT_NEWER: LuaScript = LuaScript::new("beat_newer", include_str!("../lua/beat_newer.lua"));

/// Removes viewers who left.
pub(crate) static HDEL_OLDER: LuaScript = LuaScript::new("hdel_older", include_str!("../lua/hdel_older.lua"));

/// Forms batches.
pub(super) struct Form {
    pub(super) redis: Redis,
    pub(super) known: Known,
    pub(super) window: Duration,
    /// Of a shard, from its last beat.
    pub(super) life: Duration,
}

/// A batch as commands: first the stamps and the registry, then group after group.
pub(super) struct Formed {
    /// When, on the monotonic clock.
    pub(super) at: Duration,
    /// When, in Redis's time.
    pub(super) now: Timestamp,
    /// What must be done before viewers are written: the stamps, then the registry.
    pub(super) before: Vec<Cmd>,
    pub(super) commands: Vec<Cmd>,
    /// The partitions whose stamps the first commands ask for.
    pub(super) since: Vec<Partition>,
    pub(super) groups: Vec<Group>,
}

/// The marks of one shard and the commands that write them.
pub(super) struct Group {
    pub(super) video: VideoId,
    pub(super) shard: u32,
    /// How many commands write it.
    pub(super) commands: usize,
    /// Whether it has one in the registry's part as well.
    pub(super) registers: bool,
    pub(super) expires: bool,
    marks: Vec<(ViewerId, Mark)>,
}

impl Group {
    pub(super) fn marks(&self) -> &[(ViewerId, Mark)] {
        &self.marks
    }

    pub(super) fn into_marks(self) -> impl Iterator<Item = (Beat, Mark)> {
        let video = self.video;
        self.marks.into_iter().map(move |(viewer, mark)| (Beat { video: video.clone(), viewer }, mark))
    }
}

impl Formed {
    /// Its marks, to be formed again.
    pub(super) fn into_marks(self) -> Vec<(Beat, Mark)> {
        self.groups.into_iter().flat_map(Group::into_marks).collect()
    }
}

impl Form {
    /// The commands that write a batch on `connection`, now, at the places of `map`.
    pub(super) fn form(
        &self,
        connection: &Connection,
        map: &Copied,
        batch: Vec<(Beat, Mark)>,
        notes: &Notes,
    ) -> Formed {
        let now = self.redis.clock().now();
        let monotonic = self.redis.clock().monotonic();
        let mut shards: HashMap<(VideoId, u32), Vec<(ViewerId, Mark)>, RandomState> = HashMap::default();
        for (beat, mark) in batch {
            // Such a viewer is offline by now.
            if now.since(mark.at) <= self.window {
                let shard = map.places(&beat.video).of(&beat.viewer);
                shards.entry((beat.video, shard)).or_default().push((beat.viewer, mark));
            }
        }

        let mut formed = Formed {
            at: monotonic,
            now,
            before: Vec::new(),
            commands: Vec::new(),
            since: Vec::new(),
            groups: Vec::new(),
        };
        let mut partitions = [false; PARTITIONS as usize];
        for (video, _) in shards.keys() {
            partitions[video.partition().index()] = true;
        }
        for partition in Partition::all() {
            // By the runs of another moment it would be dated again and again, by each in turn.
            let dates = connection.is_whole() && notes.wants_since(partition, monotonic);
            if partitions[partition.index()] && dates {
                formed.before.push(self.known.call(&self.redis, connection, partition, Cause::Again));
                formed.since.push(partition);
            }
        }
        let mut registered: HashSet<VideoId, RandomState> = HashSet::default();
        for ((video, shard), marks) in shards {
            let first = formed.commands.len();
            let beats = marks.iter().any(|(_, mark)| mark.what == What::Beat);
            let registers =
                beats && notes.wants_registry(&video, monotonic) && registered.insert(video.clone());
            if registers {
                formed.before.push(self.zadd(&video));
            }
            self.write_marks(&video, shard, &marks, now, &mut formed.commands);
            let expires = beats && notes.wants_expiry(&video, shard, monotonic);
            if expires {
                formed.commands.push(self.expire(&video, shard));
            }
            let commands = formed.commands.len() - first;
            formed.groups.push(Group { video, shard, commands, registers, expires, marks });
        }
        formed
    }

    /// Puts a video on the registry.
    pub(super) fn zadd(&self, video: &VideoId) -> Cmd {
        let mut zadd = redis::cmd("ZADD");
        zadd.arg(self.redis.keys().active(video.partition()))
            .arg("GT")
            .arg(self.redis.clock().now().secs())
            .arg(video.as_str());
        zadd
    }

    /// Gives a shard its life.
    pub(super) fn expire(&self, video: &VideoId, shard: u32) -> Cmd {
        let mut expire = redis::cmd("EXPIRE");
        expire.arg(self.redis.keys().online(video, shard)).arg(self.life.as_secs());
        expire
    }

    /// One command for the beats that are on time, one for the late ones, one for the goodbyes.
    fn write_marks(
        &self,
        video: &VideoId,
        shard: u32,
        marks: &[(ViewerId, Mark)],
        now: Timestamp,
        commands: &mut Vec<Cmd>,
    ) {
        let key = self.redis.keys().online(video, shard);
        let (mut timely, mut late, mut left) = (redis::cmd("HSET"), Vec::new(), Vec::new());
        let mut any_timely = false;
        timely.arg(&key);
        for (viewer, mark) in marks {
            // A mark of the future comes from before a jump of the clock.
            let at = mark.at.min(now);
            match mark.what {
                What::Leave => left.extend([viewer.as_str().to_owned(), at.secs().to_string()]),
                What::Beat if mark.late || now.since(at) > LATE => {
                    late.extend([viewer.as_str().to_owned(), at.secs().to_string()]);
                }
                What::Beat => {
                    any_timely = true;
                    timely.arg(viewer.as_str()).arg(at.secs());
                }
            }
        }
        if any_timely {
            commands.push(timely);
        }
        if !late.is_empty() {
            commands.push(BEAT_NEWER.call(&[&key], &late));
        }
        if !left.is_empty() {
            commands.push(HDEL_OLDER.call(&[&key], &left));
        }
    }
}
