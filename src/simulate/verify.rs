//! Compares what every target says with what was done, video by video.

use std::{fmt, ops::RangeInclusive, time::Duration};

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};

use super::{
    audience::Video,
    client::{Client, Counts, Failure, wait_before_retry},
    report::Kind,
};

/// Most ids the service takes in one call.
const IDS_PER_CALL: usize = 500;

/// How often a number that is not right yet is read again.
const REREAD_EVERY: Duration = Duration::from_millis(500);

/// How often a question without an answer is put again after the time is over.
const MORE_TRIES: u32 = 10;

/// What has to be said about one video.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Expectation {
    pub(super) video: Video,
    pub(super) online: u64,
    pub(super) plays: RangeInclusive<u64>,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Difference {
    /// None where it is about the target as a whole.
    pub(super) video: Option<String>,
    /// None where it is about all of them.
    pub(super) target: Option<String>,
    pub(super) what: &'static str,
    pub(super) expected: String,
    pub(super) got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { video, target, what, expected, got } = self;
        match (video, target) {
            (Some(video), Some(target)) => write!(formatter, "{video} at {target}: ")?,
            (Some(one), None) | (None, Some(one)) => write!(formatter, "{one}: ")?,
            (None, None) => {}
        }
        write!(formatter, "{what}: expected {expected}, got {got}")
    }
}

/// What was there before the run.
#[derive(Debug)]
pub(super) struct Baseline {
    plays: Vec<u64>,
    /// Viewers of an earlier run with the same ids may be among those counted.
    pub(super) anyone_online: bool,
}

impl Baseline {
    #[cfg(test)]
    pub(super) fn of(plays: Vec<u64>) -> Self {
        Self { plays, anyone_online: false }
    }

    pub(super) fn plays(&self, video: Video) -> u64 {
        self.plays[video.index()]
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.anyone_online && self.plays.iter().all(|&plays| plays == 0)
    }

    /// Reads all videos, from whichever target answers.
    pub(super) async fn read(client: &Client, videos: &[Video], limit: Duration) -> anyhow::Result<Self> {
        let mut baseline = Self { plays: Vec::with_capacity(videos.len()), anyone_online: false };
        for group in videos.chunks(IDS_PER_CALL) {
            let counts = ask(client, limit, async |target| {
                let counts = client.counts(target, group).await?;
                // A number that nobody vouches for is no base to count from.
                let sure =
                    |counts: &Counts| counts.error.is_some() || counts.plays.is_some() && !counts.plays_stale;
                if counts.iter().all(sure) { Ok(counts) } else { Err(Failure::Unsure) }
            });
            for counts in counts.await.context("could not read the plays before the run")? {
                match counts.error.as_deref() {
                    None | Some("unknown_video") => {}
                    Some(error) => bail!("could not read the plays before the run: {error}"),
                }
                baseline.plays.push(counts.plays.unwrap_or(0));
                baseline.anyone_online |= counts.online.is_some_and(|online| online > 0);
            }
        }
        Ok(baseline)
    }
}

/// The window the targets are set to.
pub(super) async fn window(client: &Client, video: Video, limit: Duration) -> anyhow::Result<Duration> {
    ask(client, limit, async |target| client.window(target, video).await)
        .await
        .context("could not ask for the window; give it with --window")
}

/// Puts a question to one target after another until there is an answer.
async fn ask<T>(
    client: &Client,
    limit: Duration,
    question: impl AsyncFn(usize) -> Result<T, Failure>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + limit;
    let mut failures = 0;
    for target in (0..client.targets()).cycle() {
        let failure = match question(target).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        failures += 1;
        let wait = wait_before_retry(failures, failure.retry_after(), rand::random());
        if !failure.is_transient() || Instant::now() + wait > deadline {
            return Err(anyhow::Error::new(failure).context(client.base(target).to_owned()));
        }
        client.stats.retried(Kind::Counts);
        sleep(wait).await;
    }
    bail!("no target is given")
}

/// Reads all videos from all targets until everything is as expected, or `patience` is over: caches are
/// some seconds old, and a sweep may be under way. What is left then is the answer.
pub(super) async fn check(
    client: &Client,
    expectations: &[Expectation],
    patience: Duration,
) -> Vec<Difference> {
    let deadline = Instant::now() + patience;
    let mut open: Vec<Vec<&Expectation>> = vec![expectations.iter().collect(); client.targets()];
    let mut more_tries = MORE_TRIES;
    loop {
        let last = Instant::now() >= deadline;
        let mut differences = Vec::new();
        let mut wait = REREAD_EVERY;
        for (target, expectations) in open.iter_mut().enumerate() {
            let (still_open, asked_to_wait) = look(client, target, expectations, &mut differences).await;
            *expectations = still_open;
            wait = wait.max(asked_to_wait);
        }
        // An answer that didn't come is no wrong number: it gets a few more tries.
        let unanswered = differences.iter().all(|difference| difference.video.is_none());
        if differences.is_empty() || last && !(unanswered && more_tries > 0) {
            return differences;
        }
        more_tries -= u32::from(last);
        // One look at the deadline itself, however long an instance asked to wait.
        let left = deadline.saturating_duration_since(Instant::now());
        sleep(if last { REREAD_EVERY } else { wait.min(left) }).await;
    }
}

