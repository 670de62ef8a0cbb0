//! The clauses of the protocol, each a switch: a world without one of them must break a promise, or
//! the clause is not needed.

/// One clause of the protocol of plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Clause {
    /// Record: the video is marked in the step that counts the play (S13).
    MarkedInOneStep,
    /// Record: what a play that fails half-way has set is deleted again (S15).
    SeenDroppedOnFailure,
    /// Record: whether a play is new is decided in the step that counts it.
    DedupedInOneStep,
    /// Record: an instance's note that a play is counted ends with the connection it was learnt on.
    NotesEndWithConnection,
    /// Claim: plays travel in a batch that is noted in Redis (S11).
    PlaysTravelInBatch,
    /// Claim: a batch that is there is brought to its end before another is made.
    BatchThereComesFirst,
    /// Claim: the deltas are read in the step that writes the batch.
    DeltasReadInClaim,
    /// Claim: a video without plays loses its mark in the step that saw there are none.
    EmptyUnmarkedInClaim,
    /// Apply: the batch's id is in the database with its plays, and looked at (S10).
    IdInDatabase,
    /// Apply: the totals are read by a statement after the one that may have waited for another flusher.
    AnswerReadLater,
    /// Apply: the videos that were refused are named beside the batch's id.
    RefusedNamedWithId,
    /// Purge: the newest id of a partition stays.
    NewestIdStays,
    /// Purge: an id stays for longer than any flusher can stall.
    IdsOutliveStalls,
    /// Settle: a video loses its mark in the step that takes off its last play (S12).
    UnmarkedInOneStep,
    /// Settle: a video that has plays left keeps its mark.
    MarkStaysWithPlays,
    /// Settle: only if the batch at hand is the one that was applied.
    IdCheckedAtSettle,
    /// Settle: plays that the database refused stay in Redis.
    RefusedPlaysStay,
    /// Settle: videos whose plays were refused are set aside where the next play or an operator finds them.
    RefusedSetAside,
    /// Settle: what is taken off is what the batch in Redis says, not what the flusher remembers.
    AmountsFromBatch,
    /// Settle: the total is set in the step that takes the plays off.
    TotalSetAtSettle,
    /// `redis.wait_replicas`: a batch is applied only when the replica that may be promoted has it, and
    /// so all of them.
    ClaimWaits,
    /// `redis.wait_replicas`: taking up a batch that is there writes, so that its WAIT waits for it.
    RetakeWrites,
    /// `redis.wait_replicas`: a claim and its WAIT go over one connection that isn't made anew between.
    ClaimAndWaitOnOneConnection,
    /// `redis.batch_min_age`: a batch is applied only when it is old enough to be on disk.
    BatchAges,
    /// `redis.batch_min_age`: a batch that was too young is taken up anew, not waited for in memory.
    YoungBatchTakenAnew,
    /// `plays.wait`: a play is answered only when the replica has it.
    AnswerWaits,
    /// `plays.wait`: a repeated play writes, so that its WAIT waits for the first one.
    RepeatWrites,
    /// `plays.wait`: an instance notes that a play is counted only after its WAIT.
    NotedAfterWait,
    /// Read: the plays of a batch that is in the database are taken off the total (half of S17).
    BatchTakenOffTotal,
    /// Read: a total is kept only if the look at the batch still holds (half of S17).
    LookHolds,
    /// Read: for a look to hold, the batch is the same.
    BatchCompared,
    /// Read: for a look to hold, the last settled batch is the same (ABA).
    SettledCompared,
    /// Read: plays that the database refused are not taken off the total.
    RefusedNotTakenOff,
    /// Read: the total and whether the batch is in it come from one statement.
    AskedInOneStatement,
    /// Read: the delta that is added is that of the last step.
    DeltaReadLast,
    /// Read: after the last round there is no answer rather than one that wasn't verified.
    UnverifiedNeverAnswered,
}

/// The clauses that are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clauses(u64);

impl Clauses {
    /// The protocol as it is.
    pub const ALL: Self = Self(u64::MAX);

    /// All but those.
    #[must_use]
    pub const fn without(clauses: &[Clause]) -> Self {
        let (mut left, mut next) = (Self::ALL.0, 0);
        while next < clauses.len() {
            left &= !(1 << clauses[next] as u8);
            next += 1;
        }
        Self(left)
    }

    /// Whether the clause is in force.
    #[must_use]
    pub fn has(self, clause: Clause) -> bool {
        self.0 & (1 << clause as u8) != 0
    }
}
