//! Who watches what: made before anything is measured, and the same in every run.

use std::fmt::Write as _;

/// Viewers of the runs with wrk.
pub(crate) const VIEWERS: u32 = 100_000;

/// Videos they watch: the first is the most watched, by Zipf's law.
pub(crate) const VIDEOS: u32 = 10_000;

/// A small generator of numbers that look random (`SplitMix64`): the same every time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        u32::try_from(self.next() % u64::from(limit)).expect("less than a u32")
    }

    /// From 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are taken")]
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Videos by popularity: the n-th is watched 1/n as often as the first.
pub(crate) struct Popularity(Vec<f64>);

impl Popularity {
    pub(crate) fn new(videos: u32) -> Self {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = Vec::new();
        for rank in 1..=videos {
            sum += 1.0 / f64::from(rank);
            sums.push(sum);
        }
        Self(sums)
    }

    pub(crate) fn pick(&self, dice: &mut Dice) -> usize {
        let all = self.0.last().copied().unwrap_or_default();
        let at = dice.share() * all;
        self.0.partition_point(|sum| *sum < at).min(self.0.len() - 1)
    }
}

/// A video's id: digits, as most sites have them.
pub(crate) fn video(number: usize) -> String {
    format!("{}", 1_000_000 + number)
}

/// A viewer's id of nine digits.
pub(crate) fn viewer(number: u32) -> u32 {
    100_000_000 + number
}

/// What the body of a request is made of.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// `userId`, each viewer its own.
    Viewer,
    /// `playId`, another in each request.
    NewPlay,
    /// `userId`, another in each request: as a site counts that names its viewers.
    NewViewer,
    /// `playId`, the same few again and again.
    OldPlay,
    /// None: a GET.
    None,
}

/// Who watches what, in [`requests`] of viewers.
pub(crate) fn everybody() -> impl Iterator<Item = (String, u32)> {
    let (mut dice, popularity) = (Dice::new(1), Popularity::new(VIDEOS));
    (0..VIEWERS).map(move |number| (video(popularity.pick(&mut dice)), viewer(number)))
}

/// A file of requests for `requests.lua`: one a viewer, in random order.
pub(crate) fn requests(body: Body) -> String {
    let mut lines = String::new();
    // What an instance remembers of plays just counted holds far more than these.
    let count = if matches!(body, Body::OldPlay) { VIEWERS / 10 } else { VIEWERS };
    for (number, (video, viewer)) in (0..count).zip(everybody()) {
        let written = match body {
            Body::Viewer => writeln!(lines, "{video}\t{{\"userId\":\"{viewer}\"}}"),
            Body::NewPlay => writeln!(lines, "{video}\t{{\"playId\":\"@\"}}"),
            Body::NewViewer => writeln!(lines, "{video}\t{{\"userId\":\"@\"}}"),
            Body::OldPlay => writeln!(lines, "{video}\t{{\"playId\":\"{number:016}\"}}"),
            Body::None => writeln!(lines, "{video}\t"),
        };
        written.expect("a String takes everything");
    }
    lines
}

/// The body in which a gateway sends beats of (video, viewer).
pub(crate) fn body_of(beats: impl Iterator<Item = (String, u32)>) -> String {
    let mut body = String::from("{\"beats\":[");
    for (number, (video, viewer)) in beats.enumerate() {
        let comma = if number == 0 { "" } else { "," };
        write!(body, "{comma}{{\"videoId\":\"{video}\",\"userId\":\"{viewer}\"}}")
            .expect("a String takes everything");
    }
    body.push_str("]}");
    body
}

/// The n-th request of a gateway, of so many beats: the same every time.
pub(crate) fn batch(number: u64, beats: usize) -> String {
    let mut dice = Dice::new(number);
    let mut beat = || {
        let video = video(usize::try_from(dice.below(VIDEOS)).expect("a u32"));
        (video, viewer(dice.below(VIEWERS)))
    };
    body_of((0..beats).map(|_| beat()))
}

/// A file of requests of gateways, with so many beats each.
pub(crate) fn batches(beats: usize) -> String {
    (0..2_000).map(|number| ["\t", &batch(number, beats), "\n"].concat()).collect()
}

/// A file of requests for many videos at once: `many` ids, separated by commas.
pub(crate) fn lists(many: usize) -> String {
    let (mut dice, popularity) = (Dice::new(2), Popularity::new(VIDEOS));
    let mut lines = String::new();
    for _ in 0..2_000 {
        let mut ids = std::collections::BTreeSet::new();
        while ids.len() < many {
            ids.insert(video(popularity.pick(&mut dice)));
        }
        lines.push_str(&ids.into_iter().collect::<Vec<_>>().join(","));
        lines.push_str("\t\n");
    }
    lines
}
