//! Who watches what, and when they come and go: all of it follows from the seed.
//!
//! There are as many seats as viewers. A leaver's seat is taken by a new viewer at the same moment, so
//! the audience keeps its size and its rhythm. Every viewer has a random number generator of its own,
//! made of the seed and its number; so nothing here depends on how the run goes.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::Zipf;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::options::Options;

/// A viewer, by the order of coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Viewer(pub(super) u64);

/// A video, by its popularity: 0 is the most watched one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Video(pub(super) u32);

impl Video {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The place of one viewer at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seat(pub(super) u32);

impl Seat {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// All that one viewer means to do. Times are counted from the start of the run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Visit {
    pub(super) seat: Seat,
    pub(super) viewer: Viewer,
    /// What the viewer watches, from entering to leaving.
    pub(super) video: Video,
    /// The first heartbeat; the others follow at the same distance.
    pub(super) enters: Duration,
    /// At most one play of a video, as the service counts a viewer once.
    pub(super) plays: Vec<(Duration, Video)>,
}

/// One viewer leaves without a word, and `next` takes the seat.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub(super) at: Duration,
    pub(super) next: Visit,
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub(super) struct Audience {
    seed: u64,
    seats: u32,
    videos: u32,
    popularity: Zipf<f64>,
    heartbeat_every: Duration,
    duration: Duration,
    /// Time between two leavers; none when nobody leaves.
    change_every: Option<Duration>,
    plays_per_viewer: u32,
}

impl Audience {
    pub(super) fn new(options: &Options, seed: u64) -> anyhow::Result<Self> {
        let changes_per_second = options.churn * f64::from(options.viewers) / 60.0;
        // A day between two leavers, or more, is a run without any; it would overflow a `Duration`.
        let change_every =
            (changes_per_second > 1.0 / 86_400.0).then(|| Duration::from_secs_f64(1.0 / changes_per_second));

        Ok(Self {
            seed,
            seats: options.viewers,
            videos: options.videos,
            popularity: Zipf::new(f64::from(options.videos), options.zipf)?,
            heartbeat_every: options.heartbeat_every,
            duration: options.duration,
            change_every,
            plays_per_viewer: options.plays_per_viewer.min(options.videos),
        })
    }

    pub(super) fn seats(&self) -> u32 {
        self.seats
    }

    pub(super) fn plays_per_viewer(&self) -> u32 {
        self.plays_per_viewer
    }

    pub(super) fn videos(&self) -> impl Iterator<Item = Video> + use<> {
        (0..self.videos).map(Video)
    }

    pub(super) fn heartbeat_every(&self) -> Duration {
        self.heartbeat_every
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration
    }

    /// The viewers the run begins with. They enter one after another within one heartbeat, each at a
    /// random moment of its own slice, so that the beats are spread evenly for the whole run.
    pub(super) fn first(&self) -> impl Iterator<Item = Visit> {
        (0..self.seats).map(|seat| {
            let roll: f64 = self.dice(Stream::Entry, u64::from(seat)).random();
            let enters = self.heartbeat_every.mul_f64((f64::from(seat) + roll) / f64::from(self.seats));
            self.visit(Seat(seat), Viewer(u64::from(seat)), enters)
        })
    }

    /// The change of this number; none once it would fall after the run.
    pub(super) fn change(&self, number: u32) -> Option<Change> {
        let mut dice = self.dice(Stream::Change, u64::from(number));
        let roll: f64 = dice.random();
        let at = self.change_every?.mul_f64(f64::from(number) + roll);
        if at >= self.duration {
            return None;
        }
        let seat = Seat(dice.random_range(0..self.seats));
        let viewer = Viewer(u64::from(self.seats) + u64::from(number));
        Some(Change { at, next: self.visit(seat, viewer, at) })
    }

    fn visit(&self, seat: Seat, viewer: Viewer, enters: Duration) -> Visit {
        let mut dice = self.dice(Stream::Visit, viewer.0);
        let video = self.draw(&mut dice);

        let mut plays: Vec<(Duration, Video)> = Vec::new();
        while plays.len() < self.plays_per_viewer as usize && enters < self.duration {
            let (at, video) = if plays.is_empty() {
                (enters, video)
            } else {
                let roll: f64 = dice.random();
                let at = enters + self.duration.saturating_sub(enters).mul_f64(roll);
                (at, self.draw_another(&mut dice, &plays))
            };
            plays.push((at, video));
        }
        Visit { seat, viewer, video, enters, plays }
    }

    fn draw(&self, dice: &mut Xoshiro256PlusPlus) -> Video {
        let rank = dice.sample(self.popularity);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "Zipf gives whole numbers from 1 to the number of videos, which is a u32"
        )]
        let rank = rank as u32;
        Video(rank.clamp(1, self.videos) - 1)
    }

    /// A video that was not played before; there is one, as a viewer plays no more than there are.
    fn draw_another(&self, dice: &mut Xoshiro256PlusPlus, plays: &[(Duration, Video)]) -> Video {
        let is_new = |video: &Video| plays.iter().all(|(_, played)| played != video);
        // With a steep popularity nearly every draw is a video already played, so give up some time.
        let drawn = (0..64).map(|_| self.draw(dice)).find(is_new);
        drawn.or_else(|| self.videos().find(is_new)).unwrap_or(Video(0))
    }

    fn dice(&self, stream: Stream, number: u64) -> Xoshiro256PlusPlus {
        let mut bytes = [0; 9];
        bytes[0] = stream as u8;
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        Xoshiro256PlusPlus::seed_from_u64(xxh3_64_with_seed(&bytes, self.seed))
    }
}

