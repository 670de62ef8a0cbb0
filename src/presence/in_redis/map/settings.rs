//! What holds for every video: the map says what `presence.shards` says, also where instances differ for a
//! while.

use std::time::Duration;

use redis::Value;

use super::ShardMap;
use crate::{
    error::{Part, StoreError},
    ids::Partition,
    presence::shards::{AUTO, BEFORE_THE_MAP, EVERY_VIDEO, Entry},
    store::redis::{Connection, reply},
};

/// An instance whose `presence.shards` is another than what is in force says so again after so long:
/// while a new number is being rolled out, those that still have the old one keep quiet.
const INSIST_AFTER: Duration = Duration::from_secs(3_600);

impl ShardMap {
    /// Makes sure that all instances look for a video's shards at the same keys.
    pub(super) async fn agree_on_keys(&self, connection: &Connection) -> Result<(), StoreError> {
        let keys = self.shared.redis.keys();
        let (key, life, mine) = (keys.shards_pinned(), self.shared.life.as_secs(), keys.pinned().to_string());
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(&mine).arg("NX").arg("GET").arg("EX").arg(life);
        let stored: Option<String> = connection.query(set).await?;
        if stored.is_some_and(|stored| stored != mine) {
            let reason = format!(
                "presence.pin_video_to_slot is {mine} here and not in other instances, which would not find each \
                 other's viewers: set it alike; to change it, stop all of them and delete the key {key}, or \
                 wait for {life} s"
            );
            return Err(StoreError::unexpected(Part::Redis, reason));
        }
        // As long as the shards are.
        let mut expire = redis::cmd("EXPIRE");
        expire.arg(&key).arg(life);
        connection.query::<i64>(expire).await.map(drop)
    }

    /// Has the map say what the settings say: at start, where it says nothing, and seldom otherwise.
    pub(super) async fn insist(
        &self,
        connection: &Connection,
        every: Option<&Entry>,
    ) -> Result<(), StoreError> {
        let (now, wanted) = (self.monotonic(), self.shared.wanted.as_str());
        if let Some(every) = every.filter(|every| every.number().to_string() == wanted) {
            *self.shared.insist_at.lock() = now + INSIST_AFTER;
            // They would all count again after a jump of the clock.
            let long_over = self.minding_time() - self.shared.window;
            return if every.is_done_with_formers(long_over) {
                self.drop_formers(connection).await
            } else {
                Ok(())
            };
        }
        if every.is_some() && now < *self.shared.insist_at.lock() {
            return Ok(());
        }
        if self.say_what_is_wanted(connection).await? {
            self.read(connection).await?;
        }
        *self.shared.insist_at.lock() = now + INSIST_AFTER;
        Ok(())
    }

    /// Has the map say what the settings say, and answers whether that changed it.
    pub(super) async fn say_what_is_wanted(&self, connection: &Connection) -> Result<bool, StoreError> {
        let wanted = self.shared.wanted.as_str();
        let mut stored = self.stored_for_every(connection).await?;
        if let Some(garbage) = stored.take_if(|stored| Entry::parse(stored).is_none()) {
            let forget = self.reshard_all(Some(&garbage), None, AUTO);
            connection.query::<i64>(forget).await?;
        }
        let before = match stored {
            None if self.was_swept_without_a_map(connection).await? => BEFORE_THE_MAP,
            _ => AUTO,
        };
        let told = stored.as_deref().unwrap_or(before);
        let call = self.reshard_all(stored.as_deref(), Some(wanted), before);
        let changes = connection.query::<i64>(call).await? == 1;
        if changes {
            let told = told.split(' ').next().unwrap_or_default();
            if told != wanted {
                tracing::info!(
                    shards.before = told,
                    shards.now = wanted,
                    "presence.shards is {wanted} for all instances now, it was {told}: viewers move with \
                     their next beats"
                );
            }
        }
        Ok(changes)
    }

    /// Drops from the entry of every video the former numbers whose time is over.
    async fn drop_formers(&self, connection: &Connection) -> Result<(), StoreError> {
        let stored = self.stored_for_every(connection).await?;
        let call = self.reshard_all(stored.as_deref(), Some(&self.shared.wanted), AUTO);
        connection.query::<i64>(call).await?;
        self.read(connection).await.map(drop)
    }

    /// What stands in the map for every video.
    async fn stored_for_every(&self, connection: &Connection) -> Result<Option<String>, StoreError> {
        let mut get = redis::cmd("HGET");
        get.arg(self.shared.redis.keys().shards_map()).arg(EVERY_VIDEO);
        connection.query(get).await
    }

    /// Whether a build that knew no map left viewers here.
    async fn was_swept_without_a_map(&self, connection: &Connection) -> Result<bool, StoreError> {
        let keys = self.shared.redis.keys();
        let asked = Partition::all().map(|partition| {
            let mut exists = redis::cmd("EXISTS");
            exists.arg(keys.swept(partition));
            exists
        });
        let found: Vec<Value> = connection.pipe(asked.collect()).await?;
        for value in found {
            if reply::<i64>(value)? == 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
