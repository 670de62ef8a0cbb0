//! Counts a window of Kafka's log: what it comes to and how far the log is counted change together.
//!
//! The first statement holds the row of the position and looks whether it is where the window begins. So
//! a window is counted once, by whoever comes first: one that is brought again, after a commit whose
//! answer was lost or by a consumer that has lost its part of the topic and doesn't know yet, finds that
//! the position has moved.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, NaiveDate, Utc};

use super::{
    Ledger, TRIES, add, add_what_fits, adopt,
    positions::{Counted, Position},
    video_of,
};
use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    failpoint,
    ids::{Partition, VideoId, ViewerId},
    plays::in_kafka::{
        hyperloglog::HyperLogLog,
        window::{Decided, Key, Seen, Window},
    },
    store::postgres::{Failure, Lane, Session},
};

/// Keys or videos in one statement: each has `postgres.deadline` for itself.
const KEYS_AT_ONCE: usize = 5_000;

/// Sketches read and written by one statement: 3 MB where all are dense.
const SKETCHES_AT_ONCE: usize = 250;

/// What came of a window.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is counted, by this call.
    Counted(Tally),
    /// The position isn't where the window begins but here: nothing was done.
    Moved(i64),
}

/// What a window came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Plays that were counted.
    pub counted: u64,
    /// Plays that were counted before.
    pub duplicates: u64,
    /// The videos whose total has changed.
    pub videos: Vec<Counted>,
    /// Videos whose row couldn't take its plays.
    pub refused: Vec<VideoId>,
    /// The earliest play that Redis's totals may lack now.
    pub unraised_since: Option<DateTime<Utc>>,
}

/// How a window is to be counted.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Within which a second play counts nothing.
    pub dedupe_window: Duration,
    /// Whether Redis's totals lack nothing of what was counted before.
    pub all_raised: bool,
}

/// By partition and day, in the order in which rows are locked.
type Sums = BTreeMap<(Partition, NaiveDate), BTreeMap<VideoId, i64>>;

impl Ledger {
    /// Counts a window, unless the position has moved. Safe to repeat.
    ///
    /// # Errors
    /// The database is away or refuses; whether the window was counted is unknown.
    pub async fn apply_window(
        &self,
        position: &Position,
        window: &Window,
        rules: Rules,
    ) -> Result<Outcome, StoreError> {
        let mut one_by_one = false;
        for _ in 1..TRIES {
            match self.try_window(position, window, rules, one_by_one).await {
                Err(Failure::Conflict(error)) => tracing::debug!(error = %error, "a window is tried again"),
                Err(Failure::Row(_)) if !one_by_one => one_by_one = true,
                done => return Ok(done?),
            }
        }
        Ok(self.try_window(position, window, rules, one_by_one).await?)
    }

    async fn try_window(
        &self,
        position: &Position,
        window: &Window,
        rules: Rules,
        one_by_one: bool,
    ) -> Result<Outcome, Failure> {
        let opening = self.postgres.transaction(Lane::Flush);
        let mut session = failpoint::step("window.begin", Part::Postgres, opening).await?;
        match self.window_in(&mut session, position, window, rules, one_by_one).await {
            Ok(outcome @ Outcome::Counted(_)) => {
                failpoint::step("window.commit", Part::Postgres, session.end()).await?;
                Ok(outcome)
            }
            other => {
                session.roll_back().await;
                other
            }
        }
    }

