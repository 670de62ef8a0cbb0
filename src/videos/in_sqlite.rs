//! The rows of videos in this process's SQLite file.

use std::collections::HashSet;

use async_trait::async_trait;

use super::VideoStore;
use crate::{
    error::StoreError,
    ids::VideoId,
    store::sqlite::{Sqlite, json, store_error},
};

/// The videos of the embedded backend.
#[derive(Clone, Debug)]
pub struct SqliteVideos {
    sqlite: Sqlite,
}

impl SqliteVideos {
    /// The videos in an open file.
    #[must_use]
    pub fn new(sqlite: Sqlite) -> Self {
        Self { sqlite }
    }
}

#[async_trait]
impl VideoStore for SqliteVideos {
    async fn existing(&self, videos: &[VideoId]) -> Result<HashSet<VideoId>, StoreError> {
        let asked: Vec<&str> = videos.iter().map(VideoId::as_str).collect();
        let found: Vec<(i64,)> = sqlx::query_as(
            "select asked.key from json_each(?) as asked join videos on videos.video_id = asked.value",
        )
        .bind(json(&asked))
        .fetch_all(self.sqlite.readers())
        .await
        .map_err(store_error)?;
        let place = |(index,): (i64,)| videos.get(usize::try_from(index).ok()?).cloned();
        Ok(found.into_iter().filter_map(place).collect())
    }
}