/// One look at one target: what is not as expected, to be looked at again, and how long it asks to wait.
async fn look<'a>(
    client: &Client,
    target: usize,
    expectations: &[&'a Expectation],
    differences: &mut Vec<Difference>,
) -> (Vec<&'a Expectation>, Duration) {
    let mut open = Vec::new();
    for (group, number) in expectations.chunks(IDS_PER_CALL).zip(0..) {
        let videos: Vec<_> = group.iter().map(|expectation| expectation.video).collect();
        match client.counts(target, &videos).await {
            Ok(counts) => {
                for (expectation, counts) in group.iter().zip(&counts) {
                    let found = compare(expectation, counts);
                    if !found.is_empty() {
                        open.push(*expectation);
                    }
                    differences.extend(found.into_iter().map(|(what, expected, got)| Difference {
                        video: Some(client.video_id(expectation.video)),
                        target: Some(client.base(target).to_owned()),
                        what,
                        expected,
                        got,
                    }));
                }
            }
            Err(failure) => {
                // The other groups would most likely fail as well, after a timeout each.
                open.extend(&expectations[number * IDS_PER_CALL..]);
                differences.push(Difference {
                    video: None,
                    target: Some(client.base(target).to_owned()),
                    what: "counts",
                    expected: format!("those of {} videos", expectations.len() - number * IDS_PER_CALL),
                    got: failure.to_string(),
                });
                return (open, failure.retry_after().unwrap_or_default());
            }
        }
    }
    (open, Duration::ZERO)
}

/// What is expected and what is said where they differ.
fn compare(expectation: &Expectation, counts: &Counts) -> Vec<(&'static str, String, String)> {
    let Expectation { online, plays, .. } = expectation;
    if let Some(error) = &counts.error {
        // Of a video nobody watched, the service needn't know anything.
        let known = *online > 0 || *plays.end() > 0;
        return if known { vec![("counts", "both".to_owned(), error.clone())] } else { Vec::new() };
    }

    let mut found = Vec::new();
    if counts.online != Some(*online) {
        found.push(("online", online.to_string(), or_null(counts.online)));
    } else if counts.online_stale {
        found.push(("online", format!("{online}, fresh"), format!("{online}, stale")));
    }
    if !counts.plays.is_some_and(|got| plays.contains(&got)) {
        found.push(("plays", range(plays), or_null(counts.plays)));
    } else if counts.plays_stale {
        found.push((
            "plays",
            format!("{}, fresh", range(plays)),
            format!("{}, stale", or_null(counts.plays)),
        ));
    }
    found
}

fn or_null(number: Option<u64>) -> String {
    number.map_or_else(|| "null".to_owned(), |number| number.to_string())
}

fn range(plays: &RangeInclusive<u64>) -> String {
    if plays.start() == plays.end() {
        plays.start().to_string()
    } else {
        format!("{} to {}", plays.start(), plays.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(online: u64, plays: RangeInclusive<u64>, counts: &str) -> Vec<String> {
        let counts: Counts = serde_json::from_str(counts).unwrap();
        let found = compare(&Expectation { video: Video(0), online, plays }, &counts);
        found.into_iter().map(|(what, expected, got)| format!("{what}: {expected} / {got}")).collect()
    }

    #[test]
    fn the_right_numbers_are_no_difference() {
        let right = r#"{"videoId":"a","online":3,"onlineStale":false,"plays":9,"playsStale":false}"#;
        assert!(differences(3, 9..=9, right).is_empty());
        assert!(differences(3, 8..=9, right).is_empty());
    }

    #[test]
    fn each_wrong_number_is_told() {
        let wrong = r#"{"videoId":"a","online":4,"onlineStale":false,"plays":8,"playsStale":false}"#;
        assert_eq!(differences(3, 9..=9, wrong), ["online: 3 / 4", "plays: 9 / 8"]);
        assert_eq!(differences(4, 9..=11, wrong), ["plays: 9 to 11 / 8"]);
    }

    #[test]
    fn a_number_nobody_vouches_for_is_not_right() {
        let unsure = r#"{"videoId":"a","online":3,"onlineStale":true,"plays":9,"playsStale":true}"#;
        assert_eq!(
            differences(3, 9..=9, unsure),
            ["online: 3, fresh / 3, stale", "plays: 9, fresh / 9, stale"]
        );
        let null = r#"{"videoId":"a","online":null,"onlineStale":true,"plays":null,"playsStale":true}"#;
        assert_eq!(differences(0, 0..=0, null), ["online: 0 / null", "plays: 0 / null"]);
    }

    #[test]
    fn an_unknown_video_is_wrong_only_if_somebody_watched_it() {
        let unknown = r#"{"videoId":"a","error":"unknown_video"}"#;
        assert!(differences(0, 0..=0, unknown).is_empty());
        assert_eq!(differences(0, 0..=1, unknown), ["counts: both / unknown_video"]);
        assert_eq!(differences(1, 0..=0, unknown), ["counts: both / unknown_video"]);
    }
}
