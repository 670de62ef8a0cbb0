//! What was seen lately: the newest keys, in a table that only grows at its end, and in memory.
//!
//! In the big table each key lies beside the others of its video, so that a batch of plays would write
//! about as many pages as it has plays. So keys are first written in the order they come, and moved
//! there when there are many: together they share pages.

use std::collections::HashMap;

use sqlx::SqliteConnection;

use super::decide::{Decided, Key};
use crate::{clock::Timestamp, ids::VideoId};

/// Keys that are moved at a time: plays wait for it, some 20 ms.
const MOST: usize = 5_000;

/// The keys in `play_seen_lately`, and since when each is there.
#[derive(Debug)]
pub(super) struct Lately(HashMap<Key, Timestamp>);

impl Lately {
    /// Reads what an earlier process left, or this one where it doesn't know what it wrote.
    pub(super) async fn read(connection: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as("select video_id, key, counted_at from play_seen_lately order by id")
                .fetch_all(connection)
                .await?;
        let key = |(video, text, counted_at): (String, String, i64)| {
            let video = VideoId::parse(&video).ok()?;
            Some((Key { video, text }, Timestamp::from_millis(counted_at)))
        };
        Ok(Self(rows.into_iter().filter_map(key).collect()))
    }

    /// Since when a key is there.
    pub(super) fn seen(&self, key: &Key) -> Option<Timestamp> {
        self.0.get(key).copied()
    }

    /// Moves all keys to the big table, with those of `decided` that were written just now, where they
    /// are too many to stay.
    pub(super) async fn make_room(
        &self,
        connection: &mut SqliteConnection,
        decided: &Decided<'_>,
    ) -> Result<bool, sqlx::Error> {
        if self.0.len() + decided.seen.len() < MOST {
            return Ok(false);
        }
        // In the order of the table they go to: neighbours are on one page.
        sqlx::query(
            "insert into play_seen (video_id, key, counted_at) \
             select video_id, key, counted_at from play_seen_lately where true order by video_id, key, id \
             on conflict do update set counted_at = excluded.counted_at; \
             delete from play_seen_lately",
        )
        .execute(connection)
        .await?;
        Ok(true)
    }

    /// The same once `decided` is on disk, and what was moved.
    pub(super) fn with(mut self, decided: &Decided<'_>, moved: bool) -> Self {
        if moved {
            self.0.clear();
        } else {
            self.0.extend(decided.seen.iter().map(|(key, at)| ((*key).clone(), *at)));
        }
        self
    }
}
