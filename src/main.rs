//! The `headcount` binary.

use std::process::ExitCode;

use headcount::cli::{parse, run};

/// A request costs some thirty small allocations, most of them hyper's and axum's: with the system's
/// allocator they took a sixth of a heartbeat's time. See `docs/performance.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    parse(std::env::args_os()).map_or_else(|ended| ended, run)
}
