//! What was measured on: figures say little without it.

use std::{fs, process::Command};

use serde::Serialize;

/// This machine, and what runs on it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    redis: String,
    postgres: String,
    node: String,
    wrk: String,
    commit: String,
}

impl Machine {
    pub(crate) fn look(postgres: String) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor =
            cpuinfo.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1));
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
        let dirty = !said("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
        Self {
            processor: processor.unwrap_or("unknown").trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_gib: kib.unwrap_or(0_u64).div_ceil(1024 * 1024),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            redis: said("redis-server", &["--version"])
                .split_whitespace()
                .nth(2)
                .unwrap_or_default()
                .replace("v=", ""),
            postgres,
            node: said("node", &["--version"]),
            wrk: said("wrk", &["--version"]).split_whitespace().nth(1).unwrap_or_default().to_owned(),
            commit: said("git", &["rev-parse", "--short", "HEAD"]) + if dirty { " with changes" } else { "" },
        }
    }

    /// In one line, for below a table.
    pub(crate) fn line(&self) -> String {
        let Self { processor, cores, memory_gib, kernel, redis, postgres, commit, .. } = self;
        format!(
            "{processor}, {cores} cores shared by everything, {memory_gib} GiB, Linux {kernel}, Redis {redis}, \
             Postgres {postgres}, commit {commit}"
        )
    }
}

/// What a program answers; nothing where it isn't there.
pub(crate) fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().trim().to_owned()
}
