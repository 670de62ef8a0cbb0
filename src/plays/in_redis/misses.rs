//! Finds out totals that Redis doesn't keep.
//!
//! What the database holds can't just be read and added to the delta: a batch that is applied and not
//! settled yet is in both. So three steps: (R1) one script looks at the delta and at the batch at
//! hand; (R2) one statement reads the total and whether that batch is in it; (R3) one script keeps the
//! total without that batch, but only if neither the batch nor the last settled one has changed since
//! R1. Otherwise what R3 saw is the next R1.

use std::collections::HashMap;

use uuid::Uuid;

use super::{TOTAL_LIFE, read::number};
use crate::{
    error::{Part, StoreError},
    ids::{Partition, VideoId},
    plays::postgres::{Facts, Ledger},
    store::{
        redis::{Connection, Redis, reply},
        script::LuaScript,
    },
};

/// Looks at videos and at the batch at hand.
pub(super) static LOOK: LuaScript = LuaScript::new("view_look", include_str!("../lua/view_look.lua"));

/// Keeps totals, unless a batch moved.
pub(super) static FILL: LuaScript = LuaScript::new("view_fill", include_str!("../lua/view_fill.lua"));

/// How often batches may move under a read before it is given up.
const ROUNDS: usize = 3;

/// What is to be found out.
#[derive(Clone, Debug)]
pub(super) enum Miss {
    /// How often the video was played, and its unique viewers.
    Total(VideoId),
    /// Its unique viewers, as far as the database knows them.
    UniqueViewers(VideoId),
}

/// What was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learnt {
    /// To [`Miss::Total`].
    Total {
        /// The total, delta included.
        plays: u64,
        /// What the database knows of unique viewers, if it had to be asked.
        unique_viewers: Option<u64>,
    },
    /// To [`Miss::UniqueViewers`].
    UniqueViewers(u64),
}

/// Finds out what Redis doesn't keep.
pub(super) struct Misses {
    redis: Redis,
    ledger: Ledger,
}

/// Videos of one partition whose totals are open, and what a script last said of them.
struct Group {
    partition: Partition,
    /// Id of the batch at hand and of the last settled one, "" for none.
    batch: String,
    settled: String,
    videos: Vec<(VideoId, Seen)>,
}

/// What a script says of one video.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    total: Option<u64>,
    delta: u64,
    in_batch: u64,
}

type Found = HashMap<VideoId, Result<Learnt, StoreError>>;

impl Misses {
    pub(super) fn new(redis: Redis, ledger: Ledger) -> Self {
        Self { redis, ledger }
    }

    /// Finds out all of `missed`, with one statement a round; one result each, in order.
    pub(super) async fn find_out(&self, missed: Vec<Miss>) -> Vec<Result<Learnt, StoreError>> {
        let mut totals: HashMap<Partition, Vec<VideoId>> = HashMap::new();
        let mut others = Vec::new();
        for miss in &missed {
            match miss {
                Miss::Total(video) => totals.entry(video.partition()).or_default().push(video.clone()),
                Miss::UniqueViewers(video) => others.push(video.clone()),
            }
        }
        let (mut found, mut viewers) = (Found::new(), HashMap::new());
        let failed = self.verify(totals, &others, &mut found, &mut viewers).await.err();
        let failed = failed.unwrap_or_else(|| {
            StoreError::unavailable(Part::Redis, "batches moved under every look at the total")
        });
        let learnt = |miss: &Miss| match miss {
            Miss::Total(video) => found.get(video).cloned().unwrap_or_else(|| Err(failed.clone())),
            Miss::UniqueViewers(video) => {
                let viewers = viewers.get(video).copied();
                viewers.map(Learnt::UniqueViewers).ok_or_else(|| failed.clone())
            }
        };
        missed.iter().map(learnt).collect()
    }

    async fn verify(
        &self,
        totals: HashMap<Partition, Vec<VideoId>>,
        others: &[VideoId],
        found: &mut Found,
        viewers: &mut HashMap<VideoId, u64>,
    ) -> Result<(), StoreError> {
        let connection = self.redis.connection()?;
        let looks = totals.iter().map(|(partition, videos)| {
            let args: Vec<&str> = videos.iter().map(VideoId::as_str).collect();
            LOOK.call(&self.keys(*partition, videos.iter()), &args)
        });
        let answers = connection.pipe(looks.collect()).await?;
        let mut groups = Vec::new();
        for ((partition, videos), answer) in totals.into_iter().zip(answers) {
            groups.extend(open(partition, videos, reply(answer), &HashMap::new(), found));
        }
        for round in 0..ROUNDS {
            let others = if round == 0 { others } else { &[] };
            if groups.is_empty() && others.is_empty() {
                break;
            }
            // One statement for all: what it reads of a batch and of totals is of one moment.
            let facts = self.facts(&groups, others).await?;
            viewers.extend(facts.iter().map(|(video, facts)| (video.clone(), known_viewers(facts))));
            groups = self.fill(&connection, groups, &facts, found).await?;
        }
        Ok(())
    }

