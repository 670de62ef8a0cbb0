//! Sends one batch of marks: formed for a connection and a moment, written, and then taken off the places
//! their viewers had before.

use std::{collections::HashSet, sync::Arc, time::Duration};

use redis::Value;

use super::{
    form::{Formed, Group},
    map::Copied,
    merge::{Mark, What},
    moves::{Moved, Times, misplaced, unlooked_for},
    notes::Notes,
    writer::{LATE, Writer},
};
use crate::{
    clock::Timestamp,
    error::{Part, StoreError},
    failpoint,
    ids::VideoId,
    presence::Beat,
    store::redis::{Connection, reply},
};

/// What the writer knows of a connection's data.
pub(super) struct Learnt {
    pub(super) notes: Notes,
    pub(super) moved: Moved,
}

/// What came of a batch.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) error: Option<StoreError>,
    /// To be written again.
    pub(super) again: Vec<(Beat, Mark)>,
    /// Not to be written again: asking again won't help.
    pub(super) refused: Vec<Beat>,
    /// Written, and to be written again at the places of a newer map.
    pub(super) elsewhere: Vec<(Beat, Mark)>,
}

impl Outcome {
    pub(super) fn failed(error: StoreError, again: Vec<(Beat, Mark)>) -> Self {
        Self { error: Some(error), again, ..Self::default() }
    }
}

impl Writer {
    pub(super) async fn write_batch(
        &self,
        connection: &Connection,
        batch: Vec<(Beat, Mark)>,
        learnt: &mut Learnt,
    ) -> Outcome {
        let Learnt { notes, moved } = learnt;
        notes.belong_to(connection.epoch());
        moved.belong_to(connection.epoch(), self.map.minding_time());
        let (map, mut formed, sent) = match self.form_batch(connection, batch, notes).await {
            Ok(formed) => formed,
            Err((error, batch)) => return Outcome::failed(error, batch),
        };
        let (before, commands) = (std::mem::take(&mut formed.before), std::mem::take(&mut formed.commands));
        // The version last, so that whatever was written by an older map is known.
        let writing = connection.pipe_in_stages([before, commands, vec![self.map.version()]]);
        let [before, values, version] = match failpoint::step("beats.write", Part::Redis, writing).await {
            Ok(values) => values,
            Err(error) => return Outcome::failed(error, formed.into_marks()),
        };
        let version = version.into_iter().next().map(reply::<Option<String>>);
        let timely = self.redis.clock().monotonic().saturating_sub(sent) <= LATE;
        let mut outcome = Outcome::default();
        let (mut before, mut values) = (before.into_iter(), values.into_iter());
        for partition in formed.since {
            let told = before.next().map(reply::<String>);
            if let Some(Ok(stamp)) = told
                && timely
            {
                self.form.known.note(partition, &stamp);
                notes.since_told(partition, sent);
            }
        }
        let mut register_again = Vec::new();
        let mut written = Vec::new();
        for group in formed.groups {
            let registered = take_ok(&mut before, usize::from(group.registers));
            match take_ok(&mut values, group.commands).and(registered) {
                Ok(()) => {
                    if timely {
                        if group.registers {
                            notes.registered(&group.video, sent);
                        }
                        if group.expires {
                            notes.expiry_set(&group.video, group.shard, sent);
                        }
                    } else {
                        // What was registered so long ago may have been swept away since: once more,
                        // at once.
                        register_again.push(self.form.zadd(&group.video));
                        register_again.push(self.form.expire(&group.video, group.shard));
                    }
                    written.push(group);
                }
                Err(error) if error.is_transient() => {
                    outcome.again.extend(group.into_marks());
                    outcome.error = Some(error);
                }
                Err(error) => {
                    tracing::error!(video.id = %group.video, error = %error, "redis refused beats for good");
                    outcome.refused.extend(group.into_marks().map(|(beat, _)| beat));
                    outcome.error.get_or_insert(error);
                }
            }
        }
        if !register_again.is_empty()
            && let Err(error) = connection.pipe(register_again).await
        {
            tracing::debug!(error = %error, "late beats were not registered again");
        }
        let newest = if let Some(Ok(version)) = &version
            && map.is_of(version.as_deref())
        {
            map.seen(sent);
            map
        } else if let Some(Err(error)) = version
            && self.redis.is_cluster()
        {
            // The node that has the map is away, and nobody changes it. What was written is written; that the
            // map was not seen counts: once it is too old, nothing is written by it.
            tracing::debug!(error = %error, "the version of the map of shards is not known");
            map
        } else {
            let videos: HashSet<&VideoId> = written.iter().map(|group| &group.video).collect();
            match self.map.followed(connection, &map, videos.iter().copied()).await {
                Ok(newest) => {
                    let moved = written.iter().flat_map(|group| misplaced(group, &map, &newest));
                    outcome.elsewhere.extend(moved);
                    let (keys, minding) = (self.redis.keys(), self.map.minding_time());
                    let lost = written.iter().filter_map(|group| unlooked_for(group, &newest, keys, minding));
                    if let Err(error) = connection.pipe(lost.collect()).await {
                        tracing::debug!(error = %error, "beats were left where nobody looks for them");
                    }
                    newest
                }
                // Where they should be is not known; once more, then, and no harm is done.
                Err(error) => {
                    outcome.elsewhere.extend(written.into_iter().flat_map(Group::into_marks));
                    outcome.error.get_or_insert(error);
                    return outcome;
                }
            }
        };
        self.move_viewers(connection, &written, &newest, (moved, formed.now), &mut outcome).await;
        outcome
    }

