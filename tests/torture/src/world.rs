//! Everything that is tortured: two instances, their stores, and a way from each to each.
//!
//! The nodes of a cluster are found by the addresses they tell: there nothing stands in between.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use headcount_support::Proxy;
use tokio::sync::Mutex;

use crate::{
    cluster::{AnyRedis, Cluster, here},
    http::Http,
    instance::Instance,
    stores::{Postgres, Redis, free_ports},
};

pub(crate) const INSTANCES: usize = 2;

/// `presence.ack` of each: one of each kind.
const BEAT_ACKS: [&str; INSTANCES] = ["stored", "received"];

/// What the service is set up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One Redis and Postgres.
    Single,
    /// A Redis Cluster and Postgres.
    Cluster,
}

/// Where the programs are.
pub(crate) struct Programs {
    pub(crate) headcount: PathBuf,
    pub(crate) postgres: PathBuf,
}

/// Who has one of these locked is doing something to it; nobody else touches it meanwhile.
pub(crate) struct World {
    pub(crate) http: Http,
    /// Of the instances, alive or not.
    pub(crate) urls: [String; INSTANCES],
    pub(crate) instances: [Mutex<Instance>; INSTANCES],
    pub(crate) kind: Kind,
    pub(crate) redis: Mutex<AnyRedis>,
    pub(crate) postgres: Mutex<Postgres>,
    pub(crate) ways: [Ways; INSTANCES],
}

/// The ways of one instance.
pub(crate) struct Ways {
    /// None to a cluster.
    pub(crate) redis: Option<Mutex<Proxy>>,
    pub(crate) postgres: Mutex<Proxy>,
}

impl World {
    /// Starts everything; logs and data go to `folder`.
    pub(crate) async fn start(kind: Kind, programs: &Programs, folder: &Path) -> anyhow::Result<Arc<Self>> {
        let http = Http::new();
        let [redis_port, postgres_port, first, first_ops, second, second_ops] = free_ports()?;
        let redis = match kind {
            Kind::Single => AnyRedis::One(Redis::start(folder, redis_port).await?),
            Kind::Cluster => AnyRedis::Cluster(here(Cluster::start())),
        };
        let postgres = Postgres::start(&programs.postgres, folder, postgres_port).await?;

        let redis_url = format!("redis://127.0.0.1:{redis_port}");
        let postgres_url = Postgres::url(postgres_port);
        let ways = async || Ways {
            redis: match kind {
                Kind::Single => Some(Mutex::new(Proxy::to(&redis_url).await)),
                Kind::Cluster => None,
            },
            postgres: Mutex::new(Proxy::to(&postgres_url).await),
        };
        let ways = [ways().await, ways().await];

        let mut instances = Vec::new();
        for (index, ports) in [[first, first_ops], [second, second_ops]].into_iter().enumerate() {
            let mut own = vec![
                ("HEADCOUNT_POSTGRES__URL", ways[index].postgres.lock().await.by(&postgres_url)),
                ("HEADCOUNT_PRESENCE__ACK", BEAT_ACKS[index].to_owned()),
            ];
            own.extend(redis.settings());
            if let Some(way) = &ways[index].redis {
                own.push(("HEADCOUNT_REDIS__URL", way.lock().await.by(&redis_url)));
            }
            let log = folder.join(format!("instance-{index}.log"));
            let instance = Instance::start(&programs.headcount, log, ports, &own, http.clone()).await;
            instances.push(instance.with_context(|| format!("instance {index}"))?);
        }
        let [one, other] = <[Instance; INSTANCES]>::try_from(instances).ok().context("two instances")?;
        let urls = [one.url().to_owned(), other.url().to_owned()];
        Ok(Arc::new(Self {
            kind,
            http,
            urls,
            instances: [Mutex::new(one), Mutex::new(other)],
            redis: Mutex::new(redis),
            postgres: Mutex::new(postgres),
            ways,
        }))
    }

    /// Whether an answer to a beat means that it is in the store.
    pub(crate) fn stores_beats(instance: usize) -> bool {
        BEAT_ACKS[instance] == "stored"
    }
}
