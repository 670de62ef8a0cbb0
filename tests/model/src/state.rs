//! What a state of the world consists of. Small numbers throughout: there are millions of states.
//!
//! A batch's id is a number, 0 for none. Sets of videos and of plays are bits.

use std::hash::{Hash, Hasher};

use crate::world::World;

/// At most so many videos.
pub(crate) const VIDEOS: usize = 2;
/// At most so many plays.
pub(crate) const PLAYS: usize = 4;
/// At most so many flushers.
pub(crate) const FLUSHERS: usize = 3;
/// At most so many readers.
pub(crate) const READERS: usize = 2;

/// One number a video.
pub type ByVideo = [u8; VIDEOS];

/// The keys of one partition in Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Redis {
    /// `delta`: plays not yet in the database. Redis's own script never leaves it below 0.
    pub delta: [i8; VIDEOS],
    /// `dirty`: videos with a delta.
    pub dirty: u8,
    /// `refused`: videos whose plays the database refused.
    pub refused: u8,
    /// `batch`: its `#id`.
    pub batch: u8,
    /// `batch`: its plays by video.
    pub claimed: ByVideo,
    /// `settled`: id of the last settled batch.
    pub settled: u8,
    /// `total`, 0 where it isn't kept: a total of 0 never is.
    pub total: ByVideo,
    /// `seen`: plays that were counted. None runs out: clients stop asking again long before.
    pub seen: u8,
}

/// The tables of the database, as committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Database {
    /// `videos.views`.
    pub views: ByVideo,
    /// `play_batch`: the ids in it, as bits.
    pub ids: u16,
    /// `play_batch.refused` the other way round: for each video the batches it was refused of.
    pub refused: [u16; VIDEOS],
    /// The newest id of `play_batch`.
    pub newest: u8,
    /// Videos whose row can't take plays at the moment.
    pub full: u8,
}

/// A commit that was sent and may still happen, after its flusher has given it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LateCommit {
    /// Whether there is one.
    pub there: bool,
    /// The batch it brings.
    pub batch: u8,
    /// The plays it adds.
    pub plays: ByVideo,
    /// Videos it refuses.
    pub refused: u8,
}

/// How far a flusher is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Not at work, or dead.
    #[default]
    Idle,
    /// Has picked marked videos.
    Picked,
    /// Has claimed and waits for the replica.
    Waiting,
    /// Holds a batch that it may apply.
    Held,
    /// Without [`AnswerReadLater`](crate::Clause::AnswerReadLater): its one statement has its snapshot.
    Begun,
    /// In the transaction: the id is inserted, or found.
    Inserted,
    /// In the transaction: the plays are added.
    Added,
    /// In the transaction: totals and refused videos are read.
    Answered,
    /// Knows that the batch is in the database.
    Committed,
    /// Where marks aren't taken off in the step that saw there are no plays: is about to.
    Unmarking,
}

/// A flusher and what it remembers. It forgets all when it dies, gives up or has settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flusher {
    /// How far it is.
    pub step: Step,
    /// The batch it holds.
    pub batch: u8,
    /// The batch's plays.
    pub plays: ByVideo,
    /// Videos: those picked, later those refused, later those to be unmarked.
    pub videos: u8,
    /// While it waits: whether the replica has what it waits for.
    pub durable: bool,
    /// Whether its transaction inserted the id, and so adds the plays.
    pub adds: bool,
    /// The totals it read.
    pub views: ByVideo,
}

/// How far a reader is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reading {
    /// Not at work.
    #[default]
    Idle,
    /// R1 is done: it has a look.
    Looked,
    /// Without [`AskedInOneStatement`](crate::Clause::AskedInOneStatement): it has the total only.
    HalfAsked,
    /// R2 is done: it has a base.
    Asked,
}

