//! Writes a way through a world so that it can be read: a line a step, with what it left behind.

use std::fmt::{self, Display, Formatter};

use crate::{
    Action, Protocol,
    fault::Fault,
    flusher::Flush,
    reader::Read,
    request::Request,
    state::{Database, Redis, State, VIDEOS, has, id_bit},
};

/// The steps of a way, a line each.
#[must_use]
pub fn trace(protocol: &Protocol, steps: &[(State, Option<Action>)]) -> String {
    let lines = steps.iter().zip(steps.iter().skip(1)).filter_map(|((before, action), (after, _))| {
        let action = action.as_ref()?.to_string();
        Some(format!("    {action:<54} {}", Change { protocol, before, after }))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What a step changed.
struct Change<'a> {
    protocol: &'a Protocol,
    before: &'a State,
    after: &'a State,
}

impl Display for Change<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { protocol, before, after } = self;
        write!(f, "redis:")?;
        redis(f, &after.redis, protocol.world.videos)?;
        write!(f, " | database:")?;
        database(f, &after.database, protocol.world.videos)?;
        if after.failovers > 0 && after.copy != before.copy {
            write!(f, " | copy:")?;
            redis(f, &after.copy, protocol.world.videos)?;
        }
        if after.witness.shown != before.witness.shown {
            write!(f, " | shown {:?}", &after.witness.shown[..protocol.world.videos])?;
        }
        Ok(())
    }
}

fn redis(f: &mut Formatter<'_>, redis: &Redis, videos: usize) -> fmt::Result {
    for video in 0..videos {
        write!(f, " delta {}", redis.delta[video])?;
        if has(redis.dirty, video) {
            write!(f, " dirty")?;
        }
        if has(redis.refused, video) {
            write!(f, " refused")?;
        }
        if redis.total[video] > 0 {
            write!(f, " total {}", redis.total[video])?;
        }
    }
    if redis.batch > 0 {
        write!(f, ", batch {} of {:?}", redis.batch, &redis.claimed[..videos])?;
    }
    Ok(())
}

fn database(f: &mut Formatter<'_>, database: &Database, videos: usize) -> fmt::Result {
    for (video, views) in database.views[..videos].iter().enumerate() {
        write!(f, " {views}")?;
        if has(database.full, video) {
            write!(f, " full")?;
        }
    }
    for id in (1..16).filter(|id| database.knows(*id)) {
        write!(f, ", id {id}")?;
        for video in (0..VIDEOS).filter(|video| database.refused[*video] & id_bit(id) != 0) {
            write!(f, " without {}", name(video))?;
        }
    }
    Ok(())
}

/// Videos, flushers and readers are told apart by letters.
fn name(index: usize) -> char {
    ['a', 'b', 'c', 'd'][index]
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(play, request) => write!(f, "play {}: {request}", play + 1),
            Self::Flusher(index, flush) => write!(f, "flusher {}: {flush}", name(*index)),
            Self::Reader(index, read) => write!(f, "reader {}: {read}", name(*index)),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heard => "recorded and answered",
            Self::HeardByInstance => "recorded, answer lost after the instance",
            Self::Unheard => "recorded, answer lost",
            Self::Refused { marked: true } => "refused after the mark",
            Self::Refused { marked: false } => "refused before the mark",
            Self::Noted => "answered from a note",
            Self::Written => "recorded, waits for the replica",
            Self::Waited => "the replica has it: answered",
            Self::WaitedUnheard => "the replica has it: answer lost after the instance",
            Self::WaitFailed => "waited too long: refused",
            Self::FirstHalf => "first half of the record",
            Self::SecondHalf => "second half of the record: answered",
            Self::HalfLost => "second half of the record is lost",
        })
    }
}

impl Display for Flush {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pick(_) => "picks marked videos",
            Self::Claim => "claims",
            Self::Waited => "its WAIT is answered",
            Self::Begin => "begins its one statement",
            Self::Insert => "inserts the id, or finds it",
            Self::Add => "adds the plays",
            Self::Read => "reads totals and refused videos",
            Self::Commit => "commits",
            Self::CommitUnheard => "sends the commit, hears nothing and gives up",
            Self::Settle => "settles",
            Self::Unmark => "takes marks off",
            Self::RollBack => "is rolled back and will try again",
            Self::Die => "dies, or gives up",
        })
    }
}

impl Display for Read {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Look(video) => write!(f, "reads {}: its total, or looks (R1)", name(*video)),
            Self::AskViews => f.write_str("reads the total in the database (half of R2)"),
            Self::Ask => f.write_str("asks the database (R2)"),
            Self::Fill => f.write_str("fills the total and answers, or looks again (R3)"),
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::TotalRunsOut(video) => write!(f, "the total of {} runs out", name(*video)),
            Self::Purge(id) => write!(f, "the id {id} is purged"),
            Self::RowRefuses(video) => write!(f, "the row of {} takes no more plays", name(*video)),
            Self::RowMended(video) => write!(f, "the row of {} is mended", name(*video)),
            Self::LateCommit { happens: true } => f.write_str("the commit given up happens"),
            Self::LateCommit { happens: false } => f.write_str("the commit given up is rolled back"),
            Self::CopyCatchesUp => f.write_str("the copy of redis catches up"),
            Self::CopyTakesOver => f.write_str("the copy of redis takes over"),
        }
    }
}
