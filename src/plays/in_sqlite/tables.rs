//! The statements over the tables of plays: one each, however many rows.

use std::collections::HashMap;

use sqlx::{QueryBuilder, Sqlite as Db, SqliteConnection};

use super::{
    decide::{Decided, Key},
    sketch::ViewerSketch,
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    ids::VideoId,
    store::sqlite::{Sqlite, json, store_error},
};

/// Rows of `videos` in one statement: the text of each length is prepared once.
const VIDEOS_AT_ONCE: usize = 64;

/// What the table says of one video; all zero where it has no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) plays: u64,
    pub(super) unique_viewers: u64,
}

impl Total {
    fn of_row(views: i64, unique_viewers: i64) -> Self {
        // The table's checks keep both from being negative.
        let plays = u64::try_from(views).unwrap_or(0);
        // An estimate: there can't be more viewers than plays.
        let unique_viewers = u64::try_from(unique_viewers).unwrap_or(0).min(plays);
        Self { plays, unique_viewers }
    }
}

/// The totals of `videos`, in order.
pub(super) async fn totals(sqlite: &Sqlite, videos: &[VideoId]) -> Result<Vec<Total>, StoreError> {
    let asked: Vec<&str> = videos.iter().map(VideoId::as_str).collect();
    let rows: Vec<(i64, i64, i64)> = sqlx::query_as(
        "select asked.key, videos.views, videos.unique_viewers from json_each(?) as asked \
         join videos on videos.video_id = asked.value",
    )
    .bind(json(&asked))
    .fetch_all(sqlite.readers())
    .await
    .map_err(store_error)?;
    let mut totals = vec![Total::default(); videos.len()];
    for (index, views, unique_viewers) in rows {
        if let Some(total) = usize::try_from(index).ok().and_then(|index| totals.get_mut(index)) {
            *total = Total::of_row(views, unique_viewers);
        }
    }
    Ok(totals)
}

/// Since when each of `keys` is in the table.
pub(super) async fn seen(
    connection: &mut SqliteConnection,
    keys: &[Key],
) -> Result<Vec<Option<Timestamp>>, sqlx::Error> {
    let asked: Vec<(&str, &str)> = keys.iter().map(|key| (key.video.as_str(), key.text.as_str())).collect();
    let rows: Vec<(i64, i64)> = sqlx::query_as(
        "select asked.key, seen.counted_at from json_each(?) as asked \
         join play_seen as seen on seen.video_id = asked.value ->> 0 and seen.key = asked.value ->> 1",
    )
    .bind(json(&asked))
    .fetch_all(connection)
    .await?;
    let mut seen = vec![None; keys.len()];
    for (index, counted_at) in rows {
        if let Some(seen) = usize::try_from(index).ok().and_then(|index| seen.get_mut(index)) {
            *seen = Some(Timestamp::from_millis(counted_at));
        }
    }
    Ok(seen)
}

/// The sketches of those of `videos` that have one, as bytes.
pub(super) async fn sketches(
    connection: &mut SqliteConnection,
    videos: &[&str],
) -> Result<HashMap<String, Vec<u8>>, sqlx::Error> {
    let rows: Vec<(String, Vec<u8>)> = sqlx::query_as(
        "select video_id, viewer_sketch from videos \
         where video_id in (select value from json_each(?)) and viewer_sketch is not null",
    )
    .bind(json(&videos))
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().collect())
}

/// Remembers the keys of what counts.
pub(super) async fn see(connection: &mut SqliteConnection, decided: &Decided<'_>) -> Result<(), sqlx::Error> {
    let rows: Vec<(&str, &str, i64)> =
        decided.seen.iter().map(|(key, at)| (key.video.as_str(), key.text.as_str(), at.millis())).collect();
    // "where true" tells the parser that "on conflict" belongs to the insert.
    sqlx::query(
        "insert into play_seen (video_id, key, counted_at) \
         select value ->> 0, value ->> 1, value ->> 2 from json_each(?) where true \
         on conflict do update set counted_at = excluded.counted_at",
    )
    .bind(json(&rows))
    .execute(connection)
    .await?;
    Ok(())
}

/// Adds the plays to the totals and answers the new ones. `sketches` holds those that changed too.
pub(super) async fn add(
    connection: &mut SqliteConnection,
    decided: &Decided<'_>,
    sketches: &HashMap<VideoId, (ViewerSketch, bool)>,
) -> Result<Vec<(VideoId, Total)>, sqlx::Error> {
    let mut totals = Vec::with_capacity(decided.videos.len());
    let videos: Vec<_> = decided.videos.iter().collect();
    for some in videos.chunks(VIDEOS_AT_ONCE) {
        let mut insert = QueryBuilder::<Db>::new(
            "insert into videos \
             (video_id, views, unique_viewers, created_at, updated_at, viewer_sketch, partition) ",
        );
        insert.push_values(some, |mut row, (video, played)| {
            let sketch = sketches.get(*video);
            let unique = sketch.map_or(0, |(sketch, _)| i64::try_from(sketch.estimate()).unwrap_or(i64::MAX));
            let bytes = sketch.filter(|(_, changed)| *changed).map(|(sketch, _)| sketch.to_bytes());
            row.push_bind(video.as_str())
                .push_bind(played.plays)
                .push_bind(unique)
                .push_bind(played.last.millis())
                .push_bind(played.last.millis())
                .push_bind(bytes)
                .push_bind(video.partition().number());
        });
        insert.push(
            " on conflict do update set views = views + excluded.views, \
             unique_viewers = max(unique_viewers, excluded.unique_viewers), \
             updated_at = excluded.updated_at, \
             viewer_sketch = coalesce(excluded.viewer_sketch, viewer_sketch) \
             returning video_id, views, unique_viewers",
        );
        let rows: Vec<(String, i64, i64)> = insert.build_query_as().fetch_all(&mut *connection).await?;
        for (video, views, unique) in rows {
            if let Ok(video) = VideoId::parse(&video) {
                totals.push((video, Total::of_row(views, unique)));
            }
        }
    }
    Ok(totals)
}

/// Adds the plays to their days.
pub(super) async fn add_daily(
    connection: &mut SqliteConnection,
    decided: &Decided<'_>,
) -> Result<(), sqlx::Error> {
    let rows: Vec<(&str, String, i64)> =
        decided.days.iter().map(|((video, day), plays)| (video.as_str(), day.to_string(), *plays)).collect();
    sqlx::query(
        "insert into video_daily (video_id, day, views) \
         select value ->> 0, value ->> 1, value ->> 2 from json_each(?) where true \
         on conflict do update set views = views + excluded.views",
    )
    .bind(json(&rows))
    .execute(connection)
    .await?;
    Ok(())
}
