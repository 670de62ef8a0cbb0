//! One pass of a sweep through one partition.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{Sweep, Swept};
use crate::{
    clock::{Timestamp, millis},
    error::{Part, StoreError},
    failpoint,
    ids::VideoId,
    presence::{
        in_redis::{map::Look, read::stamps, since::Cause, walk::Walked},
        shards::{Change, Places},
    },
    store::{
        lock::{Held, Lock},
        redis::{Connection, reply},
        script::LuaScript,
    },
};

/// Stores the count of a video of more than one shard.
pub(crate) static COUNT_STORE: LuaScript =
    LuaScript::new("count_store", include_str!("../lua/count_store.lua"));

/// Takes videos off the registry.
pub(crate) static REGISTRY_LEAVE: LuaScript =
    LuaScript::new("registry_leave", include_str!("../lua/registry_leave.lua"));

/// Ends a pass.
pub(crate) static FINISH: LuaScript = LuaScript::new("finish", include_str!("../lua/finish.lua"));

/// Videos whose shards are walked together.
const VIDEOS_TOGETHER: usize = 256;

/// Members of the registry looked at in one step.
const REGISTRY_STEP: usize = 500;

/// The most watched videos that a partition keeps.
const RANKED: usize = 200;

/// The life of a stored count.
const COUNT_LIFE: Duration = Duration::from_secs(600);

/// Videos of which the map is asked together.
const LOOKED_AT_TOGETHER: usize = 4 * VIDEOS_TOGETHER;

/// A pass under way: it owns the lock, or thinks so.
pub(super) struct Pass<'a> {
    pub(super) sweep: &'a Sweep,
    pub(super) connection: Connection,
    pub(super) lock: Held,
    started: Instant,
    began: Timestamp,
    pub(super) swept: Swept,
    ranking: BTreeSet<(Reverse<u64>, VideoId)>,
}

/// A video that was walked, and what the map said of it.
pub(super) struct Counted<'a> {
    pub(super) video: &'a VideoId,
    score: i64,
    walked: Walked,
    pub(super) places: &'a Places,
    /// Its entry as it stood in the map.
    pub(super) stored: Option<&'a str>,
    pub(super) change: Option<Change>,
}

