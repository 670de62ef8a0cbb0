//! What the service has acknowledged, and so has to show: the other side of `--verify`.
//!
//! A play is expected when the service said it was counted or taken, or when it said "duplicate" to a
//! repetition of a try that may have worked. A play that was never answered, although a try of it may
//! have worked, is at most one more: for that one the right number is a range.

use super::{
    audience::Video,
    client::PlayAnswer,
    verify::{Baseline, Difference, Expectation},
};

#[derive(Debug)]
pub(super) struct Ledger {
    videos: Vec<Entry>,
    begun: u64,
    open: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    counted: u64,
    uncertain: u64,
    /// "Duplicate" to a play that was never sent before.
    unheard_of: u64,
    /// Heartbeats that were told nobody is watching.
    nobody: u64,
}

impl Ledger {
    pub(super) fn new(videos: usize) -> Self {
        Self { videos: vec![Entry::default(); videos], begun: 0, open: 0 }
    }

    /// Plays begun and not yet answered for good.
    pub(super) fn open(&self) -> u64 {
        self.open
    }

    /// Plays the service has acknowledged.
    pub(super) fn counted(&self) -> u64 {
        self.videos.iter().map(|entry| entry.counted).sum()
    }

    /// Plays that were refused, or for which no answer was to be had.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.begun - self.open - self.counted()
    }

    /// Those of them that may have been counted all the same.
    pub(super) fn uncertain(&self) -> u64 {
        self.videos.iter().map(|entry| entry.uncertain).sum()
    }

    pub(super) fn play_begun(&mut self) {
        self.begun += 1;
        self.open += 1;
    }

    /// `tried` says whether an earlier try may have worked without an answer.
    pub(super) fn play_answered(&mut self, video: Video, answer: PlayAnswer, tried: bool) {
        self.open -= 1;
        let entry = &mut self.videos[video.index()];
        match (answer, tried) {
            (PlayAnswer::Counted, _) | (PlayAnswer::Duplicate, true) => entry.counted += 1,
            (PlayAnswer::Duplicate, false) => entry.unheard_of += 1,
            (PlayAnswer::NotCounted, true) => entry.uncertain += 1,
            (PlayAnswer::NotCounted, false) => {}
        }
    }

    /// Refused for good, or given up.
    pub(super) fn play_unanswered(&mut self, video: Video, tried: bool) {
        self.open -= 1;
        self.videos[video.index()].uncertain += u64::from(tried);
    }

    /// A viewer who beats is one of those who are online, so the answer is at least 1.
    pub(super) fn beat_answered(&mut self, video: Video, online: Option<u64>) {
        self.videos[video.index()].nobody += u64::from(online.is_none_or(|online| online == 0));
    }

    /// What every target has to say about each video, given who is present.
    pub(super) fn expectations(&self, baseline: &Baseline, present: &[u64]) -> Vec<Expectation> {
        let videos = (0..).map(Video).zip(&self.videos).zip(present);
        videos
            .map(|((video, entry), &online)| {
                let least = baseline.plays(video) + entry.counted;
                Expectation { video, online, plays: least..=least + entry.uncertain }
            })
            .collect()
    }

    /// Answers that were wrong in themselves, whatever the totals are.
    pub(super) fn wrong_answers(
        &self,
        baseline: &Baseline,
        name: impl Fn(Video) -> String,
    ) -> Vec<Difference> {
        let wrong = |video: Video, what: &'static str, expected: &str, got: String| Difference {
            video: Some(name(video)),
            target: None,
            what,
            expected: expected.to_owned(),
            got,
        };
        let mut differences = Vec::new();
        for (video, entry) in (0..).map(Video).zip(&self.videos) {
            if entry.nobody > 0 {
                let got = format!("none or 0, {} times", entry.nobody);
                differences.push(wrong(video, "online in answers to heartbeats", "1 or more", got));
            }
            // With plays from before, these may be the same viewers' of a run with the same ids.
            if entry.unheard_of > 0 && baseline.plays(video) == 0 {
                let got = format!("\"duplicate\", {} times", entry.unheard_of);
                differences.push(wrong(video, "first plays of viewers", "counted", got));
            }
        }
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIDEO: Video = Video(1);

    fn plays_after(answers: &[(PlayAnswer, bool)], baseline: u64) -> std::ops::RangeInclusive<u64> {
        let mut ledger = Ledger::new(2);
        for &(answer, tried) in answers {
            ledger.play_begun();
            ledger.play_answered(VIDEO, answer, tried);
        }
        assert_eq!(ledger.open(), 0);
        let baseline = Baseline::of(vec![0, baseline]);
        ledger.expectations(&baseline, &[0, 0]).remove(1).plays
    }

    #[test]
    fn what_is_acknowledged_is_expected_on_top_of_what_was_there() {
        assert_eq!(plays_after(&[(PlayAnswer::Counted, false), (PlayAnswer::Counted, true)], 40), 42..=42);
    }

    #[test]
    fn a_duplicate_is_a_play_only_when_it_repeats_a_try_that_may_have_worked() {
        assert_eq!(plays_after(&[(PlayAnswer::Duplicate, true)], 0), 1..=1);
        assert_eq!(plays_after(&[(PlayAnswer::Duplicate, false)], 0), 0..=0);
    }

    #[test]
    fn a_play_that_was_never_answered_leaves_a_range() {
        let mut ledger = Ledger::new(2);
        for tried in [true, false, true] {
            ledger.play_begun();
            ledger.play_unanswered(VIDEO, tried);
        }
        assert_eq!((ledger.open(), ledger.unacknowledged(), ledger.uncertain()), (0, 3, 2));
        assert_eq!(ledger.expectations(&Baseline::of(vec![0, 5]), &[0, 0])[1].plays, 5..=7);
    }

    #[test]
    fn a_duplicate_out_of_nowhere_is_wrong_unless_the_ids_were_used_before() {
        let mut ledger = Ledger::new(2);
        ledger.play_begun();
        ledger.play_answered(VIDEO, PlayAnswer::Duplicate, false);

        let wrong = |plays| ledger.wrong_answers(&Baseline::of(vec![0, plays]), |video| video.0.to_string());
        assert_eq!(
            wrong(0)[0].to_string(),
            "1: first plays of viewers: expected counted, got \"duplicate\", 1 times"
        );
        assert!(wrong(1).is_empty());
    }

    #[test]
    fn a_viewer_who_is_told_that_nobody_watches_is_told_wrong() {
        let mut ledger = Ledger::new(2);
        for online in [Some(1), Some(0), None, Some(7)] {
            ledger.beat_answered(VIDEO, online);
        }
        let wrong = ledger.wrong_answers(&Baseline::of(vec![0, 0]), |video| video.0.to_string());
        assert_eq!(wrong.len(), 1);
        assert_eq!(wrong[0].got, "none or 0, 2 times");
    }
}