    /// Forms a batch that is of this moment and by a map of this moment, and tells the moment.
    async fn form_batch(
        &self,
        connection: &Connection,
        mut batch: Vec<(Beat, Mark)>,
        notes: &Notes,
    ) -> Result<(Arc<Copied>, Formed, Duration), (StoreError, Vec<(Beat, Mark)>)> {
        loop {
            let map = match self.map.recent(connection).await {
                Ok(map) => map,
                Err(error) => return Err((error, batch)),
            };
            let formed = self.form.form(connection, &map, batch, notes);
            let sent = self.redis.clock().monotonic();
            // The process may have been stopped meanwhile: by then other instances have gone on.
            if sent.saturating_sub(formed.at) <= LATE && self.map.is_recent(&map) {
                return Ok((map, formed, sent));
            }
            batch = formed.into_marks();
        }
    }

    /// Removes the viewers of `written` from the places they had before.
    async fn move_viewers(
        &self,
        connection: &Connection,
        written: &[Group],
        map: &Copied,
        (moved, formed): (&mut Moved, Timestamp),
        outcome: &mut Outcome,
    ) {
        let times = Times { written: formed, minding: self.map.minding_time(), window: self.form.window };
        let mut removals = moved.removals(written.iter(), map, self.redis.keys(), times);
        if removals.is_empty() {
            moved.note(removals);
            return;
        }
        let removing = connection.pipe(std::mem::take(&mut removals.commands));
        let all_removed = match failpoint::step("beats.move", Part::Redis, removing).await {
            Ok(values) => values.into_iter().try_for_each(removed),
            Err(error) => Err(error),
        };
        match all_removed {
            Ok(()) => moved.note(removals),
            Err(error) => {
                tracing::debug!(error = %error, "viewers were not taken off their former places");
                // A beat is stored all the same; a goodbye isn't said before it is said everywhere.
                let (goodbyes, beats): (Vec<_>, Vec<_>) =
                    removals.marks.into_iter().partition(|(_, mark)| mark.what == What::Leave);
                outcome.elsewhere.extend(beats);
                if !goodbyes.is_empty() {
                    outcome.again.extend(goodbyes);
                    outcome.error.get_or_insert(error);
                }
            }
        }
    }
}

/// Takes the answer to a removal. What Redis refuses for good is told, and asked for no more.
fn removed(answer: Value) -> Result<(), StoreError> {
    match reply::<u64>(answer) {
        Err(error) if !error.is_transient() => {
            tracing::error!(error = %error, "redis refused for good to take viewers off a former place");
            Ok(())
        }
        answered => answered.map(drop),
    }
}

/// Takes the answers to `count` commands; the first refusal stands for all.
fn take_ok(values: &mut impl Iterator<Item = Value>, count: usize) -> Result<(), StoreError> {
    let mut result = Ok(());
    for value in values.take(count) {
        if let Err(error) = reply::<Value>(value) {
            result = result.and(Err(error));
        }
    }
    result
}