impl<'a> Pass<'a> {
    /// A pass of `sweep`, whose lock was taken just now.
    pub(super) fn begin(sweep: &'a Sweep, connection: Connection, lock: Lock) -> Self {
        Self {
            sweep,
            connection,
            lock: Held::new(lock),
            started: Instant::now(),
            began: sweep.redis.clock().now(),
            swept: Swept::default(),
            ranking: BTreeSet::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<Swept, StoreError> {
        failpoint::step("sweep.stamps", Part::Redis, self.mind_the_gap()).await?;
        let videos = failpoint::step("sweep.registry", Part::Redis, self.registry()).await?;
        self.swept.videos = videos.len() as u64;
        let mut corrupt = 0;
        let mut failed = None;
        for videos in videos.chunks(LOOKED_AT_TOGETHER) {
            let turn = self.sweep.redis.turn().await;
            let looking = self.sweep.map.look(&self.connection, videos.iter().map(|(video, _)| video));
            let look = failpoint::step("sweep.look", Part::Redis, looking).await?;
            drop(turn);
            for (number, videos) in videos.chunks(VIDEOS_TOGETHER).enumerate() {
                let first = number * VIDEOS_TOGETHER;
                self.sweep_together(videos, &look, first, &mut corrupt, &mut failed).await?;
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        failpoint::step("sweep.finish", Part::Redis, self.finish()).await?;
        self.sweep.report(&self.swept, corrupt, self.started.elapsed());
        Ok(self.swept)
    }

    /// Sweeps videos whose shards are walked together; `look` tells of the first of them at `first`.
    async fn sweep_together(
        &mut self,
        videos: &[(VideoId, i64)],
        look: &Look,
        first: usize,
        corrupt: &mut u64,
        failed: &mut Option<StoreError>,
    ) -> Result<(), StoreError> {
        let minding = self.sweep.map.minding_time();
        let places = &look.places[first..];
        let walks: Vec<_> = videos
            .iter()
            .zip(places)
            .map(|((video, _), places)| (video.clone(), places.walk(minding)))
            .collect();
        let began = self.sweep.redis.clock().now();
        let walking = self.sweep.walker.walk(&self.connection, &walks, Some(&mut self.lock));
        let walked = failpoint::step("sweep.walk", Part::Redis, walking).await?;
        let (every, mut counted) = (look.every(), Vec::new());
        for (index, ((video, score), walked)) in videos.iter().zip(walked).enumerate() {
            match walked {
                Ok(walked) => {
                    *corrupt += walked.corrupt;
                    let (places, stored) = (&places[index], look.stored[first + index].as_deref());
                    self.swept.sharded += u64::from(places.now() > 1);
                    let change = self.change(every.as_ref(), stored, walked.left);
                    counted.push(Counted { video, score: *score, walked, places, stored, change });
                }
                // Its own shards fail it; the others are swept all the same.
                Err(error) => {
                    // That a node is away is told once, and concerns thousands of videos.
                    if error.is_transient() {
                        tracing::debug!(video.id = %video, error = %error, "a video can't be swept now");
                    } else {
                        tracing::error!(video.id = %video, error = %error, "a video can't be swept");
                    }
                    *failed = error.is_transient().then_some(error).or(failed.take());
                }
            }
        }
        let _turn = self.sweep.redis.turn().await;
        self.lock.still_mine(&self.connection).await?;
        if self.drop_moved(look, &mut counted).await? {
            // Their number is not known, so the pass is none of all videos: once more, soon.
            let reason = "the shards of a video were changed while it was swept";
            failed.get_or_insert_with(|| StoreError::unavailable(Part::Redis, reason));
        }
        for counted in &counted {
            self.note(counted.video, &counted.walked);
        }
        failpoint::step("sweep.store", Part::Redis, self.store(&counted, began)).await?;
        self.reshard(look, &counted).await
    }

    /// Sets the stamp that makes low counts doubted: where nobody swept for long, nobody may have been
    /// able to beat either; where the stamp is gone, so may be the data; and one who had just come when that
    /// went took it for a beginning.
    async fn mind_the_gap(&self) -> Result<(), StoreError> {
        let (sweep, redis) = (self.sweep, &self.sweep.redis);
        if !self.connection.is_whole() {
            return Ok(());
        }
        let stamps = stamps(redis.keys(), sweep.partition);
        let (swept, since): (Option<String>, Option<String>) = self.connection.query(stamps).await?;
        // What can't be read is as good as long ago; the end of this pass writes it anew.
        let gap = swept.map(|swept| {
            swept.parse().map_or(Duration::MAX, |swept| self.began.since(Timestamp::from_secs(swept)))
        });
        let cause = if gap.is_some_and(|gap| gap > sweep.interval.mul_f64(2.5) + Duration::from_secs(1)) {
            Cause::Reset
        } else if since.is_none_or(|since| sweep.known.knows_better(sweep.partition, &since)) {
            Cause::Again
        } else {
            return Ok(());
        };
        let call = sweep.known.call(redis, &self.connection, sweep.partition, cause);
        let stamp: String = self.connection.query(call).await?;
        sweep.known.note(sweep.partition, &stamp);
        tracing::info!(
            sweep.partition = %sweep.partition,
            "nobody swept for long, or data was lost: low counts are doubted for a while"
        );
        Ok(())
    }

    /// Every registered video and its last registered beat. A scan may repeat a member.
    async fn registry(&self) -> Result<Vec<(VideoId, i64)>, StoreError> {
        let key = self.sweep.redis.keys().active(self.sweep.partition);
        let mut videos = BTreeMap::new();
        let mut strangers = Vec::new();
        let mut cursor = String::from("0");
        loop {
            let mut scan = redis::cmd("ZSCAN");
            scan.arg(&key).arg(&cursor).arg("COUNT").arg(REGISTRY_STEP);
            let turn = self.sweep.redis.turn().await;
            let (next, page): (String, Vec<(String, f64)>) = self.connection.query(scan).await?;
            drop(turn);
            for (video, score) in page {
                match VideoId::parse(&video) {
                    #[expect(clippy::cast_possible_truncation, reason = "scores are Unix seconds")]
                    Ok(video) => drop(videos.insert(video, score as i64)),
                    Err(_) => strangers.push(video),
                }
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
        if !strangers.is_empty() {
            tracing::warn!(members = ?strangers, "the registry held what is no video id; it is removed");
            let mut remove = redis::cmd("ZREM");
            remove.arg(&key).arg(strangers);
            self.connection.query::<i64>(remove).await?;
        }
        // Entries of the map whose video the registry has lost would stay for ever.
        for video in self.sweep.map.known_in(&self.connection, self.sweep.partition) {
            videos.entry(video).or_insert(0);
        }
        Ok(videos.into_iter().collect())
    }

    fn note(&mut self, video: &VideoId, walked: &Walked) {
        let swept = &mut self.swept;
        swept.shards += walked.shards;
        swept.removed += walked.removed;
        swept.left += walked.left;
        swept.fullest = swept.fullest.max(walked.fullest);
        if walked.left > 0 {
            self.ranking.insert((Reverse(walked.left), video.clone()));
            if self.ranking.len() > RANKED {
                self.ranking.pop_last();
            }
        }
    }

    /// Stores counts, and takes off the registry who has had no viewer for a window.
    async fn store(&self, counted: &[Counted<'_>], began: Timestamp) -> Result<(), StoreError> {
        let keys = self.sweep.redis.keys();
        let active = keys.active(self.sweep.partition);
        let now = self.sweep.redis.clock().now();
        let minding = self.sweep.map.minding_time();
        let mut commands = Vec::new();
        for counted in counted {
            // A time in the future becomes the present, or the video would stay for the jump's length.
            if counted.score > now.secs() {
                let mut clamp = redis::cmd("ZADD");
                clamp.arg(&active).arg("XX").arg("LT").arg(now.secs()).arg(counted.video.as_str());
                commands.push(clamp);
            }
            // One that is spread over more shards next is read by this from then on.
            if !counted.places.are_single(minding) || counted.change.is_some() {
                let args = [
                    counted.walked.left.to_string(),
                    began.secs().to_string(),
                    COUNT_LIFE.as_secs().to_string(),
                    now.secs().to_string(),
                ];
                commands.push(COUNT_STORE.call(&[keys.online_count(counted.video)], &args));
            }
        }
        let limit = (began - self.sweep.window - self.sweep.note_life).secs();
        let mut leaving = vec![limit.to_string()];
        leaving.extend(
            counted
                .iter()
                // One with an entry stays until there is none.
                .filter(|counted| {
                    counted.walked.left == 0 && counted.score < limit && counted.stored.is_none()
                })
                .map(|counted| counted.video.to_string()),
        );
        if leaving.len() > 1 {
            commands.push(REGISTRY_LEAVE.call(&[active], &leaving));
        }
        for value in self.connection.pipe(commands).await? {
            reply::<i64>(value)?;
        }
        Ok(())
    }

    async fn finish(&self) -> Result<(), StoreError> {
        let keys = self.sweep.redis.keys();
        let kept = self.sweep.rest_of_interval(self.started.elapsed());
        let mut args = vec![
            self.lock.lock().token().to_owned(),
            self.began.secs().to_string(),
            millis(kept).to_string(),
        ];
        for (Reverse(viewers), video) in &self.ranking {
            args.extend([viewers.to_string(), video.to_string()]);
        }
        let partition = self.sweep.partition;
        let keys = [self.lock.lock().key().to_owned(), keys.swept(partition), keys.rank(partition)];
        if self.connection.query::<i64>(FINISH.call(&keys, &args)).await? == 1 {
            return Ok(());
        }
        metrics::counter!("headcount_lock_lost_total").increment(1);
        Err(StoreError::unavailable(Part::Redis, "another instance has taken over the sweep"))
    }
}
