//! The `headcount` binary.

use std::process::ExitCode;

use headcount::cli::{parse, run};

/// A request costs some thirty small allocations, most of them hyper's and axum's; this allocator's cost
/// a third less. See `docs/performance.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    parse(std::env::args_os()).map_or_else(|ended| ended, run)
}