    async fn window_in(
        &self,
        session: &mut Session,
        position: &Position,
        window: &Window,
        rules: Rules,
        one_by_one: bool,
    ) -> Result<Outcome, Failure> {
        let fence = "select next_offset from kafka_offset where position = $1 for update";
        let reading = session.fetch_all(sqlx::query_as(fence).bind(position.number));
        let at: Vec<(i64,)> = failpoint::step("window.fence", Part::Postgres, reading).await?;
        let [(at,)] = at[..] else {
            let gone = StoreError::unexpected(Part::Postgres, "a row of kafka_offset is gone");
            return Err(Failure::Store(gone));
        };
        if at != window.began {
            return Ok(Outcome::Moved(at));
        }

        let seen = seen(session, &window.keys()).await?;
        let decided = window.decide(seen.clone(), rules.dedupe_window, self.timezone);
        note_seen(session, position, &decided, &seen).await?;
        let (videos, refused) = count(session, &decided, one_by_one).await?;
        witness(session, position, &decided).await?;

        let move_on = "update kafka_offset
            set next_offset = $2, reached = coalesce($3, reached), updated_at = now(),
                unraised_since = least(case when not $5 then unraised_since end, $4)
            where position = $1 returning unraised_since";
        let query = sqlx::query_as(move_on).bind(position.number).bind(window.next);
        let query = query.bind(window.reached().map(Timestamp::to_utc));
        let moving = query.bind(decided.since.map(Timestamp::to_utc)).bind(rules.all_raised);
        let moved: Vec<(Option<DateTime<Utc>>,)> =
            failpoint::step("window.move", Part::Postgres, session.fetch_all(moving)).await?;
        Ok(Outcome::Counted(Tally {
            counted: decided.by_partition().values().sum::<i64>().unsigned_abs(),
            duplicates: decided.duplicates,
            videos,
            refused,
            unraised_since: moved.first().and_then(|(since,)| *since),
        }))
    }
}

/// What is known of these keys.
async fn seen(session: &mut Session, keys: &[Key]) -> Result<Seen, Failure> {
    let read = "select video_id, viewer, counted_at
        from unnest($1::text[], $2::text[]) as wanted(video_id, viewer)
        join play_seen using (video_id, viewer)";
    let mut seen = Seen::new();
    for keys in keys.chunks(KEYS_AT_ONCE) {
        let (videos, viewers) = columns(keys.iter());
        let reading = session.fetch_all(sqlx::query_as(read).bind(videos).bind(viewers));
        let rows: Vec<(String, String, DateTime<Utc>)> =
            failpoint::step("window.seen", Part::Postgres, reading).await?;
        for (video, viewer, at) in rows {
            seen.insert(Key { video: video_of(&video)?, viewer }, at);
        }
    }
    Ok(seen)
}

/// Remembers what was counted. A row that isn't as it was read was written by another part of the topic
/// meanwhile (a video changes its part when parts are added): all of it is decided anew then.
async fn note_seen(
    session: &mut Session,
    position: &Position,
    decided: &Decided,
    seen: &Seen,
) -> Result<(), Failure> {
    let (again, first): (Vec<_>, Vec<_>) = decided.seen.iter().partition(|(key, _)| seen.contains_key(key));
    let mut written = 0;
    for first in first.chunks(KEYS_AT_ONCE) {
        let insert = "insert into play_seen (video_id, viewer, counted_at, position)
            select video_id, viewer, counted_at, $4
            from unnest($1::text[], $2::text[], $3::timestamptz[]) as fresh(video_id, viewer, counted_at)
            on conflict do nothing";
        let (videos, viewers) = columns(first.iter().map(|(key, _)| *key));
        let times: Vec<_> = first.iter().map(|(_, at)| **at).collect();
        let query = sqlx::query(insert).bind(videos).bind(viewers).bind(times).bind(position.number);
        written += failpoint::step("window.note", Part::Postgres, session.execute(query)).await?;
    }
    for again in again.chunks(KEYS_AT_ONCE) {
        let update = "update play_seen set counted_at = fresh.counted_at, position = $5
            from unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[])
                as fresh(video_id, viewer, counted_at, before)
            where play_seen.video_id = fresh.video_id and play_seen.viewer = fresh.viewer
                and play_seen.counted_at = fresh.before";
        let (videos, viewers) = columns(again.iter().map(|(key, _)| *key));
        let times: Vec<_> = again.iter().map(|(_, at)| **at).collect();
        let before: Vec<_> = again.iter().filter_map(|(key, _)| seen.get(key)).copied().collect();
        let query = sqlx::query(update).bind(videos).bind(viewers).bind(times).bind(before);
        written += session.execute(query.bind(position.number)).await?;
    }
    if written == decided.seen.len() as u64 {
        return Ok(());
    }
    Err(Failure::Conflict(StoreError::unavailable(Part::Postgres, "a play was seen meanwhile")))
}

