//! `headcount simulate`: an audience over real HTTP, against any deployment.
//!
//! It knows what it did and what was acknowledged, so in the end it can say whether the service's
//! numbers are right, video by video: `audience` plans, `crowd` does it, `ledger` remembers, `verify`
//! compares.

mod audience;
mod client;
mod crowd;
mod ledger;
mod line;
mod options;
mod pace;
mod report;
mod schedule;
mod targets;
mod verify;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::{future::pending, process::ExitCode, sync::Arc, time::Duration};

use indicatif::HumanCount;
use tokio::time::{Instant, sleep, sleep_until};

use self::{
    audience::Audience,
    client::Client,
    crowd::Crowd,
    options::{Patience, check_window},
    verify::{Baseline, Difference},
};

pub use self::options::Options;

/// Differences that are listed; of more, only the number.
const LISTED: usize = 50;

/// How a run ended.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// Nothing was found wrong.
    Fine,
    /// Not one request brought an answer.
    NothingWorked,
    /// The service says something else than what was done.
    Different(Vec<Difference>),
    /// Ctrl-C.
    Interrupted,
}

impl Verdict {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Fine => ExitCode::SUCCESS,
            Self::NothingWorked | Self::Different(_) => ExitCode::FAILURE,
            // What a shell makes of a program ended by SIGINT.
            Self::Interrupted => ExitCode::from(130),
        }
    }
}

/// Runs a simulated audience and prints what became of it.
pub async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            // The signal can't be listened for, so it ends the process by itself.
            pending::<()>().await;
        }
    };
    let verdict = simulate(&options, &Patience::default(), interrupted).await?;
    Ok(verdict.exit_code())
}

async fn simulate(
    options: &Options,
    patience: &Patience,
    interrupted: impl Future<Output = ()>,
) -> anyhow::Result<Verdict> {
    options.check()?;
    let seed = options.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let prefix = options.prefix.clone().unwrap_or_else(|| format!("sim-{seed}"));
    eprintln!("seed {seed}, ids begin with {prefix}");

    let audience = Audience::new(options, seed)?;
    let client = Arc::new(Client::new(options, prefix, patience)?);
    let mut crowd = Crowd::new(audience.clone(), Arc::clone(&client), options.in_flight, options.obey_next);

    let watched = tokio::select! {
        biased;
        () = interrupted => Ok(Verdict::Interrupted),
        verdict = watch(&mut crowd, &audience, &client, options, patience) => verdict,
    };
    crowd.progress.clear();
    print_table(&crowd, &client);
    let verdict = match watched? {
        Verdict::Fine if client.stats.totals().is_nothing() => Verdict::NothingWorked,
        verdict => verdict,
    };
    print_verdict(&verdict, &crowd, options);
    Ok(verdict)
}

async fn watch(
    crowd: &mut Crowd,
    audience: &Audience,
    client: &Client,
    options: &Options,
    patience: &Patience,
) -> anyhow::Result<Verdict> {
    if options.verify {
        return watch_and_verify(crowd, audience, client, options, patience).await;
    }
    crowd.enter();
    crowd.drive(sleep_until(crowd.end())).await;
    crowd.stop_beats();
    let limit = Instant::now() + patience.grace;
    while crowd.ledger.open() > 0 && Instant::now() < limit {
        crowd.drive(sleep(Duration::from_millis(20))).await;
    }
    crowd.end_plays().await;
    Ok(Verdict::Fine)
}

async fn watch_and_verify(
    crowd: &mut Crowd,
    audience: &Audience,
    client: &Client,
    options: &Options,
    patience: &Patience,
) -> anyhow::Result<Verdict> {
    let videos: Vec<_> = audience.videos().collect();
    let window = match options.window {
        Some(window) => window,
        None => verify::window(client, videos[0], patience.reread).await?,
    };
    check_window(window, options.heartbeat_every)?;
    let baseline = Baseline::read(client, &videos, patience.reread).await?;
    if !baseline.is_empty() {
        crowd
            .progress
            .note("these videos are not new: viewers of a run with the same ids may be known already");
    }

    // Where nobody leaves, there is nobody to be forgotten, and one beat of everybody shows all.
    let nobody_leaves = options.churn == 0.0 && !baseline.anyone_online;
    let forgotten = if nobody_leaves { options.heartbeat_every } else { window };
    // One timeout at least: by then the requests that leavers left behind have ended.
    let settling = (forgotten + options.sweep_every + patience.margin).max(patience.timeout);

    crowd.progress.set_length(options.duration + settling);
    crowd.enter();
    crowd.drive(sleep_until(crowd.end())).await;
    // Where viewers were slowed down, some beat within the window only.
    let settling =
        if crowd.pace.was_slowed() { settling.max(window + options.sweep_every) } else { settling };
    crowd.progress.note("nobody comes or goes any more; waiting until those who left are forgotten");
    let mut settled = crowd.end() + settling;
    while Instant::now() < settled {
        crowd.drive(sleep_until(settled)).await;
        settled = crowd.last_of_leavers().map_or(settled, |last| settled.max(last + settling));
    }
    crowd.end_plays().await;

    crowd.progress.note("comparing");
    let expectations = crowd.ledger.expectations(&baseline, &crowd.present());
    let reread = patience.reread.max(options.sweep_every * 2);
    let mut differences = crowd.drive(verify::check(client, &expectations, reread)).await;
    differences.extend(crowd.ledger.wrong_answers(&baseline, |video| client.video_id(video)));
    Ok(if differences.is_empty() { Verdict::Fine } else { Verdict::Different(differences) })
}

fn print_table(crowd: &Crowd, client: &Client) {
    println!("{}", client.stats.table());
    if crowd.pace.was_slowed() {
        println!("{}", crowd.pace);
    }
    if crowd.missed > 0 {
        let missed = HumanCount(crowd.missed);
        println!("{missed} heartbeats were not sent: the viewer's one before still waited for a free slot");
    }
    let plays = crowd.ledger.unacknowledged();
    if plays > 0 {
        let (plays, uncertain) = (HumanCount(plays), HumanCount(crowd.ledger.uncertain()));
        println!("{plays} plays were never acknowledged; {uncertain} of them may be counted all the same");
    }
}

fn print_verdict(verdict: &Verdict, crowd: &Crowd, options: &Options) {
    match verdict {
        Verdict::Fine if options.verify => {
            let online = HumanCount(crowd.present().iter().sum());
            let videos = HumanCount(u64::from(options.videos));
            let plays = HumanCount(crowd.ledger.counted());
            let targets = options.targets.len();
            println!(
                "exact: {online} viewers and {plays} plays of {videos} videos, on each of {targets} targets"
            );
        }
        Verdict::Fine => {}
        Verdict::NothingWorked => println!("no request was answered as it should be"),
        Verdict::Different(differences) => println!("{}", listing(differences)),
        Verdict::Interrupted => println!("stopped early; nothing was compared"),
    }
}

/// One line a difference, as far as anybody would read.
fn listing(differences: &[Difference]) -> String {
    let mut lines: Vec<_> = differences.iter().take(LISTED).map(Difference::to_string).collect();
    let further = differences.len().saturating_sub(LISTED);
    if further > 0 {
        lines.push(format!("and {} further differences", HumanCount(further as u64)));
    }
    lines.join("\n")
}
