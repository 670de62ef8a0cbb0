//! Unique viewers as the database keeps them.

use std::collections::HashSet;

use super::{Ledger, video_of};
use crate::{error::StoreError, ids::VideoId, store::postgres::Lane};

impl Ledger {
    /// The sketches of unique viewers of those of `videos` that have one.
    ///
    /// # Errors
    /// The database is away.
    pub async fn sketches(&self, videos: &[VideoId]) -> Result<Vec<(VideoId, Vec<u8>)>, StoreError> {
        let ids: Vec<&str> = videos.iter().map(VideoId::as_str).collect();
        let sketches = "select video_id, viewer_sketch from videos
            where video_id = any($1) and viewer_sketch is not null";
        let rows: Vec<(String, Vec<u8>)> =
            self.postgres.fetch_all(Lane::Flush, sqlx::query_as(sketches).bind(ids)).await?;
        rows.into_iter().map(|(video, sketch)| Ok((video_of(&video)?, sketch))).collect()
    }

    /// Keeps the sketches of unique viewers and their counts; answers those that were kept. One that
    /// counts fewer viewers than are known is not: it lacks what the database has.
    ///
    /// # Errors
    /// The database is away.
    pub async fn keep_sketches(
        &self,
        sketches: &[(VideoId, i64, Vec<u8>)],
    ) -> Result<HashSet<VideoId>, StoreError> {
        let videos: Vec<&str> = sketches.iter().map(|(video, ..)| video.as_str()).collect();
        let counts: Vec<i64> = sketches.iter().map(|(_, count, _)| *count).collect();
        let bytes: Vec<&[u8]> = sketches.iter().map(|(.., bytes)| bytes.as_slice()).collect();
        // The rows are locked in the order in which a flush locks them.
        let keep = "with locked as materialized (
                select video_id from videos where video_id = any($1) order by video_id for update
            )
            update videos set viewer_sketch = fresh.sketch, unique_viewers = fresh.viewers
            from locked, unnest($1::text[], $2::bigint[], $3::bytea[]) as fresh(video_id, viewers, sketch)
            where videos.video_id = locked.video_id and fresh.video_id = locked.video_id
                and fresh.viewers >= coalesce(videos.unique_viewers, 0)
            returning videos.video_id";
        let query = sqlx::query_as(keep).bind(videos).bind(counts).bind(bytes);
        let rows: Vec<(String,)> = self.postgres.fetch_all(Lane::Flush, query).await?;
        rows.iter().map(|(video,)| video_of(video)).collect()
    }
}
