//! How far each part of a Kafka topic is counted, and what is remembered for it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Ledger, video_of};
use crate::{
    error::{Part, StoreError},
    ids::VideoId,
    store::postgres::Lane,
};

/// Rows that one step forgets, and how many steps at least are made in one go: no statement takes long, and no
/// row that a window waits for is held for long.
const FORGOTTEN_AT_ONCE: i64 = 1_000;
const FORGOTTEN_STEPS: u64 = 50;

/// How much longer than the dedupe window a play is remembered: the times of records may go back by so
/// much before one that comes again counts twice.
const LATE: Duration = Duration::from_secs(3_600);

/// Videos in one step of [`Ledger::unraised`].
const UNRAISED_AT_ONCE: i64 = 500;

/// One part of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The topic's name.
    pub topic: String,
    /// The topic's id: another topic of the same name has another one.
    pub topic_id: Uuid,
    /// Which part of it.
    pub partition: i32,
}

/// How far a part of a topic is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The row's short name.
    pub number: i32,
    /// The offset of the first record that isn't counted.
    pub next_offset: i64,
    /// As whom its plays are witnessed.
    pub witness: Uuid,
    /// The earliest time of a record in the window that was counted last.
    pub reached: Option<DateTime<Utc>>,
    /// The earliest time of a play that Redis's totals may lack.
    pub unraised_since: Option<DateTime<Utc>>,
}

/// What Redis is told of a video that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Which.
    pub video: VideoId,
    /// Its total.
    pub views: i64,
    /// The sketch of its unique viewers, where there is a new one.
    pub sketch: Option<Vec<u8>>,
}

type Row = (i32, i64, Uuid, Option<DateTime<Utc>>, Option<DateTime<Utc>>);

impl Ledger {
    /// How far a part of a topic is counted: one that nobody has counted yet begins at 0.
    ///
    /// # Errors
    /// The database is away.
    pub async fn position(&self, place: &Place) -> Result<Position, StoreError> {
        let mut session = self.postgres.session(Lane::Flush).await?;
        let read = "select position, next_offset, witness, reached, unraised_since from kafka_offset
            where topic = $1 and partition = $2 and topic_id = $3";
        let begin = "insert into kafka_offset (topic, partition, topic_id, witness) values ($1, $2, $3, $4)
            on conflict do nothing";
        let mut found = None;
        // Twice: what isn't there is made, by this call or by another at the same moment.
        for _ in 0..2 {
            let query = sqlx::query_as(read).bind(&place.topic).bind(place.partition).bind(place.topic_id);
            let rows: Vec<Row> = session.fetch_all(query).await?;
            found = rows.into_iter().next();
            if found.is_some() {
                break;
            }
            let query = sqlx::query(begin).bind(&place.topic).bind(place.partition).bind(place.topic_id);
            session.execute(query.bind(Uuid::now_v7())).await?;
        }
        session.end().await?;
        let (number, next_offset, witness, reached, unraised_since) =
            found.ok_or_else(|| StoreError::unexpected(Part::Postgres, "a row of kafka_offset is gone"))?;
        Ok(Position { number, next_offset, witness, reached, unraised_since })
    }

    /// Whether nothing at all was counted into this database.
    ///
    /// # Errors
    /// The database is away.
    pub async fn is_empty(&self) -> Result<bool, StoreError> {
        let any = "select exists (select from videos) or exists (select from video_daily)
            or exists (select from kafka_offset where next_offset > 0) or exists (select from play_seen)
            or exists (select from play_refused) or exists (select from play_witness)
            or exists (select from play_batch)";
        let any: Vec<(bool,)> = self.postgres.fetch_all(Lane::Reads, sqlx::query_as(any)).await?;
        Ok(any == [(false,)])
    }

    /// The next of the videos behind `after` that were counted by a position since then, as they are now.
    ///
    /// # Errors
    /// The database is away.
    pub async fn unraised(
        &self,
        position: &Position,
        since: DateTime<Utc>,
        after: Option<&VideoId>,
    ) -> Result<Vec<Counted>, StoreError> {
        let some = "select video_id, views, viewer_sketch from videos where video_id in (
                select distinct video_id from play_seen
                where position = $1 and counted_at >= $2 and video_id > $3 order by video_id limit $4)
            order by video_id";
        let after = after.map_or("", VideoId::as_str);
        let query = sqlx::query_as(some).bind(position.number).bind(since).bind(after).bind(UNRAISED_AT_ONCE);
        let rows: Vec<(String, i64, Option<Vec<u8>>)> = self.postgres.fetch_all(Lane::Flush, query).await?;
        let counted = |(video, views, sketch): (String, i64, _)| {
            Ok(Counted { video: video_of(&video)?, views, sketch })
        };
        rows.into_iter().map(counted).collect()
    }

    /// Notes that Redis's totals lack nothing of what was counted up to here.
    ///
    /// # Errors
    /// The database is away; they are looked at again then.
    pub async fn all_raised(&self, position: &Position) -> Result<(), StoreError> {
        let note = "update kafka_offset set unraised_since = null where position = $1 and next_offset = $2";
        let mut session = self.postgres.session(Lane::Flush).await?;
        session.execute(sqlx::query(note).bind(position.number).bind(position.next_offset)).await?;
        session.end().await?;
        Ok(())
    }

    /// Forgets who was counted in a part of a topic so long before its last records that nothing in the
    /// log can be told by it any more, in topics that had its name before as well. Records decide: a backlog
    /// finds what it needs however late it is. A clock only bars records of the future, which would have all
    /// forgotten. One go forgets more than the `brought` plays since the last one may be known by. Answers how
    /// many it forgot.
    ///
    /// # Errors
    /// The database is away.
    pub async fn forget_seen(
        &self,
        position: &Position,
        window: Duration,
        brought: u64,
    ) -> Result<u64, StoreError> {
        let forget = "with here as (
                select topic, partition, least(reached, unraised_since, now()) - make_interval(secs => $2) as until
                from kafka_offset where position = $1 and reached is not null
            )
            delete from play_seen where (video_id, viewer) in (
                select video_id, viewer from play_seen
                where position in (
                        select kafka_offset.position from kafka_offset join here using (topic, partition))
                    and counted_at < (select until from here)
                order by counted_at limit $3 for update skip locked)";
        let mut forgotten = 0;
        let at_once = FORGOTTEN_AT_ONCE.unsigned_abs();
        // A play is known by its viewer and by its playId.
        for _ in 0..FORGOTTEN_STEPS + 2 * brought / at_once {
            let mut session = self.postgres.session(Lane::Flush).await?;
            let query = sqlx::query(forget).bind(position.number).bind((window + LATE).as_secs_f64());
            let deleted = session.execute(query.bind(FORGOTTEN_AT_ONCE)).await?;
            session.end().await?;
            forgotten += deleted;
            if deleted < at_once {
                break;
            }
        }
        Ok(forgotten)
    }
}
