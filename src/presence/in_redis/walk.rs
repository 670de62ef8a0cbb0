//! Counting a video while dropping who left: the walk that sweeps and live reads share.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redis::Cmd;

use crate::{
    config,
    error::StoreError,
    ids::VideoId,
    presence::shards::Walk,
    store::{
        lock::Held,
        redis::{Connection, Redis, reply},
        script::LuaScript,
    },
};

/// Walks one step through a shard.
pub(crate) static PRUNE: LuaScript = LuaScript::new("prune", include_str!("../lua/prune.lua"));

/// Fields that may be looked at in one pipeline: Redis serves nobody else meanwhile.
const WORK_IN_FLIGHT: u64 = 1_000;

/// Shards whose length is asked for in one pipeline; a length costs far less than a walk.
const LENGTHS_IN_FLIGHT: usize = 1_000;

/// Fields looked at in one step of a long hash.
const STEP: u64 = 500;

/// What a step through a short hash, or an empty one, costs in fields.
const LEAST_WORK: u64 = 8;

/// A hashtable of at most so many viewers is worth making a listpack again.
const REWRITE_AT_MOST: u64 = 400;

/// What this Redis keeps as a listpack, as far as it says.
#[derive(Clone, Default)]
pub(crate) struct Listpacks {
    /// The most viewers that a shard made small again may hold; 0 where it isn't known.
    rewrite_at_most: Arc<AtomicU64>,
}

impl Listpacks {
    /// Asks Redis up to which length it keeps a hash as a listpack.
    ///
    /// # Errors
    /// The connection failed. That the question is forbidden is no error.
    pub(super) async fn ask(&self, connection: &Connection) -> Result<(), StoreError> {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg("hash-max-listpack-entries");
        let [value] = connection.pipe_array([get]).await?;
        let limit = reply::<Vec<String>>(value).ok().and_then(|pair| pair.get(1)?.parse::<u64>().ok());
        // Well below the limit, or the next few viewers undo it.
        let at_most = limit.map_or(0, |limit| (limit * 3 / 4).min(REWRITE_AT_MOST));
        self.rewrite_at_most.store(at_most, Ordering::Relaxed);
        Ok(())
    }
}

/// What a walk through a video's shards found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Viewers left.
    pub(crate) left: u64,
    /// Viewers dropped.
    pub(crate) removed: u64,
    /// Fields dropped because they held no number.
    pub(crate) corrupt: u64,
    /// Shards that are not empty.
    pub(crate) shards: u64,
    /// Viewers in the fullest shard.
    pub(crate) fullest: u64,
}

/// How to walk.
#[derive(Clone)]
pub(crate) struct Walker {
    redis: Redis,
    window: std::time::Duration,
    life: u64,
    listpacks: Listpacks,
}

/// A shard being walked.
struct Step {
    video: usize,
    key: String,
    cursor: String,
    length: u64,
    /// Viewers may go from here to the shards that come later: those wait until this one is done.
    moving: bool,
}

impl Step {
    /// Whether one more step may be needed after this, as far as can be told.
    fn is_long(&self) -> bool {
        self.cursor != "0" || self.length > STEP
    }
}

impl Walker {
    pub(crate) fn new(
        redis: Redis,
        presence: &config::Presence,
        jobs: &config::Jobs,
        listpacks: Listpacks,
    ) -> Self {
        let life = super::writer::shard_life(presence, jobs).as_secs();
        Self { redis, window: presence.window, life, listpacks }
    }

    /// Walks through the given shards of each video. A video one of whose shards Redis refuses to
    /// walk gets that error, and the others their counts. A sweep's lock is made
    /// sure of before each step.
    ///
    /// # Errors
    /// The connection failed, or the lock is lost.
    pub(crate) async fn walk(
        &self,
        connection: &Connection,
        videos: &[(VideoId, Walk)],
        mut lock: Option<&mut Held>,
    ) -> Result<Vec<Result<Walked, StoreError>>, StoreError> {
        let mut results: Vec<Result<Walked, StoreError>> = vec![Ok(Walked::default()); videos.len()];
        let mut steps = self.lengths(connection, videos, &mut results).await?;
        while !steps.is_empty() {
            if let Some(lock) = &mut lock {
                lock.still_mine(connection).await?;
            }
            let batch = split_by_work(&mut steps);
            let commands = batch.iter().map(|step| self.command(step)).collect();
            let values = connection.pipe(commands).await?;
            let mut again = Vec::new();
            // A video that is not done with one shard although it seemed short: those that came after
            // it were looked at too early.
            let mut too_early = None;
            for (mut step, value) in batch.into_iter().zip(values) {
                match reply::<(String, u64, u64, u64)>(value) {
                    Ok((cursor, removed, corrupt, left)) => {
                        let counts = too_early != Some(step.video);
                        if let Ok(walked) = &mut results[step.video] {
                            walked.removed += removed;
                            walked.corrupt += corrupt;
                            if cursor == "0" && counts {
                                walked.left += left;
                                walked.shards += u64::from(left > 0);
                                walked.fullest = walked.fullest.max(left);
                            }
                        }
                        if cursor != "0" && step.moving {
                            too_early = Some(step.video);
                        }
                        if cursor != "0" || !counts {
                            step.cursor = if counts { cursor } else { "0".into() };
                            again.push(step);
                        }
                    }
                    Err(error) => results[step.video] = Err(error),
                }
            }
            steps.extend(again.into_iter().rev());
        }
        Ok(results)
    }

