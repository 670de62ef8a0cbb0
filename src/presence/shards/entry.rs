//! One field of the map, and what a sweep makes of it.

use crate::clock::Timestamp;

/// The field of the map that holds for every video.
pub(crate) const EVERY_VIDEO: &str = "*";

/// Where the audience decides, this stands in the place of a number.
pub(crate) const AUTO: &str = "auto";

/// So many shards had every video in builds that kept no map.
pub(crate) const BEFORE_THE_MAP: &str = "16";

/// The most shards of one video: at 100 viewers each, enough for 6.5 million.
pub(super) const MOST: u32 = 65_536;

/// Who decides how many shards there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// The audience: the video's own entry, or one shard.
    Auto,
    /// The operator.
    Of(u32),
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        if text == AUTO {
            return Some(Self::Auto);
        }
        let shards: u32 = text.parse().ok()?;
        (shards.is_power_of_two() && shards <= MOST).then_some(Self::Of(shards))
    }

    pub(super) fn or_own(self, own: u32) -> u32 {
        match self {
            Self::Auto => own,
            Self::Of(shards) => shards,
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => formatter.write_str(AUTO),
            Self::Of(shards) => shards.fmt(formatter),
        }
    }
}

/// One field of the map: `<now> <former>:<until> <former>:<until>…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(super) now: Number,
    pub(super) formers: Vec<(Number, Timestamp)>,
}

impl Entry {
    /// `None` for what no sweep has written; it counts as not there.
    pub(crate) fn parse(stored: &str) -> Option<Self> {
        let mut parts = stored.split(' ');
        let now = Number::parse(parts.next()?)?;
        let formers = parts.map(|part| {
            let (shards, until) = part.split_once(':')?;
            Some((Number::parse(shards)?, Timestamp::from_secs(until.parse().ok()?)))
        });
        Some(Self { now, formers: formers.collect::<Option<_>>()? })
    }

    pub(crate) fn number(&self) -> Number {
        self.now
    }

    fn minds(&self, number: Number, now: Timestamp) -> bool {
        self.formers.iter().any(|(former, until)| *former == number && now < *until)
    }

    /// Whether it has former numbers and the time of each was over at `then`.
    pub(crate) fn is_done_with_formers(&self, then: Timestamp) -> bool {
        !self.formers.is_empty() && !self.minds_any(then)
    }

    fn minds_any(&self, now: Timestamp) -> bool {
        self.formers.iter().any(|(_, until)| now < *until)
    }
}

/// What a sweep should make of a video's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Spread the viewers over so many shards.
    To(u32),
    /// Drop the entry: it says nothing any more.
    Forget,
}

/// What to make of the entry of a video that has `viewers`; `written` is whether anything stands there:
/// what can't be read goes.
pub(crate) fn change(
    every: Option<&Entry>,
    own: Option<&Entry>,
    written: bool,
    viewers: u64,
    per_shard: u32,
    now: Timestamp,
) -> Option<Change> {
    if written && own.is_none() {
        return Some(Change::Forget);
    }
    let minded = own.is_some_and(|own| own.minds_any(now));
    if let Some(every) = every
        && every.now != Number::Auto
    {
        // What the audience decided before is a former number until all have moved.
        let over = written && !minded && !every.minds(Number::Auto, now);
        return over.then_some(Change::Forget);
    }
    let shards = own.map_or(1, |own| own.now.or_own(1));
    let fitting = fitting(shards, viewers, per_shard, minded);
    if fitting != shards {
        return Some(Change::To(fitting));
    }
    (written && shards == 1 && !minded).then_some(Change::Forget)
}

/// Straight up to the number that fits; down by half, so that who comes and goes moves nobody. While
/// viewers are `moving` some of them are counted at two places, which is no reason for more: half of the
/// shards would stay half empty.
fn fitting(shards: u32, viewers: u64, per_shard: u32, moving: bool) -> u32 {
    let room = u64::from(shards) * u64::from(per_shard);
    let met_twice = if moving { room / 4 } else { 0 };
    if viewers > room + met_twice {
        let wanted = viewers.div_ceil(u64::from(per_shard)).min(u64::from(MOST));
        return u32::try_from(wanted).unwrap_or(MOST).next_power_of_two();
    }
    if viewers < room / 4 { (shards / 2).max(1) } else { shards }
}
