//! Log lines and metrics: set up once a process, by `main` and never by the library.

pub mod metrics;

use std::{io::IsTerminal as _, panic::PanicHookInfo};

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::config::{self, LogFormat};

/// Starts writing log lines to stderr, and panics among them.
///
/// # Errors
/// The filter can't be read, or lines are already written by somebody else in this process.
pub fn start(log: &config::Log) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(&log.filter).context("log.filter can't be read")?;
    let mut lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if !std::io::stderr().is_terminal() {
        lines = lines.with_ansi(false);
    }
    let started = match log.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!(error)).context("log lines can't be written")?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// The default hook writes lines that no collector can read.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("a value that is no text");
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let backtrace = std::backtrace::Backtrace::capture();
    tracing::error!(
        panic.message = message,
        panic.place = place,
        panic.thread = thread.name().unwrap_or_default(),
        panic.backtrace = %backtrace,
        "panicked at {place}: {message}"
    );
}

/// Log lines of this thread, for tests of what is logged.
#[cfg(test)]
pub(crate) fn capture() -> Captured {
    let lines = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let writer = Lines(lines.clone());
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    Captured { lines, _guard: tracing::subscriber::set_default(subscriber) }
}

/// See [`capture`].
#[cfg(test)]
pub(crate) struct Captured {
    lines: std::sync::Arc<parking_lot::Mutex<Vec<u8>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

#[cfg(test)]
impl Captured {
    /// What was logged until now.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.lines.lock().clone()).unwrap()
    }
}

#[cfg(test)]
#[derive(Clone)]
struct Lines(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

#[cfg(test)]
impl std::io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_log_line_with_its_place_and_message() {
        let lines = capture();
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(log_panic));
        let caught = std::panic::catch_unwind(|| panic!("{} as a test wants it", "one"));
        std::panic::set_hook(before);
        assert!(caught.is_err());
        let text = lines.text();
        assert!(text.contains("ERROR") && text.contains("one as a test wants it"), "{text}");
        assert!(text.contains("telemetry/mod.rs:"), "{text}");
    }
}