/// A reader whose total isn't kept, and what it remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reader {
    /// How far it is.
    pub step: Reading,
    /// What it reads.
    pub video: u8,
    /// How many looks didn't hold.
    pub round: u8,
    /// The look: the batch at hand.
    pub batch: u8,
    /// The look: the last settled batch.
    pub settled: u8,
    /// The look: the video's plays in the batch.
    pub in_batch: u8,
    /// The look: the delta, kept only without [`DeltaReadLast`](crate::Clause::DeltaReadLast).
    pub delta: u8,
    /// What the database holds without the batch.
    pub base: u8,
}

/// The clients, and the instance they talk to; bits by play.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clients {
    /// Plays that were acknowledged.
    pub acknowledged: u8,
    /// Plays that the instance has noted as counted.
    pub noted: u8,
    /// `plays.wait`: plays that are written and wait for the replica.
    pub waiting: u8,
    /// `plays.wait`: those of them that the replica has.
    pub durable: u8,
    /// Where a clause is away: requests that are half done.
    pub half: u8,
    /// Where a clause is away: a second request of that kind.
    pub other_half: u8,
}

/// What nobody in the world knows, for the promises to be checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Witness {
    /// Plays that were ever counted.
    pub counted: u8,
    /// Plays that were acknowledged before Redis forgot them.
    pub forgotten: u8,
    /// The last total that was answered.
    pub shown: ByVideo,
    /// A total was answered that was less than the one before.
    pub fell: bool,
    /// A total was answered that was not what Redis knew.
    pub wrong: bool,
    /// More was taken off a delta than there was.
    pub short: bool,
}

/// The whole world at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Redis.
    pub redis: Redis,
    /// What a failover brings: the replica, or the file.
    pub copy: Redis,
    /// How often that may happen yet.
    pub failovers: u8,
    /// The database.
    pub database: Database,
    /// A commit nobody waits for.
    pub late: LateCommit,
    /// The flushers.
    pub flushers: [Flusher; FLUSHERS],
    /// The readers.
    pub readers: [Reader; READERS],
    /// The clients.
    pub clients: Clients,
    /// What only the checker knows.
    pub witness: Witness,
    /// The last id given to a batch, where names are kept.
    pub last_id: u8,
}

impl State {
    /// Before anything has happened.
    #[must_use]
    pub fn first(world: &World) -> Self {
        Self { failovers: world.failovers, ..Self::default() }
    }

    /// Plays of `video` in the set `plays`.
    #[must_use]
    pub fn count(world: &World, plays: u8, video: usize) -> u8 {
        let of_video = world.plays.iter().enumerate().filter(|(play, of)| **of == video && has(plays, *play));
        u8::try_from(of_video.count()).expect("there are at most 4 plays")
    }
}

/// All of it as one string of bytes: a hasher that is given a hundred bytes one by one is what a check
/// would spend its time on.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { redis, copy, failovers, database, late, flushers, readers, clients, witness, last_id } =
            self;
        let mut bytes = Bytes { bytes: [0; 160], length: 0 };
        (redis, copy, failovers, database, late).hash(&mut bytes);
        (flushers, readers, clients, witness, last_id).hash(&mut bytes);
        hasher.write(&bytes.bytes[..bytes.length]);
    }
}

/// Collects what a state consists of.
struct Bytes {
    bytes: [u8; 160],
    length: usize,
}

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        unreachable!("it only collects")
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    /// Which variant of an enum it is: one of a few.
    #[inline]
    fn write_isize(&mut self, variant: isize) {
        self.write_u8(variant.to_le_bytes()[0]);
    }

    /// The lengths of arrays, which are always the same.
    #[inline]
    fn write_usize(&mut self, _: usize) {}
}

/// Whether the set has the member.
#[must_use]
pub(crate) fn has(set: u8, member: usize) -> bool {
    set & bit(member) != 0
}

/// The set of one member.
#[must_use]
pub(crate) fn bit(member: usize) -> u8 {
    1 << member
}

/// The set of one id.
#[must_use]
pub(crate) fn id_bit(id: u8) -> u16 {
    1 << id
}
