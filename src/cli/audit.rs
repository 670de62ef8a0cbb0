//! `headcount audit`: whether every play that was counted is still somewhere.

use std::{path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};

use super::{print, settings, wait_for};
use crate::{
    api, backend,
    clock::SystemClock,
    config::Config,
    lifecycle::Lifecycle,
    plays::audit::{Accepted, Audit, Audited, Books, Terms, accept},
};

/// Between the two looks of `--accept`, beyond the time after which an instance reports.
const MARGIN: Duration = Duration::from_secs(1);

/// What `headcount audit` can be told.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the difference down as known, with this reason, so that the next one shows.
    #[arg(long, value_name = "REASON")]
    accept: Option<String>,
}

pub(super) fn run(file: Option<&Path>, options: &Options) -> anyhow::Result<ExitCode> {
    let config = settings(file)?.config;
    let (accepted, audited) = wait_for(examine(&config, options.accept.as_deref()))?;
    if options.json {
        print(&api::audit_json(&audited))?;
    } else {
        print(&table(&audited))?;
        for line in accepted.iter().flat_map(told).chain(advice(&audited)) {
            print(&format!("\n{line}"))?;
        }
    }
    let well = audited.lost() == 0 && audited.unverified().next().is_none();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn examine(config: &Config, reason: Option<&str>) -> anyhow::Result<(Option<Accepted>, Arc<Audited>)> {
    let clock = SystemClock::start();
    let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(1));
    let books: Arc<dyn Books> = backend::open_books(config, &lifecycle, clock.clone()).await?;
    let context = "can't read the books (headcount migrate makes the tables of this version)";
    let accepted = match reason {
        Some(reason) => {
            let pause = config.jobs.flush_every + MARGIN;
            Some(accept(books.as_ref(), reason, pause).await.context(context)?)
        }
        None => None,
    };
    let audited = Audit::new(books, clock).read().await.context(context)?;
    lifecycle.stop();
    lifecycle.run().await;
    Ok((accepted, audited))
}

/// A row for each partition, and the sums where they are whole.
fn table(audited: &Audited) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header([
        "partition",
        "witnessed",
        "imported",
        "views",
        "pending",
        "refused",
        "adjustments",
        "lost",
        "unreported",
    ]);
    let row = |name: String, terms: &Terms, lost: i128, unreported: i128| {
        let Terms { witnessed, imported, views, pending, refused, adjustments } = *terms;
        let terms = [witnessed, imported, views, pending, refused, adjustments, lost, unreported];
        std::iter::once(name).chain(terms.iter().map(ToString::to_string)).collect::<Vec<_>>()
    };
    for (partition, terms) in audited.by_partition() {
        match terms {
            Some(terms) => {
                let difference = terms.difference();
                table.add_row(row(partition.to_string(), terms, difference.max(0), (-difference).max(0)));
            }
            None => {
                table.add_row([partition.to_string(), "not verified".to_owned()]);
            }
        }
    }
    if let Some(totals) = audited.totals() {
        table.add_row(row("all".to_owned(), &totals, audited.lost(), audited.unreported()));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn told(accepted: &Accepted) -> Vec<String> {
    let mut lines = Vec::new();
    if !accepted.written.is_empty() {
        let written =
            accepted.written.iter().map(|(partition, plays)| format!("{plays} in partition {partition}"));
        lines.push(format!("written down as known: {}", written.collect::<Vec<_>>().join(", ")));
    }
    if !accepted.moving.is_empty() {
        let moving: Vec<String> = accepted.moving.iter().map(ToString::to_string).collect();
        lines.push(format!(
            "not written down: what is unreported in partitions {}, where plays are coming in, so that it can't be \
             told from what is reported in a moment; try again when it is quiet",
            moving.join(", ")
        ));
    }
    lines
}

fn advice(audited: &Audited) -> Vec<String> {
    let (lost, unreported) = (audited.lost(), audited.unreported());
    let unverified: Vec<String> = audited.unverified().map(|partition| partition.to_string()).collect();
    let mut lines = Vec::new();
    if lost > 0 {
        lines.push(format!(
            "{lost} plays were counted and are nowhere any more: a store came back older than it was, or somebody \
             lowered or deleted totals. Find out which (headcount doctor, the logs of Redis, who had the database); \
             then headcount audit --accept \"REASON\" writes them down as known"
        ));
    }
    if unreported > 0 {
        lines.push(format!(
            "{unreported} plays are there and nobody has reported them: those of the last seconds, the last ones of \
             an instance that was killed, or plays counted twice because Redis came back older than it was"
        ));
    }
    if !unverified.is_empty() {
        lines.push(format!(
            "partitions {} could not be verified, because plays moved under each try: run it again",
            unverified.join(", ")
        ));
    }
    if lines.is_empty() {
        lines.push("every play that was counted is where it should be".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::Timestamp, ids::PARTITIONS};

    fn audited(change: impl FnOnce(&mut [Option<Terms>])) -> Audited {
        let terms = Terms { witnessed: 10, views: 8, pending: 2, ..Terms::default() };
        let mut partitions = [Some(terms); PARTITIONS as usize];
        change(&mut partitions);
        Audited { partitions, as_of: Timestamp::from_secs(1) }
    }

    #[test]
    fn what_is_found_is_said_with_what_to_do_about_it() {
        let well = audited(|_| {});
        assert_eq!(advice(&well), ["every play that was counted is where it should be"]);
        let table = table(&well);
        assert!(
            table
                .lines()
                .any(|line| line.split_whitespace().eq(["all", "160", "0", "128", "32", "0", "0", "0", "0"])),
            "{table}"
        );

        let bad = audited(|partitions| {
            partitions[0].as_mut().unwrap().views = 3;
            partitions[1].as_mut().unwrap().views = 9;
            partitions[2] = None;
        });
        let lines = advice(&bad);
        assert!(lines[0].starts_with("5 plays") && lines[0].contains("--accept"), "{lines:?}");
        assert!(lines[1].starts_with("1 plays") && lines[2].starts_with("partitions 2 "), "{lines:?}");
        let table = super::table(&bad);
        assert!(table.contains("not verified") && !table.contains("all"), "{table}");
    }
}