    /// Asks for every shard's length, so that empty ones cost no walk and full ones are known.
    async fn lengths(
        &self,
        connection: &Connection,
        videos: &[(VideoId, Walk)],
        results: &mut [Result<Walked, StoreError>],
    ) -> Result<Vec<Step>, StoreError> {
        let mut steps = Vec::new();
        let places: Vec<(usize, bool, bool, String)> = videos
            .iter()
            .enumerate()
            .flat_map(|(index, (video, walk))| {
                // Nobody comes any more to a place that only a former number has, so an empty one stays
                // so; to the others viewers on the move may come.
                let key = move |shard| {
                    (index, walk.moving, walk.may_fill(shard), self.redis.keys().online(video, shard))
                };
                walk.order().map(key)
            })
            .collect();
        for places in places.chunks(LENGTHS_IN_FLIGHT) {
            let commands = places.iter().map(|(.., key)| {
                let mut length = redis::cmd("HLEN");
                length.arg(key);
                length
            });
            let lengths = connection.pipe(commands.collect()).await?;
            for ((video, moving, may_fill, key), value) in places.iter().zip(lengths) {
                match reply::<u64>(value) {
                    Ok(0) if !may_fill => {}
                    Ok(length) => {
                        let (key, cursor) = (key.clone(), "0".into());
                        steps.push(Step { video: *video, key, cursor, length, moving: *moving });
                    }
                    Err(error) => results[*video] = Err(error),
                }
            }
        }
        // Walked from the end: what comes first in the order is taken first.
        steps.reverse();
        Ok(steps)
    }

    fn command(&self, step: &Step) -> Cmd {
        let clock = self.redis.clock();
        let now = clock.now();
        // After a jump of the clock nobody is taken for gone.
        let deadline = if clock.may_remove() { (now - self.window).secs() } else { i64::MIN };
        PRUNE.call(
            &[&step.key],
            &[
                step.cursor.clone(),
                deadline.to_string(),
                now.secs().to_string(),
                STEP.to_string(),
                self.life.to_string(),
                self.listpacks.rewrite_at_most.load(Ordering::Relaxed).to_string(),
            ],
        )
    }
}

/// Takes as many steps from the end as may be in flight together.
fn split_by_work(steps: &mut Vec<Step>) -> Vec<Step> {
    let mut work = 0;
    let mut first = steps.len();
    while first > 0 {
        let step = &steps[first - 1];
        work += step.length.clamp(LEAST_WORK, STEP);
        if work > WORK_IN_FLIGHT && first < steps.len() {
            break;
        }
        first -= 1;
        if step.moving && step.is_long() {
            break;
        }
    }
    let mut batch = steps.split_off(first);
    batch.reverse();
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_is_bounded_by_fields_and_not_by_keys() {
        let step = |length| Step { video: 0, key: String::new(), cursor: "0".into(), length, moving: false };
        let mut steps: Vec<Step> = (0..100).map(|_| step(5)).collect();
        assert_eq!(split_by_work(&mut steps).len(), 100);

        let mut steps: Vec<Step> = (0..100).map(|_| step(400)).collect();
        assert_eq!(split_by_work(&mut steps).len(), 2);

        let mut steps: Vec<Step> = (0..3).map(|_| step(1_000_000)).collect();
        assert_eq!(split_by_work(&mut steps).len(), 2);
        assert_eq!(steps.len(), 1);

        let mut steps: Vec<Step> = (0..10_000).map(|_| step(0)).collect();
        assert_eq!(split_by_work(&mut steps).len(), 125, "an empty one is not free");
    }

    #[test]
    fn where_viewers_are_moving_no_shard_is_looked_at_before_a_long_one_ahead_of_it_is_done() {
        let step = |length, moving| Step { video: 0, key: String::new(), cursor: "0".into(), length, moving };
        let mut steps = vec![step(5, true), step(5, true), step(501, true), step(5, true)];
        let lengths = |steps: Vec<Step>| steps.iter().map(|step| step.length).collect::<Vec<_>>();
        assert_eq!(lengths(split_by_work(&mut steps)), [5, 501]);
        assert_eq!(lengths(split_by_work(&mut steps)), [5, 5]);
    }
}
