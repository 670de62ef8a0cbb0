//! The `headcount` binary.

use std::process::ExitCode;

use headcount::cli::{parse, run};

fn main() -> ExitCode {
    parse(std::env::args_os()).map_or_else(|ended| ended, run)
}
