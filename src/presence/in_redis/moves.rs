//! Takes viewers off the places they had before the number of shards was changed.
//!
//! A beat is written to its place of now; only after that it is removed from the former ones, so that
//! somebody on the move may count twice for a moment but is never missed. Nothing else moves anybody.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use ahash::RandomState;
use redis::Cmd;

use super::{
    form::{Group, HDEL_OLDER},
    map::Copied,
    merge::{Mark, What},
};
use crate::{
    clock::Timestamp,
    ids::{VideoId, ViewerId},
    presence::{Beat, shards::Places},
    store::keys::Keys,
};

/// Viewers in one call: what else waits for Redis meanwhile waits for less than a millisecond.
const IN_ONE_CALL: usize = 500;

/// Above so many notes all are thrown away: forgetting one costs a look that finds nothing.
const MANY: usize = 2_000_000;

/// Which viewers are known to be at no former place, of one connection.
#[derive(Default)]
pub(super) struct Moved {
    epoch: u64,
    videos: HashMap<VideoId, Clean, RandomState>,
    viewers: usize,
}

/// Those of one video, while it has these places.
struct Clean {
    places: Places,
    viewers: HashSet<u64, RandomState>,
}

/// Calls that remove viewers from former places.
#[derive(Default)]
pub(super) struct Removals {
    pub(super) commands: Vec<Cmd>,
    /// Who is at no former place once they are done.
    clean: Vec<(VideoId, Places, Vec<u64>)>,
    /// What they are made for: once more where they fail.
    pub(super) marks: Vec<(Beat, Mark)>,
}

/// By which clocks viewers are moved.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// When the batch was formed: no mark was written with a later time.
    pub(super) written: Timestamp,
    /// Former places whose time is over by this are left alone.
    pub(super) minding: Timestamp,
    pub(super) window: Duration,
}

impl Removals {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

impl Moved {
    /// Forgets what was noted on another connection, and what no longer matters.
    pub(super) fn belong_to(&mut self, epoch: u64, now: Timestamp) {
        if self.epoch != epoch || self.viewers > MANY {
            *self = Self { epoch, ..Self::default() };
        }
        self.videos.retain(|_, clean| clean.places.are_moving(now));
        self.viewers = self.videos.values().map(|clean| clean.viewers.len()).sum();
    }

    /// What is to be removed now that the marks of `groups` are written at the places of `map`.
    pub(super) fn removals<'a>(
        &self,
        groups: impl Iterator<Item = &'a Group>,
        map: &Copied,
        keys: &Keys,
        times: Times,
    ) -> Removals {
        let mut removals = Removals::default();
        let mut by_key: BTreeMap<(&VideoId, u32), Vec<String>> = BTreeMap::new();
        for group in groups {
            let places = map.places(&group.video);
            if !places.are_moving(times.minding) {
                continue;
            }
            let settled_from = places.settled_from(times.window);
            let known = self.videos.get(&group.video).filter(|clean| clean.places == *places);
            let mut clean = Vec::new();
            for (viewer, mark) in group.marks() {
                // Written by an older map: it is written once more.
                if places.of(viewer) != group.shard {
                    continue;
                }
                let (hash, at) = (viewer.hash64(), mark.at.min(times.written));
                if mark.what == What::Beat {
                    if known.is_some_and(|known| known.viewers.contains(&hash)) {
                        continue;
                    }
                    if settled_from.is_some_and(|from| at >= from) {
                        clean.push(hash);
                    }
                }
                let goodbye = mark.what == What::Leave;
                // Of two instances that write one viewer in the same second, by different maps, neither
                // may remove what the other wrote. One that is written once more may be its own double.
                let at_most = if goodbye || mark.late { at.secs() } else { at.secs() - 1 };
                let mut anywhere = false;
                for place in places.formers_of(viewer, times.minding) {
                    anywhere = true;
                    by_key
                        .entry((&group.video, place))
                        .or_default()
                        .extend([viewer.as_str().to_owned(), at_most.to_string()]);
                }
                if anywhere {
                    let beat = Beat { video: group.video.clone(), viewer: viewer.clone() };
                    removals.marks.push((beat, *mark));
                }
            }
            if !clean.is_empty() {
                removals.clean.push((group.video.clone(), places.clone(), clean));
            }
        }
        for ((video, place), viewers) in by_key {
            for viewers in viewers.chunks(2 * IN_ONE_CALL) {
                removals.commands.push(HDEL_OLDER.call(&[keys.online(video, place)], viewers));
            }
        }
        removals
    }

    /// Takes note of removals that succeeded.
    pub(super) fn note(&mut self, removals: Removals) {
        for (video, places, viewers) in removals.clean {
            let clean = self
                .videos
                .entry(video)
                .or_insert_with(|| Clean { places: places.clone(), viewers: HashSet::default() });
            if clean.places != places {
                self.viewers -= clean.viewers.len();
                *clean = Clean { places, viewers: HashSet::default() };
            }
            let before = clean.viewers.len();
            clean.viewers.extend(viewers);
            self.viewers += clean.viewers.len() - before;
        }
    }
}

/// Which marks of `group`, written by `used`, have another place by `newer`.
pub(super) fn misplaced(group: &Group, used: &Copied, newer: &Copied) -> impl Iterator<Item = (Beat, Mark)> {
    let (before, now) = (used.places(&group.video), newer.places(&group.video));
    let elsewhere = move |viewer: &ViewerId| before.of(viewer) != now.of(viewer);
    let changed = before != now;
    let marks = group.marks().iter().filter(move |(viewer, mark)| {
        // A goodbye has to reach the former places as well.
        changed && (mark.what == What::Leave || elsewhere(viewer))
    });
    marks.map(|(viewer, mark)| (Beat { video: group.video.clone(), viewer: viewer.clone() }, *mark))
}

/// Removes what was just written at the place of `group` and, by a map that was lost since, nobody would
/// ever look for there: it would count once more when the video has as many shards again.
pub(super) fn unlooked_for(group: &Group, newer: &Copied, keys: &Keys, minding: Timestamp) -> Option<Cmd> {
    let places = newer.places(&group.video);
    let is_lost = |viewer: &ViewerId| {
        places.of(viewer) != group.shard && places.formers_of(viewer, minding).all(|at| at != group.shard)
    };
    let lost = group.marks().iter().filter(|(viewer, mark)| mark.what == What::Beat && is_lost(viewer));
    let viewers: Vec<String> =
        lost.flat_map(|(viewer, mark)| [viewer.as_str().to_owned(), mark.at.secs().to_string()]).collect();
    (!viewers.is_empty()).then(|| HDEL_OLDER.call(&[keys.online(&group.video, group.shard)], &viewers))
}
