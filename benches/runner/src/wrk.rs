//! Rounds with wrk, and what they cost.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::{
    bench::{Bench, WARM_UP},
    process::processor_time,
    world::{Redis, Service},
};

/// Beyond a second's merged heartbeats: what a round left behind is written, and counted with it.
pub(crate) const SETTLE: Duration = Duration::from_millis(1_200);

/// What is asked, of whom.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) server: std::net::SocketAddr,
    pub(crate) server_id: u32,
    pub(crate) redis_id: Option<u32>,
    /// A file of requests (see `requests.lua`).
    pub(crate) requests: PathBuf,
    pub(crate) method: &'static str,
    /// With `%s` where the video stands.
    pub(crate) path: String,
    pub(crate) connections: u32,
    /// How long the server still works after the last answer.
    pub(crate) settle: Duration,
}

impl Load {
    pub(crate) fn new(
        service: &Service,
        redis: Option<&Redis>,
        requests: PathBuf,
        method: &'static str,
        path: &str,
    ) -> Self {
        Self {
            server: service.public,
            server_id: service.id(),
            redis_id: redis.map(|redis| redis.id),
            requests,
            method,
            path: path.to_owned(),
            connections: 64,
            settle: Duration::ZERO,
        }
    }

    pub(crate) fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    pub(crate) fn settle(mut self, settle: Duration) -> Self {
        self.settle = settle;
        self
    }
}

/// What wrk says in the end.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Said {
    pub(crate) requests: u64,
    pub(crate) micros: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// Answered, with another status than 2xx or 3xx.
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) late: u64,
}

impl Said {
    /// Those that were served; a refusal costs next to nothing.
    fn served(&self) -> u64 {
        self.requests.saturating_sub(self.refused)
    }

    /// Whatever didn't go well.
    pub(crate) fn bad(&self) -> u64 {
        self.refused + self.failed + self.late
    }
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    /// Without those that were refused, as in all quotients.
    pub(crate) requests_per_second: f64,
    /// Processor time of the server, µs a request.
    pub(crate) server_micros: f64,
    /// And of Redis.
    pub(crate) redis_micros: Option<f64>,
    pub(crate) said: Said,
}

/// One round of so long.
#[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
pub(crate) async fn round(bench: &Bench, load: &Load, length: Duration) -> anyhow::Result<Round> {
    let server = processor_time(load.server_id)?;
    let redis = load.redis_id.map(processor_time).transpose()?;
    let said = run(bench, load, length).await?;
    tokio::time::sleep(load.settle).await;
    let served = said.served() as f64;
    let taken = |now: f64, before: f64| (now - before) * 1e6 / served;
    let server_micros = taken(processor_time(load.server_id)?, server);
    let now = load.redis_id.map(processor_time).transpose()?;
    let redis_micros = redis.zip(now).map(|(before, now)| taken(now, before));
    let requests_per_second = served * 1e6 / said.micros as f64;
    Ok(Round { requests_per_second, server_micros, redis_micros, said })
}

async fn run(bench: &Bench, load: &Load, length: Duration) -> anyhow::Result<Said> {
    let mut wrk = Command::new("wrk");
    // Its own default; one thread sends as much as two cores can answer, but in one run of the scheduler.
    wrk.args(["--threads", "2", "--timeout", "10s"]);
    wrk.args(["--connections", &load.connections.to_string()]);
    wrk.args(["--duration", &format!("{}s", length.as_secs().max(1))]);
    wrk.arg("--script")
        .arg(&bench.script)
        .arg(format!("http://{}", load.server))
        .arg("--")
        .arg(&load.requests);
    wrk.args([load.method, &load.path, &format!("{:03}", bench.next_run())]);
    wrk.process_group(0).kill_on_drop(true);
    let output = wrk.output().await.context("can't start wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let result =
        result.with_context(|| format!("wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
    let said: Said = serde_json::from_str(result)?;
    ensure!(said.served() > 0, "nothing was served: {text}");
    Ok(said)
}

/// Rounds of several loads in turn, A B A B: what else the machine does meanwhile hits all of them.
pub(crate) async fn alternate(bench: &Bench, loads: &[&Load]) -> anyhow::Result<Vec<Vec<Round>>> {
    for load in loads {
        round(bench, load, WARM_UP).await?;
    }
    let mut rounds = vec![Vec::new(); loads.len()];
    for _ in 0..bench.pairs() {
        for (load, rounds) in loads.iter().zip(&mut rounds) {
            rounds.push(round(bench, load, bench.round()).await?);
        }
    }
    Ok(rounds)
}
