//! The rows of conservation: what instances witnessed, what came or went in other ways, and the sums
//! over all videos.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::{
    error::{Part, StoreError},
    ids::{PARTITIONS, Partition},
    store::postgres::{Lane, Postgres, Session},
};

/// Pages of the table of videos that one statement adds up: 16 MiB, at most a tenth of a second.
const PAGES_AT_ONCE: i64 = 2_048;

/// Rows that are taken in, or instances' rows that are folded, in one transaction.
const ROWS_AT_ONCE: i64 = 1_000;

/// A reading stands idle while Redis is looked at, longer than the session's own limit allows where many
/// plays wait. It holds no row that others wait for.
const WAIT_FOR_REDIS: &str = "set local idle_in_transaction_session_timeout = '60s'";

/// Adds up rows of instances that have been silent for a month under the nil id. What another folds at
/// the same moment is left to it.
const FOLD: &str = "with gone as (
        delete from play_witness where (instance, partition) in (
            select instance, partition from play_witness
            where reported_at < now() - interval '30 days' and instance <> $1
            order by reported_at limit $2 for update skip locked)
        returning partition, plays
    )
    insert into play_witness as witness (instance, partition, plays)
    select $1, partition, sum(plays) from gone group by partition order by partition
    on conflict (instance, partition) do update
        set plays = witness.plays + excluded.plays, reported_at = now()";

/// Writes down how many plays an instance has counted in all. A row it is known to have is not made
/// again: where it is gone it was folded, and its plays are in another.
const REPORT: &str = "with fresh as (
        select * from unnest($2::smallint[], $3::bigint[], $4::bool[]) as fresh(partition, plays, known)
    ), raised as (
        update play_witness as witness
        set plays = greatest(witness.plays, fresh.plays), reported_at = now()
        from fresh
        where fresh.known and witness.instance = $1 and witness.partition = fresh.partition
        returning witness.partition
    ), begun as (
        insert into play_witness as witness (instance, partition, plays)
        select $1, partition, plays from fresh where not known
        on conflict (instance, partition) do update
            set plays = greatest(witness.plays, excluded.plays), reported_at = now()
        returning witness.partition
    )
    select partition from raised union all select partition from begun";

/// What an instance reports of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) partition: Partition,
    /// All plays it counted.
    pub(super) plays: u64,
    /// Whether an earlier report of it has a row.
    pub(super) known: bool,
}

/// What is written down at one moment.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) witnessed: [i128; PARTITIONS as usize],
    pub(super) imported: [i128; PARTITIONS as usize],
    pub(super) adjustments: [i128; PARTITIONS as usize],
    /// Plays out of Kafka's log that their rows couldn't take.
    pub(super) refused: [i128; PARTITIONS as usize],
    /// Those batches that were asked for and are in the totals, with the videos whose plays are not.
    pub(super) applied: HashMap<Uuid, HashSet<String>>,
}

/// The tables of conservation.
#[derive(Clone)]
pub(super) struct Books {
    postgres: Postgres,
}

impl Books {
    pub(super) fn new(postgres: Postgres) -> Self {
        Self { postgres }
    }

    pub(super) fn is_migrated(&self) -> bool {
        self.postgres.is_migrated()
    }

    /// Writes down what an instance counted; answers the partitions for which that is done. The others
    /// were folded into the row of those who are gone.
    pub(super) async fn report(
        &self,
        instance: Uuid,
        reports: &[Report],
    ) -> Result<HashSet<Partition>, StoreError> {
        let partitions: Vec<i16> = reports.iter().map(|report| report.partition.number()).collect();
        let plays: Vec<i64> =
            reports.iter().map(|report| i64::try_from(report.plays).unwrap_or(i64::MAX)).collect();
        let known: Vec<bool> = reports.iter().map(|report| report.known).collect();
        let query = sqlx::query_as(REPORT).bind(instance).bind(partitions).bind(plays).bind(known);
        let done: Vec<(i16,)> = self.postgres.fetch_all(Lane::Flush, query).await?;
        Ok(done.into_iter().filter_map(|(number,)| Partition::from_number(number.into())).collect())
    }

    /// Folds rows of instances that have been silent for a month.
    pub(super) async fn fold(&self) -> Result<(), StoreError> {
        let mut session = self.postgres.session(Lane::Flush).await?;
        session.execute(sqlx::query(FOLD).bind(Uuid::nil()).bind(ROWS_AT_ONCE)).await?;
        session.end().await?;
        Ok(())
    }

    /// Takes in some of the rows that no flush made: their plays came from elsewhere. Answers whether
    /// more may be left. Rows that somebody else holds just now are left as well.
    pub(super) async fn adopt(&self) -> Result<bool, StoreError> {
        let mut session = self.postgres.transaction(Lane::Flush).await?;
        let some = "select video_id, views from videos where partition is null
            order by video_id limit $1 for update skip locked";
        let rows: Vec<(String, i64)> = session.fetch_all(sqlx::query_as(some).bind(ROWS_AT_ONCE)).await?;
        let mut imported = [0; PARTITIONS as usize];
        let (mut videos, mut partitions) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        for (video, views) in &rows {
            let partition = Partition::of(video);
            imported[partition.index()] += i128::from(*views);
            videos.push(video.as_str());
            partitions.push(partition.number());
        }
        let place = "update videos set partition = fresh.partition
            from unnest($1::text[], $2::smallint[]) as fresh(video_id, partition)
            where videos.video_id = fresh.video_id";
        session.execute(sqlx::query(place).bind(videos).bind(partitions)).await?;
        let imported = Partition::all().map(|partition| (partition, imported[partition.index()]));
        let imported: Vec<_> = imported.filter(|(_, plays)| *plays > 0).collect();
        note(&mut session, &imported, "imported", "rows that were there before the plays").await?;
        session.end().await?;
        Ok(rows.len() as u64 >= ROWS_AT_ONCE.unsigned_abs())
    }

