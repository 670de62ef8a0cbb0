//! Counting a video while dropping who left: the walk that sweeps and live reads share.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use redis::Cmd;

use crate::{
    config,
    error::StoreError,
    ids::VideoId,
    presence::shards::Walk,
    store::{
        lock::Held,
        redis::{Connection, Redis, refusal, reply, slot_of},
        script::LuaScript,
    },
};

/// Walks through shards.
pub(crate) static PRUNE: LuaScript = LuaScript::new("prune", include_str!("../lua/prune.lua"));

/// Fields that may be looked at in one go, and what comes to as much: Redis serves nobody else meanwhile.
const WORK_IN_FLIGHT: u64 = 1_000;

/// Fields looked at in one step of a long hash.
const STEP: u64 = 500;

/// Shards that are asked for together at first, and at most. How many it comes to in one go is only known
/// afterwards; those that it didn't come to are asked for again.
const SHARDS_AT_FIRST: usize = 64;
const SHARDS_AT_MOST: usize = 512;

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
    /// Viewers may go from here to the shards that come later: those wait until this one is done.
    moving: bool,
    /// Viewers may go from a shard to those of a higher rank only.
    rank: u32,
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
    /// walk gets that error, and the others their counts. A sweep waits for its turn and makes sure of
    /// its lock before each step.
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
        let mut steps: VecDeque<Step> = self.steps(videos).collect();
        let by_slot = self.redis.is_cluster();
        if by_slot {
            // Nodes are asked at the same time: only what may be looked at in any order goes together.
            steps.make_contiguous().sort_by_key(|step| step.rank);
        }
        let in_flight = WORK_IN_FLIGHT * connection.nodes() as u64;
        let mut together = SHARDS_AT_FIRST;
        while let Some(rank) = steps.front().map(|step| step.rank) {
            let alike = steps.iter().take_while(|step| !by_slot || step.rank == rank).take(together).count();
            let mut batch: Vec<Step> = steps.drain(..alike).collect();
            if by_slot {
                batch.sort_by_cached_key(|step| slot_of(step.key.as_bytes()));
            }
            let calls = calls_of(&batch, by_slot);
            // Not before its turn: by an earlier time fresh beats would be taken for ones of the future.
            let commands = || -> Vec<Cmd> {
                let enough = (in_flight / calls.len() as u64).clamp(1, WORK_IN_FLIGHT);
                calls.iter().map(|steps| self.command(steps, enough)).collect()
            };
            let values = match &mut lock {
                Some(lock) => {
                    let _turn = self.redis.turn().await;
                    lock.still_mine(connection).await?;
                    connection.pipe(commands()).await?
                }
                None => connection.pipe(commands()).await?,
            };
            let mut answers = Vec::with_capacity(batch.len());
            for (steps, value) in calls.iter().zip(values) {
                answers.extend(answers_of(steps.len(), reply(value)));
            }
            let asked = batch.len();
            let work = work_of(&answers);
            let again = note(batch, answers, &mut results);
            together = match asked - again.len() {
                // Each call went through all that it had, however much: the next are fewer or more.
                _ if by_slot => usize::try_from(in_flight * asked as u64 / work.max(1))
                    .unwrap_or(1)
                    .clamp(1, SHARDS_AT_MOST),
                through if through == asked => (asked + asked / 4 + 1).min(SHARDS_AT_MOST),
                through => through.max(1),
            };
            again.into_iter().rev().for_each(|step| steps.push_front(step));
        }
        Ok(results)
    }

    /// A step for every shard, in the order in which they are walked.
    fn steps(&self, videos: &[(VideoId, Walk)]) -> impl Iterator<Item = Step> {
        videos.iter().enumerate().flat_map(move |(index, (video, walk))| {
            walk.order().map(move |shard| Step {
                video: index,
                key: self.redis.keys().online(video, shard),
                cursor: "0".into(),
                moving: walk.moving,
                rank: walk.rank(shard),
            })
        })
    }

    fn command(&self, steps: &[Step], enough: u64) -> Cmd {
        let clock = self.redis.clock();
        let now = clock.now();
        // After a jump of the clock nobody is taken for gone.
        let deadline = if clock.may_remove() { (now - self.window).secs() } else { i64::MIN };
        let keys: Vec<&str> = steps.iter().map(|step| step.key.as_str()).collect();
        PRUNE.call(
            &keys,
            &[
                steps.first().map_or_else(|| "0".into(), |step| step.cursor.clone()),
                deadline.to_string(),
                now.secs().to_string(),
                STEP.to_string(),
                self.life.to_string(),
                self.listpacks.rewrite_at_most.load(Ordering::Relaxed).to_string(),
                enough.to_string(),
            ],
        )
    }
}

/// What the script says of one shard.
type Answer = (String, u64, u64, u64);

