//! In which shards a video's viewers are: its places now, and those that viewers are still leaving.
//!
//! A video has one shard until its audience outgrows it; the sweep then changes the number, and viewers
//! move with their own beats. Nothing here knows Redis: `in_redis/map/` reads and keeps the entries.

mod entry;

use std::{collections::HashMap, time::Duration};

use ahash::RandomState;

pub(crate) use self::entry::{AUTO, BEFORE_THE_MAP, Change, EVERY_VIDEO, Entry, change};
use crate::{
    clock::Timestamp,
    ids::{VideoId, ViewerId},
};

/// A former place is minded for so long beyond the window: the last beat may come there up to
/// [`SETTLES`] after the change.
pub(crate) const MINDED_BEYOND_WINDOW: Duration = Duration::from_secs(20);

/// A copy of the map that is older isn't written by.
pub(crate) const OLDEST_COPY: Duration = Duration::from_secs(10);

/// So long after a change nobody writes by an older copy any more: one is looked at again where it is
/// over [`OLDEST_COPY`] old, and what is sent by it is at most 2 s under way.
const SETTLES: Duration = Duration::from_secs(12);

/// A number of shards that viewers may still be spread by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Former {
    shards: u32,
    until: Timestamp,
}

/// The shards of one video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// A power of two.
    now: u32,
    formers: Vec<Former>,
}

/// The order in which a walk visits a video's shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    now: u32,
    all: u32,
    /// Viewers may change their place meanwhile: the order must be kept, through empty places too.
    pub(crate) moving: bool,
}

impl Walk {
    /// Places that only a greater former number has come first, then the rest upward: viewers move from
    /// there to below, or upward, so nobody is passed by; somebody on the move may be met twice.
    pub(crate) fn order(self) -> impl Iterator<Item = u32> {
        (self.now..self.all).chain(0..self.now)
    }

    /// That order, as far as it matters: viewers move to places of a higher rank only, since a place that a
    /// smaller number gave them is below the highest bit of the one that a greater number gives them.
    pub(crate) fn rank(self, shard: u32) -> u32 {
        if !self.moving || shard >= self.now { 0 } else { 1 + u32::BITS - shard.leading_zeros() }
    }
}

impl Places {
    /// One shard and no other before.
    pub(crate) const SINGLE: Self = Self { now: 1, formers: Vec::new() };

    /// What the entry of every video and the video's own say together.
    pub(crate) fn of_entries(every: Option<&Entry>, own: Option<&Entry>) -> Self {
        let own_now = own.map_or(1, |own| own.now.or_own(1));
        let now = every.map_or(own_now, |every| every.now.or_own(own_now));
        let mut formers: Vec<Former> = Vec::new();
        for (number, until) in [every, own].into_iter().flatten().flat_map(|entry| &entry.formers) {
            let shards = number.or_own(own_now);
            match formers.iter_mut().find(|former| former.shards == shards) {
                Some(former) => former.until = former.until.max(*until),
                None if shards == now => {}
                None => formers.push(Former { shards, until: *until }),
            }
        }
        Self { now, formers }
    }

    /// How many shards beats are spread over now.
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Where a beat of `viewer` is written.
    pub(crate) fn of(&self, viewer: &ViewerId) -> u32 {
        if self.now == 1 { 0 } else { place(viewer, self.now) }
    }

    /// The other places at which an earlier beat of `viewer` may be.
    pub(crate) fn formers_of(&self, viewer: &ViewerId, now: Timestamp) -> impl Iterator<Item = u32> {
        let written = self.of(viewer);
        let former = move |former: &Former| place(viewer, former.shards);
        self.formers.iter().enumerate().filter(move |(_, former)| now < former.until).filter_map(
            move |(index, one)| {
                let at = former(one);
                let told = self.formers[..index].iter().any(|it| now < it.until && former(it) == at);
                (at != written && !told).then_some(at)
            },
        )
    }

    /// Whether viewers may still be at former places.
    pub(crate) fn are_moving(&self, now: Timestamp) -> bool {
        self.formers.iter().any(|former| now < former.until)
    }

    /// Whether one `HLEN` is the whole count.
    pub(crate) fn are_single(&self, now: Timestamp) -> bool {
        self.now == 1 && !self.are_moving(now)
    }

    /// Every shard a count must cover, in order.
    pub(crate) fn walk(&self, now: Timestamp) -> Walk {
        let live = self.formers.iter().filter(|former| now < former.until);
        let all = live.map(|former| former.shards).fold(self.now, u32::max);
        Walk { now: self.now, all, moving: self.are_moving(now) }
    }

    /// From when on nobody writes to former places any more.
    pub(crate) fn settled_from(&self, window: Duration) -> Option<Timestamp> {
        let last_change = self.formers.iter().map(|former| former.until).max();
        last_change.map(|until| until - window - MINDED_BEYOND_WINDOW + SETTLES)
    }
}

/// A mask, not a remainder: no hash has a sign here.
fn place(viewer: &ViewerId, shards: u32) -> u32 {
    let mask = u64::from(shards - 1);
    u32::try_from(viewer.hash64() & mask).expect("masked to fewer bits than a u32 has")
}

/// The entries of the map, for all videos.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    every: Option<Entry>,
    /// Where videos without an entry are.
    others: Option<Places>,
    videos: HashMap<VideoId, Places, RandomState>,
}

impl Entries {
    /// Of all fields of the map.
    pub(crate) fn of(fields: Vec<(String, String)>) -> Self {
        let (every, own): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(name, _)| name == EVERY_VIDEO);
        let every = every.last().and_then(|(_, stored)| Entry::parse(stored));
        let videos = own.into_iter().filter_map(|(video, stored)| {
            let places = Places::of_entries(every.as_ref(), Entry::parse(&stored).as_ref());
            Some((VideoId::parse(&video).ok()?, places))
        });
        let videos = videos.collect();
        Self { others: Some(Places::of_entries(every.as_ref(), None)), every, videos }
    }

    /// The entry of every video.
    pub(crate) fn every(&self) -> Option<&Entry> {
        self.every.as_ref()
    }

    /// Where a video's viewers are.
    pub(crate) fn places(&self, video: &VideoId) -> &Places {
        static SINGLE: Places = Places::SINGLE;
        // Most sites have no video of more than one shard most of the time.
        let own = if self.videos.is_empty() { None } else { self.videos.get(video) };
        own.or(self.others.as_ref()).unwrap_or(&SINGLE)
    }

    /// The videos with an entry.
    pub(crate) fn videos(&self) -> impl Iterator<Item = &VideoId> {
        self.videos.keys()
    }
}

#[cfg(test)]
mod tests;
