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
    ask(file, "pragma quick_check(10)").await.map(|rows| rows.into_iter().map(|(line,)| line).collect())
}

/// The steps of the schema that went through, with their names.
pub(super) async fn applied_steps(settings: &config::Embedded) -> Answer<Vec<(i64, String)>> {
    let file = locate(&settings.path);
    if !file.exists() {
        return Ok(Vec::new());
    }
    let tables = "select count(*) from sqlite_master where name = '_sqlx_migrations'";
    if ask::<(i64,)>(&file, tables).await? != [(1,)] {
        return Ok(Vec::new());
    }
    ask(&file, "select version, description from _sqlx_migrations where success order by version").await
}

/// Asks without writing, so that a service that has the file isn't disturbed.
async fn ask<R>(file: &Path, sql: &'static str) -> Answer<Vec<R>>
where
    R: for<'row> sqlx::FromRow<'row, sqlx::sqlite::SqliteRow> + Send + Unpin,
{
    let failed = |error: sqlx::Error| error.to_string();
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = options.connect().await.map_err(failed)?;
    let rows = sqlx::query_as(sql).fetch_all(&mut connection).await.map_err(failed)?;
    connection.close().await.map_err(failed)?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{
        config::load::load,
        doctor::{Report, Verdict},
    };

    fn settings(path: &Path) -> config::Embedded {
        let variables = [("HEADCOUNT_EMBEDDED__PATH".to_owned(), path.to_str().unwrap().to_owned())];
        load(None, Some(HashMap::from(variables))).unwrap().config.embedded
    }

    fn verdict_of(report: &Report, check: &str) -> Verdict {
        let finding = report.findings.iter().find(|finding| finding.check == check);
        finding.unwrap_or_else(|| panic!("{check} is missing:\n{}", report.table())).verdict
    }

    async fn examine_file(path: &Path) -> Report {
        Report { findings: examine(&settings(path)).await }
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_yet_is_fine_where_its_folder_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let report = examine_file(&folder.path().join("to/be/made/headcount.db")).await;
        assert_eq!(report.verdict(), Verdict::Ok, "{}", report.table());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it leaves nothing behind");

        let report = examine_file("/proc/headcount.db".as_ref()).await;
        assert_eq!(report.verdict(), Verdict::Problem, "{}", report.table());
    }

    #[tokio::test]
    async fn a_whole_file_is_fine_and_a_damaged_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("headcount.db");
        let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
        let mut connection = options.connect().await.unwrap();
        let fill = "create table filler (text); \
                    with recursive n(i) as (select 1 union all select i + 1 from n where i < 500) \
                    insert into filler select printf('%0200d', i) from n";
        sqlx::raw_sql(fill).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let report = examine_file(folder.path()).await;
        assert_eq!(report.verdict(), Verdict::Ok, "{}", report.table());

        let mut bytes = std::fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 8_192].fill(0xff);
        std::fs::write(&file, bytes).unwrap();
        let report = examine_file(&file).await;
        assert_eq!(verdict_of(&report, "sqlite integrity"), Verdict::Problem, "{}", report.table());
    }

    #[tokio::test]
    async fn steps_of_a_schema_that_was_never_begun_are_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(applied_steps(&settings(folder.path())).await, Ok(Vec::new()));
    }
}
