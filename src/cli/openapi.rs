//! `headcount openapi`: the document of the HTTP API, made from the code.

use std::process::ExitCode;

use anyhow::Context as _;

use super::print;
use crate::api;

pub(super) fn run() -> anyhow::Result<ExitCode> {
    let document = api::document().to_pretty_json().context("can't write the document")?;
    print(&document)?;
    Ok(ExitCode::SUCCESS)
}
