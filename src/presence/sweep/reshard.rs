//! Has the number of a video's shards follow its audience: the part of a pass that changes the map.
//!
//! Nothing is moved here. Viewers go to their new places with their next beats, and until all have, counts
//! cover the former places too.

use super::pass::{Counted, Pass};
use crate::{
    error::{Part, StoreError},
    failpoint,
    presence::{
        in_redis::map::Look,
        shards::{Change, Entry, change},
    },
    store::redis::reply,
};

impl Pass<'_> {
    /// What to make of a video's entry; nothing while the clock isn't trusted.
    pub(super) fn change(&self, every: Option<&Entry>, stored: Option<&str>, viewers: u64) -> Option<Change> {
        let clock = self.sweep.redis.clock();
        if !clock.may_remove() {
            return None;
        }
        let own = stored.and_then(Entry::parse);
        let per_shard = self.sweep.viewers_per_shard;
        change(every, own.as_ref(), stored.is_some(), viewers, per_shard, clock.now())
    }

    /// Leaves out videos whose shards were changed since the map was asked: somebody may have gone where
    /// the walk didn't look. Tells whether there were any.
    pub(super) async fn drop_moved(
        &self,
        look: &Look,
        counted: &mut Vec<Counted<'_>>,
    ) -> Result<bool, StoreError> {
        let used = counted.iter().map(|counted| (counted.video, counted.places));
        let moved = self.sweep.map.moved(&self.connection, look.version(), used).await?;
        let mut moved = moved.into_iter();
        let before = counted.len();
        counted.retain(|_| !moved.next().unwrap_or(false));
        Ok(counted.len() < before)
    }

    /// Changes the entries of the videos that need it.
    pub(super) async fn reshard(&mut self, look: &Look, counted: &[Counted<'_>]) -> Result<(), StoreError> {
        let changes: Vec<_> = counted.iter().filter_map(|counted| Some((counted, counted.change?))).collect();
        if changes.is_empty() {
            return Ok(());
        }
        self.lock.still_mine(&self.connection).await?;
        let commands = changes.iter().map(|(counted, change)| {
            let to = match change {
                Change::To(shards) => Some(*shards),
                Change::Forget => None,
            };
            self.sweep.map.reshard(look, counted.video, counted.stored, to)
        });
        let changing = self.connection.pipe(commands.collect());
        let answers = failpoint::step("sweep.reshard", Part::Redis, changing).await?;
        let mut forgotten = Vec::new();
        for ((counted, change), answer) in changes.into_iter().zip(answers) {
            // Where another instance has changed it meanwhile, the next pass looks again.
            if reply::<i64>(answer)? == 0 {
                continue;
            }
            match change {
                Change::To(shards) => {
                    self.swept.resharded += 1;
                    let before = counted.places.now();
                    let to = if shards > before { "more" } else { "fewer" };
                    metrics::counter!("headcount_shard_changes_total", "to" => to).increment(1);
                    tracing::debug!(
                        video.id = %counted.video,
                        shards.before = before,
                        shards.now = shards,
                        "the viewers of {} go from {before} shards to {shards}",
                        counted.video
                    );
                }
                Change::Forget => {
                    let mut unlink = redis::cmd("UNLINK");
                    unlink.arg(self.sweep.redis.keys().online_count(counted.video));
                    forgotten.push(unlink);
                }
            }
        }
        for answer in self.connection.pipe(forgotten).await? {
            reply::<i64>(answer)?;
        }
        Ok(())
    }
}
