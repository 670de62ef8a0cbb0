//! Carries plays to Redis: one call of `record.lua` for some hundreds of plays, all calls of a batch in
//! one pipeline.

use std::{borrow::Cow, sync::Arc, time::Duration};

use quick_cache::sync::Cache;
use redis::{Cmd, Value};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::{SKETCH_LIFE, shown::Shown, witness::Witness};
use crate::{
    error::{Part, StoreError},
    failpoint,
    ids::{MAX_ID_BYTES, VideoId},
    plays::{Play, Recorded},
    store::{
        keys::Keys,
        redis::{Redis, Replicas, Sent, Unvouched, is_unheard, refusal, reply},
        script::LuaScript,
        time::StoreClock,
    },
};

/// Counts plays.
pub(super) static RECORD: LuaScript = LuaScript::new("record", include_str!("../lua/record.lua"));

/// Plays in one call of the script, which blocks Redis for about 10 µs each.
pub(super) const AT_ONCE: usize = 150;

/// Hashes remembered here of what was counted, under 100 bytes each.
const COUNTED: usize = 100_000;

/// For how long the mark behind plays that wait for replicas stays; it is for nobody to read.
const MARK_SECONDS: u32 = 60;

/// However long plays are remembered in Redis, here it is no longer than this.
const LONGEST_NOTE: Duration = Duration::from_secs(600);

/// Sends plays to Redis and reads what became of them.
pub(super) struct Writer {
    redis: Redis,
    counted: Counted,
    shown: Arc<Shown>,
    witness: Arc<Witness>,
    window: String,
    /// Where plays must be on before they are answered, with `plays.wait`.
    replicas: Option<Replicas>,
}

/// One call of the script.
struct Call<'a> {
    /// Tells what this call counted from what any other did.
    token: u32,
    /// The plays and where they stand among those at hand; those of a video side by side, as those of a
    /// partition are.
    plays: &'a [(usize, &'a Play)],
}

impl Writer {
    pub(super) fn new(
        redis: Redis,
        counted: Counted,
        shown: Arc<Shown>,
        witness: Arc<Witness>,
        window: Duration,
        replicas: Option<Replicas>,
    ) -> Self {
        // Redis counts lives in seconds here; rather one too many than none.
        let window = window.as_millis().div_ceil(1_000).to_string();
        Self { redis, counted, shown, witness, window, replicas }
    }

    /// Whether this instance knows without asking that the play counts nothing.
    pub(super) fn counted_lately(&self, play: &Play) -> bool {
        self.redis.connection().is_ok_and(|connection| self.counted.has(play, connection.epoch()))
    }

    /// Counts plays; one result each, in order. What went wrong for one play touches no other; a call
    /// without an answer is [`StoreError::Unavailable`] for all of its plays, and sending those again
    /// is safe.
    pub(super) async fn write(&self, plays: &[Play]) -> Vec<Result<Recorded, StoreError>> {
        let connection = match self.redis.connection() {
            Ok(connection) => connection,
            Err(error) => return vec![Err(error); plays.len()],
        };
        let mut ordered: Vec<(usize, &Play)> = plays.iter().enumerate().collect();
        // Stable: of two plays that are the same the first one counts.
        ordered.sort_by_cached_key(|(_, play)| (play.video.partition(), &play.video));
        // In a cluster a call can be of one slot only, and so of one partition.
        let together = |(_, a): &(usize, &Play), (_, b): &(usize, &Play)| {
            !self.redis.is_cluster() || a.video.partition() == b.video.partition()
        };
        let calls: Vec<Call<'_>> = ordered
            .chunk_by(together)
            .flat_map(|plays| plays.chunks(AT_ONCE))
            .map(|plays| Call { token: rand::random(), plays })
            .collect();
        let commands: Vec<Cmd> =
            calls.iter().map(|call| call.command(self.redis.keys(), &self.window)).collect();
        // What is noted is dated before it happened: the note ends before what it stands for.
        let sent = self.redis.clock().monotonic();
        let sending = async {
            match &self.replicas {
                None => connection.pipe(commands).await.map(Heard::all),
                Some(replicas) => self.pipe_to(replicas, &calls, commands).await,
            }
        };
        let heard = match failpoint::step("record.send", Part::Redis, sending).await {
            Ok(heard) => heard,
            Err(error) => {
                for call in &calls {
                    self.keep(call);
                }
                return vec![Err(error); plays.len()];
            }
        };
        let Some(answers) = heard.answers else {
            return vec![Err(heard.unvouched.unwrap_or_else(no_answer)); plays.len()];
        };
        let mut results = vec![Err(no_answer()); plays.len()];
        for ((call, answer), short) in calls.iter().zip(answers).zip(heard.short) {
            if is_unheard(&answer) {
                self.keep(call);
            }
            let (plays, unvouched) = (call.plays, heard.unvouched.as_ref().filter(|_| short));
            for ((index, play), result) in plays.iter().zip(read(answer, plays.len())) {
                if matches!(result, Ok(Recorded::Counted)) {
                    self.witness.saw(play.video.partition(), 1);
                    self.shown.changed(&play.video);
                    // A note answers a repeat, which vouches for the play.
                    if unvouched.is_none() {
                        self.counted.note(play, sent, connection.epoch());
                    }
                }
                results[*index] = unvouched.cloned().map_or(result, Err);
            }
        }
        results
    }

