//! Moves plays from Redis to the database: claim, apply, settle.
//!
//! A batch is noted in Redis under an id before it is applied, is applied together with that id, and
//! is taken off only where that id still is the one at hand. So every step may be repeated by anyone
//! at any time; two flushers, or one that wakes late, find the id and only settle. Plays stay in
//! Redis until their batch is settled: a failure anywhere leaves them where they were, still marked.
//!
//! A batch is applied only when it is durable: a Redis that forgot it, by a power cut or a failover, would
//! have its plays claimed again under another id.

mod job;

use std::time::Duration;

use parking_lot::Mutex;
use uuid::Uuid;

pub use self::job::FlushJob;
use super::{
    in_redis::{TOTAL_LIFE, sketches::Sketches},
    postgres::{Applied, Batch, Ledger},
};
use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    failpoint,
    ids::{PARTITIONS, Partition, VideoId},
    store::{
        redis::{Connection, Redis, Replicas, reply},
        script::LuaScript,
        time::TOLERATED_SKEW,
    },
};

/// Notes plays in a batch.
pub static CLAIM: LuaScript = LuaScript::new("claim", include_str!("../lua/claim.lua"));

/// Takes a batch off.
pub static SETTLE: LuaScript = LuaScript::new("settle", include_str!("../lua/settle.lua"));

/// Videos in one batch. Claiming and settling them keeps Redis from everybody else: for 2 and 5 ms.
const CLAIMED_AT_ONCE: usize = 1_000;

/// The same where a batch may be applied at once. The size of one that must grow old first bounds how many
/// videos a partition brings to the database; these follow each other anyway, and others wait half as long.
const CLAIMED_UNAGED: usize = 500;

/// Moves plays from Redis to the database.
pub struct Flusher {
    redis: Redis,
    ledger: Ledger,
    sketches: Sketches,
    /// How old a batch is before it is applied: on Redis's disk by then.
    min_age: Duration,
    /// Where it must be on before it is applied, with `redis.wait_replicas`.
    replicas: Option<Replicas>,
    /// For each partition the batch this process took up last.
    taken: [Mutex<Option<Taken>>; PARTITIONS as usize],
}

/// What this process knows of a batch beyond what Redis does.
#[derive(Clone, Copy, Debug)]
struct Taken {
    id: Uuid,
    /// When this process first held it, on the monotonic clock: it is older than that.
    since: Duration,
    /// Whether this process claimed it.
    mine: bool,
    /// Whether more plays were waiting than went into it.
    more: bool,
}

/// A batch at hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is to be added.
    pub batch: Batch,
    /// How often it was taken up, this time included.
    pub tries: u64,
    /// How old it is at least.
    pub age: Duration,
    /// Whether plays were waiting that didn't fit in.
    pub more: bool,
}

/// What one step of a flush did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// No play was waiting.
    Nothing,
    /// A batch is claimed but may not be on Redis's disk before so long.
    TooYoung(Duration),
    /// A batch is in the database and off Redis.
    Batch {
        /// Videos in it.
        videos: usize,
        /// Plays that this call added; 0 where they were in the database already.
        plays: i64,
        /// Videos whose plays the database refused.
        refused: usize,
        /// Whether it had been claimed before this call.
        retaken: bool,
        /// Whether more plays were waiting than went into it.
        more: bool,
    },
}

impl Flushed {
    /// Plays that this call added.
    #[must_use]
    pub fn plays(&self) -> i64 {
        match self {
            Self::Batch { plays, .. } => *plays,
            Self::Nothing | Self::TooYoung(_) => 0,
        }
    }
}

impl Flusher {
    /// A flusher from this Redis into this database.
    #[must_use]
    pub fn new(
        redis: Redis,
        ledger: Ledger,
        sketches: Sketches,
        min_age: Duration,
        replicas: Option<Replicas>,
    ) -> Self {
        let taken = std::array::from_fn(|_| Mutex::new(None));
        Self { redis, ledger, sketches, min_age, replicas, taken }
    }

