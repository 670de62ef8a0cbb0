//! What `headcount simulate` can be told, and the waits that are its own.

use std::time::Duration;

use anyhow::ensure;
use url::Url;

/// Play an audience against a running service over HTTP, and check its numbers.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Base URLs of the instances, comma separated; viewers are dealt out among them
    #[arg(long, value_delimiter = ',', value_parser = target, default_value = "http://127.0.0.1:8080")]
    pub targets: Vec<Url>,

    /// How many viewers are watching at any time
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub viewers: u32,

    /// How many videos there are to watch
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub videos: u32,

    /// Exponent of the videos' popularity (Zipf): 0 makes all alike, more makes the first ones bigger
    #[arg(long, default_value_t = 1.0, value_parser = not_negative)]
    pub zipf: f64,

    /// Time between two heartbeats of a viewer
    #[arg(long, default_value = "30s", value_parser = period)]
    pub heartbeat_every: Duration,

    /// How long the audience comes and goes; --verify adds the time that leavers take to be forgotten
    #[arg(long, default_value = "1m", value_parser = period)]
    pub duration: Duration,

    /// Share of the viewers that leaves without a word, and is replaced by new ones, per minute
    #[arg(long, default_value_t = 0.0, value_parser = not_negative)]
    pub churn: f64,

    /// Plays of each viewer: one of the video it watches, at entry, the others of further videos, later
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub plays_per_viewer: u32,

    /// Who watches what, and when they leave, follows from this number; random, and printed, if not given
    #[arg(long)]
    pub seed: Option<u64>,

    /// What the ids of videos, viewers and plays begin with, so that no two runs share any; `sim-<seed>`
    /// if not given, so give one to repeat a seed against the same service
    #[arg(long, value_parser = prefix)]
    pub prefix: Option<String>,

    /// In the end, compare what every target says with what was done, video by video
    #[arg(long)]
    pub verify: bool,

    /// For --verify: the targets' `presence.window`; asked of the service if not given
    #[arg(long, value_parser = period)]
    pub window: Option<Duration>,

    /// For --verify: the targets' `jobs.sweep_every`
    #[arg(long, default_value = "1m", value_parser = period)]
    pub sweep_every: Duration,

    /// Take `nextHeartbeatSeconds` literally where it is longer than --heartbeat-every. By default
    /// viewers slow down in proportion when it grows over the shortest that was asked for, as a service
    /// set to 30 s would slow every shorter rhythm down to 30 s
    #[arg(long)]
    pub obey_next: bool,

    /// Send a deviceId with each userId, for targets with `presence.identity = "device"`
    #[arg(long)]
    pub with_device: bool,

    /// Most requests in flight to one target. Each may hold a connection, so keep the sum over the
    /// targets under the limit of open files; beyond it requests wait, which is seen as latency
    #[arg(long, default_value_t = 400, value_parser = in_flight)]
    pub in_flight: usize,
}

impl Options {
    /// Refuses what is fine alone and wrong together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if let (true, Some(window)) = (self.verify, self.window) {
            check_window(window, self.heartbeat_every)?;
        }
        Ok(())
    }
}

/// Viewers who beat more rarely than the window would come and go in the count, and no run be exact.
pub(super) fn check_window(window: Duration, heartbeat_every: Duration) -> anyhow::Result<()> {
    ensure!(
        window > heartbeat_every,
        "--verify needs a heartbeat shorter than the window: --heartbeat-every is {}, the window {}",
        humantime::format_duration(heartbeat_every),
        humantime::format_duration(window),
    );
    Ok(())
}

/// How long the simulator waits for what; not options, but tests are quicker with their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// After this a request has failed and is sent anew.
    pub(super) timeout: Duration,
    /// Beyond the window and the sweep: stored times are whole seconds, batches take up to one to leave.
    pub(super) margin: Duration,
    /// How long unanswered plays are tried on after the audience has gone.
    pub(super) grace: Duration,
    /// How long a number may take to become right: caches are up to 5 s old.
    pub(super) reread: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            margin: Duration::from_secs(3),
            grace: Duration::from_secs(10),
            reread: Duration::from_secs(10),
        }
    }
}

fn target(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let plain = matches!(url.scheme(), "http" | "https") && url.query().is_none() && url.fragment().is_none();
    if plain { Ok(url) } else { Err("want http://host:port or https://host, without a query".to_owned()) }
}

fn period(text: &str) -> Result<Duration, String> {
    let period = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if period < Duration::from_millis(1) { Err("want at least 1ms".to_owned()) } else { Ok(period) }
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "want a number".to_owned())?;
    // The upper bound keeps every sum made of it finite; nobody needs a tenth of it.
    if (0.0..=1_000.0).contains(&number) { Ok(number) } else { Err("want 0 to 1000".to_owned()) }
}

fn in_flight(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=100_000) => Ok(number),
        _ => Err("want 1 to 100000".to_owned()),
    }
}

/// Ids are up to 64 bytes, and what follows the prefix takes up to 33.
fn prefix(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=30).contains(&text.len()) && text.bytes().all(fits) {
        Ok(text.to_owned())
    } else {
        Err("want 1 to 30 characters of A-Z a-z 0-9 . _ -".to_owned())
    }
}

/// Options as the command line gives them, for the tests of this module.
#[cfg(test)]
pub(super) fn parse(arguments: &[&str]) -> Result<Options, clap::Error> {
    #[derive(clap::Parser)]
    #[command(args_override_self = true)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    let arguments = std::iter::once("simulate").chain(arguments.iter().copied());
    <Command as clap::Parser>::try_parse_from(arguments).map(|command| command.options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_the_issue_is_understood() {
        let options = parse(&[
            "--targets",
            "http://127.0.0.1:8081,http://127.0.0.1:8082",
            "--viewers=10000",
            "--videos=500",
            "--duration=3m",
            "--heartbeat-every=5s",
            "--churn=0.5",
            "--window=30s",
            "--sweep-every=2s",
            "--verify",
        ])
        .unwrap();

        assert_eq!(options.targets.len(), 2);
        assert_eq!(options.duration, Duration::from_mins(3));
        assert_eq!(options.window, Some(Duration::from_secs(30)));
        assert!(options.verify && options.check().is_ok());
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_option_named() {
        for (option, value) in [
            ("--targets", "ftp://host"),
            ("--targets", "127.0.0.1:8080"),
            ("--viewers", "0"),
            ("--videos", "0"),
            ("--zipf", "-1"),
            ("--zipf", "NaN"),
            ("--churn", "inf"),
            ("--heartbeat-every", "0s"),
            ("--duration", "soon"),
            ("--prefix", "a/b"),
            ("--prefix", "1234567890123456789012345678901"),
            ("--in-flight", "0"),
        ] {
            let argument = format!("{option}={value}");
            let error = parse(&[&argument]).expect_err(&argument).to_string();
            assert!(error.contains(option), "{error}");
        }
    }

    #[test]
    fn a_window_that_no_heartbeat_can_hold_open_is_refused() {
        let options = parse(&["--verify", "--window=30s", "--heartbeat-every=30s"]).unwrap();
        assert!(options.check().unwrap_err().to_string().contains("--heartbeat-every is 30s"));
    }
}
