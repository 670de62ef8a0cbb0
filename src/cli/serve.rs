//! `headcount serve`: the service, until a signal ends it.

use std::{path::Path, process::ExitCode};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    app::{self, Listeners},
    clock::SystemClock,
    config::{
        Config,
        load::{Loaded, load},
    },
    lifecycle::{Lifecycle, Phase, Stopped},
    telemetry::{self, metrics::Metrics},
};

pub(super) fn run(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let loaded = load(file, None)?;
    telemetry::start(&loaded.config.log)?;
    #[cfg(feature = "failpoints")]
    crate::failpoint::set_by_environment();
    to_its_end(serve(loaded))
}

/// Runs a service, and tells how it ended.
pub(super) fn to_its_end(service: impl Future<Output = anyhow::Result<Stopped>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("can't start the runtime")?;
    let ended = runtime.block_on(service);
    // Whatever still runs was given its time.
    runtime.shutdown_background();
    Ok(match ended {
        Ok(Stopped::Drained) => {
            tracing::info!("drained and stopped");
            ExitCode::SUCCESS
        }
        Ok(Stopped::CutShort) => {
            tracing::error!("stopped before everything was stored");
            ExitCode::FAILURE
        }
        Ok(Stopped::TaskDied) => {
            tracing::error!("stopped because a part of the service died");
            ExitCode::FAILURE
        }
        // Log lines go where the error would; it is told once, as one of them.
        Err(error) => {
            tracing::error!("can't start: {error:#}");
            ExitCode::FAILURE
        }
    })
}

async fn serve(loaded: Loaded) -> anyhow::Result<Stopped> {
    let config = announced(loaded);
    let metrics = Metrics::install()?;
    let listeners = Listeners::bind(&config).await?;
    let lifecycle = Lifecycle::new(config.server.drain_delay, config.server.drain);
    stop_on_signals(&lifecycle)?;
    app::serve(config, listeners, lifecycle, SystemClock::start(), metrics).await
}

/// The settings, with what is to be said of them in the log.
pub(super) fn announced(loaded: Loaded) -> Config {
    let Loaded { config, warnings, given } = loaded;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    for setting in given {
        tracing::info!("{setting}");
    }
    config
}

/// The first signal drains, the second ends the process at once.
pub(super) fn stop_on_signals(lifecycle: &Lifecycle) -> anyhow::Result<()> {
    let listen = |kind| signal(kind).context("can't listen for signals");
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let told = lifecycle.clone();
    let over = lifecycle.stopping(Phase::Links);
    lifecycle.spawn(Phase::Links, "signals", async move {
        while let Some(name) = over.run_until_cancelled(next(&mut terminate, &mut interrupt)).await {
            tracing::info!(signal = name, "{name}: stopping; once more ends it at once");
            told.stop();
        }
    });
    Ok(())
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