    /// The database it moves plays to.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn claimed_at_once(&self) -> usize {
        if self.min_age.is_zero() { CLAIMED_UNAGED } else { CLAIMED_AT_ONCE }
    }

    /// Whether batches wait for replicas that aren't there.
    fn is_short_of_replicas(&self) -> bool {
        self.replicas.as_ref().is_some_and(Replicas::are_short)
    }

    /// What keeps unique viewers.
    #[must_use]
    pub fn sketches(&self) -> &Sketches {
        &self.sketches
    }

    /// Brings one batch of a partition as far as it goes. Safe to run again after a failure at any
    /// point, and by several at once.
    ///
    /// # Errors
    /// Redis or the database is away.
    pub async fn flush_once(
        &self,
        connection: &Connection,
        partition: Partition,
    ) -> Result<Flushed, StoreError> {
        let Some(claim) = self.claim(connection, partition).await? else { return Ok(Flushed::Nothing) };
        if let Some(wait) = self.min_age.checked_sub(claim.age).filter(|wait| !wait.is_zero()) {
            return Ok(Flushed::TooYoung(wait));
        }
        let applied = self.ledger.apply(&claim.batch).await?;
        self.keep_sketches(connection, &claim.batch, &applied).await;
        self.settle(connection, &claim.batch, &applied).await?;

        let plays = claim.batch.plays.iter();
        let added = plays.filter(|(video, _)| applied.by_this_call && !applied.refused.contains(video));
        Ok(Flushed::Batch {
            videos: claim.batch.plays.len(),
            plays: added.map(|(_, plays)| plays).sum(),
            refused: applied.refused.len(),
            retaken: claim.tries > 1,
            more: claim.more,
        })
    }

    /// Takes up the batch of a partition, or claims a new one; `None` where no play is waiting.
    ///
    /// # Errors
    /// Redis is away, or too few replicas have the batch. It may have been claimed; the next claim
    /// finds it.
    pub(crate) async fn claim(
        &self,
        connection: &Connection,
        partition: Partition,
    ) -> Result<Option<Claim>, StoreError> {
        // What this process has taken up before needn't be looked for, nor need others be brought along.
        let is_held = self.taken[partition.index()].lock().is_some();
        if is_held {
            if let Some(claim) = self.take_up(connection, partition, &[], false).await? {
                return Ok(Some(claim));
            }
            *self.taken[partition.index()].lock() = None;
        }
        let Some((videos, full)) = self.look(connection, partition).await? else { return Ok(None) };
        self.take_up(connection, partition, &videos, full).await
    }

    /// Some of the videos that have plays waiting, and whether there may be more; `None` where nothing is to
    /// be done.
    async fn look(
        &self,
        connection: &Connection,
        partition: Partition,
    ) -> Result<Option<(Vec<VideoId>, bool)>, StoreError> {
        let keys = self.redis.keys();
        let dirty = keys.dirty(partition);
        let mut some = redis::cmd("SRANDMEMBER");
        some.arg(&dirty).arg(self.claimed_at_once());
        let mut exists = redis::cmd("EXISTS");
        exists.arg(keys.batch(partition));
        let _turn = self.redis.turn().await;
        let looking = connection.pipe_array([some, exists]);
        let [members, exists] = failpoint::step("flush.look", Part::Redis, looking).await?;
        let (members, exists): (Vec<String>, bool) = (reply(members)?, reply(exists)?);
        if members.is_empty() && !exists {
            return Ok(None);
        }
        let full = members.len() >= self.claimed_at_once();
        let (videos, strangers): (Vec<_>, Vec<_>) = members
            .into_iter()
            .map(|member| VideoId::parse(&member).ok().ok_or(member))
            .partition(Result::is_ok);
        let strangers: Vec<String> = strangers.into_iter().filter_map(Result::err).collect();
        if !strangers.is_empty() {
            tracing::error!(members = ?strangers, "the set of videos to flush held what is no video id");
            let mut drop = redis::cmd("SREM");
            drop.arg(&dirty).arg(strangers);
            connection.query::<i64>(drop).await?;
        }
        Ok(Some((videos.into_iter().flatten().collect(), full)))
    }

    /// Takes up the batch that is there, or else claims one of `videos`.
    async fn take_up(
        &self,
        connection: &Connection,
        partition: Partition,
        videos: &[VideoId],
        full: bool,
    ) -> Result<Option<Claim>, StoreError> {
        let keys = self.redis.keys();
        let mut script_keys = vec![keys.batch(partition), keys.dirty(partition), keys.refused(partition)];
        let mut args = vec![self.new_id().to_string(), self.redis.clock().for_script()];
        for video in videos {
            script_keys.push(keys.delta(partition, video));
            args.push(video.to_string());
        }
        let call = CLAIM.call(&script_keys, &args);
        let claiming = async {
            match &self.replicas {
                None => {
                    let _turn = self.redis.turn().await;
                    connection.query(call).await
                }
                // Also one that was there before: taking it up again writes #tries, which stands behind
                // the batch in what replicas are sent. They are waited for on a connection of their own.
                Some(replicas) => replicas.query(call).await,
            }
        };
        let answer: Vec<String> = failpoint::step("flush.claim", Part::Redis, claiming).await?;
        if answer.is_empty() {
            return Ok(None);
        }
        let mut claim = read_claim(partition, &answer).ok_or_else(|| {
            let key = self.redis.keys().batch(partition);
            StoreError::unexpected(Part::Redis, format!("the batch at {key} can't be read: {answer:?}"))
        })?;
        self.take(&mut claim, full);
        Ok(Some(claim))
    }

    /// An id for a batch that is claimed now, which it tells: in Redis's time, as hosts differ.
    fn new_id(&self) -> Uuid {
        let now = u64::try_from(self.redis.clock().now().millis()).unwrap_or_default();
        let nanos = u32::try_from(now % 1_000 * 1_000_000).expect("less than a second");
        Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, now / 1_000, nanos))
    }

    /// How long ago the last batch of a partition was claimed that somebody brought to its end; nothing
    /// where a flush is due all the same: a batch is on its way, or as many videos wait as one can hold.
    ///
    /// # Errors
    /// Redis is away.
    async fn since_last_claim(
        &self,
        connection: &Connection,
        partition: Partition,
    ) -> Result<Option<Duration>, StoreError> {
        let keys = self.redis.keys();
        let (mut settled, mut exists, mut waiting) =
            (redis::cmd("GET"), redis::cmd("EXISTS"), redis::cmd("SCARD"));
        settled.arg(keys.settled(partition));
        exists.arg(keys.batch(partition));
        waiting.arg(keys.dirty(partition));
        let [settled, exists, waiting] = connection.pipe_array([settled, exists, waiting]).await?;
        let (settled, exists, waiting): (Option<String>, bool, usize) =
            (reply(settled)?, reply(exists)?, reply(waiting)?);
        if exists || waiting >= self.claimed_at_once() {
            return Ok(None);
        }
        let claimed = settled.and_then(|id| claimed_at(&id));
        let now = self.redis.clock().now();
        // One of the future is of a clock that was set back since: it mustn't keep everybody waiting.
        Ok(claimed.filter(|claimed| *claimed <= now + TOLERATED_SKEW).map(|claimed| now.since(claimed)))
    }

    /// Adds what this process knows of a batch beyond what Redis does.
    fn take(&self, claim: &mut Claim, full: bool) {
        let now = self.redis.clock().monotonic();
        let mut taken = self.taken[claim.batch.partition.index()].lock();
        let mine = claim.tries == 1;
        // Whether another left plays behind isn't known; looking once too often costs nothing.
        let first = || Taken { id: claim.batch.id, since: now, mine, more: full || !mine };
        let known = taken.filter(|known| known.id == claim.batch.id).unwrap_or_else(first);
        *taken = Some(known);
        claim.more = known.more;
        // A clock of Redis that was set neither holds a batch up nor lets one through early.
        let held = now.saturating_sub(known.since);
        claim.age = if known.mine { held } else { claim.age.max(held) };
    }

    /// Takes a batch that is in the database off Redis, if it is still the one at hand.
    ///
    /// # Errors
    /// Redis is away; whether the batch is off is unknown.
    pub(crate) async fn settle(
        &self,
        connection: &Connection,
        batch: &Batch,
        applied: &Applied,
    ) -> Result<(), StoreError> {
        let (keys, partition) = (self.redis.keys(), batch.partition);
        let mut script_keys = vec![
            keys.batch(partition),
            keys.dirty(partition),
            keys.refused(partition),
            keys.settled(partition),
        ];
        let mut args = vec![batch.id.to_string(), TOTAL_LIFE.as_secs().to_string()];
        for (video, _) in &batch.plays {
            script_keys.push(keys.delta(partition, video));
            script_keys.push(keys.total(partition, video));
            args.push(video.to_string());
            args.push(if applied.refused.contains(video) {
                String::new()
            } else {
                // A row that an operator deleted since holds nothing.
                applied.views.get(video).copied().unwrap_or(0).to_string()
            });
        }
        let settling = async {
            let _turn = self.redis.turn().await;
            connection.query(SETTLE.call(&script_keys, &args)).await
        };
        let (settled, short, _left): (i64, i64, i64) =
            failpoint::step("flush.settle", Part::Redis, settling).await?;
        self.taken[partition.index()].lock().take_if(|taken| taken.id == batch.id);
        if settled == 1 && short > 0 {
            tracing::error!(
                flush.short = short,
                "{short} videos had fewer plays in redis than were added to the database: \
                 redis lost some, or something else wrote there"
            );
        }
        Ok(())
    }

    /// Unique viewers are reported, never used to decide: what fails here doesn't stop the flush.
    async fn keep_sketches(&self, connection: &Connection, batch: &Batch, applied: &Applied) {
        let counted = batch.plays.iter().map(|(video, _)| video.clone());
        let videos: Vec<VideoId> = counted.filter(|video| !applied.refused.contains(video)).collect();
        let keeping = self.sketches.keep(connection, batch.partition, videos);
        if let Err(error) = failpoint::step("flush.sketches", Part::Redis, keeping).await {
            tracing::warn!(error = %error, "unique viewers couldn't be kept; the next flush tries again");
        }
    }
}