    /// Takes note of a call of which it is unknown whether it was carried out.
    fn keep(&self, call: &Call<'_>) {
        for plays in call.plays.chunk_by(|(_, a), (_, b)| a.video.partition() == b.video.partition()) {
            self.witness.unanswered().keep(self.redis.keys(), call.token, plays);
        }
    }

    /// Sends the calls and waits for replicas to have what they counted, and what was counted before:
    /// "counted already" vouches for a play as much as "counted" does. Such a call writes nothing, so a
    /// mark is written behind each, to the same node. Replicas get writes in order: who has it has the plays.
    ///
    /// # Errors
    /// It is unknown of all of them what became of them.
    async fn pipe_to(
        &self,
        replicas: &Replicas,
        calls: &[Call<'_>],
        commands: Vec<Cmd>,
    ) -> Result<Heard, StoreError> {
        let marked = commands.into_iter().zip(calls).flat_map(|(command, call)| {
            let mut mark = redis::cmd("SET");
            let partition = call.plays[0].1.video.partition();
            mark.arg(self.redis.keys().waited(partition)).arg("1").arg("EX").arg(MARK_SECONDS);
            [command, mark]
        });
        let (answers, short, mut unvouched) = match replicas.pipe(marked.collect()).await {
            Ok(answers) => (answers, Vec::new(), None),
            Err(Unvouched { error, sent: Sent::Answered(answers, short) }) => (answers, short, Some(error)),
            Err(Unvouched { error, sent: Sent::Not }) => {
                return Ok(Heard { answers: None, short: Vec::new(), unvouched: Some(error) });
            }
            Err(Unvouched { error, sent: Sent::Unheard }) => return Err(error),
        };
        let mut heard = Heard::all(Vec::with_capacity(calls.len()));
        let mut short = short.into_iter().skip(1).step_by(2);
        let mut answers = answers.into_iter();
        while let (Some(answer), Some(mark)) = (answers.next(), answers.next()) {
            // Refused (memory is full, say), a mark vouches for nothing. One that was not heard says so in
            // the answer as well.
            let refused = if is_unheard(&mark) { None } else { reply::<()>(mark).err() };
            heard.short.push(short.next().unwrap_or(false) || refused.is_some());
            heard.answers.get_or_insert_default().push(answer);
            unvouched = unvouched.or(refused);
        }
        Ok(Heard { unvouched, ..heard })
    }
}

/// What was heard of calls.
struct Heard {
    /// One a call; none at all where they never left.
    answers: Option<Vec<Value>>,
    /// Of each whether replicas may lack it.
    short: Vec<bool>,
    /// Why, where any is.
    unvouched: Option<StoreError>,
}

impl Heard {
    fn all(answers: Vec<Value>) -> Self {
        Self { short: vec![false; answers.len()], answers: Some(answers), unvouched: None }
    }
}

fn no_answer() -> StoreError {
    StoreError::unexpected(Part::Redis, "a play has no answer")
}

impl Call<'_> {
    fn command(&self, keys: &Keys, window: &str) -> Cmd {
        let mut script_keys = Vec::new();
        let mut args: Vec<Cow<'_, str>> =
            vec![window.into(), SKETCH_LIFE.as_secs().to_string().into(), self.token.to_string().into()];
        for plays in self.plays.chunk_by(|(_, a), (_, b)| a.video == b.video) {
            let video = &plays[0].1.video;
            let partition = video.partition();
            script_keys.push(keys.dirty(partition));
            script_keys.push(keys.delta(partition, video));
            script_keys.push(keys.unique_viewers(partition, video));
            args.push(video.as_str().into());
            args.push(plays.len().to_string().into());
            for (_, Play { viewer, play_id, .. }) in plays {
                script_keys.extend(viewer.iter().map(|viewer| keys.seen_viewer(partition, video, viewer)));
                script_keys.extend(play_id.iter().map(|play| keys.seen_play(partition, video, play)));
                args.push(viewer.as_ref().map_or("", |viewer| viewer.as_str()).into());
                args.push(if play_id.is_some() { "1" } else { "0" }.into());
            }
        }
        RECORD.call(&script_keys, &args)
    }
}