/// The calls in which steps are sent: on one server all shards share one, in a cluster those of one slot.
/// Where a walk goes on in the middle of a shard a call begins.
fn calls_of(steps: &[Step], by_slot: bool) -> Vec<&[Step]> {
    let together =
        |one: &Step, next: &Step| !by_slot || slot_of(one.key.as_bytes()) == slot_of(next.key.as_bytes());
    steps.chunk_by(|one, next| next.cursor == "0" && together(one, next)).collect()
}

/// How much work these answers stand for, in the units of the script.
fn work_of(answers: &[Option<Result<Answer, StoreError>>]) -> u64 {
    let walked = answers.iter().flatten().flatten();
    walked.map(|(_, removed, corrupt, left)| 8 + removed + corrupt + left).sum()
}

/// What a call says of each of its shards; nothing of those that it didn't come to.
fn answers_of(
    shards: usize,
    answer: Result<Vec<Answer>, StoreError>,
) -> impl Iterator<Item = Option<Result<Answer, StoreError>>> {
    let (told, refused) = match answer {
        Ok(told) => (told, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut told = told.into_iter();
    std::iter::repeat_with(move || match &refused {
        Some(error) => Some(Err(error.clone())),
        None => told.next().map(|answer| match answer.0.parse::<u64>() {
            Ok(_) => Ok(answer),
            Err(_) => Err(refusal(answer.0.trim_start_matches('-'))),
        }),
    })
    .take(shards)
}

/// Adds up what was told; the steps that are to be made, again or for the first time.
fn note(
    batch: Vec<Step>,
    answers: Vec<Option<Result<Answer, StoreError>>>,
    results: &mut [Result<Walked, StoreError>],
) -> Vec<Step> {
    let mut again = Vec::new();
    // A video with a shard that is not done although those that come after it were looked at: too early.
    let mut too_early = None;
    for (mut step, answer) in batch.into_iter().zip(answers) {
        match answer {
            Some(Ok((cursor, removed, corrupt, left))) => {
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
            Some(Err(error)) => results[step.video] = Err(error),
            None => {
                if step.moving {
                    too_early = Some(step.video);
                }
                again.push(step);
            }
        }
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(count: usize, moving: bool) -> Vec<Step> {
        let step =
            |number: usize| Step { video: 0, key: number.to_string(), cursor: "0".into(), moving, rank: 0 };
        (0..count).map(step).collect()
    }

    fn told(cursor: &str, left: u64) -> Answer {
        (cursor.into(), 0, 0, left)
    }

    fn open(steps: &[Step]) -> Vec<(&str, &str)> {
        steps.iter().map(|step| (step.key.as_str(), step.cursor.as_str())).collect()
    }

    #[test]
    fn shards_that_a_call_did_not_come_to_are_asked_for_again_in_their_order() {
        let mut results = [Ok(Walked::default())];
        let again = note(
            steps(4, true),
            vec![Some(Ok(told("0", 3))), Some(Ok(told("7", 9))), None, None],
            &mut results,
        );
        assert_eq!(open(&again), [("1", "7"), ("2", "0"), ("3", "0")]);
        let walked = results[0].as_ref().unwrap();
        assert_eq!((walked.left, walked.shards, walked.fullest), (3, 1, 3));
    }

    #[test]
    fn where_viewers_are_moving_no_shard_counts_that_was_looked_at_before_the_one_ahead_was_done() {
        for (moving, left, open_then) in
            [(true, 0, vec![("0", "7"), ("1", "0"), ("2", "0")]), (false, 9, vec![("0", "7")])]
        {
            let mut results = [Ok(Walked::default())];
            // As calls of one shard each answer it.
            let answers = [told("7", 1), told("0", 4), told("0", 5)];
            let again = note(steps(3, moving), answers.map(|told| Some(Ok(told))).into(), &mut results);
            assert_eq!(open(&again), open_then);
            assert_eq!(results[0].as_ref().unwrap().left, left);
        }
    }

    #[test]
    fn a_shard_in_the_middle_of_which_a_walk_goes_on_begins_a_call() {
        let mut steps = steps(5, false);
        steps[2].cursor = "7".into();
        let calls: Vec<usize> = calls_of(&steps, false).into_iter().map(<[Step]>::len).collect();
        assert_eq!(calls, [2, 3]);
    }

    #[test]
    fn what_redis_refuses_fails_a_shard_and_what_it_refuses_whole_fails_all() {
        let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
        let answers = vec![(wrong.to_owned(), 0, 0, 0), ("0".into(), 0, 0, 5)];
        let told: Vec<_> = answers_of(3, Ok(answers)).collect();
        assert!(matches!(&told[..], [Some(Err(_)), Some(Ok(_)), None]));
        let told: Vec<_> = answers_of(2, Err(refusal("OOM command not allowed"))).collect();
        assert!(told.iter().all(|told| matches!(told, Some(Err(_)))));
    }
}
