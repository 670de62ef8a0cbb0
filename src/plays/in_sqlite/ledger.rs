//! Counts plays on disk: one transaction a batch, in which deciding and counting happen together.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use chrono_tz::Tz;
use moka::sync::Cache;
use sqlx::SqliteConnection;
use tokio::sync::Mutex;

use super::{
    books,
    decide::{Decided, Key, Played, TimedPlay, decide, keys},
    lately::Lately,
    sketch::ViewerSketch,
    tables::{self, Total},
};
use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    failpoint,
    ids::VideoId,
    store::sqlite::{Sqlite, is_refused_row, store_error},
};

/// Sketches kept ready, in bytes; each is at most 16 KB.
const SKETCHES: u64 = 32 << 20;

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
    /// None where it isn't known.
    lately: Mutex<Option<Lately>>,
}

impl Ledger {
    pub(super) fn new(sqlite: Sqlite, window: Duration, timezone: Tz) -> Self {
        let sketches = Cache::builder()
            .max_capacity(SKETCHES)
            .weigher(|_, sketch: &Arc<ViewerSketch>| u32::try_from(sketch.size()).unwrap_or(u32::MAX))
            .build();
        Self { sqlite, window, timezone, sketches, lately: Mutex::default() }
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
            let committing = async {
                match self.commit(&plays[part.clone()]).await {
                    Err(error) if !is_refused_row(&error) => Err(store_error(error)),
                    done => Ok(done),
                }
            };
            match failpoint::step("plays.commit", Part::Sqlite, committing).await {
                Ok(Ok(done)) => {
                    counted(part, &done);
                    results.extend(done.counts.into_iter().map(Ok));
                }
                Err(error) => {
                    // SQLite itself fails: each part that remains would wait for it again.
                    results.resize_with(plays.len(), || Err(error.clone()));
                    return results;
                }
                Ok(Err(_)) if part.len() > 1 => {
                    let middle = part.start + part.len() / 2;
                    todo.push(middle..part.end);
                    todo.push(part.start..middle);
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = %error, "a play can't be counted: {error}");
                    results.push(Err(store_error(error)));
                }
            }
        }
        results
    }

    /// One transaction. After an error nothing of it is counted, or, where the commit itself
    /// failed, all or nothing.
    async fn commit(&self, plays: &[TimedPlay]) -> Result<Counted, sqlx::Error> {
        let mut held = self.lately.lock().await;
        let mut transaction = self.sqlite.write().await?;
        if held.is_none() {
            *held = Some(Lately::read(&mut transaction).await?);
        }
        let lately = held.as_ref().expect("it was read where it wasn't there");
        let keys = keys(plays);
        let (seen, are_others) = seen(&mut transaction, lately, &keys).await?;
        let decided = decide(plays, &keys, &seen, self.window, self.timezone);
        if decided.videos.is_empty() {
            // Nothing to write, so nothing to wait for.
            return Ok(Counted { counts: decided.counts, totals: Vec::new() });
        }
        let sketches = self.sketches(&mut transaction, &decided).await?;
        if are_others {
            books::adopt_played(&mut transaction, &decided).await?;
        }
        let totals = tables::add(&mut transaction, &decided, &sketches).await?;
        let moved = lately.make_room(&mut transaction, &decided).await?;
        // Where a commit fails, or is given up, what is on disk is unknown: then it is read anew.
        let lately = held.take();
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
        *held = lately.map(|lately| lately.with(&decided, moved));
        Ok(Counted { counts: decided.counts, totals })
    }

    /// The sketches of these videos with the new viewers in them, and whether that changed them.
    async fn sketches(
        &self,
        connection: &mut SqliteConnection,
        decided: &Decided<'_>,
    ) -> Result<HashMap<VideoId, (ViewerSketch, bool)>, sqlx::Error> {
        let with_viewers = || decided.videos.iter().filter(|(_, played)| !played.viewers.is_empty());
        let mut kept: HashMap<&VideoId, Arc<ViewerSketch>> =
            with_viewers().filter_map(|(video, _)| Some((video, self.sketches.get(video)?))).collect();
        let missing = with_viewers().filter(|(video, _)| !kept.contains_key(video));
        let missing: Vec<&str> = missing.map(|(video, _)| video.as_str()).collect();
        let stored =
            if missing.is_empty() { HashMap::new() } else { tables::sketches(connection, &missing).await? };
        let with_new = |(video, played): (&VideoId, &Played)| {
            let mut sketch = match (kept.remove(video), stored.get(video.as_str())) {
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

/// Since when each of `keys` is known, and whether there are videos that were not made by counting.
async fn seen(
    connection: &mut SqliteConnection,
    lately: &Lately,
    keys: &[Key],
) -> Result<(Vec<Option<Timestamp>>, bool), sqlx::Error> {
    let mut seen: Vec<Option<Timestamp>> = keys.iter().map(|key| lately.seen(key)).collect();
    let asked: Vec<&Key> =
        keys.iter().zip(&seen).filter(|(_, seen)| seen.is_none()).map(|(key, _)| key).collect();
    let (stored, are_others) = tables::seen(connection, &asked).await?;
    for (seen, stored) in seen.iter_mut().filter(|seen| seen.is_none()).zip(stored) {
        *seen = stored;
    }
    Ok((seen, are_others))
}
