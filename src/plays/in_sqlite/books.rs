//! The tables of conservation. What is witnessed is written together with the plays, so only what
//! happens to the file itself (somebody else writes into it, a row is damaged) can show.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{SqliteConnection, SqlitePool};

use super::{decide::Decided, tables::Around};
use crate::{
    error::StoreError,
    ids::{PARTITIONS, Partition},
    jobs::Job,
    plays::audit::{Books, Reading, Terms},
    store::sqlite::{Sqlite, json, store_error},
};

/// Rows of videos that are read in one step.
const READ_AT_ONCE: i64 = 10_000;

/// Rows that are taken in in one transaction, for which plays wait: each may have a sketch of 16 KB,
/// which is written anew with it.
const ADOPTED_AT_ONCE: i64 = 200;

/// Transactions in one run.
const STEPS: usize = 50;

const EVERY: Duration = Duration::from_secs(60);

type Sums = [i128; PARTITIONS as usize];

/// The books of this backend.
pub struct SqliteBooks {
    readers: SqlitePool,
    writer: SqlitePool,
}

impl SqliteBooks {
    /// Those of a file that this process has open.
    #[must_use]
    pub fn of(sqlite: &Sqlite) -> Self {
        Self { readers: sqlite.readers().clone(), writer: sqlite.writer().clone() }
    }

    /// Those of a file that a service may have.
    #[must_use]
    pub fn visiting(pool: SqlitePool) -> Self {
        Self { readers: pool.clone(), writer: pool }
    }

    async fn look(&self) -> Result<Reading, sqlx::Error> {
        // All of it as it was at the first statement; who writes isn't held up.
        let mut moment = self.readers.begin().await?;
        let mut terms = [Terms::default(); PARTITIONS as usize];

        let witnessed = sqlx::query_as("select partition, plays from play_witness");
        let witnessed: Vec<(i64, i64)> = witnessed.fetch_all(&mut *moment).await?;
        for (partition, plays) in witnessed {
            if let Some(partition) = Partition::from_number(partition) {
                terms[partition.index()].witnessed += i128::from(plays);
            }
        }
        let adjustments = sqlx::query_as("select partition, kind, plays from play_adjustment");
        let adjustments: Vec<(i64, String, i64)> = adjustments.fetch_all(&mut *moment).await?;
        for (partition, kind, plays) in adjustments {
            if let Some(partition) = Partition::from_number(partition) {
                let terms = &mut terms[partition.index()];
                let sum = if kind == "imported" { &mut terms.imported } else { &mut terms.adjustments };
                *sum += i128::from(plays);
            }
        }
        // The column partition lies behind the sketch: it is cheaper to reckon it anew.
        let mut last = i64::MIN;
        loop {
            let some = sqlx::query_as(
                "select rowid, video_id, views from videos where rowid > ? order by rowid limit ?",
            );
            let rows: Vec<(i64, String, i64)> =
                some.bind(last).bind(READ_AT_ONCE).fetch_all(&mut *moment).await?;
            for (rowid, video, views) in &rows {
                terms[Partition::of(video).index()].views += i128::from(*views);
                last = *rowid;
            }
            if (rows.len() as u64) < READ_AT_ONCE.unsigned_abs() {
                break;
            }
        }
        // Those that are not taken in yet are in no term.
        let mut after = String::new();
        loop {
            let some = sqlx::query_as(
                "select video_id, views from videos where partition is null and video_id > ? \
                 order by video_id limit ?",
            );
            let rows: Vec<(String, i64)> =
                some.bind(&after).bind(READ_AT_ONCE).fetch_all(&mut *moment).await?;
            for (video, views) in &rows {
                terms[Partition::of(video).index()].views -= i128::from(*views);
            }
            match rows.into_iter().last() {
                Some((video, _)) => after = video,
                None => break,
            }
        }
        moment.rollback().await?;
        Ok(terms.map(Some))
    }

    async fn write(&self, plays: &[(Partition, i128)], reason: &str) -> Result<(), sqlx::Error> {
        let mut transaction = self.writer.begin_with("begin immediate").await?;
        note(&mut transaction, plays.iter().copied(), "adjusted", reason).await?;
        transaction.commit().await
    }
}

#[async_trait]
impl Books for SqliteBooks {
    async fn read(&self) -> Result<Reading, StoreError> {
        self.look().await.map_err(store_error)
    }

