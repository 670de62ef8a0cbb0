//! Tells Redis what was counted: totals that are there are raised, the others are filled when somebody
//! asks.
//!
//! A total that wasn't raised stays too low for as long as Redis keeps it. So the position notes since
//! when totals may be, in the transaction that counts; whoever has that part of the topic after a
//! failure, be it another process, looks at all videos counted since, and only then is the note taken
//! off.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
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

/// Raises totals in one Redis.
pub(in crate::plays) struct Raiser {
    redis: Redis,
    ledger: Ledger,
}

impl Raiser {
    pub(in crate::plays) fn new(redis: Redis, ledger: Ledger) -> Self {
        Self { redis, ledger }
    }

    /// Whether there is a Redis to be told.
    pub(in crate::plays) fn can_raise(&self) -> bool {
        self.redis.connection().is_ok()
    }

    /// Raises the totals of `counted`.
    ///
    /// # Errors
    /// Redis is away; some may be raised.
    pub(in crate::plays) async fn raise(&self, counted: &[Counted]) -> Result<(), StoreError> {
        let mut by_partition: BTreeMap<Partition, Vec<&Counted>> = BTreeMap::new();
        for video in counted {
            by_partition.entry(video.video.partition()).or_default().push(video);
        }
        for (partition, videos) in by_partition {
            for videos in videos.chunks(AT_ONCE) {
                let raising = self.raise_some(partition, videos);
                failpoint::step("window.raise", Part::Redis, raising).await?;
            }
        }
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

    /// Raises the totals of all videos that a position has counted since then.
    ///
    /// # Errors
    /// Redis or the database is away.
    pub(in crate::plays) async fn catch_up(
        &self,
        position: &Position,
        since: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let counted = self.ledger.unraised(position, since, after.as_ref()).await?;
            let Some(last) = counted.last() else { break };
            after = Some(last.video.clone());
            self.raise(&counted).await?;
        }
        self.ledger.all_raised(position).await
    }
}
