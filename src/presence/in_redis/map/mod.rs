//! The map of shards: which video has how many, for all instances the same.
//!
//! Each instance has a copy that belongs to its connection. Whoever used the copy looks at the map's
//! version afterwards: where that is another, what was read or written by it is looked at again. The
//! sweep asks the map itself.

mod settings;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ahash::RandomState;
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use parking_lot::Mutex;
use redis::Cmd;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Timestamp, millis},
    config,
    error::StoreError,
    ids::{Partition, VideoId},
    presence::shards::{AUTO, EVERY_VIDEO, Entries, Entry, MINDED_BEYOND_WINDOW, OLDEST_COPY, Places},
    store::{
        redis::{Connection, Greeter, Redis, reply},
        script::LuaScript,
    },
};

/// Changes or forgets one entry.
pub(crate) static RESHARD: LuaScript = LuaScript::new("reshard", include_str!("../../lua/reshard.lua"));

/// How often an instance that nobody beats at looks whether the map has changed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Entries read in one step.
const PAGE: usize = 1_000;

/// The way to the map. Clones share the copy.
#[derive(Clone)]
pub(crate) struct ShardMap {
    shared: Arc<Shared>,
}

struct Shared {
    redis: Redis,
    /// What the settings say, as it stands in the map.
    wanted: String,
    window: Duration,
    /// Of a shard, from its last beat.
    life: Duration,
    copy: ArcSwapOption<Copied>,
    /// When to say again what is wanted, where something else is in force.
    insist_at: Mutex<Duration>,
}

/// The map as it was when its version was last seen.
pub(crate) struct Copied {
    epoch: u64,
    version: Option<String>,
    entries: Arc<Entries>,
    /// Of videos that have moved since, as far as somebody looked at them: [`ShardMap::followed`].
    later: HashMap<VideoId, Places, RandomState>,
    /// Monotonic milliseconds just before the version was last asked for.
    seen: AtomicU64,
}

/// What the map itself says of some videos.
pub(crate) struct Look {
    version: Option<String>,
    /// As stored.
    every: Option<String>,
    /// As stored, and in the order asked.
    pub(crate) stored: Vec<Option<String>>,
    pub(crate) places: Vec<Places>,
}

impl Copied {
    /// Where a video's viewers are.
    pub(crate) fn places(&self, video: &VideoId) -> &Places {
        let later = if self.later.is_empty() { None } else { self.later.get(video) };
        later.unwrap_or_else(|| self.entries.places(video))
    }

    /// Whether this is still the map, going by the answer to [`ShardMap::version`].
    pub(crate) fn is_of(&self, version: Option<&str>) -> bool {
        self.version.as_deref() == version
    }

    /// Takes note that it still was at `asked`, on the monotonic clock.
    pub(crate) fn seen(&self, asked: Duration) {
        self.seen.fetch_max(millis(asked), Ordering::Relaxed);
    }

    fn is_old(&self, now: Duration) -> bool {
        millis(now).saturating_sub(self.seen.load(Ordering::Relaxed)) > millis(OLDEST_COPY)
    }
}

impl Look {
    /// Which version of the map this was, or an older one.
    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// What holds for every video.
    pub(crate) fn every(&self) -> Option<Entry> {
        self.every.as_deref().and_then(Entry::parse)
    }
}

