//! The videos that have a row in Postgres.

use std::collections::HashSet;

use async_trait::async_trait;

use super::VideoStore;
use crate::{
    error::StoreError,
    ids::VideoId,
    store::postgres::{Lane, Postgres},
};

/// Asks Postgres, one statement a call.
#[derive(Clone)]
pub struct PostgresVideos {
    postgres: Postgres,
}

impl PostgresVideos {
    /// The videos behind this way to Postgres.
    #[must_use]
    pub fn new(postgres: Postgres) -> Self {
        Self { postgres }
    }
}

#[async_trait]
impl VideoStore for PostgresVideos {
    async fn existing(&self, videos: &[VideoId]) -> Result<HashSet<VideoId>, StoreError> {
        if videos.is_empty() {
            return Ok(HashSet::new());
        }
        let ids: Vec<&str> = videos.iter().map(VideoId::as_str).collect();
        let existing = "select video_id from videos where video_id = any($1)";
        let rows: Vec<(String,)> =
            self.postgres.fetch_all(Lane::Reads, sqlx::query_as(existing).bind(ids)).await?;
        let found: HashSet<&str> = rows.iter().map(|(video,)| video.as_str()).collect();
        Ok(videos.iter().filter(|video| found.contains(video.as_str())).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_video_exists_when_it_has_a_row() {
        let settings = crate::store::postgres::tests::settings().await;
        let postgres = Postgres::new(&settings).unwrap();
        postgres.migrate().await.unwrap();
        let insert = "insert into videos (video_id) values ('a'), ('B'), ('c')";
        postgres.session(Lane::Flush).await.unwrap().execute(sqlx::query(insert)).await.unwrap();
        let videos = PostgresVideos::new(postgres);
        let asked = ["A", "B", "c", "d", "c"].map(|id| VideoId::parse(id).unwrap());
        let existing = videos.existing(&asked).await.unwrap();
        assert_eq!(existing, HashSet::from([asked[1].clone(), asked[2].clone()]));
        assert_eq!(videos.existing(&[]).await.unwrap(), HashSet::new());
    }
}