fn columns<'a>(keys: impl Iterator<Item = &'a Key>) -> (Vec<&'a str>, Vec<&'a str>) {
    keys.map(|key| (key.video.as_str(), key.viewer.as_str())).unzip()
}

/// Adds the plays, and those of the same videos that their rows couldn't take before.
async fn count(
    session: &mut Session,
    decided: &Decided,
    one_by_one: bool,
) -> Result<(Vec<Counted>, Vec<VideoId>), Failure> {
    let mut sums: Sums = decided.counted.clone();
    let all: Vec<VideoId> = sums.values().flat_map(BTreeMap::keys).cloned().collect();
    if all.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    take_refused(session, &all, &mut sums).await?;
    let mut refused: Vec<VideoId> = Vec::new();
    for ((partition, day), plays) in &sums {
        let plays: Vec<(VideoId, i64)> = plays.iter().map(|(video, plays)| (video.clone(), *plays)).collect();
        if one_by_one {
            let left = add_what_fits(session, partition.number(), &plays, *day).await?;
            let left: Vec<_> =
                plays.iter().filter(|(video, _)| left.iter().any(|left| left == video.as_str())).collect();
            let took = plays.iter().filter(|(video, _)| left.iter().all(|(left, _)| left != video));
            adopt(session, partition.number(), took).await?;
            refuse(session, *partition, *day, &left).await?;
            refused.extend(left.into_iter().map(|(video, _)| video.clone()));
        } else {
            add(session, partition.number(), &plays, *day).await?;
            adopt(session, partition.number(), plays.iter()).await?;
        }
    }
    let mut videos = totals(session, &all).await?;
    sketch(session, &decided.viewers, &mut videos).await?;
    Ok((videos, refused))
}

async fn take_refused(session: &mut Session, videos: &[VideoId], sums: &mut Sums) -> Result<(), Failure> {
    let take = "delete from play_refused where video_id = any($1) returning video_id, day, plays";
    let ids: Vec<&str> = videos.iter().map(VideoId::as_str).collect();
    let rows: Vec<(String, NaiveDate, i64)> = session.fetch_all(sqlx::query_as(take).bind(ids)).await?;
    for (video, day, plays) in rows {
        let video = video_of(&video).map_err(Failure::Store)?;
        *sums.entry((video.partition(), day)).or_default().entry(video).or_default() += plays;
    }
    Ok(())
}

async fn refuse(
    session: &mut Session,
    partition: Partition,
    day: NaiveDate,
    plays: &[&(VideoId, i64)],
) -> Result<(), Failure> {
    if plays.is_empty() {
        return Ok(());
    }
    let keep = "insert into play_refused (video_id, day, partition, plays)
        select video_id, $3, $4, plays from unnest($1::text[], $2::bigint[]) as fresh(video_id, plays)";
    let (videos, plays): (Vec<&str>, Vec<i64>) =
        plays.iter().map(|(video, plays)| (video.as_str(), *plays)).unzip();
    let query = sqlx::query(keep).bind(videos).bind(plays).bind(day).bind(partition.number());
    failpoint::step("window.refuse", Part::Postgres, session.execute(query)).await?;
    Ok(())
}

