//! Whether the brokers can be used, as one client of theirs sees it: told in the log when it changes.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// For how long a write that failed is taken for news where none was tried since: brokers that answer
/// questions may still take no writes (too few of them in step).
const FAILED_LATELY: Duration = Duration::from_secs(30);

/// What was seen by somebody who looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// They can be used.
    Well,
    /// They can't be, and why.
    Ill(String),
}

/// What is known of the brokers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Condition(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Nothing before the first look.
    look: Option<Look>,
    /// The last thing that the client complained of: a look tells no more than that nobody answers.
    complaint: Option<String>,
    /// When a write last failed, if none went through since.
    failed: Option<Instant>,
    /// Whether a write went through since somebody last asked.
    written: bool,
    /// Whether the client can't go on and has to be made anew.
    broken: bool,
}

impl Condition {
    /// Whether they can be used, as far as is known.
    #[must_use]
    pub fn is_well(&self) -> bool {
        matches!(self.0.lock().look, Some(Look::Well))
    }

    /// A write went through.
    pub fn written(&self) {
        let mut known = self.0.lock();
        (known.written, known.failed) = (true, None);
    }

    /// A write failed.
    pub fn failed(&self, reason: &str) {
        let mut known = self.0.lock();
        known.failed = Some(Instant::now());
        known.complaint.get_or_insert_with(|| reason.to_owned());
    }

    /// The client says what is wrong.
    pub fn complained(&self, reason: &str) {
        self.0.lock().complaint = Some(reason.to_owned());
    }

    /// The client can't go on.
    pub fn broke(&self, reason: &str) {
        let mut known = self.0.lock();
        known.broken = true;
        known.complaint = Some(reason.to_owned());
    }

    /// Whether the client can't go on; asked once, it is somebody's to make a new one.
    #[must_use]
    pub fn take_broken(&self) -> bool {
        std::mem::take(&mut self.0.lock().broken)
    }

    /// Whether writes went through since this was last asked: then nobody needs to look.
    #[must_use]
    pub fn take_written(&self) -> bool {
        std::mem::take(&mut self.0.lock().written)
    }

    /// Takes note of what somebody saw, and tells what is new.
    pub fn saw(&self, look: Look) {
        let mut known = self.0.lock();
        let complaint = known.complaint.take();
        let failed = known.failed.is_some_and(|failed| failed.elapsed() < FAILED_LATELY);
        let look = match look {
            Look::Well if failed => {
                known.complaint.clone_from(&complaint);
                Look::Ill(complaint.unwrap_or_else(|| "writes fail".to_owned()))
            }
            Look::Well => Look::Well,
            Look::Ill(reason) => Look::Ill(match complaint {
                Some(complaint) if complaint != reason => format!("{reason}: {complaint}"),
                _ => reason,
            }),
        };
        match (&known.look, &look) {
            (Some(Look::Ill(_)), Look::Well) => tracing::info!("kafka is back"),
            (None, Look::Well) => tracing::info!("kafka is there"),
            (None | Some(Look::Well), Look::Ill(reason)) => {
                tracing::warn!("kafka can't be used; plays are answered 503 meanwhile: {reason}");
            }
            (Some(Look::Well), Look::Well) | (Some(Look::Ill(_)), Look::Ill(_)) => {}
        }
        known.look = Some(look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ill(reason: &str) -> Look {
        Look::Ill(reason.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn what_changes_is_told_once_and_with_what_the_client_complained_of() {
        let lines = crate::telemetry::capture();
        let condition = Condition::default();
        assert!(!condition.is_well());
        condition.complained("SSL handshake failed");
        condition.saw(ill("no broker answers"));
        condition.saw(ill("no broker answers"));
        assert!(!condition.is_well());
        condition.saw(Look::Well);
        condition.saw(Look::Well);
        assert!(condition.is_well());
        let text = lines.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            text.contains("no broker answers: SSL handshake failed") && text.contains("is back"),
            "{text}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn brokers_that_answer_and_take_no_writes_are_not_well_until_they_do() {
        let condition = Condition::default();
        condition.failed("not enough in-sync replicas");
        condition.saw(Look::Well);
        assert!(!condition.is_well());
        condition.written();
        assert!(condition.take_written() && !condition.take_written());
        condition.saw(Look::Well);
        assert!(condition.is_well());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_nobody_tried_again_is_no_news_after_a_while() {
        let condition = Condition::default();
        condition.failed("timed out");
        condition.saw(Look::Well);
        assert!(!condition.is_well());
        tokio::time::advance(FAILED_LATELY).await;
        condition.saw(Look::Well);
        assert!(condition.is_well());
    }
}
