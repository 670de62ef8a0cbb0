//! Where plays end up: the rows of videos and of their days, and the batches that are in them already.
//!
//! A batch is applied together with its id in one transaction, so it can be brought again at any time
//! by anyone and is added once. Plays are only ever added: no statement here writes an absolute total.

mod batches;
#[cfg(feature = "kafka")]
pub mod positions;
mod sketches;
#[cfg(feature = "kafka")]
pub mod window;

use std::collections::{HashMap, HashSet};

use chrono::NaiveDate;
use chrono_tz::Tz;
use uuid::Uuid;

use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    failpoint,
    ids::{Partition, VideoId},
    store::postgres::{Failure, Lane, Postgres, Session},
};

/// How often a batch that met another transaction is tried before the flush gives up for this time.
const TRIES: usize = 5;

/// Plays on their way to the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// By which it is known to have been applied.
    pub id: Uuid,
    /// All videos in it are of this partition.
    pub partition: Partition,
    /// When it was claimed: decides on which day its plays count.
    pub claimed_at: Timestamp,
    /// Plays by video, sorted by video.
    pub plays: Vec<(VideoId, i64)>,
}

/// What the database says about a batch once it is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Whether it was this call that added the plays.
    pub by_this_call: bool,
    /// The totals of the batch's videos, those that have a row.
    pub views: HashMap<VideoId, i64>,
    /// Videos whose plays were not added, because their row couldn't take them.
    pub refused: HashSet<VideoId>,
}

/// What the database knows about one video and about a batch that may hold plays of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its total; 0 without a row.
    pub views: i64,
    /// Its unique viewers when they were last saved.
    pub unique_viewers: Option<i64>,
    /// Whether the batch's plays of this video are in the total.
    pub batch_counted: bool,
}

/// The rows of plays.
#[derive(Clone)]
pub struct Ledger {
    postgres: Postgres,
    timezone: Tz,
}

impl Ledger {
    /// A ledger whose days begin as they do in `timezone`.
    #[must_use]
    pub fn new(postgres: Postgres, timezone: Tz) -> Self {
        Self { postgres, timezone }
    }

    /// The way to its server.
    #[must_use]
    pub fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// Adds a batch, unless it was added before, and reads what came of it. Safe to repeat.
    ///
    /// # Errors
    /// The database is away or refuses; whether the batch was added is unknown.
    pub async fn apply(&self, batch: &Batch) -> Result<Applied, StoreError> {
        let mut one_by_one = false;
        for _ in 1..TRIES {
            match self.try_apply(batch, one_by_one).await {
                Err(Failure::Conflict(error)) => tracing::debug!(error = %error, "a batch is tried again"),
                Err(Failure::Row(_)) if !one_by_one => one_by_one = true,
                done => return Ok(done?),
            }
        }
        Ok(self.try_apply(batch, one_by_one).await?)
    }

    async fn try_apply(&self, batch: &Batch, one_by_one: bool) -> Result<Applied, Failure> {
        let opening = self.postgres.transaction(Lane::Flush);
        let mut session = failpoint::step("flush.begin", Part::Postgres, opening).await?;
        match self.apply_in(&mut session, batch, one_by_one).await {
            Ok(applied) => {
                failpoint::step("flush.commit", Part::Postgres, session.end()).await?;
                Ok(applied)
            }
            Err(failure) => {
                session.roll_back().await;
                Err(failure)
            }
        }
    }

    /// Three steps in separate statements: one statement would answer from the snapshot it began
    /// with, in which a batch that another flusher is just committing isn't there yet.
    async fn apply_in(
        &self,
        session: &mut Session,
        batch: &Batch,
        one_by_one: bool,
    ) -> Result<Applied, Failure> {
        let insert = "insert into play_batch (id, partition) values ($1, $2) on conflict (id) do nothing";
        let partition = batch.partition.number();
        let inserting = session.execute(sqlx::query(insert).bind(batch.id).bind(partition));
        let by_this_call = failpoint::step("flush.note", Part::Postgres, inserting).await? == 1;

        if by_this_call {
            let day = batch.claimed_at.to_utc().with_timezone(&self.timezone).date_naive();
            if one_by_one {
                let refused = add_what_fits(session, partition, &batch.plays, day).await?;
                let took = |video: &VideoId| refused.iter().all(|refused| refused != video.as_str());
                adopt(session, partition, batch.plays.iter().filter(|(video, _)| took(video))).await?;
                let note = "update play_batch set refused = $2 where id = $1";
                let noting = session.execute(sqlx::query(note).bind(batch.id).bind(refused));
                failpoint::step("flush.refuse", Part::Postgres, noting).await?;
            } else {
                add(session, partition, &batch.plays, day).await?;
                adopt(session, partition, batch.plays.iter()).await?;
            }
        }

        let views = "select video_id, views from videos where video_id = any($1)";
        let videos: Vec<&str> = batch.plays.iter().map(|(video, _)| video.as_str()).collect();
        let reading = session.fetch_all(sqlx::query_as(views).bind(videos));
        let views: Vec<(String, i64)> = failpoint::step("flush.read", Part::Postgres, reading).await?;
        let refused: Vec<(Vec<String>,)> = if by_this_call && !one_by_one {
            // The batch is in since this transaction, and nothing was refused.
            Vec::new()
        } else {
            let refused = "select refused from play_batch where id = $1";
            session.fetch_all(sqlx::query_as(refused).bind(batch.id)).await?
        };
        let views: Result<_, StoreError> =
            views.into_iter().map(|(video, views)| Ok((video_of(&video)?, views))).collect();
        let refused: Result<_, StoreError> =
            refused.iter().flat_map(|(videos,)| videos).map(|video| video_of(video)).collect();
        Ok(Applied {
            by_this_call,
            views: views.map_err(Failure::Store)?,
            refused: refused.map_err(Failure::Store)?,
        })
    }