impl ShardMap {
    pub(crate) fn new(redis: Redis, settings: &config::Presence, life: Duration) -> Self {
        let wanted = match settings.shards {
            config::Shards::Auto => AUTO.to_owned(),
            config::Shards::Fixed(shards) => shards.to_string(),
        };
        let shared = Shared {
            redis,
            wanted,
            window: settings.window,
            life,
            copy: ArcSwapOption::empty(),
            insist_at: Mutex::new(Duration::ZERO),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The copy of this connection, if it was made already.
    pub(crate) fn copy(&self, connection: &Connection) -> Option<Arc<Copied>> {
        self.shared.copy.load_full().filter(|copy| copy.epoch == connection.epoch())
    }

    /// A copy that may be written by.
    pub(crate) async fn recent(&self, connection: &Connection) -> Result<Arc<Copied>, StoreError> {
        match self.copy(connection).filter(|copy| self.is_recent(copy)) {
            Some(copy) => Ok(copy),
            None => self.renewed(connection).await,
        }
    }

    /// The copy, looked at again just now, and read again where the map has changed.
    async fn renewed(&self, connection: &Connection) -> Result<Arc<Copied>, StoreError> {
        if let Some(copy) = self.copy(connection) {
            let asked = self.monotonic();
            let version: Option<String> = connection.query(self.version()).await?;
            if copy.is_of(version.as_deref()) {
                copy.seen(asked);
                return Ok(copy);
            }
        }
        self.read(connection).await
    }

    /// Whether a batch formed by `copy` may still be sent.
    pub(crate) fn is_recent(&self, copy: &Copied) -> bool {
        !copy.is_old(self.monotonic())
    }

    /// Asks which version of the map there is.
    pub(crate) fn version(&self) -> Cmd {
        let mut get = redis::cmd("GET");
        get.arg(self.shared.redis.keys().shards_version());
        get
    }

    /// Reads the whole map. What changes meanwhile shows as another version afterwards.
    ///
    /// Where it doesn't say what holds for every video, Redis has lost it. It is made to say so before anybody
    /// writes by it: who did would put viewers where those who know better never look for them, and they
    /// would count twice.
    pub(crate) async fn read(&self, connection: &Connection) -> Result<Arc<Copied>, StoreError> {
        let mut copy = self.fetch(connection).await?;
        if copy.entries.every().is_none() {
            self.say_what_is_wanted(connection).await?;
            copy = self.fetch(connection).await?;
        }
        let copy = Arc::new(copy);
        self.shared.copy.store(Some(copy.clone()));
        Ok(copy)
    }

    async fn fetch(&self, connection: &Connection) -> Result<Copied, StoreError> {
        let asked = self.monotonic();
        let version = connection.query(self.version()).await?;
        let mut fields = Vec::new();
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(self.shared.redis.keys().shards_map()).arg(&cursor).arg("COUNT").arg(PAGE);
            let (next, page): (String, Vec<(String, String)>) = connection.query(scan).await?;
            fields.extend(page);
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        let seen = AtomicU64::new(millis(asked));
        let (entries, later) = (Arc::new(Entries::of(fields)), HashMap::default());
        Ok(Copied { epoch: connection.epoch(), version, entries, later, seen })
    }

    /// `copy` with what the map says of `videos` by now, for who found that its version is another. The
    /// whole map is read at the next look of [`Self::run`]: sweeps of large audiences change it at any time,
    /// and it may be long.
    pub(crate) async fn followed<'a>(
        &self,
        connection: &Connection,
        copy: &Arc<Copied>,
        videos: impl Iterator<Item = &'a VideoId> + Clone,
    ) -> Result<Arc<Copied>, StoreError> {
        let look = self.look(connection, videos.clone()).await?;
        if look.every().as_ref() != copy.entries.every() {
            return self.read(connection).await;
        }
        let moved = videos.zip(look.places).filter(|(video, places)| copy.places(video) != places);
        let moved: Vec<(VideoId, Places)> = moved.map(|(video, places)| (video.clone(), places)).collect();
        if moved.is_empty() {
            return Ok(copy.clone());
        }
        let (epoch, version, entries) = (copy.epoch, copy.version.clone(), copy.entries.clone());
        let mut later = copy.later.clone();
        later.extend(moved);
        let seen = AtomicU64::new(copy.seen.load(Ordering::Relaxed));
        let followed = Arc::new(Copied { epoch, version, entries, later, seen });
        // Who has read all of it meanwhile knows more.
        self.shared.copy.compare_and_swap(copy, Some(followed.clone()));
        Ok(followed)
    }

    /// Asks the map itself about `videos`.
    pub(crate) async fn look(
        &self,
        connection: &Connection,
        videos: impl IntoIterator<Item = &VideoId>,
    ) -> Result<Look, StoreError> {
        let mut get = redis::cmd("HMGET");
        get.arg(self.shared.redis.keys().shards_map()).arg(EVERY_VIDEO);
        for video in videos {
            get.arg(video.as_str());
        }
        // The version first: what changes in between is seen by whoever compares it later.
        let [version, stored] = connection.pipe_array([self.version(), get]).await?;
        let mut stored = reply::<Vec<Option<String>>>(stored)?.into_iter();
        let every = stored.next().flatten();
        let of_every = every.as_deref().and_then(Entry::parse);
        let stored: Vec<Option<String>> = stored.collect();
        let places = stored
            .iter()
            .map(|stored| {
                Places::of_entries(of_every.as_ref(), stored.as_deref().and_then(Entry::parse).as_ref())
            })
            .collect();
        Ok(Look { version: reply(version)?, every, stored, places })
    }

    /// Which of `videos`, in order, are at other places by now than those that were used.
    pub(crate) async fn moved<'a>(
        &self,
        connection: &Connection,
        version: Option<&str>,
        used: impl ExactSizeIterator<Item = (&'a VideoId, &'a Places)> + Clone,
    ) -> Result<Vec<bool>, StoreError> {
        let told: Option<String> = connection.query(self.version()).await?;
        if told.as_deref() == version {
            return Ok(vec![false; used.len()]);
        }
        let look = self.look(connection, used.clone().map(|(video, _)| video)).await?;
        Ok(used.zip(&look.places).map(|((_, used), now)| used != now).collect())
    }

