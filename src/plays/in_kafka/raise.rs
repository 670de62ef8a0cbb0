//! Tells Redis what was counted: totals that are there are raised, the others are filled when somebody
//! asks.
//!
//! A total that wasn't raised stays too low for as long as Redis keeps it. So the position notes since
//! when totals may be, in the transaction that counts; whoever has that part of the topic after a
//! failure, be it another process, looks at all videos counted since, and only then is the note taken
//! off.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    error::{Part, StoreError},
    failpoint,
    ids::Partition,
    plays::{
        in_redis::TOTAL_LIFE,
        postgres::{
            Ledger,
            positions::{Counted, Position},
        },
    },
    store::{
        redis::{Redis, reply},
        script::LuaScript,
    },
};

/// Raises totals.
pub(in crate::plays) static RAISE: LuaScript = LuaScript::new("raise", include_str!("../lua/raise.lua"));

/// Videos in one call: Redis serves nobody else for half a millisecond.
const AT_ONCE: usize = 200;

/// How long a partition rests that could not be raised, from one failure to the next.
const REST_FIRST: Duration = Duration::from_millis(250);
const REST_LAST: Duration = Duration::from_secs(8);

/// Raises totals in one Redis.
pub(in crate::plays) struct Raiser {
    redis: Redis,
    ledger: Ledger,
    /// Partitions that could not be raised lately.
    resting: Mutex<BTreeMap<Partition, Rest>>,
}

/// For how long a partition that failed isn't tried.
struct Rest {
    until: Instant,
    lasts: Duration,
    because: StoreError,
}

impl Rest {
    fn after(before: Option<Duration>, because: StoreError) -> Self {
        let lasts = before.map_or(REST_FIRST, |before| (2 * before).min(REST_LAST));
        Self { until: Instant::now() + lasts, lasts, because }
    }

    fn is_on(&self) -> Option<StoreError> {
        (Instant::now() < self.until).then(|| self.because.clone())
    }
}

impl Raiser {
    pub(in crate::plays) fn new(redis: Redis, ledger: Ledger) -> Self {
        Self { redis, ledger, resting: Mutex::default() }
    }

    /// Which connection there is to the Redis to be told, if there is one.
    pub(in crate::plays) fn epoch(&self) -> Option<u64> {
        self.redis.connection().ok().map(|connection| connection.epoch())
    }

    /// Raises the totals of `counted`, all that can be: where one node of a cluster is away, the others know.
    ///
    /// # Errors
    /// Some could not be raised; this is what the first of them met.
    pub(in crate::plays) async fn raise(&self, counted: &[Counted]) -> Result<(), StoreError> {
        let mut by_partition: BTreeMap<Partition, Vec<&Counted>> = BTreeMap::new();
        for video in counted {
            by_partition.entry(video.video.partition()).or_default().push(video);
        }
        let mut first = Ok(());
        for (partition, videos) in by_partition {
            let raised = self.raise_partition(partition, &videos).await;
            first = first.and(raised);
        }
        first
    }

    /// One that has just failed fails at once for a while: else each window would wait for it.
    async fn raise_partition(&self, partition: Partition, videos: &[&Counted]) -> Result<(), StoreError> {
        if let Some(error) = self.resting.lock().get(&partition).and_then(Rest::is_on) {
            return Err(error);
        }
        for videos in videos.chunks(AT_ONCE) {
            let raising = self.raise_some(partition, videos);
            if let Err(error) = failpoint::step("window.raise", Part::Redis, raising).await {
                // Without a connection nothing waits, and the next one may be there at any moment.
                if self.epoch().is_some() {
                    let mut resting = self.resting.lock();
                    let before = resting.get(&partition).map(|rest| rest.lasts);
                    resting.insert(partition, Rest::after(before, error.clone()));
                }
                return Err(error);
            }
        }
        self.resting.lock().remove(&partition);
        Ok(())
    }

    async fn raise_some(&self, partition: Partition, videos: &[&Counted]) -> Result<(), StoreError> {
        let all = self.redis.keys();
        let mut keys = vec![all.batch(partition), all.settled(partition), all.dirty(partition)];
        let mut args: Vec<Vec<u8>> =
            vec![Uuid::now_v7().simple().to_string().into(), TOTAL_LIFE.as_secs().to_string().into()];
        for Counted { video, views, sketch } in videos {
            keys.push(all.total(partition, video));
            keys.push(all.unique_viewers(partition, video));
            keys.push(all.sketch(partition, video));
            args.push(views.to_string().into());
            args.push(sketch.clone().unwrap_or_default());
        }
        let connection = self.redis.connection()?;
        let _turn = self.redis.turn().await;
        let answers = connection.pipe(vec![RAISE.call(&keys, &args)]).await?;
        for answer in answers {
            reply::<i64>(answer)?;
        }
        Ok(())
    }

    /// Raises the totals of all videos that a position has counted since then, all that can be.
    ///
    /// # Errors
    /// Redis or the database is away, or some of Redis's nodes are.
    pub(in crate::plays) async fn catch_up(
        &self,
        position: &Position,
        since: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let (mut after, mut first) = (None, Ok(()));
        loop {
            let counted = self.ledger.unraised(position, since, after.as_ref()).await?;
            let Some(last) = counted.last() else { break };
            after = Some(last.video.clone());
            let raised = self.raise(&counted).await;
            // Nobody is there: the pages to come would find the same.
            if raised.is_err() && self.epoch().is_none() {
                return raised;
            }
            first = first.and(raised);
        }
        first?;
        self.ledger.all_raised(position).await
    }
}