    /// What is known about each of `wanted`, a video and the batch that may hold plays of it; in
    /// order. All of it is read by one statement, from one snapshot.
    ///
    /// # Errors
    /// The database is away.
    pub async fn facts(&self, wanted: &[(VideoId, Option<Uuid>)]) -> Result<Vec<Facts>, StoreError> {
        let (videos, batches): (Vec<&str>, Vec<Option<Uuid>>) =
            wanted.iter().map(|(video, batch)| (video.as_str(), *batch)).unzip();
        let facts = "select coalesce(videos.views, 0), videos.unique_viewers,
                coalesce(not (wanted.video_id = any(play_batch.refused)), false)
            from unnest($1::text[], $2::uuid[]) with ordinality as wanted(video_id, batch, place)
            left join videos on videos.video_id = wanted.video_id
            left join play_batch on play_batch.id = wanted.batch
            order by wanted.place";
        let rows: Vec<(i64, Option<i64>, bool)> =
            self.postgres.fetch_all(Lane::Reads, sqlx::query_as(facts).bind(videos).bind(batches)).await?;
        if rows.len() != wanted.len() {
            return Err(StoreError::unexpected(Part::Postgres, "a statement answered too few rows"));
        }
        let facts = |(views, unique_viewers, batch_counted)| Facts { views, unique_viewers, batch_counted };
        Ok(rows.into_iter().map(facts).collect())
    }
}

/// Adds plays that are sorted by video: two transactions then lock rows in the same order.
async fn add(
    session: &mut Session,
    partition: i16,
    plays: &[(VideoId, i64)],
    day: NaiveDate,
) -> Result<(), Failure> {
    let (videos, plays): (Vec<&str>, Vec<i64>) =
        plays.iter().map(|(video, plays)| (video.as_str(), *plays)).unzip();
    let totals = "insert into videos as video (video_id, views, partition)
        select video_id, plays, $3 from unnest($1::text[], $2::bigint[]) as fresh(video_id, plays)
        on conflict (video_id) do update set views = video.views + excluded.views, updated_at = now()";
    let adding = session.execute(sqlx::query(totals).bind(&videos).bind(&plays).bind(partition));
    failpoint::step("flush.add", Part::Postgres, adding).await?;
    let days = "insert into video_daily as daily (video_id, day, views)
        select video_id, $3, plays from unnest($1::text[], $2::bigint[]) as fresh(video_id, plays)
        on conflict (video_id, day) do update set views = daily.views + excluded.views";
    let adding = session.execute(sqlx::query(days).bind(&videos).bind(&plays).bind(day));
    failpoint::step("flush.add_days", Part::Postgres, adding).await?;
    Ok(())
}

/// Takes in rows that no flush made (an operator's, or those of an older release): what they held
/// before these plays were added came from elsewhere. After [`add`], which has locked every one of
/// them, so that none can appear or change in between.
async fn adopt<'a>(
    session: &mut Session,
    partition: i16,
    added: impl Iterator<Item = &'a (VideoId, i64)>,
) -> Result<(), Failure> {
    let (videos, plays): (Vec<&str>, Vec<i64>) = added.map(|(video, plays)| (video.as_str(), *plays)).unzip();
    let adopt = "with adopted as (
            update videos set partition = $1
            from unnest($2::text[], $3::bigint[]) as fresh(video_id, plays)
            where videos.video_id = fresh.video_id and videos.partition is null
            returning videos.views - fresh.plays as before
        )
        insert into play_adjustment (partition, plays, kind, reason)
        select $1, sum(before), 'imported', 'rows that were there before the plays'
        from adopted having sum(before) > 0";
    let adopting = session.execute(sqlx::query(adopt).bind(partition).bind(videos).bind(plays));
    failpoint::step("flush.adopt", Part::Postgres, adopting).await?;
    Ok(())
}

/// Adds what the rows take and answers the videos of the rest: a group that is refused is halved
/// until the rows that refuse stand alone.
async fn add_what_fits(
    session: &mut Session,
    partition: i16,
    plays: &[(VideoId, i64)],
    day: NaiveDate,
) -> Result<Vec<String>, Failure> {
    let mut refused = Vec::new();
    // The first half lies on top, so that rows are still locked in order.
    let mut groups = vec![plays];
    while let Some(group) = groups.pop() {
        session.raw("savepoint before_group").await?;
        match add(session, partition, group, day).await {
            Ok(()) => session.raw("release savepoint before_group").await?,
            Err(Failure::Row(error)) => {
                session.raw("rollback to savepoint before_group").await?;
                if let [(video, plays)] = group {
                    tracing::error!(
                        video = %video, plays, error = %error,
                        "the row of {video} can't take {plays} plays: they wait for an operator"
                    );
                    refused.push(video.to_string());
                } else {
                    let (first, second) = group.split_at(group.len() / 2);
                    groups.extend([second, first]);
                }
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(refused)
}

fn video_of(text: &str) -> Result<VideoId, StoreError> {
    VideoId::parse(text).map_err(|error| {
        StoreError::unexpected(Part::Postgres, format!("a row's video_id {text:?}: {error}"))
    })
}
