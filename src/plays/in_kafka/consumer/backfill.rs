//! Makes all totals anew from the log: for a database that was lost, or to prove that it is right.

use std::{collections::HashMap, sync::Arc};

use rdkafka::{
    admin::AdminClient,
    config::FromClientConfigAndContext as _,
    error::{KafkaError, RDKafkaErrorCode},
    metadata::MetadataTopic,
};
use tokio_util::sync::CancellationToken;

use super::{
    Again, Counting,
    group::Follow,
    opening::{BROKERS_WAIT, blocking},
};
use crate::{
    config::Config,
    error::{Part, StoreError},
    plays::postgres::Ledger,
    store::{
        kafka::{self, Quiet, told},
        time::StoreClock,
    },
};

/// What a rebuild came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// Records that were read.
    pub records: u64,
    /// Records of before that the log doesn't have any more.
    pub gone: u64,
    /// Whether it was ended before all was read.
    pub cut_short: bool,
}

/// Why there is no rebuild.
#[derive(Debug, thiserror::Error)]
pub enum NoRebuild {
    /// Something was counted into this database.
    #[error(
        "the database is not empty: what was counted into it would be counted again beside it. Make a new \
         database, rebuild into that one (postgres.url), and put it in the place of the old one"
    )]
    NotEmpty,
    /// A store is away.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Counts the whole log, up to where it ends now, into an empty database. Redis is not told: it may be that
/// of a deployment that goes on. One that was cut short leaves a database that isn't empty: what is in it
/// is right as far as it goes, and `headcount consume` goes on from there.
///
/// # Errors
/// The database isn't empty, or the stores are away at the beginning. Later failures are waited out.
pub async fn rebuild(
    config: &Config,
    ledger: Ledger,
    clock: Arc<StoreClock>,
    stopping: &CancellationToken,
) -> Result<Rebuilt, NoRebuild> {
    if !ledger.is_empty().await? {
        return Err(NoRebuild::NotEmpty);
    }
    let counting = Counting::new(config, ledger, None, clock);
    let asked = counting.clone();
    let parts = blocking(move || ends(&asked)).await?;
    let parts = parts.map_err(|error| StoreError::unavailable(Part::Kafka, told(&error)))?;
    let sum = |part: fn(&(i64, i64)) -> i64| parts.values().map(part).sum::<i64>().unsigned_abs();
    let (records, gone) = (sum(|(low, high)| high - low), sum(|(low, _)| *low));
    let ends: HashMap<i32, i64> = parts.iter().map(|(partition, (_, high))| (*partition, *high)).collect();
    let mut again = Again::default();
    while let Err(error) = Follow::up_to(counting.clone(), ends.clone()).run(stopping).await {
        counting.trouble.failed(None, &error);
        if again.wait(stopping).await.is_none() {
            break;
        }
    }
    Ok(Rebuilt { records, gone, cut_short: stopping.is_cancelled() })
}

/// The offsets of the first record of each part, and of the one behind its last.
fn ends(counting: &Counting) -> Result<HashMap<i32, (i64, i64)>, KafkaError> {
    let topic = &counting.settings.topic;
    let admin: AdminClient<Quiet> =
        AdminClient::from_config_and_context(&kafka::client(&counting.settings), Quiet)?;
    let client = admin.inner();
    let metadata = client.fetch_metadata(Some(topic), BROKERS_WAIT)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let parts = found.map(MetadataTopic::partitions).unwrap_or_default();
    let mut ends = HashMap::new();
    for part in parts {
        ends.insert(part.id(), client.fetch_watermarks(topic, part.id(), BROKERS_WAIT)?);
    }
    if ends.is_empty() {
        return Err(KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownTopicOrPartition));
    }
    Ok(ends)
}
