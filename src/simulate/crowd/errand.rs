//! What is to be done, for whom, and what came of it.

use crate::simulate::{
    audience::{Seat, Video, Viewer},
    client::{BeatAnswer, Failure, PlayAnswer},
    report::Kind,
};

/// What a seat knows of the viewer in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) viewer: Viewer,
    pub(super) video: Video,
    pub(super) target: u32,
    /// Counts the viewer's beats, so that a retry knows whether a newer one was due meanwhile.
    pub(super) round: u32,
    pub(super) beat_waits: bool,
    /// The service asked not to hear from the viewer before: in milliseconds of the run, or 0.
    pub(super) not_before: u32,
}

/// Small: a million viewers have a beat and a play to come.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A regular beat of the viewer, if still in that seat.
    Beat(Seat, Viewer),
    /// A play of the viewer, if still in that seat.
    Play(Seat, Viewer, Video),
    /// The repetition of something that failed.
    Again(Box<Errand>),
    /// The upcoming change.
    Change,
}

/// A request to be made, with its history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errand {
    pub(super) what: What,
    pub(super) seat: Seat,
    pub(super) viewer: Viewer,
    pub(super) video: Video,
    pub(super) target: usize,
    pub(super) failures: u32,
    /// An earlier try may have worked without an answer.
    pub(super) tried: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Beat { round: u32 },
    Play,
}

impl Errand {
    pub(super) fn kind(&self) -> Kind {
        match self.what {
            What::Beat { .. } => Kind::Heartbeat,
            What::Play => Kind::Play,
        }
    }

    pub(super) fn is_play(&self) -> bool {
        matches!(self.what, What::Play)
    }
}

/// A request that has ended.
pub(super) struct Landed {
    pub(super) errand: Errand,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    Beat(Result<BeatAnswer, Failure>),
    Play(Result<PlayAnswer, Failure>),
}