    /// The call that changes or forgets a video's entry, if all still is what was looked at.
    pub(crate) fn reshard(&self, look: &Look, video: &VideoId, stored: Option<&str>, to: Option<u32>) -> Cmd {
        let to = to.map(|shards| shards.to_string());
        self.change(video.as_str(), stored, to.as_deref(), "1", look.every.as_deref())
    }

    /// The same for the entry of every video.
    fn reshard_all(&self, stored: Option<&str>, to: Option<&str>, before: &str) -> Cmd {
        self.change(EVERY_VIDEO, stored, to, before, stored)
    }

    fn change(
        &self,
        field: &str,
        stored: Option<&str>,
        to: Option<&str>,
        before: &str,
        every: Option<&str>,
    ) -> Cmd {
        let keys = self.shared.redis.keys();
        let minded = (self.shared.window + MINDED_BEYOND_WINDOW).as_secs().to_string();
        let time = self.shared.redis.clock().for_script();
        let [stored, to, every] = [stored, to, every].map(Option::unwrap_or_default);
        let args = [field, stored, to, before, &minded, &time, every];
        RESHARD.call(&[keys.shards_map(), keys.shards_version()], &args)
    }

    /// The time by which former places are told from those that nobody can be at any more. Not after a
    /// jump of the clock: then all of them count.
    pub(crate) fn minding_time(&self) -> Timestamp {
        let clock = self.shared.redis.clock();
        if clock.may_remove() { clock.now() } else { Timestamp::from_secs(0) }
    }

    /// Videos of a partition that have an entry, as far as this instance knows.
    pub(crate) fn known_in(&self, connection: &Connection, partition: Partition) -> Vec<VideoId> {
        let Some(copy) = self.copy(connection) else { return Vec::new() };
        copy.entries.videos().filter(|video| video.partition() == partition).cloned().collect()
    }

    /// The task that keeps the copy recent where nobody beats.
    pub(super) async fn run(self, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let Ok(connection) = self.shared.redis.connection() else { continue };
            if let Err(error) = self.keep_recent(&connection).await {
                if error.is_transient() {
                    tracing::debug!(error = %error, "the map of shards was not looked at");
                } else {
                    tracing::error!(error = %error, "viewers are written where other instances don't look");
                }
            }
        }
    }

    async fn keep_recent(&self, connection: &Connection) -> Result<(), StoreError> {
        self.agree_on_keys(connection).await?;
        let copy = self.renewed(connection).await?;
        self.insist(connection, copy.entries.every()).await
    }

    fn monotonic(&self) -> Duration {
        self.shared.redis.clock().monotonic()
    }
}

/// Reads the map first thing on a connection.
#[async_trait]
impl Greeter for ShardMap {
    async fn greet(&self, connection: &Connection) -> Result<(), StoreError> {
        self.agree_on_keys(connection).await?;
        let copy = self.read(connection).await?;
        self.insist(connection, copy.entries.every()).await
    }
}
