//! The statements over the tables of plays: one each, however many rows.

use std::collections::HashMap;

use sqlx::{QueryBuilder, Sqlite as Db, SqliteConnection};

use super::{
    books,
    decide::{Decided, Key, Played},
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

/// Since when each of `keys` is in the table, and whether there are videos that were not made by counting.
pub(super) async fn seen(
    connection: &mut SqliteConnection,
    keys: &[&Key],
) -> Result<(Vec<Option<Timestamp>>, bool), sqlx::Error> {
    let asked: Vec<(&str, &str)> = keys.iter().map(|key| (key.video.as_str(), key.text.as_str())).collect();
    let rows: Vec<(i64, i64)> = sqlx::query_as(
        "select asked.key, seen.counted_at from json_each(?) as asked \
         join play_seen as seen on seen.video_id = asked.value ->> 0 and seen.key = asked.value ->> 1 \
         union all select -1, 0 where exists (select 1 from videos where partition is null)",
    )
    .bind(json(&asked))
    .fetch_all(connection)
    .await?;
    let mut seen = vec![None; keys.len()];
    let mut are_others = false;
    for (index, counted_at) in rows {
        match usize::try_from(index) {
            Ok(index) => seen[index] = Some(Timestamp::from_millis(counted_at)),
            Err(_) => are_others = true,
        }
    }
    Ok((seen, are_others))
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

/// Writes all that a batch adds and answers the new totals. `sketches` holds those that changed too.
///
/// One statement goes to SQLite's thread after the other; what can is sent as one text, because each way
/// there and back costs as much as writing several plays.
pub(super) async fn add(
    connection: &mut SqliteConnection,
    decided: &Decided<'_>,
    sketches: &HashMap<VideoId, (ViewerSketch, bool)>,
) -> Result<Vec<(VideoId, Total)>, sqlx::Error> {
    let mut totals = Vec::with_capacity(decided.videos.len());
    let videos: Vec<_> = decided.videos.iter().collect();
    let mut chunks = videos.chunks(VIDEOS_AT_ONCE).peekable();
    while let Some(some) = chunks.next() {
        let mut write = QueryBuilder::<Db>::new("");
        add_to_videos(&mut write, some, sketches);
        if chunks.peek().is_none() {
            // Last: a day belongs to a video that is there.
            for (statement, rows) in [
                (books::WITNESS, books::witnessed(decided)),
                (SEE, seen_rows(decided)),
                (ADD_DAILY, daily_rows(decided)),
            ] {
                let (before, after) = statement;
                write.push("; ").push(before).push_bind(rows).push(after);
            }
        }
        let rows: Vec<(String, i64, i64)> = write.build_query_as().fetch_all(&mut *connection).await?;
        for (video, views, unique) in rows {
            if let Ok(video) = VideoId::parse(&video) {
                totals.push((video, Total::of_row(views, unique)));
            }
        }
    }
    Ok(totals)
}

/// A statement, in front of its rows and behind them.
pub(super) type Around = (&'static str, &'static str);

/// Remembers the keys of what counts.
const SEE: Around = (
    "insert into play_seen_lately (video_id, key, counted_at) \
     select value ->> 0, value ->> 1, value ->> 2 from json_each(",
    ")",
);

fn seen_rows(decided: &Decided<'_>) -> String {
    let rows: Vec<(&str, &str, i64)> =
        decided.seen.iter().map(|(key, at)| (key.video.as_str(), key.text.as_str(), at.millis())).collect();
    json(&rows)
}

/// Adds the plays to their days. "where true" tells the parser that "on conflict" belongs to the insert.
const ADD_DAILY: Around = (
    "insert into video_daily (video_id, day, views) \
     select value ->> 0, value ->> 1, value ->> 2 from json_each(",
    ") where true on conflict do update set views = views + excluded.views",
);

fn daily_rows(decided: &Decided<'_>) -> String {
    let rows: Vec<(&str, String, i64)> =
        decided.days.iter().map(|((video, day), plays)| (video.as_str(), day.to_string(), *plays)).collect();
    json(&rows)
}

/// Adds the plays of some videos to their totals; answers those.
fn add_to_videos(
    write: &mut QueryBuilder<Db>,
    some: &[(&VideoId, &Played)],
    sketches: &HashMap<VideoId, (ViewerSketch, bool)>,
) {
    write.push(
        "insert into videos \
         (video_id, views, unique_viewers, created_at, updated_at, viewer_sketch, partition) ",
    );
    write.push_values(some, |mut row, (video, played)| {
        let sketch = sketches.get(*video);
        let unique = sketch.map_or(0, |(sketch, _)| i64::try_from(sketch.estimate()).unwrap_or(i64::MAX));
        let bytes = sketch.filter(|(_, changed)| *changed).map(|(sketch, _)| sketch.to_bytes());
        row.push_bind(video.as_str().to_owned())
            .push_bind(played.plays)
            .push_bind(unique)
            .push_bind(played.last.millis())
            .push_bind(played.last.millis())
            .push_bind(bytes)
            .push_bind(video.partition().number());
    });
    write.push(
        " on conflict do update set views = views + excluded.views, \
         unique_viewers = max(unique_viewers, excluded.unique_viewers), \
         updated_at = excluded.updated_at, \
         viewer_sketch = coalesce(excluded.viewer_sketch, viewer_sketch) \
         returning video_id, views, unique_viewers",
    );
}
