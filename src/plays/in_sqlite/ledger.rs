//! Counts plays on disk: one transaction a batch, in which deciding and counting happen together.
//!
//! A batch takes the same handful of statements however many plays are in it.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use chrono::NaiveDate;
use chrono_tz::Tz;
use moka::sync::Cache;
use sqlx::{QueryBuilder, Sqlite as Db, Transaction};

use super::{sketch::ViewerSketch, totals::Total};
use crate::{
    clock::Timestamp,
    error::StoreError,
    ids::{VideoId, ViewerId},
    plays::Play,
    store::sqlite::{Sqlite, is_refused_row, json, store_error},
};

/// Sketches kept ready, in bytes; each is at most 16 KB.
const SKETCHES: u64 = 32 << 20;

/// Rows of `videos` in one statement: the text of each length is prepared once.
const VIDEOS_AT_ONCE: usize = 64;

/// A play and when it came in.
#[derive(Clone, Debug)]
pub(super) struct TimedPlay {
    pub(super) play: Play,
    pub(super) at: Timestamp,
}

impl TimedPlay {
    /// What must not have been seen within the dedupe window for this play to count.
    fn keys(&self) -> impl Iterator<Item = String> {
        let viewer = self.play.viewer.as_ref().map(|viewer| format!("u:{viewer}"));
        let play_id = self.play.play_id.as_ref().map(|id| format!("p:{id}"));
        viewer.into_iter().chain(play_id)
    }
}

/// Whether something seen at `seen` still bars a play at `at`. Seen far in the future, it was
/// written under a clock that was wrong.
pub(super) fn is_within(window: Duration, seen: Timestamp, at: Timestamp) -> bool {
    at.since(seen) < window && seen.since(at) < window
}

/// What became of a batch that was committed.
#[derive(Debug)]
pub(super) struct Counted {
    /// For each play, in order, whether it counts: `false` is a duplicate.
    pub(super) counts: Vec<bool>,
    /// The new totals of the videos that were played.
    pub(super) totals: Vec<(VideoId, Total)>,
}

/// The tables of plays.
#[derive(Debug)]
pub(super) struct Ledger {
    sqlite: Sqlite,
    window: Duration,
    timezone: Tz,
    sketches: Cache<VideoId, Arc<ViewerSketch>>,
}

impl Ledger {
    pub(super) fn new(sqlite: Sqlite, window: Duration, timezone: Tz) -> Self {
        let sketches = Cache::builder()
            .max_capacity(SKETCHES)
            .weigher(|_, sketch: &Arc<ViewerSketch>| u32::try_from(sketch.size()).unwrap_or(u32::MAX))
            .build();
        Self { sqlite, window, timezone, sketches }
    }

    /// Counts plays and commits them together; a play that its row refuses fails alone. What is
    /// told to `counted` is on disk. Callers take turns.
    pub(super) async fn record(
        &self,
        plays: &[TimedPlay],
        mut counted: impl FnMut(Range<usize>, &Counted),
    ) -> Vec<Result<bool, StoreError>> {
        let mut results = Vec::with_capacity(plays.len());
        // The parts not yet done, the first one last.
        let mut todo: Vec<Range<usize>> = std::iter::once(0..plays.len()).collect();
        while let Some(part) = todo.pop() {
            match self.commit(&plays[part.clone()]).await {
                Ok(done) => {
                    counted(part, &done);
                    results.extend(done.counts.into_iter().map(Ok));
                }
                Err(error) if is_refused_row(&error) && part.len() > 1 => {
                    let middle = part.start + part.len() / 2;
                    todo.push(middle..part.end);
                    todo.push(part.start..middle);
                }
                Err(error) => {
                    let refused = is_refused_row(&error);
                    let error = store_error(error);
                    if refused {
                        tracing::warn!(error = %error, "a play can't be counted: {error}");
                        results.push(Err(error));
                    } else {
                        // SQLite itself fails: the parts that remain would each wait for it again.
                        results.resize_with(plays.len(), || Err(error.clone()));
                        return results;
                    }
                }
            }
        }
        results
    }

