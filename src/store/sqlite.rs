//! The SQLite file of the embedded backend: one connection writes, a few read beside it.
//!
//! A commit is on disk when it returns (WAL, `synchronous=FULL`). One process at a time has the
//! file: numbers held in memory would be wrong beside a second one.

use std::{
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sqlx::{
    ConnectOptions, SqlSafeStr, SqlitePool, Transaction,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{
    error::{Part, StoreError},
    health::{Health, HealthCheck},
    lifecycle::{Lifecycle, Phase},
};

/// The file's name where only a folder is given.
const DEFAULT_NAME: &str = "headcount.db";

/// How long a statement waits while a tool such as `sqlite3` or a backup holds the file.
const BUSY: Duration = Duration::from_secs(2);

/// How long a request waits for a connection, and the readiness probe for everything.
const WAIT: Duration = Duration::from_secs(3);

/// WAL lets them read while the writer writes.
const READERS: u32 = 4;

/// How long a start waits for the process before it to be gone.
const HANDOVER: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Pages the writer keeps in memory, as negative KiB: the upper part of `play_seen` fits, and where its
/// busiest videos lie.
const WRITER_CACHE: &str = "-32000";

/// Why the file could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("embedded.path: {} is in use by another headcount; each needs a file of its own", .0.display())]
    InUse(PathBuf),
    /// The folder can't be made or the file in it can't be locked.
    #[error("embedded.path: can't use {}", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// SQLite can't open it.
    #[error("embedded.path: can't open {} as an SQLite file", .0.display())]
    File(PathBuf, #[source] sqlx::Error),
    /// The tables in it are not as this version left them.
    #[error("embedded.path: can't bring the tables of {} up to date", .0.display())]
    Tables(PathBuf, #[source] MigrateError),
}

/// The open file. Clones share it.
#[derive(Clone, Debug)]
pub struct Sqlite {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: PathBuf,
    writer: SqlitePool,
    readers: SqlitePool,
    /// Held for as long as the file is open.
    lock: Mutex<Option<File>>,
}

impl Sqlite {
    /// Opens or makes the file at `path`, or `headcount.db` in it where it is a folder, and brings
    /// its tables up to date.
    ///
    /// # Errors
    /// The file can't be made, opened, migrated, or another process has it.
    pub async fn open(path: &Path) -> Result<Self, OpenError> {
        let name = path.as_os_str().as_encoded_bytes();
        if name == b":memory:" || name.starts_with(b"file:") {
            let error =
                io::Error::new(io::ErrorKind::InvalidInput, "it must name a file, or nothing is kept");
            return Err(OpenError::Folder(path.to_owned(), error));
        }
        let file = locate(path).map_err(|error| OpenError::Folder(path.to_owned(), error))?;
        let lock = lock(&file).await?;
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY)
            .disable_statement_logging();
        let pool = SqlitePoolOptions::new()
            .min_connections(1)
            .acquire_timeout(WAIT)
            .max_lifetime(None)
            .idle_timeout(None);
        let not_opened = |error| OpenError::File(file.clone(), error);
        let writer = pool
            .clone()
            .max_connections(1)
            .connect_with(options.clone().pragma("cache_size", WRITER_CACHE))
            .await
            .map_err(not_opened)?;
        migrator().run(&writer).await.map_err(|error| OpenError::Tables(file.clone(), error))?;
        let readers = pool
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "on"))
            .await
            .map_err(not_opened)?;
        tracing::info!(sqlite.file = %file.display(), "opened {}", file.display());
        Ok(Self { shared: Arc::new(Shared { file, writer, readers, lock: Mutex::new(Some(lock)) }) })
    }

    /// Closes the file as the last thing of a stop.
    pub fn close_at_stop(&self, lifecycle: &Lifecycle) {
        // Weak: where all who use the file are gone without a stop, it is closed.
        let shared = Arc::downgrade(&self.shared);
        let stopping = lifecycle.stopping(Phase::Links);
        lifecycle.spawn(Phase::Links, "sqlite", async move {
            stopping.cancelled().await;
            if let Some(shared) = shared.upgrade() {
                Self { shared }.close().await;
            }
        });
    }

    /// Waits for what is under way and closes the file; everything fails from then on.
    pub async fn close(&self) {
        self.shared.readers.close().await;
        self.shared.writer.close().await;
        self.shared.lock.lock().take();
    }

    /// The connection that writes.
    #[must_use]
    pub fn writer(&self) -> &SqlitePool {
        &self.shared.writer
    }

    /// Connections that read. What was committed before is seen.
    #[must_use]
    pub fn readers(&self) -> &SqlitePool {
        &self.shared.readers
    }

    /// Waits for its turn and begins to write.
    ///
    /// # Errors
    /// SQLite is held by others or doesn't work.
    pub async fn write(&self) -> Result<Transaction<'static, sqlx::Sqlite>, sqlx::Error> {
        // Immediate: one that begins by reading could find the file locked when it comes to write.
        self.shared.writer.begin_with("begin immediate").await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        // SQLite itself would go on writing into a file that was deleted.
        std::fs::metadata(&self.shared.file).map_err(|error| StoreError::unavailable(Part::Sqlite, error))?;
        let wrote = self.write_probe().await.map_err(store_error)?;
        let read: i64 = sqlx::query_scalar("select times from probe")
            .fetch_one(self.readers())
            .await
            .map_err(store_error)?;
        if read >= wrote {
            Ok(())
        } else {
            Err(StoreError::unexpected(Part::Sqlite, "a write that was committed is not there"))
        }
    }

    async fn write_probe(&self) -> Result<i64, sqlx::Error> {
        let mut transaction = self.write().await?;
        let times = sqlx::query_scalar(
            "insert into probe (id, times) values (1, 1) \
             on conflict do update set times = times + 1 returning times",
        )
        .fetch_one(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(times)
    }
}