/// What a random number is for, so that no two purposes share their numbers.
#[derive(Clone, Copy)]
enum Stream {
    Entry,
    Change,
    Visit,
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::simulate::options::parse;

    fn audience(seed: u64, change: impl FnOnce(&mut Options)) -> Audience {
        let arguments = "--viewers=1000 --videos=100 --churn=0.5 --duration=5m --plays-per-viewer=3";
        let mut options = parse(&arguments.split(' ').collect::<Vec<_>>()).unwrap();
        change(&mut options);
        Audience::new(&options, seed).unwrap()
    }

    fn changes(audience: &Audience) -> Vec<Change> {
        (0..).map_while(|number| audience.change(number)).collect()
    }

    #[test]
    fn one_seed_is_one_audience() {
        let (once, again, other) = (audience(7, |_| ()), audience(7, |_| ()), audience(8, |_| ()));

        assert!(once.first().eq(again.first()));
        assert_eq!(changes(&once), changes(&again));
        assert!(!once.first().eq(other.first()));
        assert_ne!(changes(&once), changes(&other));
    }

    #[test]
    fn popularity_follows_zipf() {
        let audience = audience(1, |options| options.viewers = 50_000);
        let mut watched = [0.0_f64; 100];
        for visit in audience.first() {
            watched[visit.video.index()] += 1.0;
        }

        let harmonic: f64 = (1..=100).map(|rank| 1.0 / f64::from(rank)).sum();
        for (rank, got) in (1..).zip(watched) {
            let expected = 50_000.0 / harmonic / f64::from(rank);
            // Five standard deviations: a wrong exponent is far beyond, chance is not.
            assert!((got - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {got}, not {expected}");
        }
    }

    #[test]
    fn an_exponent_of_zero_makes_all_videos_alike() {
        let audience = audience(1, |options| {
            options.viewers = 50_000;
            options.zipf = 0.0;
        });
        let mut watched = [0_u32; 100];
        for visit in audience.first() {
            watched[visit.video.index()] += 1;
        }
        assert!(watched.iter().all(|viewers| (388..=612).contains(viewers)), "{watched:?}");
    }

    #[test]
    fn heartbeats_are_spread_evenly() {
        let audience = audience(3, |_| ());
        let mut per_second = [0_u32; 30];
        for visit in audience.first() {
            per_second[usize::try_from(visit.enters.as_secs()).unwrap()] += 1;
        }
        assert!(per_second.iter().all(|beats| (32..=35).contains(beats)), "{per_second:?}");
    }

    #[test]
    fn the_share_that_leaves_per_minute_is_the_one_asked_for() {
        let changes = changes(&audience(4, |_| ()));

        assert_eq!(changes.len(), 2_500, "half of 1,000 viewers a minute, for 5 minutes");
        assert!(changes.is_sorted_by_key(|change| change.at));
        assert!(changes.iter().all(|change| change.at == change.next.enters));
        let minute = |minute| changes.iter().filter(|change| change.at.as_secs() / 60 == minute).count();
        assert!((0..5).all(|number| (499..=501).contains(&minute(number))));
    }

    #[test]
    fn nobody_leaves_without_churn() {
        assert_eq!(audience(4, |options| options.churn = 0.0).change(0), None);
        assert_eq!(audience(4, |options| options.churn = 1e-300).change(0), None);
    }

    #[test]
    fn no_viewer_number_is_given_twice() {
        let audience = audience(5, |_| ());
        let visits = audience.first().chain(changes(&audience).into_iter().map(|change| change.next));
        let viewers: Vec<_> = visits.map(|visit| visit.viewer).collect();
        assert_eq!(viewers.iter().collect::<HashSet<_>>().len(), viewers.len());
    }

    #[test]
    fn a_viewer_plays_first_what_it_watches_and_nothing_twice() {
        for visit in audience(6, |options| options.zipf = 4.0).first() {
            assert_eq!(visit.plays[0], (visit.enters, visit.video));
            assert_eq!(visit.plays.iter().map(|(_, video)| video).collect::<HashSet<_>>().len(), 3);
            assert!(visit.plays.iter().all(|(at, _)| (visit.enters..Duration::from_mins(5)).contains(at)));
        }
    }

    #[test]
    fn a_viewer_plays_no_more_than_there_are_videos() {
        let audience = audience(6, |options| options.videos = 2);
        assert!(audience.first().all(|visit| visit.plays.len() == 2));
    }

    #[test]
    fn the_odd_popularities_give_an_audience_too() {
        for (videos, zipf) in [(1, 0.0), (1, 1.0), (1, 1_000.0), (10_000_000, 1_000.0), (10_000_000, 0.0)] {
            let audience = audience(2, |options| (options.videos, options.zipf) = (videos, zipf));
            assert!(audience.first().all(|visit| visit.video.0 < videos));
        }
    }

    #[test]
    fn who_enters_after_the_end_plays_nothing() {
        let audience = audience(6, |options| options.duration = Duration::from_secs(15));
        assert!(audience.first().all(|visit| visit.plays.is_empty() == (visit.enters.as_secs() >= 15)));
    }
}