    /// R2.
    async fn facts(
        &self,
        groups: &[Group],
        others: &[VideoId],
    ) -> Result<HashMap<VideoId, Facts>, StoreError> {
        let mut wanted: Vec<(VideoId, Option<Uuid>)> = Vec::new();
        for group in groups {
            let batch = match group.batch.as_str() {
                "" => None,
                id => Some(Uuid::parse_str(id).map_err(|error| {
                    StoreError::unexpected(Part::Redis, format!("the id of a batch is {id:?}: {error}"))
                })?),
            };
            wanted.extend(group.videos.iter().map(|(video, _)| (video.clone(), batch)));
        }
        // Those that are asked for both ways come first here, and are overwritten below.
        let others = others.iter().map(|video| (video.clone(), None));
        let wanted: Vec<_> = others.chain(wanted).collect();
        let facts = self.ledger.facts(&wanted).await?;
        Ok(wanted.into_iter().map(|(video, _)| video).zip(facts).collect())
    }

    /// R3; answers what is still open.
    async fn fill(
        &self,
        connection: &Connection,
        groups: Vec<Group>,
        facts: &HashMap<VideoId, Facts>,
        found: &mut Found,
    ) -> Result<Vec<Group>, StoreError> {
        let mut asked = Vec::with_capacity(groups.len());
        let mut calls = Vec::with_capacity(groups.len());
        for Group { partition, batch, settled, videos } in groups {
            let mut args = vec![batch, settled, TOTAL_LIFE.as_secs().to_string()];
            let mut filled = Vec::with_capacity(videos.len());
            for (video, seen) in videos {
                match base(facts.get(&video), &seen) {
                    Ok(base) => {
                        args.extend([video.to_string(), base.to_string()]);
                        filled.push(video);
                    }
                    Err(error) => drop(found.insert(video, Err(error))),
                }
            }
            if !filled.is_empty() {
                calls.push(FILL.call(&self.keys(partition, filled.iter()), &args));
                asked.push((partition, filled));
            }
        }
        let answers = connection.pipe(calls).await?;
        let mut still_open = Vec::new();
        for ((partition, videos), answer) in asked.into_iter().zip(answers) {
            still_open.extend(open(partition, videos, reply(answer), facts, found));
        }
        Ok(still_open)
    }

    fn keys<'a>(&self, partition: Partition, videos: impl Iterator<Item = &'a VideoId>) -> Vec<String> {
        let keys = self.redis.keys();
        let counts = |video| [keys.total(partition, video), keys.delta(partition, video)];
        let batch = [keys.batch(partition), keys.settled(partition)];
        batch.into_iter().chain(videos.flat_map(counts)).collect()
    }
}

/// Reads what a script says of `videos`: those with a total are found, the others are open. Where it says
/// nothing, these fail and no others.
fn open(
    partition: Partition,
    videos: Vec<VideoId>,
    answer: Result<Vec<Option<String>>, StoreError>,
    facts: &HashMap<VideoId, Facts>,
    found: &mut Found,
) -> Option<Group> {
    let too_little = || StoreError::unexpected(Part::Redis, "a look at totals answered too little");
    let answer = answer
        .and_then(|answer| if answer.len() == 2 + 3 * videos.len() { Ok(answer) } else { Err(too_little()) });
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            found.extend(videos.into_iter().map(|video| (video, Err(error.clone()))));
            return None;
        }
    };
    let mut answer = answer.into_iter();
    let mut next = || answer.next().flatten();
    let (batch, settled) = (next().unwrap_or_default(), next().unwrap_or_default());
    let mut still_open = Vec::new();
    for video in videos {
        let (total, delta, in_batch) = (next(), next(), next());
        let count = |text: Option<String>| text.as_deref().map(number).transpose();
        let seen = count(total).and_then(|total| {
            let (delta, in_batch) = (count(delta)?.unwrap_or(0), count(in_batch)?.unwrap_or(0));
            Ok(Seen { total, delta, in_batch })
        });
        match seen {
            Ok(Seen { total: Some(total), delta, .. }) => {
                let unique_viewers = facts.get(&video).map(known_viewers);
                let plays = total.saturating_add(delta);
                found.insert(video, Ok(Learnt::Total { plays, unique_viewers }));
            }
            Ok(seen) => still_open.push((video, seen)),
            Err(error) => drop(found.insert(video, Err(error))),
        }
    }
    (!still_open.is_empty()).then_some(Group { partition, batch, settled, videos: still_open })
}

/// What the database holds of a video without the plays that a batch at hand has brought already.
fn base(facts: Option<&Facts>, seen: &Seen) -> Result<u64, StoreError> {
    let facts = facts.copied().unwrap_or_default();
    let counted = if facts.batch_counted { seen.in_batch } else { 0 };
    u64::try_from(facts.views).ok().and_then(|views| views.checked_sub(counted)).ok_or_else(|| {
        StoreError::unexpected(Part::Postgres, "a total is smaller than the plays that were just added to it")
    })
}

fn known_viewers(facts: &Facts) -> u64 {
    facts.unique_viewers.and_then(|viewers| u64::try_from(viewers).ok()).unwrap_or(0)
}
