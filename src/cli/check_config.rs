//! `headcount check-config`: whether a start with these settings would get past them.

use std::{path::Path, process::ExitCode};

use super::{print, settings};
use crate::{config::BackendKind, store::redis::address::Certificates};

pub(super) fn run(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let loaded = settings(file)?;
    if loaded.config.backend == BackendKind::Redis {
        Certificates::read(&loaded.config.redis)?;
    }
    for given in &loaded.given {
        print(given)?;
    }
    match loaded.given.len() {
        0 => print("the settings are good: all of them are the built-in ones")?,
        count => print(&format!("the settings are good: {count} given, the others are the built-in ones"))?,
    }
    Ok(ExitCode::SUCCESS)
}