    /// One transaction. After an error nothing of it is counted, or, where the commit itself
    /// failed, all or nothing.
    async fn commit(&self, plays: &[TimedPlay]) -> Result<Counted, sqlx::Error> {
        let mut transaction = self.sqlite.write().await?;
        let seen = self.seen(&mut transaction, plays).await?;
        let decided = self.decide(plays, seen);
        if decided.videos.is_empty() {
            // Nothing to write, so nothing to wait for.
            return Ok(Counted { counts: decided.counts, totals: Vec::new() });
        }
        let sketches = self.sketches(&mut transaction, &decided).await?;
        see(&mut transaction, &decided).await?;
        let totals = add(&mut transaction, &decided, &sketches).await?;
        add_daily(&mut transaction, &decided).await?;
        let committed = transaction.commit().await;
        for (video, (sketch, changed)) in sketches {
            match committed {
                Ok(()) if changed => self.sketches.insert(video, Arc::new(sketch)),
                Ok(()) => {}
                // Whether it was committed is unknown, so whether the kept one is right as well.
                Err(_) => self.sketches.invalidate(&video),
            }
        }
        committed?;
        Ok(Counted { counts: decided.counts, totals })
    }

    /// Which keys of these plays are in the table, and since when.
    async fn seen(
        &self,
        transaction: &mut Transaction<'static, Db>,
        plays: &[TimedPlay],
    ) -> Result<HashMap<(VideoId, String), Timestamp>, sqlx::Error> {
        let asked: Vec<(VideoId, String)> =
            plays.iter().flat_map(|play| play.keys().map(|key| (play.play.video.clone(), key))).collect();
        let rows: Vec<(&str, &str)> =
            asked.iter().map(|(video, key)| (video.as_str(), key.as_str())).collect();
        let found: Vec<(i64, i64)> = sqlx::query_as(
            "select asked.key, seen.counted_at from json_each(?) as asked \
             join play_seen as seen on seen.video_id = asked.value ->> 0 and seen.key = asked.value ->> 1",
        )
        .bind(json(&rows))
        .fetch_all(&mut **transaction)
        .await?;
        let mut asked: Vec<Option<(VideoId, String)>> = asked.into_iter().map(Some).collect();
        let at = |(index, at): (i64, i64)| {
            let key = asked.get_mut(usize::try_from(index).ok()?)?.take()?;
            Some((key, Timestamp::from_millis(at)))
        };
        Ok(found.into_iter().filter_map(at).collect())
    }

    fn decide(&self, plays: &[TimedPlay], mut seen: HashMap<(VideoId, String), Timestamp>) -> Decided {
        let mut decided = Decided::default();
        for timed in plays {
            let TimedPlay { play, at } = timed;
            let keys: Vec<_> = timed.keys().map(|key| (play.video.clone(), key)).collect();
            let is_new = |key| seen.get(key).is_none_or(|seen| !is_within(self.window, *seen, *at));
            let counts = keys.iter().all(is_new);
            decided.counts.push(counts);
            if counts {
                let played = decided.videos.entry(play.video.clone()).or_default();
                played.plays += 1;
                played.last = played.last.max(at.millis());
                played.viewers.extend(play.viewer.clone());
                let day = at.to_utc().with_timezone(&self.timezone).date_naive();
                *decided.days.entry((play.video.clone(), day)).or_default() += 1;
                for key in keys {
                    seen.insert(key.clone(), *at);
                    decided.seen.insert(key, *at);
                }
            }
        }
        decided
    }

    /// The sketches of these videos with the new viewers in them, and whether that changed them.
    async fn sketches(
        &self,
        transaction: &mut Transaction<'static, Db>,
        decided: &Decided,
    ) -> Result<HashMap<VideoId, (ViewerSketch, bool)>, sqlx::Error> {
        let with_viewers = || decided.videos.iter().filter(|(_, played)| !played.viewers.is_empty());
        let mut sketches: HashMap<&VideoId, Arc<ViewerSketch>> =
            with_viewers().filter_map(|(video, _)| Some((video, self.sketches.get(video)?))).collect();
        let missing: Vec<&str> = with_viewers()
            .filter(|(video, _)| !sketches.contains_key(video))
            .map(|(video, _)| video.as_str())
            .collect();
        let mut stored: HashMap<String, Vec<u8>> = HashMap::new();
        if !missing.is_empty() {
            let rows: Vec<(String, Vec<u8>)> = sqlx::query_as(
                "select video_id, viewer_sketch from videos \
                 where video_id in (select value from json_each(?)) and viewer_sketch is not null",
            )
            .bind(json(&missing))
            .fetch_all(&mut **transaction)
            .await?;
            stored.extend(rows);
        }
        let with_new = |(video, played): (&VideoId, &Played)| {
            let mut sketch = match (sketches.remove(video), stored.get(video.as_str())) {
                (Some(kept), _) => Arc::unwrap_or_clone(kept),
                (None, Some(bytes)) => ViewerSketch::from_bytes(bytes).unwrap_or_else(|error| {
                    tracing::warn!(error = %error, "the unique viewers of a video are counted anew: {error}");
                    ViewerSketch::empty()
                }),
                (None, None) => ViewerSketch::empty(),
            };
            let mut changed = false;
            for viewer in &played.viewers {
                changed |= sketch.insert(viewer);
            }
            (video.clone(), (sketch, changed))
        };
        Ok(with_viewers().map(with_new).collect())
    }
}

