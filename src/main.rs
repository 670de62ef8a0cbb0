//! The `headcount` binary.

use std::process::ExitCode;

use clap::Parser as _;
use headcount::cli::{Cli, run};

fn main() -> ExitCode {
    run(Cli::parse())
}
