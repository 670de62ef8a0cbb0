//! The worlds that are checked: each is small in every direction, and together they meet every fault.

use crate::clauses::Clauses;

/// What a fault of Redis can bring back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Nothing older: it never forgets.
    Lasting,
    /// A replica that lags and may be promoted.
    Replicated,
    /// A file that lags and may be loaded after a power cut. What is old enough is in it.
    Persisted,
}

/// How large a world is, what may go wrong in it, and which clauses are in force.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says yes or no to one thing, by name")]
pub struct World {
    /// What it is called in the output.
    pub name: &'static str,
    /// The video of each play that clients will send.
    pub plays: &'static [usize],
    /// Videos.
    pub videos: usize,
    /// Flushers at work at the same time.
    pub flushers: usize,
    /// Readers at work at the same time.
    pub readers: usize,
    /// What a fault of Redis can bring back.
    pub store: Store,
    /// How often it may.
    pub failovers: u8,
    /// `plays.wait`: a play is answered when the replica has it.
    pub plays_wait: bool,
    /// Whether a row of the database may stop taking plays, and be mended.
    pub rows_refuse: bool,
    /// Whether Redis may refuse a play half-way.
    pub records_fail: bool,
    /// The clauses in force.
    pub clauses: Clauses,
    /// Whether batches, plays, flushers and readers keep their names, so that a trace can be read.
    /// Otherwise states that differ by names only are one.
    pub names_kept: bool,
}

impl World {
    /// One video, two plays, two flushers, and nothing that fails but the flushers.
    pub const SMALL: Self = Self {
        name: "small",
        plays: &[0, 0],
        videos: 1,
        flushers: 2,
        readers: 0,
        store: Store::Lasting,
        failovers: 0,
        plays_wait: false,
        rows_refuse: false,
        records_fail: false,
        clauses: Clauses::ALL,
        names_kept: false,
    };

    /// Two flushers and a reader.
    pub const READ: Self = Self { name: "read", readers: 1, ..Self::SMALL };

    /// A replica that lags and may be promoted once.
    pub const REPLICATED: Self =
        Self { name: "replicated", store: Store::Replicated, failovers: 1, ..Self::SMALL };

    /// The same with `plays.wait`.
    pub const PLAYS_WAIT: Self = Self { name: "plays wait", plays_wait: true, ..Self::REPLICATED };

    /// A file that lags and may be loaded once.
    pub const PERSISTED: Self =
        Self { name: "persisted", store: Store::Persisted, failovers: 1, ..Self::SMALL };

    /// A row that may stop taking plays.
    pub const REFUSING: Self = Self { name: "refusing", rows_refuse: true, ..Self::SMALL };
}
