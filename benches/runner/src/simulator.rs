//! `headcount simulate` as an audience: 10,000 videos, the same viewers every time, no plays.

use std::time::Duration;

use tokio::process::Command;

use crate::{bench::Bench, process::Process, world::Service};

/// Starts `viewers` who beat at `service` every so often, for longer than anybody measures: it is stopped when
/// that is over. `more` are further options.
pub(crate) fn start(
    bench: &Bench,
    service: &Service,
    viewers: u32,
    every: Duration,
    length: Duration,
    more: &[&str],
) -> anyhow::Result<Process> {
    let mut command = Command::new(&bench.options.headcount);
    command.args(["simulate", "--targets", &format!("http://{}", service.public), "--seed", "1"]);
    command.args(["--viewers", &viewers.to_string(), "--videos", "10000", "--plays-per-viewer", "0"]);
    command.args(["--heartbeat-every", &format!("{}ms", every.as_millis())]);
    command.args(["--duration", &format!("{}s", length.as_secs())]).args(more);
    Process::start(command, &bench.log("simulate"))
}