    async fn adjust(&self, differences: &[(Partition, i128)], reason: &str) -> Result<(), StoreError> {
        self.write(differences, reason).await.map_err(store_error)
    }
}

/// Notes plays that came or went in other ways than by being counted.
async fn note(
    connection: &mut SqliteConnection,
    plays: impl Iterator<Item = (Partition, i128)>,
    kind: &str,
    reason: &str,
) -> Result<(), sqlx::Error> {
    let mut rows: Vec<(i16, i64)> = Vec::new();
    for (partition, mut left) in plays {
        // A sum of totals may be over any number that a column takes.
        while left != 0 {
            let most = if left > 0 { i64::MAX } else { i64::MIN };
            let part = i64::try_from(left).unwrap_or(most);
            rows.push((partition.number(), part));
            left -= i128::from(part);
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "insert into play_adjustment (partition, plays, kind, reason) \
         select value ->> 0, value ->> 1, ?, ? from json_each(?)",
    )
    .bind(kind)
    .bind(reason)
    .bind(json(&rows))
    .execute(connection)
    .await?;
    Ok(())
}

/// Writes down how many plays are counted. "where true" tells the parser that "on conflict" belongs to the
/// insert.
pub(super) const WITNESS: Around = (
    "insert into play_witness (partition, plays) select value ->> 0, value ->> 1 from json_each(",
    ") where true on conflict do update set plays = plays + excluded.plays",
);

/// The rows of that: how many plays of each partition are counted.
pub(super) fn witnessed(decided: &Decided<'_>) -> String {
    let mut plays = [0_i64; PARTITIONS as usize];
    for (video, played) in &decided.videos {
        plays[video.partition().index()] += played.plays;
    }
    let rows = Partition::all().map(|partition| (partition.number(), plays[partition.index()]));
    let rows: Vec<(i16, i64)> = rows.filter(|(_, plays)| *plays > 0).collect();
    json(&rows)
}

/// Takes in those of the videos that are about to be counted which were not made by counting: what
/// they hold came from elsewhere.
pub(super) async fn adopt_played(
    connection: &mut SqliteConnection,
    decided: &Decided<'_>,
) -> Result<(), sqlx::Error> {
    let played: Vec<&str> = decided.videos.keys().map(crate::ids::VideoId::as_str).collect();
    let rows = sqlx::query_as(
        "select video_id, views from videos where partition is null \
         and video_id in (select value from json_each(?))",
    );
    let rows = rows.bind(json(&played)).fetch_all(&mut *connection).await?;
    adopt(connection, rows).await
}

async fn adopt(connection: &mut SqliteConnection, rows: Vec<(String, i64)>) -> Result<(), sqlx::Error> {
    let mut imported: Sums = Default::default();
    let mut placed: Vec<(&str, i16)> = Vec::with_capacity(rows.len());
    for (video, views) in &rows {
        let partition = Partition::of(video);
        imported[partition.index()] += i128::from(*views);
        placed.push((video, partition.number()));
    }
    sqlx::query(
        "update videos set partition = fresh.value ->> 1 from json_each(?) as fresh \
         where videos.video_id = fresh.value ->> 0",
    )
    .bind(json(&placed))
    .execute(&mut *connection)
    .await?;
    let imported = Partition::all().map(|partition| (partition, imported[partition.index()]));
    note(connection, imported, "imported", "rows that were there before the plays").await
}

/// The job "adopt": takes in rows that were there before this version, or that somebody made by hand.
pub(super) struct Adopt {
    pub(super) sqlite: Sqlite,
}

#[async_trait]
impl Job for Adopt {
    fn name(&self) -> &'static str {
        "adopt"
    }

    fn first_in(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn every(&self) -> Duration {
        EVERY
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        for _ in 0..STEPS {
            if !self.step().await.map_err(store_error)? {
                return Ok(None);
            }
        }
        // More than one run may do: go on soon.
        Ok(Some(Duration::from_secs(1)))
    }
}

impl Adopt {
    /// Answers whether more are left.
    async fn step(&self) -> Result<bool, sqlx::Error> {
        let mut transaction = self.sqlite.write().await?;
        let some = sqlx::query_as(
            "select video_id, views from videos where partition is null order by video_id limit ?",
        );
        let rows: Vec<(String, i64)> = some.bind(ADOPTED_AT_ONCE).fetch_all(&mut *transaction).await?;
        if rows.is_empty() {
            return Ok(false);
        }
        adopt(&mut transaction, rows).await?;
        transaction.commit().await?;
        Ok(true)
    }
}