    /// Writes down differences that are known.
    pub(super) async fn adjust(
        &self,
        differences: &[(Partition, i128)],
        reason: &str,
    ) -> Result<(), StoreError> {
        let mut session = self.postgres.transaction(Lane::Audit).await?;
        note(&mut session, differences, "adjusted", reason).await?;
        session.end().await?;
        Ok(())
    }

    /// Begins a reading of one moment. It takes no lock that a flush would wait for.
    pub(super) async fn moment(&self) -> Result<Moment, StoreError> {
        let mut session = self.postgres.snapshot(Lane::Audit).await?;
        session.raw(WAIT_FOR_REDIS).await?;
        Ok(Moment { session })
    }
}

/// What the database says at one moment: that of the first thing it is asked.
pub(super) struct Moment {
    session: Session,
}

impl Moment {
    /// What is written down, and which of `batches` are in the totals.
    pub(super) async fn rows(&mut self, batches: &[Uuid]) -> Result<Rows, StoreError> {
        let session = &mut self.session;
        let mut rows = Rows::default();

        let witnessed = "select partition, sum(plays)::text from play_witness group by partition";
        for (partition, plays) in session.fetch_all::<(i16, String)>(sqlx::query_as(witnessed)).await? {
            add(&mut rows.witnessed, partition, &plays)?;
        }
        let adjustments =
            "select partition, kind, sum(plays)::text from play_adjustment group by partition, kind";
        let adjustments: Vec<(i16, String, String)> = session.fetch_all(sqlx::query_as(adjustments)).await?;
        for (partition, kind, plays) in adjustments {
            let sums = if kind == "imported" { &mut rows.imported } else { &mut rows.adjustments };
            add(sums, partition, &plays)?;
        }
        let refused = "select partition, sum(plays)::text from play_refused group by partition";
        for (partition, plays) in session.fetch_all::<(i16, String)>(sqlx::query_as(refused)).await? {
            add(&mut rows.refused, partition, &plays)?;
        }
        let applied = "select id, refused from play_batch where id = any($1)";
        let applied: Vec<(Uuid, Vec<String>)> =
            session.fetch_all(sqlx::query_as(applied).bind(batches)).await?;
        rows.applied = applied.into_iter().map(|(id, refused)| (id, refused.into_iter().collect())).collect();
        Ok(rows)
    }

    /// The sums over all videos: many short statements rather than a long one.
    pub(super) async fn views(mut self) -> Result<[i128; PARTITIONS as usize], StoreError> {
        let session = &mut self.session;
        let mut sums = [0; PARTITIONS as usize];
        // By place in the file, so that each statement reads a stretch of it and none of the sketches
        // that lie elsewhere. Rows don't move for who reads one moment, and none is behind the end.
        let pages = "select pg_relation_size('videos') / current_setting('block_size')::bigint";
        let pages =
            session.fetch_all::<(i64,)>(sqlx::query_as(pages)).await?.first().map_or(0, |(pages,)| *pages);
        let mut page = 0;
        while page < pages {
            let next = page + PAGES_AT_ONCE;
            let views = "select partition, sum(views)::text from videos
                where ctid >= $1::text::tid and ctid < $2::text::tid and partition is not null
                group by partition";
            let query = sqlx::query_as(views).bind(format!("({page},0)")).bind(format!("({next},0)"));
            for (partition, views) in session.fetch_all::<(i16, String)>(query).await? {
                add(&mut sums, partition, &views)?;
            }
            page = next;
        }
        self.session.end().await?;
        Ok(sums)
    }

    /// Gives the connection back.
    pub(super) async fn leave(self) {
        self.session.roll_back().await;
    }
}

/// Notes plays that came or went in other ways than by being counted.
async fn note(
    session: &mut Session,
    plays: &[(Partition, i128)],
    kind: &'static str,
    reason: &str,
) -> Result<(), StoreError> {
    if plays.is_empty() {
        return Ok(());
    }
    let (partitions, plays): (Vec<i16>, Vec<String>) =
        plays.iter().map(|(partition, plays)| (partition.number(), plays.to_string())).unzip();
    let insert = "insert into play_adjustment (partition, plays, kind, reason)
        select partition, plays::numeric, $3, $4
        from unnest($1::smallint[], $2::text[]) as fresh(partition, plays)";
    session.execute(sqlx::query(insert).bind(partitions).bind(plays).bind(kind).bind(reason)).await?;
    Ok(())
}

/// Adds a sum that is over any number of 64 bits to that of its partition.
fn add(sums: &mut [i128; PARTITIONS as usize], partition: i16, plays: &str) -> Result<(), StoreError> {
    let number: i128 = plays.parse().map_err(|error| {
        StoreError::unexpected(Part::Postgres, format!("a sum of plays is {plays:?}: {error}"))
    })?;
    // A partition that is none of ours was written by hand and is of no video.
    if let Some(partition) = Partition::from_number(partition.into()) {
        sums[partition.index()] += number;
    }
    Ok(())
}