async fn totals(session: &mut Session, videos: &[VideoId]) -> Result<Vec<Counted>, Failure> {
    let read = "select video_id, views from videos where video_id = any($1)";
    let mut counted = Vec::with_capacity(videos.len());
    for videos in videos.chunks(KEYS_AT_ONCE) {
        let ids: Vec<&str> = videos.iter().map(VideoId::as_str).collect();
        let reading = session.fetch_all(sqlx::query_as(read).bind(ids));
        let rows: Vec<(String, i64)> = failpoint::step("window.read", Part::Postgres, reading).await?;
        for (video, views) in rows {
            counted.push(Counted { video: video_of(&video)?, views, sketch: None });
        }
    }
    Ok(counted)
}

/// Adds viewers to the sketches of their videos. Only what changes is written: the more have been seen,
/// the rarer that is.
async fn sketch(
    session: &mut Session,
    viewers: &BTreeMap<VideoId, Vec<ViewerId>>,
    counted: &mut [Counted],
) -> Result<(), Failure> {
    let wanted = counted.iter_mut().filter(|counted| viewers.contains_key(&counted.video));
    let mut wanted: Vec<&mut Counted> = wanted.collect();
    // The rows are held already, in whatever order.
    for chunk in wanted.chunks_mut(SKETCHES_AT_ONCE) {
        let read = "select video_id, viewer_sketch from videos where video_id = any($1)";
        let ids: Vec<String> = chunk.iter().map(|counted| counted.video.to_string()).collect();
        let reading = session.fetch_all(sqlx::query_as(read).bind(ids));
        let rows: Vec<(String, Option<Vec<u8>>)> = reading.await?;
        let before: BTreeMap<String, Option<Vec<u8>>> = rows.into_iter().collect();
        let (mut videos, mut counts, mut sketches) = (Vec::new(), Vec::new(), Vec::new());
        for counted in chunk {
            let kept = before.get(counted.video.as_str()).and_then(Option::as_deref);
            let mut sketch = match kept.map(HyperLogLog::read).transpose() {
                Ok(sketch) => sketch.unwrap_or_else(HyperLogLog::new),
                Err(error) => {
                    // They are reported, never used to decide: nothing fails for them.
                    tracing::error!(
                        video = %counted.video, error = %error,
                        "unique viewers of {} can't be added to: {error}", counted.video
                    );
                    continue;
                }
            };
            let mut changed = false;
            for viewer in viewers.get(&counted.video).into_iter().flatten() {
                changed |= sketch.add(viewer.as_str().as_bytes());
            }
            if changed {
                let bytes = sketch.bytes();
                videos.push(counted.video.to_string());
                counts.push(sketch.count());
                sketches.push(bytes.clone());
                counted.sketch = Some(bytes);
            }
        }
        if videos.is_empty() {
            continue;
        }
        let write = "update videos set viewer_sketch = fresh.sketch, unique_viewers = fresh.viewers
            from unnest($1::text[], $2::bigint[], $3::bytea[]) as fresh(video_id, viewers, sketch)
            where videos.video_id = fresh.video_id";
        let writing = session.execute(sqlx::query(write).bind(videos).bind(counts).bind(sketches));
        failpoint::step("window.sketches", Part::Postgres, writing).await?;
    }
    Ok(())
}

/// What was counted stands beside what it was added to, so that `headcount audit` sees where that was
/// changed by somebody else.
async fn witness(session: &mut Session, position: &Position, decided: &Decided) -> Result<(), Failure> {
    let (partitions, plays): (Vec<i16>, Vec<i64>) =
        decided.by_partition().into_iter().map(|(partition, plays)| (partition.number(), plays)).unzip();
    if plays.is_empty() {
        return Ok(());
    }
    let add = "insert into play_witness as witness (instance, partition, plays)
        select $1, partition, plays from unnest($2::smallint[], $3::bigint[]) as fresh(partition, plays)
        on conflict (instance, partition) do update
            set plays = witness.plays + excluded.plays, reported_at = now()";
    let adding = session.execute(sqlx::query(add).bind(position.witness).bind(partitions).bind(plays));
    failpoint::step("window.witness", Part::Postgres, adding).await?;
    Ok(())
}