/// What a batch adds.
#[derive(Debug, Default)]
struct Decided {
    counts: Vec<bool>,
    videos: HashMap<VideoId, Played>,
    days: HashMap<(VideoId, NaiveDate), i64>,
    seen: HashMap<(VideoId, String), Timestamp>,
}

#[derive(Debug, Default)]
struct Played {
    plays: i64,
    last: i64,
    viewers: HashSet<ViewerId>,
}

async fn see(transaction: &mut Transaction<'static, Db>, decided: &Decided) -> Result<(), sqlx::Error> {
    let rows: Vec<(&str, &str, i64)> =
        decided.seen.iter().map(|((video, key), at)| (video.as_str(), key.as_str(), at.millis())).collect();
    // "where true" tells the parser that "on conflict" belongs to the insert.
    sqlx::query(
        "insert into play_seen (video_id, key, counted_at) \
         select value ->> 0, value ->> 1, value ->> 2 from json_each(?) where true \
         on conflict do update set counted_at = excluded.counted_at",
    )
    .bind(json(&rows))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

async fn add(
    transaction: &mut Transaction<'static, Db>,
    decided: &Decided,
    sketches: &HashMap<VideoId, (ViewerSketch, bool)>,
) -> Result<Vec<(VideoId, Total)>, sqlx::Error> {
    let mut totals = Vec::with_capacity(decided.videos.len());
    let videos: Vec<_> = decided.videos.iter().collect();
    for some in videos.chunks(VIDEOS_AT_ONCE) {
        let mut insert = QueryBuilder::<Db>::new(
            "insert into videos (video_id, views, unique_viewers, created_at, updated_at, viewer_sketch) ",
        );
        insert.push_values(some, |mut row, (video, played)| {
            let sketch = sketches.get(*video);
            let unique = sketch.map_or(0, |(sketch, _)| i64::try_from(sketch.estimate()).unwrap_or(i64::MAX));
            let bytes = sketch.filter(|(_, changed)| *changed).map(|(sketch, _)| sketch.to_bytes());
            row.push_bind(video.as_str())
                .push_bind(played.plays)
                .push_bind(unique)
                .push_bind(played.last)
                .push_bind(played.last)
                .push_bind(bytes);
        });
        insert.push(
            " on conflict do update set views = views + excluded.views, \
             unique_viewers = max(unique_viewers, excluded.unique_viewers), \
             updated_at = excluded.updated_at, \
             viewer_sketch = coalesce(excluded.viewer_sketch, viewer_sketch) \
             returning video_id, views, unique_viewers",
        );
        let rows: Vec<(String, i64, i64)> = insert.build_query_as().fetch_all(&mut **transaction).await?;
        for (video, views, unique) in rows {
            if let Ok(video) = VideoId::parse(&video) {
                totals.push((video, Total::from_row(views, unique)));
            }
        }
    }
    Ok(totals)
}

async fn add_daily(transaction: &mut Transaction<'static, Db>, decided: &Decided) -> Result<(), sqlx::Error> {
    let rows: Vec<(&str, String, i64)> =
        decided.days.iter().map(|((video, day), plays)| (video.as_str(), day.to_string(), *plays)).collect();
    sqlx::query(
        "insert into video_daily (video_id, day, views) \
         select value ->> 0, value ->> 1, value ->> 2 from json_each(?) where true \
         on conflict do update set views = views + excluded.views",
    )
    .bind(json(&rows))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}