/// When a batch was claimed, by its id.
fn claimed_at(id: &str) -> Option<Timestamp> {
    let (secs, nanos) = Uuid::parse_str(id).ok()?.get_timestamp()?.to_unix();
    let millis = secs.checked_mul(1_000)?.checked_add(u64::from(nanos) / 1_000_000)?;
    i64::try_from(millis).ok().map(Timestamp::from_millis)
}

/// Reads what `claim.lua` answers.
fn read_claim(partition: Partition, answer: &[String]) -> Option<Claim> {
    let [id, at, tries, now, _made, plays @ ..] = answer else { return None };
    let (at, now) = (at.parse().ok()?, now.parse().ok()?);
    let (at, now) = (Timestamp::from_millis(at), Timestamp::from_millis(now));
    let mut by_video = Vec::with_capacity(plays.len() / 2);
    for pair in plays.chunks_exact(2) {
        by_video
            .push((VideoId::parse(&pair[0]).ok()?, pair[1].parse::<i64>().ok().filter(|plays| *plays > 0)?));
    }
    by_video.sort_unstable();
    Some(Claim {
        batch: Batch { id: id.parse().ok()?, partition, claimed_at: at, plays: by_video },
        tries: tries.parse().ok()?,
        age: now.since(at),
        more: false,
    })
}
