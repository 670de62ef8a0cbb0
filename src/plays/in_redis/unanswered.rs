//! Calls of `record.lua` that nobody heard the answer of: were their plays counted?
//!
//! A player sends such a play again and hears that it was counted before; whoever counted it never
//! knew. The script leaves the call's token in the keys of what was seen, so it can be looked up later.
//! It ran as a whole or not at all: one play that carries the token tells of all of them. What a call
//! holds of several partitions is kept, and looked up, a partition at a time.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Cmd, Value};

use crate::{
    error::StoreError,
    ids::Partition,
    plays::Play,
    store::{
        keys::Keys,
        redis::{Redis, reply},
    },
};

/// Plays that are kept to be looked up, about 400 bytes each.
const MOST_PLAYS: usize = 10_000;

/// Calls looked up in one pipeline: one after the other would take a round trip each.
const CALLS_AT_ONCE: usize = 100;

/// A call that has left no trace may still be on its way; after this long it is looked for once more.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The plays of one partition in one call.
#[derive(Debug)]
struct Call {
    partition: Partition,
    token: String,
    /// The keys of what was seen of each play, in the order of the script.
    seen: Vec<Vec<String>>,
}

/// A call that is to be looked up.
#[derive(Clone, Debug)]
struct Kept {
    call: Arc<Call>,
    /// When it was looked up in vain.
    missed: Option<Duration>,
}

/// Calls without an answer.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    kept: Mutex<Vec<Kept>>,
    /// Whether calls are left out since there are too many, which is told when it begins.
    full: AtomicBool,
    /// One looks up at a time, or a call might be counted twice.
    turn: tokio::sync::Mutex<()>,
}

impl Unanswered {
    /// Keeps the plays of one partition of a call of which it is unknown whether it was carried out.
    pub(super) fn keep(&self, keys: &Keys, token: u32, plays: &[(usize, &Play)]) {
        let Some((_, first)) = plays.first() else { return };
        let partition = first.video.partition();
        let seen: Vec<Vec<String>> = plays
            .iter()
            .map(|(_, Play { video, viewer, play_id })| {
                let viewer = viewer.iter().map(|viewer| keys.seen_viewer(partition, video, viewer));
                viewer.chain(play_id.iter().map(|play| keys.seen_play(partition, video, play))).collect()
            })
            .collect();
        if self.plays() + seen.len() > MOST_PLAYS {
            let plays = seen.len();
            metrics::counter!("headcount_witness_unknown_total").increment(plays as u64);
            if !self.full.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    plays.unknown = plays,
                    "it stays unknown whether {plays} plays and those that follow were counted: if so, the \
                     audit shows them as unreported; headcount_witness_unknown_total tells how many"
                );
            }
            return;
        }
        let call = Arc::new(Call { partition, token: token.to_string(), seen });
        self.kept.lock().push(Kept { call, missed: None });
    }

    /// How many plays are to be looked up.
    pub(super) fn plays(&self) -> usize {
        self.kept.lock().iter().map(|kept| kept.call.seen.len()).sum()
    }

    /// Looks the calls up that are due, and tells `counted` how many plays each of them counted. May be
    /// given up at any point.
    pub(super) async fn look_up(
        &self,
        redis: &Redis,
        now: Duration,
        counted: impl Fn(Partition, u64),
    ) -> Result<(), StoreError> {
        let _turn = self.turn.lock().await;
        let is_due = |kept: &&Kept| kept.missed.is_none_or(|at| now.saturating_sub(at) >= LOOK_AGAIN);
        let due: Vec<Kept> = self.kept.lock().iter().filter(is_due).cloned().collect();
        let mut failed = None;
        for due in due.chunks(CALLS_AT_ONCE) {
            let asked = due.iter().map(|kept| kept.call.ask()).collect();
            let _turn = redis.turn().await;
            let answers = redis.connection()?.pipe(asked).await?;
            for (Kept { call, missed }, tokens) in due.iter().zip(answers) {
                // One whose node is away is looked for again, and holds no other up.
                let plays = match call.read(tokens) {
                    Ok(plays) => plays,
                    Err(error) => {
                        failed.get_or_insert(error);
                        continue;
                    }
                };
                let mut kept = self.kept.lock();
                if plays == 0 && missed.is_none() {
                    if let Some(same) = kept.iter_mut().find(|kept| Arc::ptr_eq(&kept.call, call)) {
                        same.missed = Some(now);
                    }
                } else {
                    // It is counted; or it never arrived, or all of its plays had been counted before.
                    kept.retain(|kept| !Arc::ptr_eq(&kept.call, call));
                    counted(call.partition, plays);
                }
            }
        }
        // Well below the limit, so that one who is at it doesn't say so again and again.
        if self.plays() <= MOST_PLAYS / 2 {
            self.full.store(false, Ordering::Relaxed);
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Call {
    fn ask(&self) -> Cmd {
        let mut tokens = redis::cmd("MGET");
        for key in self.seen.iter().flatten() {
            tokens.arg(key);
        }
        tokens
    }

    /// How many of its plays this call counted.
    fn read(&self, tokens: Value) -> Result<u64, StoreError> {
        let tokens: Vec<Option<String>> = reply(tokens)?;
        let mine: HashSet<&String> = self
            .seen
            .iter()
            .flatten()
            .zip(&tokens)
            .filter(|(_, token)| token.as_deref() == Some(&self.token))
            .map(|(key, _)| key)
            .collect();
        Ok(self.counted(mine))
    }

    /// As the script went through them: a play counted where all its keys were new, and those of an
    /// earlier one that counted were not.
    fn counted(&self, mut mine: HashSet<&String>) -> u64 {
        let mut counted = 0;
        for keys in &self.seen {
            if keys.iter().all(|key| mine.contains(key)) {
                counted += 1;
                for key in keys {
                    mine.remove(key);
                }
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(plays: &[&[&str]]) -> Call {
        let seen = plays.iter().map(|keys| keys.iter().map(|key| (*key).to_owned()).collect()).collect();
        let partition = Partition::of("42");
        Call { partition, token: "7".to_owned(), seen }
    }

    #[test]
    fn plays_that_share_a_key_count_once_and_one_that_has_another_s_key_not_at_all() {
        let call =
            call(&[&["u:ann", "p:1"], &["u:ann", "p:1"], &["u:ann", "p:2"], &["u:ben", "p:1"], &["p:3"]]);
        let mine: Vec<String> = ["u:ann", "p:1", "p:3"].map(str::to_owned).into();
        assert_eq!(call.counted(mine.iter().collect()), 2);
        let mine: Vec<String> = ["u:ann", "p:2"].map(str::to_owned).into();
        assert_eq!(call.counted(mine.iter().collect()), 1, "the first found p:1 taken");
        assert_eq!(call.counted(HashSet::new()), 0);
    }
}
