//! Reads the books of Redis and Postgres together, though plays move from the one to the other
//! meanwhile.
//!
//! (R1) look at each partition's batch at hand and at the last settled one; (R2) read what is written
//! down, and whether those batches are in the totals, of one moment; (R3) add up the plays that wait,
//! and look whether the batches are still those of R1: what moved is read again. Only then (R4) add up
//! all videos, which takes long, of the moment of R2: plays that move meanwhile make no difference.
//! What was witnessed is read before the plays that wait: plays that come meanwhile can't look lost.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use redis::Cmd;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128;

use super::{
    books::{Books, Moment, Rows},
    witness::Witness,
};
use crate::{
    error::{Part, StoreError},
    ids::{PARTITIONS, Partition, VideoId},
    plays::audit::{self, Reading, Terms},
    store::redis::{Connection, Redis, reply},
};

/// How often partitions under which batches moved are read again, before and after all videos are
/// added up for the others.
const TRIES: usize = 3;
const ROUNDS: usize = 3;

/// Videos looked at in one step, about: each blocks Redis for well under a millisecond.
const AT_ONCE: usize = 500;

/// The books of this backend.
pub struct RedisBooks {
    redis: Redis,
    books: Books,
    /// What the asked instance itself has counted is reported first; a command has counted nothing.
    witness: Option<Arc<Witness>>,
}

/// R1 of one partition.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Look {
    partition: Partition,
    /// The batch at hand, and what is in it by video.
    batch: Option<Uuid>,
    plays: HashMap<String, i128>,
    /// Id of the last settled batch, "" for none.
    settled: String,
}

/// The id of the last settled batch. What may stand behind it tells of totals that were raised, which moves
/// no plays.
fn settled_id(settled: Option<&str>) -> &str {
    settled.and_then(|settled| settled.split(' ').next()).unwrap_or_default()
}

/// Plays that wait in Redis.
#[derive(Debug, Default)]
struct Waiting {
    pending: i128,
    refused: i128,
}

/// What R1 to R3 found. The moment is open for R4.
pub(super) struct Stand {
    moment: Moment,
    rows: Rows,
    /// Of partitions that didn't move.
    waiting: Vec<(Partition, Waiting)>,
    /// How many did.
    moved: usize,
}

impl Stand {
    /// R4.
    pub(super) async fn finish(self, reading: &mut Reading) -> Result<(), StoreError> {
        let Self { moment, rows, waiting, .. } = self;
        let views = moment.views().await?;
        for (partition, Waiting { pending, refused }) in waiting {
            let index = partition.index();
            reading[index] = Some(Terms {
                witnessed: rows.witnessed[index],
                imported: rows.imported[index],
                views: views[index],
                pending,
                refused: refused + rows.refused[index],
                adjustments: rows.adjustments[index],
            });
        }
        Ok(())
    }
}

impl RedisBooks {
    pub(super) fn new(redis: Redis, books: Books, witness: Option<Arc<Witness>>) -> Self {
        Self { redis, books, witness }
    }

    /// Folds the witnesses of instances that are gone.
    #[cfg(test)]
    pub(super) async fn fold(&self) {
        self.books.fold().await.unwrap();
    }

    /// R1 to R3 of the partitions that `reading` doesn't have.
    pub(super) async fn stand(&self, reading: &Reading) -> Result<Stand, StoreError> {
        let connection = self.redis.connection()?;
        // Its moment is that of `rows`; beginning takes its time.
        let mut moment = self.books.moment().await?;
        let partitions = Partition::all().filter(|partition| reading[partition.index()].is_none());
        let looks = partitions.map(|partition| self.look(&connection, partition));
        let looks = futures::future::try_join_all(looks).await?;
        let batches: Vec<Uuid> = looks.iter().filter_map(|look| look.batch).collect();
        let rows = moment.rows(&batches).await?;
        let (mut waiting, mut moved) = (Vec::with_capacity(looks.len()), 0);
        for look in looks {
            let waits = self.waiting(&connection, &look, &rows).await?;
            if self.is_unmoved(&connection, &look).await? {
                waiting.push((look.partition, waits));
            } else {
                moved += 1;
            }
        }
        Ok(Stand { moment, rows, waiting, moved })
    }

    /// The first stand of some under which nothing moved, or else the last.
    async fn firm_stand(&self, reading: &Reading) -> Result<Stand, StoreError> {
        let mut stand = self.stand(reading).await?;
        for _ in 1..TRIES {
            if stand.moved == 0 {
                break;
            }
            stand.moment.leave().await;
            stand = self.stand(reading).await?;
        }
        Ok(stand)
    }

