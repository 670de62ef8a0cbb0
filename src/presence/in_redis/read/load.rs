//! One pipeline for many counts: how far each partition can be trusted, what is stored, and a walk where
//! that isn't enough.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use redis::Cmd;

use super::{Reader, stamps};
use crate::{
    clock::Timestamp,
    error::StoreError,
    ids::{Partition, VideoId},
    presence::{
        in_redis::{cache::Loaded, map::Look, since::Since},
        shards::Places,
    },
    store::{
        redis::{Connection, reply},
        time::TOLERATED_SKEW,
    },
};

/// How far a partition's data can be trusted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust {
    pub(super) swept: bool,
    pub(super) doubtful: bool,
    /// Counts of sweeps that began earlier are not complete.
    complete_from: Option<Timestamp>,
}

/// A video that is counted by walking.
struct Live<'a> {
    index: usize,
    video: VideoId,
    places: &'a Places,
    trust: Trust,
}

impl Reader {
    /// Reads counts and how far to trust them in one pipeline, and walks where that isn't enough.
    pub(super) async fn load(
        &self,
        connection: &Connection,
        videos: &[VideoId],
    ) -> Result<Vec<Loaded>, StoreError> {
        let keys = self.redis.keys();
        let map = match self.map.copy(connection) {
            Some(map) => map,
            None => self.map.read(connection).await?,
        };
        let minding = self.map.minding_time();
        let singles: Vec<bool> = videos.iter().map(|video| map.places(video).are_single(minding)).collect();
        let partitions: Vec<Partition> =
            videos.iter().map(VideoId::partition).collect::<BTreeSet<_>>().into_iter().collect();
        let mut commands: Vec<Cmd> = partitions.iter().map(|partition| stamps(keys, *partition)).collect();
        commands.extend(videos.iter().zip(&singles).map(|(video, single)| {
            let (name, key) =
                if *single { ("HLEN", keys.online(video, 0)) } else { ("GET", keys.online_count(video)) };
            let mut command = redis::cmd(name);
            command.arg(key);
            command
        }));
        // The version last: the length of one shard is the count only if it still was the only one then.
        let asked = self.redis.clock().monotonic();
        let [values, version] = connection.pipe_in_stages([commands, vec![self.map.version()]]).await?;
        let version: Option<String> = version.into_iter().next().map(reply).transpose()?.flatten();
        let look = if map.is_of(version.as_deref()) {
            map.seen(asked);
            None
        } else {
            Some(self.map.look(connection, videos).await?)
        };
        let places: Vec<&Places> = look.as_ref().map_or_else(
            || videos.iter().map(|video| map.places(video)).collect(),
            |look| look.places.iter().collect(),
        );
        let version = look.as_ref().map_or(version.as_deref(), Look::version);

        let now = self.redis.clock().now();
        let mut values = values.into_iter();
        let mut trusts = BTreeMap::new();
        for (partition, value) in partitions.into_iter().zip(values.by_ref()) {
            let trust = reply::<(_, Option<String>)>(value)
                .map(|(swept, since)| self.trust(partition, swept, since.as_deref(), now));
            trusts.insert(partition, trust);
        }
        let mut loaded = Vec::with_capacity(videos.len());
        let mut live = Vec::new();
        for ((index, video), value) in videos.iter().enumerate().zip(values) {
            let trust = match &trusts[&video.partition()] {
                Ok(trust) => *trust,
                Err(error) => {
                    tracing::debug!(video.id = %video, error = %error, "a partition's stamps were refused");
                    loaded.push(Loaded::Gone);
                    continue;
                }
            };
            let counted = if singles[index] {
                let is_whole = places[index].are_single(minding);
                reply::<u64>(value).map(|viewers| is_whole.then_some((viewers, now)))
            } else {
                reply::<Option<String>>(value).map(|count| self.usable(count.as_deref(), trust, now))
            };
            loaded.push(match counted {
                Ok(Some((viewers, at))) if trust.swept && !trust.doubtful => {
                    self.reads.cache.increment(1);
                    Loaded::Fresh(viewers, at)
                }
                Ok(_) => {
                    live.push(Live { index, video: video.clone(), places: places[index], trust });
                    Loaded::Gone
                }
                Err(error) => {
                    tracing::debug!(video.id = %video, error = %error, "a count was refused");
                    Loaded::Gone
                }
            });
        }
        self.load_live(connection, version, &live, &mut loaded).await;
        Ok(loaded)
    }

    /// Counts by walking, all of them together and within the deadline.
    async fn load_live(
        &self,
        connection: &Connection,
        version: Option<&str>,
        live: &[Live<'_>],
        loaded: &mut [Loaded],
    ) {
        if live.is_empty() {
            return;
        }
        self.reads.live.increment(live.len() as u64);
        let minding = self.map.minding_time();
        let walks: Vec<_> = live.iter().map(|live| (live.video.clone(), live.places.walk(minding))).collect();
        let used = live.iter().map(|live| (&live.video, live.places));
        let walk = async {
            let walked = self.walker.walk(connection, &walks, None).await?;
            Ok::<_, StoreError>((walked, self.map.moved(connection, version, used).await?))
        };
        let Ok(Ok((walked, moved))) = tokio::time::timeout(self.deadline, walk).await else { return };
        let now = self.redis.clock().now();
        for ((live, walked), moved) in live.iter().zip(walked).zip(moved) {
            // Somebody may have gone where the walk didn't look: no number is better than part of one.
            let (Ok(walked), false) = (walked, moved) else { continue };
            loaded[live.index] = if live.trust.doubtful {
                Loaded::Doubtful(walked.left, now)
            } else if live.trust.swept {
                Loaded::Fresh(walked.left, now)
            } else {
                Loaded::Unswept(walked.left, now)
            };
        }
    }

    pub(super) fn trust(
        &self,
        partition: Partition,
        swept: Option<i64>,
        since: Option<&str>,
        now: Timestamp,
    ) -> Trust {
        let since = since.and_then(Since::parse);
        let outage = self
            .redis
            .since_long_outage()
            .is_some_and(|ago| ago < self.rhythm.longest_interval() + Duration::from_secs(3));
        Trust {
            swept: swept.is_some_and(|swept| self.is_recent(Timestamp::from_secs(swept), now)),
            doubtful: self.memory.is_doubtful(partition, since, now) || outage,
            complete_from: since.and_then(|since| self.memory.complete_from(since)),
        }
    }

    /// A stored count, where it may be used.
    fn usable(&self, count: Option<&str>, trust: Trust, now: Timestamp) -> Option<(u64, Timestamp)> {
        let (viewers, began) = count?.split_once(' ')?;
        let (viewers, began) = (viewers.parse().ok()?, Timestamp::from_secs(began.parse().ok()?));
        let complete = trust.complete_from.is_none_or(|from| began >= from);
        (complete && self.is_recent(began, now)).then_some((viewers, began))
    }

    /// Within two sweeps; a second more for what was rounded off the stored time. A time in the
    /// future was stored before the clock was set back and says nothing.
    fn is_recent(&self, began: Timestamp, now: Timestamp) -> bool {
        began <= now + TOLERATED_SKEW && now.since(began) < self.sweep_every * 2 + Duration::from_secs(1)
    }
}