/// What the answer to one call says about each of its plays.
fn read(answer: Value, plays: usize) -> Vec<Result<Recorded, StoreError>> {
    let results: Vec<Value> = match reply(answer) {
        Ok(results) => results,
        Err(error) => return vec![Err(error); plays],
    };
    if results.len() != plays {
        let error = StoreError::unexpected(Part::Redis, "record answered for another number of plays");
        return vec![Err(error); plays];
    }
    let read = |result| match result {
        Value::Int(0) => Ok(Recorded::Duplicate),
        Value::Int(1) => Ok(Recorded::Counted),
        Value::Int(2) => {
            tracing::warn!("a play is counted, but the sketch of unique viewers couldn't take its viewer");
            Ok(Recorded::Counted)
        }
        refused => Err(reply::<String>(refused).map_or_else(|error| error, |text| refusal(&text))),
    };
    results.into_iter().map(read).collect()
}

/// Plays this instance has just seen counted: a repeat is answered without Redis, on the connection on
/// which that was learnt. On the next one Redis may have forgotten the play: then the repeat counts.
pub(super) struct Counted {
    clock: Arc<StoreClock>,
    /// By a hash of the play's video and viewer, or video and play id.
    notes: Cache<u128, Note>,
    /// Half of what Redis remembers, so that no note outlives that.
    life: Duration,
    /// So that nobody can make up two plays with one hash.
    seed: u64,
}

#[derive(Clone, Copy)]
struct Note {
    sent: Duration,
    /// Of the connection.
    epoch: u64,
}

impl Counted {
    pub(super) fn new(clock: Arc<StoreClock>, window: Duration) -> Self {
        let life = (window / 2).min(LONGEST_NOTE);
        Self { clock, notes: Cache::new(COUNTED), life, seed: rand::random() }
    }

    fn has(&self, play: &Play, epoch: u64) -> bool {
        let now = self.clock.monotonic();
        let holds = |note: Note| note.epoch == epoch && now.saturating_sub(note.sent) < self.life;
        self.hashes(play).any(|hash| self.notes.get(&hash).is_some_and(holds))
    }

    fn note(&self, play: &Play, sent: Duration, epoch: u64) {
        for hash in self.hashes(play) {
            self.notes.insert(hash, Note { sent, epoch });
        }
    }

    fn hashes(&self, play: &Play) -> impl Iterator<Item = u128> {
        let viewer = play.viewer.as_ref().map(|viewer| self.hash(&play.video, *b" u ", viewer.as_str()));
        let play_id = play.play_id.as_ref().map(|play_id| self.hash(&play.video, *b" p ", play_id.as_str()));
        viewer.into_iter().chain(play_id)
    }

    /// Of a text that is put together on the stack: no id is longer than that, and none holds a space.
    fn hash(&self, video: &VideoId, kind: [u8; 3], id: &str) -> u128 {
        let mut text = [0; 2 * MAX_ID_BYTES + 3];
        let mut length = 0;
        for part in [video.as_str().as_bytes(), &kind, id.as_bytes()] {
            text[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        xxh3_128_with_seed(&text[..length], self.seed)
    }
}
