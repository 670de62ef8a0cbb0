//! The examination that a running service makes of its stores: at its start, and now and then, since
//! somebody may change a setting or promote a replica at any time.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Finding, Verdict, examine};
use crate::{clock::Clock, config::Config, error::StoreError, jobs::Job};

/// Logs findings when they begin and when they end.
pub struct Watching {
    config: Config,
    clock: Arc<dyn Clock>,
    draining: CancellationToken,
    told: Mutex<Vec<(&'static str, Verdict)>>,
}

impl Watching {
    /// Over the stores of these settings. An examination under way ends with `draining`: a store
    /// that doesn't answer must not hold up the stop.
    #[must_use]
    pub fn new(config: &Config, clock: Arc<dyn Clock>, draining: CancellationToken) -> Self {
        Self { config: config.clone(), clock, draining, told: Mutex::default() }
    }

    fn tell(&self, findings: &[Finding]) {
        let mut told = self.told.lock();
        for finding in findings {
            let Finding { check, verdict, found, advice } = finding;
            let news = (*check, *verdict);
            if told.contains(&news) {
                continue;
            }
            let known = told.iter().any(|(before, _)| before == check);
            let name = verdict.name();
            match verdict {
                Verdict::Problem => {
                    tracing::error!(
                        doctor.check = check,
                        doctor.verdict = name,
                        "{check}: {found}; {advice}"
                    );
                }
                Verdict::Warning => {
                    tracing::warn!(doctor.check = check, doctor.verdict = name, "{check}: {found}; {advice}");
                }
                Verdict::Unknown => {
                    tracing::info!(
                        doctor.check = check,
                        doctor.verdict = name,
                        "{check} is unknown: {found}; {advice}"
                    );
                }
                Verdict::Ok if known => {
                    tracing::info!(
                        doctor.check = check,
                        doctor.verdict = name,
                        "{check} is well again: {found}"
                    );
                }
                Verdict::Ok => {
                    tracing::debug!(doctor.check = check, doctor.verdict = name, "{check}: {found}");
                }
            }
        }
        *told = findings.iter().map(|finding| (finding.check, finding.verdict)).collect();
    }
}

#[async_trait]
impl Job for Watching {
    fn name(&self) -> &'static str {
        "doctor"
    }

    fn first_in(&self) -> Duration {
        Duration::ZERO
    }

    fn every(&self) -> Duration {
        Duration::from_secs(600)
    }

    async fn run(&self) -> Result<Option<Duration>, StoreError> {
        let examining = examine(&self.config, self.clock.as_ref());
        if let Some(report) = self.draining.run_until_cancelled(examining).await {
            self.tell(&report.findings);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{
        clock::{ManualClock, Timestamp},
        config::load::load,
    };

    #[test]
    fn only_what_is_new_is_logged() {
        let config = load(None, Some(HashMap::new())).unwrap().config;
        let watching =
            Watching::new(&config, ManualClock::at(Timestamp::from_secs(0)), CancellationToken::new());
        let bad = Finding::problem("redis role", "it is a replica", "point redis.url at the primary");
        let good = Finding::ok("redis role", "it is a primary");
        let lines = crate::telemetry::capture();
        for findings in [[bad.clone()], [bad.clone()], [good.clone()], [good], [bad]] {
            watching.tell(&findings);
        }
        let text = lines.text();
        let told: Vec<&str> =
            text.lines().map(|line| line.split_whitespace().nth(1).unwrap_or_default()).collect();
        assert_eq!(told, ["ERROR", "INFO", "ERROR"], "{text}");
    }
}
