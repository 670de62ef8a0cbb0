//! Whether the SQLite file is whole and can be written.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use sqlx::{ConnectOptions as _, Connection as _, sqlite::SqliteConnectOptions};

use super::{Answer, Finding};
use crate::config;

pub(super) async fn examine(settings: &config::Embedded) -> Vec<Finding> {
    let file = locate(&settings.path);
    let mut findings = vec![folder(&file)];
    if file.exists() {
        findings.push(writable(&file));
        findings.push(whole(&file, quick_check(&file).await));
    }
    findings
}

/// Where the file is, without making anything.
fn locate(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("headcount.db") } else { path.to_owned() }
}

/// SQLite makes files beside its own, so the folder must take them.
fn folder(file: &Path) -> Finding {
    const CHECK: &str = "sqlite folder";
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What isn't there yet is made at the first start, in the nearest folder that is.
    let nearest = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let shown = nearest.display();
    match try_write(nearest) {
        Ok(()) => Finding::ok(CHECK, format!("{shown} can be written to")),
        Err(error) => Finding::problem(
            CHECK,
            format!("{shown} can't be written to: {error}"),
            "let this user write there, or set embedded.path",
        ),
    }
}

fn try_write(folder: &Path) -> io::Result<()> {
    let probe = folder.join(format!(".headcount-doctor-{}", std::process::id()));
    File::options().write(true).create_new(true).open(&probe)?;
    fs::remove_file(probe)
}

fn writable(file: &Path) -> Finding {
    const CHECK: &str = "sqlite file";
    match File::options().append(true).open(file).and_then(|opened| opened.metadata()) {
        Ok(metadata) => {
            let kibibytes = metadata.len() / 1024;
            Finding::ok(CHECK, format!("{}, {kibibytes} KiB, can be written to", file.display()))
        }
        Err(error) => Finding::problem(
            CHECK,
            format!("{} can't be written to: {error}", file.display()),
            "let this user write to it, or set embedded.path",
        ),
    }
}

fn whole(file: &Path, checked: Answer<Vec<String>>) -> Finding {
    const CHECK: &str = "sqlite integrity";
    const ADVICE: &str = "stop headcount, keep a copy, and bring the file back from a backup";
    match checked {
        Ok(lines) if lines == ["ok"] => Finding::ok(CHECK, "quick_check finds nothing wrong"),
        Ok(lines) => {
            Finding::problem(CHECK, format!("{} is damaged: {}", file.display(), lines.join("; ")), ADVICE)
        }
        Err(reason) => Finding::problem(CHECK, format!("{} can't be read: {reason}", file.display()), ADVICE),
    }
}

async fn quick_check(file: &Path) -> Answer<Vec<String>> {
    let failed = |error: sqlx::Error| error.to_string();
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = options.connect().await.map_err(failed)?;
    let lines =
        sqlx::query_scalar("pragma quick_check(10)").fetch_all(&mut connection).await.map_err(failed)?;
    connection.close().await.map_err(failed)?;
    Ok(lines)
}
