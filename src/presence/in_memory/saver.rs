//! Saves viewers while they come and go: only shards that changed, and no beat waits for it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::{
    InMemoryPresence,
    snapshot::{Saved, encode, store},
    viewers::{Copied, Walk},
};
use crate::{
    error::{Part, StoreError},
    failpoint,
    jobs::Job,
    store::sqlite::{Sqlite, store_error},
};

/// Bytes in one transaction, about: plays wait for it, some 10 ms.
const AT_ONCE: usize = 1 << 20;

/// The job "snapshot".
pub(super) struct Saver {
    presence: Arc<InMemoryPresence>,
    sqlite: Sqlite,
    every: Duration,
    alone: Mutex<()>,
}

impl Saver {
    pub(super) fn new(presence: Arc<InMemoryPresence>, sqlite: Sqlite, every: Duration) -> Self {
        Self { presence, sqlite, every, alone: Mutex::new(()) }
    }

    /// `complete` where nobody can come any more.
    async fn save(&self, complete: bool) -> Result<(), StoreError> {
        let _alone = self.alone.lock().await;
        let mut unsaved = Vec::new();
        let result = self.save_changed(&mut unsaved, complete).await;
        if result.is_err() {
            for place in unsaved {
                self.presence.shards[place].lock().set_changed();
            }
        }
        result
    }

    /// `unsaved` names the shards that no longer say they changed and are not yet on disk.
    async fn save_changed(&self, unsaved: &mut Vec<usize>, complete: bool) -> Result<(), StoreError> {
        // Of the beginning: what changes from here on may be missing.
        let saved = self.saved_now(complete);
        let mut blobs = Vec::new();
        let mut bytes = 0;
        for place in 0..self.presence.shards.len() {
            if !self.presence.shards[place].lock().take_changed() {
                continue;
            }
            unsaved.push(place);
            let viewers = self.copy(place).await;
            let blob = tokio::task::spawn_blocking(move || encode(&viewers))
                .await
                .map_err(|error| StoreError::unexpected(Part::Memory, error))?;
            bytes += blob.len();
            blobs.push((i64::try_from(place).unwrap_or(i64::MAX), blob));
            if bytes >= AT_ONCE {
                store(&self.sqlite, std::mem::take(&mut blobs), None).await.map_err(store_error)?;
                unsaved.clear();
                bytes = 0;
            }
        }
        let storing = async { store(&self.sqlite, blobs, Some(saved)).await.map_err(store_error) };
        failpoint::step("snapshot.store", Part::Memory, storing).await?;
        unsaved.clear();
        Ok(())
    }

    async fn copy(&self, place: usize) -> Copied {
        let mut copied = Copied::new();
        let mut walk = Walk::whole();
        while !self.presence.shards[place].lock().copy(&mut walk, &mut copied) {
            tokio::task::yield_now().await;
        }
        copied
    }

    fn saved_now(&self, complete: bool) -> Saved {
        let at = self.presence.time.follow_host();
        let lasts = self.presence.doubt.lasts(self.presence.time.monotonic());
        // Of a snapshot that may be the last before a crash, how long all take to beat again.
        let doubted_until = at + if complete { lasts } else { lasts.max(self.presence.rhythm.doubt()) };
        Saved { at, doubted_until, complete }
    }
}

#[async_trait]
impl Job for Saver {
    fn name(&self) -> &'static str {
        "snapshot"
    }

    fn first_in(&self) -> Duration {
        self.every
    }

    fn every(&self) -> Duration {
        self.every
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        self.save(false).await.map(|()| None)
    }

    async fn finish(&self) {
        if let Err(error) = self.save(true).await {
            tracing::error!(error = %error, "viewers could not be saved at the stop: {error}");
        }
    }
}
