//! Which videos a request may be about, as `videos.unknown` says.

use std::sync::Arc;

use crate::{clock::Clock, config::Unknown, error::StoreError, ids::VideoId, videos::VideoStore};

/// Answers whether videos are known.
#[derive(Clone)]
pub struct Catalog {
    store: Arc<dyn VideoStore>,
    unknown: Unknown,
}

impl Catalog {
    /// A catalog over the rows in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn VideoStore>, unknown: Unknown, _clock: Arc<dyn Clock>) -> Self {
        Self { store, unknown }
    }

    /// Whether a request about each of `videos` is taken, in order.
    ///
    /// # Errors
    /// The store is away.
    pub async fn known(&self, videos: &[VideoId]) -> Result<Vec<bool>, StoreError> {
        if self.unknown == Unknown::Accept {
            return Ok(vec![true; videos.len()]);
        }
        let existing = self.store.existing(videos).await?;
        Ok(videos.iter().map(|video| existing.contains(video)).collect())
    }
}
