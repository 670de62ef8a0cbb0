//! Which videos there are.
//!
//! With `videos.unknown = "accept"` every well-formed id is a video; with `"reject"` one is a video
//! when the database has its row.

mod catalog;
pub mod in_postgres;
pub mod in_sqlite;

use std::collections::HashSet;

use async_trait::async_trait;

pub use catalog::Catalog;

use crate::{error::StoreError, ids::VideoId};

/// Where the rows of videos are.
#[async_trait]
pub trait VideoStore: Send + Sync {
    /// Those of `videos` that have a row.
    ///
    /// # Errors
    /// The store is away.
    async fn existing(&self, videos: &[VideoId]) -> Result<HashSet<VideoId>, StoreError>;
}
