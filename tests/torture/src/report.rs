//! What this program prints: a line every ten seconds, and a table at the end.

use std::{sync::Arc, time::Duration};

use crate::{
    instance::Life,
    tally::{Tally, Wrong},
    verdict::Off,
    world::{INSTANCES, Kind},
};

/// Between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Prints how it goes.
pub(crate) async fn progress(tally: Arc<Tally>) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let faults: u64 = tally.faults().values().sum();
        let acknowledged = tally.acknowledged.get();
        println!(
            "torture: {:4.0} s: {faults} faults, {acknowledged} plays acknowledged, {} waiting, {} retries, \
             {} totals read, {} problems",
            tally.at().as_secs_f64(),
            tally.begun.get() - acknowledged,
            tally.retries.get(),
            tally.totals_read.get(),
            tally.problems().0,
        );
    }
}

/// How a run ended.
pub(crate) struct Report {
    pub(crate) tally: Arc<Tally>,
    pub(crate) off: Off,
    pub(crate) kind: Kind,
    /// How often parts of Kafka's topic were taken up.
    pub(crate) taken_up: Option<usize>,
    /// Of each instance.
    pub(crate) lives: [Vec<Life>; INSTANCES],
}

/// Faults that a torture must have seen for its verdict to mean something; a cluster takes its time to be
/// whole again.
const FAULTS_A_MINUTE: f64 = 20.0;
const FAULTS_OF_A_CLUSTER: f64 = 8.0;

/// The same beside three brokers in Java. Consumers that come and go are no part of it.
const FAULTS_WITH_KAFKA: f64 = 12.0;

impl Report {
    /// Prints all of it; answers whether nothing went wrong.
    pub(crate) fn print(&self, minutes: f64, seed: u64) -> bool {
        let tally = &self.tally;
        self.print_table();
        let (count, problems) = tally.problems();
        for problem in &problems {
            println!("{problem}");
        }
        if count > problems.len() {
            println!("... and {} more, in torture.log", count - problems.len());
        }
        let faults: u64 = tally.faults().values().sum();
        let seen = |wrong| tally.count(wrong) as u64;
        println!(
            "torture: {minutes} minutes, seed {seed}: {faults} faults, {} plays acknowledged, {} lost, \
             {} double, {} steps back",
            tally.acknowledged.get(),
            self.off.lost.max(seen(Wrong::Lost)),
            self.off.double.max(seen(Wrong::Double)),
            seen(Wrong::StepBack),
        );
        // One that hardly disturbed anything shows nothing.
        let wanted = match self.kind {
            Kind::Single => FAULTS_A_MINUTE,
            Kind::Cluster => FAULTS_OF_A_CLUSTER,
            Kind::Kafka => FAULTS_WITH_KAFKA,
        };
        #[expect(clippy::cast_precision_loss, reason = "a number of faults")]
        let enough = faults as f64 >= minutes * wanted;
        if !enough {
            println!("torture: at least {wanted} faults a minute are wanted");
        }
        count == 0 && enough
    }

    fn print_table(&self) {
        let tally = &self.tally;
        println!("faults");
        for (name, count) in tally.faults() {
            line(name, &count.to_string());
        }
        if let Some(taken_up) = self.taken_up {
            println!("rebalances: every 5 s one of 3 consumers goes or comes");
            for (does, count) in tally.consumers() {
                line(&format!("consumer {does}"), &count.to_string());
            }
            line("parts taken up, in all three", &taken_up.to_string());
        }
        println!("plays");
        for (name, count) in [
            ("acknowledged", &tally.acknowledged),
            ("counted without an answer", &tally.silent),
            ("requests", &tally.plays_sent),
            ("retries", &tally.retries),
            ("duplicates on purpose", &tally.duplicates_sent),
        ] {
            line(name, &count.get().to_string());
        }
        for (status, count) in tally.statuses() {
            line(&format!("answers with {status}"), &count.to_string());
        }
        println!("reads");
        for (name, count) in [
            ("totals", &tally.totals_read),
            ("totals stale or unknown", &tally.totals_unsure),
            ("heartbeats", &tally.beats),
            ("heartbeats without success", &tally.beats_failed),
            ("online, fresh", &tally.online_fresh),
            ("online, stale", &tally.online_stale),
            ("online, unknown", &tally.online_unknown),
        ] {
            line(name, &count.get().to_string());
        }
        println!("memory at the start and at the end of a life, MiB");
        for (index, lives) in self.lives.iter().enumerate() {
            let name = format!("instance {index}, {} lives", lives.len());
            let (first, last) = (range(lives, |life| life.first), range(lives, |life| life.last));
            line(&name, &format!("{first}, {last}"));
        }
    }
}

fn line(name: &str, value: &str) {
    println!("  {name:<34} {value:>12}");
}

fn range(lives: &[Life], of: impl Fn(&Life) -> u64) -> String {
    let (least, most) = (lives.iter().map(&of).min(), lives.iter().map(&of).max());
    format!("{}-{}", least.unwrap_or(0) / 1_024, most.unwrap_or(0) / 1_024)
}