#[async_trait]
impl HealthCheck for Sqlite {
    async fn check(&self) -> Health {
        let probed = tokio::time::timeout(WAIT, self.probe())
            .await
            .unwrap_or_else(|_elapsed| Err(StoreError::unavailable(Part::Sqlite, "no answer")));
        Health { failed: probed.err().into_iter().collect(), degraded: Vec::new() }
    }
}

/// What a failed statement means for its caller.
#[must_use]
pub fn store_error(error: sqlx::Error) -> StoreError {
    let passing = match &error {
        sqlx::Error::Database(_) => !matches!(code(&error), Some(SQL | ROW_TOO_BIG | CONSTRAINT | MISMATCH)),
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => true,
        _ => false,
    };
    if passing {
        StoreError::unavailable(Part::Sqlite, error)
    } else {
        StoreError::unexpected(Part::Sqlite, error)
    }
}

/// Whether a row refused what was to be written, while SQLite itself works.
#[must_use]
pub fn is_refused_row(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(ROW_TOO_BIG | CONSTRAINT | MISMATCH))
}

/// Primary result codes, <https://sqlite.org/rescode.html>.
const SQL: i32 = 1;
const ROW_TOO_BIG: i32 = 18;
const CONSTRAINT: i32 = 19;
const MISMATCH: i32 = 20;

fn code(error: &sqlx::Error) -> Option<i32> {
    let extended: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

/// Rows for `json_each`: one statement for any number of them.
#[must_use]
pub fn json<T: serde::Serialize>(rows: &T) -> String {
    serde_json::to_string(rows).expect("text and numbers are always JSON")
}

fn migrator() -> Migrator {
    let step = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(vec![
        step(1, "plays and viewers", include_str!("../../migrations/sqlite/0001_plays_and_viewers.sql")),
        step(2, "conservation", include_str!("../../migrations/sqlite/0002_conservation.sql")),
        step(3, "seen lately", include_str!("../../migrations/sqlite/0003_seen_lately.sql")),
    ])
}

/// A connection to a file that a service may have at the same time: SQLite lets them take turns, but
/// what the service holds in memory must not be changed.
///
/// # Errors
/// There is no such file.
pub fn visit(path: &Path) -> Result<SqlitePool, OpenError> {
    let file = if path.is_dir() { path.join(DEFAULT_NAME) } else { path.to_owned() };
    if !file.exists() {
        let error = io::Error::new(io::ErrorKind::NotFound, "there is no such file");
        return Err(OpenError::Folder(file, error));
    }
    let options = SqliteConnectOptions::new().filename(&file).busy_timeout(BUSY).disable_statement_logging();
    Ok(SqlitePoolOptions::new().max_connections(1).acquire_timeout(WAIT).connect_lazy_with(options))
}

fn locate(path: &Path) -> io::Result<PathBuf> {
    let file = if path.is_dir() { path.join(DEFAULT_NAME) } else { path.to_owned() };
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)?;
    }
    // The lock is a file beside it: two names for one file must lead to one lock.
    Ok(if file.exists() { std::fs::canonicalize(&file)? } else { file })
}

/// Not a lock on the file itself: closing it would drop the locks SQLite has on it in this process.
async fn lock(file: &Path) -> Result<File, OpenError> {
    let mut name = file.as_os_str().to_owned();
    name.push("-lock");
    let name = PathBuf::from(name);
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&name)
        .map_err(|error| OpenError::Folder(name.clone(), error))?;
    let give_up = tokio::time::Instant::now() + HANDOVER;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::Error(error)) => return Err(OpenError::Folder(name, error)),
            Err(TryLockError::WouldBlock) if tokio::time::Instant::now() < give_up => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(file.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_made_with_its_folders_and_a_folder_gets_the_default_name() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("a/b/numbers.db");
        Sqlite::open(&named).await.unwrap().close().await;
        assert!(named.exists());
        Sqlite::open(&folder.path().join("a")).await.unwrap().close().await;
        assert!(folder.path().join("a/headcount.db").exists());
        // Twice: the tables are there already.
        Sqlite::open(&named).await.unwrap().close().await;
    }

    #[tokio::test]
    async fn what_cannot_be_opened_is_said_to_be_a_matter_of_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        std::fs::write(&file, "this is no database, and long enough not to be taken for an empty one")
            .unwrap();
        for path in [file.clone(), file.join("below.db")] {
            let error = Sqlite::open(&path).await.unwrap_err();
            assert!(error.to_string().starts_with("embedded.path: "), "{error}");
            assert!(std::error::Error::source(&error).is_some(), "{error:?}");
        }
        // A failure leaves nothing held.
        std::fs::remove_file(&file).unwrap();
        assert!(Sqlite::open(&file).await.is_ok());
    }

    #[tokio::test]
    async fn it_is_healthy_while_it_can_be_written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = Sqlite::open(folder.path()).await.unwrap();
        for _ in 0..3 {
            assert!(sqlite.check().await.failed.is_empty());
        }
        std::fs::remove_file(folder.path().join("headcount.db")).unwrap();
        let failed = sqlite.check().await.failed;
        assert!(matches!(failed[..], [StoreError::Unavailable { part: Part::Sqlite, .. }]), "{failed:?}");
        sqlite.close().await;
        assert_eq!(sqlite.check().await.failed.len(), 1);
    }
}
