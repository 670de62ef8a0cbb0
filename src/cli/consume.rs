//! `headcount consume`: counts the plays in Kafka's log, apart from those who serve; or makes all totals
//! anew from it.

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::Context as _;

use super::{
    complain, on_all_cores, print,
    serve::{announced, stop_on_signals, to_its_end},
};
use crate::{
    app::{self, Listeners},
    backend,
    clock::SystemClock,
    config::{
        Config,
        load::{Loaded, load},
    },
    lifecycle::{Lifecycle, Stopped},
    plays::in_kafka::consumer::Rebuilt,
    telemetry::{self, metrics::Metrics},
};

/// How long a rebuild that is told to stop waits for its last windows.
const DRAIN: Duration = Duration::from_secs(15);

/// What `headcount consume` can be told.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Make all totals, days and unique viewers anew from the whole log, and end where it ends now.
    #[arg(long, requires = "into_empty")]
    from_beginning: bool,
    /// Only into a database into which nothing was counted: it is checked.
    #[arg(long, requires = "from_beginning")]
    into_empty: bool,
}

pub(super) fn run(file: Option<&Path>, options: &Options) -> anyhow::Result<ExitCode> {
    let loaded = load(file, None)?;
    if !loaded.config.kafka.is_used() {
        anyhow::bail!("kafka.brokers is empty: there is no log to count");
    }
    telemetry::start(&loaded.config.log)?;
    #[cfg(feature = "failpoints")]
    crate::failpoint::set_by_environment();
    if options.from_beginning {
        return on_all_cores(rebuild(announced(loaded)));
    }
    to_its_end(consume(loaded))
}

async fn consume(loaded: Loaded) -> anyhow::Result<Stopped> {
    let mut config = announced(loaded);
    // That is what it is for; kafka.consume says whether those who serve do it as well.
    config.kafka.consume = true;
    let metrics = Metrics::install()?;
    let ops = Listeners::for_operators(&config).await?;
    let lifecycle = Lifecycle::new(Duration::ZERO, config.server.drain);
    stop_on_signals(&lifecycle)?;
    app::consume(config, ops, lifecycle, SystemClock::start(), metrics).await
}

async fn rebuild(config: Config) -> anyhow::Result<ExitCode> {
    let lifecycle = Lifecycle::new(Duration::ZERO, DRAIN);
    stop_on_signals(&lifecycle)?;
    let rebuilding = backend::rebuild(&config, &lifecycle, SystemClock::start());
    let rebuilt = rebuilding.await;
    lifecycle.stop();
    lifecycle.run().await;
    let Rebuilt { records, gone, cut_short } = rebuilt.context("can't make the totals anew")?;
    if gone > 0 {
        complain(&anyhow::anyhow!(
            "warning: the log doesn't begin at its beginning any more: {gone} records are gone from it, and \
             whatever they counted is not in these totals"
        ));
    }
    if cut_short {
        complain(&anyhow::anyhow!(
            "stopped before all was counted; headcount consume goes on from where this ended"
        ));
        return Ok(ExitCode::FAILURE);
    }
    print(&format!("counted all {records} records that were in the log when this began"))?;
    Ok(ExitCode::SUCCESS)
}