    pub(super) async fn look(
        &self,
        connection: &Connection,
        partition: Partition,
    ) -> Result<Look, StoreError> {
        let keys = self.redis.keys();
        let [batch, settled] = connection
            .pipe_array([ask("HGETALL", &keys.batch(partition)), ask("GET", &keys.settled(partition))])
            .await?;
        let batch: HashMap<String, String> = reply(batch)?;
        let settled: Option<String> = reply(settled)?;
        let id = batch.get("#id").map(|id| id_of(id)).transpose()?;
        let plays = batch.into_iter().filter(|(video, _)| !video.starts_with('#'));
        let plays = plays.map(|(video, plays)| Some((video, plays.parse().ok()?)));
        let plays = plays
            .collect::<Option<HashMap<String, i128>>>()
            .ok_or_else(|| StoreError::unexpected(Part::Redis, "a batch holds something else than plays"))?;
        Ok(Look { partition, batch: id, plays, settled: settled_id(settled.as_deref()).to_owned() })
    }

    /// Whether neither the batch at hand nor the last settled one is another than at the look. That of
    /// the last settled one tells that none came and went in between.
    pub(super) async fn is_unmoved(&self, connection: &Connection, look: &Look) -> Result<bool, StoreError> {
        let keys = self.redis.keys();
        let mut batch = ask("HGET", &keys.batch(look.partition));
        batch.arg("#id");
        let [batch, settled] =
            connection.pipe_array([batch, ask("GET", &keys.settled(look.partition))]).await?;
        let batch: Option<String> = reply(batch)?;
        let settled: Option<String> = reply(settled)?;
        let batch = batch.map(|id| id_of(&id)).transpose()?;
        Ok(batch == look.batch && settled_id(settled.as_deref()) == look.settled)
    }

    /// R3: the plays that wait, those of a batch that is in the database already left out. In small
    /// steps; a video that is met twice counts once. An operator may move one from the refused to the
    /// others meanwhile, so those come last. The other way goes only what is no number, or with a batch
    /// that is settled, and then all of this is read again.
    async fn waiting(
        &self,
        connection: &Connection,
        look: &Look,
        rows: &Rows,
    ) -> Result<Waiting, StoreError> {
        let applied = look.batch.and_then(|batch| rows.applied.get(&batch));
        let in_database = |video: &str| match applied {
            Some(refused) if !refused.contains(video) => look.plays.get(video).copied().unwrap_or(0),
            _ => 0,
        };
        let (keys, mut met) = (self.redis.keys(), std::collections::HashSet::new());
        let mut waiting = Waiting::default();
        for (set, refused) in [(keys.refused(look.partition), true), (keys.dirty(look.partition), false)] {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = ask("SSCAN", &set);
                scan.arg(&cursor).arg("COUNT").arg(AT_ONCE);
                let (next, members): (String, Vec<String>) = connection.query(scan).await?;
                let videos = members.into_iter().filter(|member| met.insert(xxh3_128(member.as_bytes())));
                // What is no video's id was not put there by us and has no plays.
                let videos: Vec<VideoId> = videos.filter_map(|member| VideoId::parse(&member).ok()).collect();
                for (video, plays) in self.deltas(connection, look.partition, &videos).await? {
                    // One that has fewer than were added has none left: the settling takes all of it.
                    let left = (plays - in_database(video.as_str())).max(0);
                    *(if refused { &mut waiting.refused } else { &mut waiting.pending }) += left;
                }
                cursor = next;
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(waiting)
    }

    /// How many plays wait of those of `videos` that have any.
    async fn deltas<'a>(
        &self,
        connection: &Connection,
        partition: Partition,
        videos: &'a [VideoId],
    ) -> Result<Vec<(&'a VideoId, i128)>, StoreError> {
        let mut deltas = Vec::with_capacity(videos.len());
        for videos in videos.chunks(2 * AT_ONCE) {
            let mut counts = redis::cmd("MGET");
            for video in videos {
                counts.arg(self.redis.keys().delta(partition, video));
            }
            let counts: Vec<Option<String>> = connection.query(counts).await?;
            // What is no number counts nothing; claim.lua leaves it to an operator.
            let plays = counts.iter().map(|count| count.as_ref()?.parse().ok().filter(|plays| *plays > 0));
            deltas.extend(videos.iter().zip(plays).filter_map(|(video, plays)| Some((video, plays?))));
        }
        Ok(deltas)
    }
}

#[async_trait]
impl audit::Books for RedisBooks {
    async fn read(&self) -> Result<Reading, StoreError> {
        if let Some(witness) = &self.witness {
            witness.tell().await?;
        }
        let mut reading: Reading = [None; PARTITIONS as usize];
        for _ in 0..ROUNDS {
            let stand = self.firm_stand(&reading).await?;
            let moved = stand.moved;
            if stand.waiting.is_empty() {
                stand.moment.leave().await;
            } else {
                stand.finish(&mut reading).await?;
            }
            if moved == 0 {
                break;
            }
        }
        Ok(reading)
    }

    async fn adjust(&self, differences: &[(Partition, i128)], reason: &str) -> Result<(), StoreError> {
        self.books.adjust(differences, reason).await
    }
}

fn ask(command: &str, key: &str) -> Cmd {
    let mut command = redis::cmd(command);
    command.arg(key);
    command
}

fn id_of(text: &str) -> Result<Uuid, StoreError> {
    Uuid::parse_str(text).map_err(|error| {
        StoreError::unexpected(Part::Redis, format!("the id of a batch is {text:?}: {error}"))
    })
}
