//! Everything that is tortured: two instances, their stores, and a way from each to each.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use headcount_support::Proxy;
use tokio::sync::Mutex;

use crate::{
    http::Http,
    instance::Instance,
    stores::{Postgres, Redis, free_ports},
};

pub(crate) const INSTANCES: usize = 2;

/// `presence.ack` of each: one of each kind.
const BEAT_ACKS: [&str; INSTANCES] = ["stored", "received"];

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
    pub(crate) redis: Mutex<Redis>,
    pub(crate) postgres: Mutex<Postgres>,
    pub(crate) ways: [Ways; INSTANCES],
}

/// The ways of one instance.
pub(crate) struct Ways {
    pub(crate) redis: Mutex<Proxy>,
    pub(crate) postgres: Mutex<Proxy>,
}

impl World {
    /// Starts everything; logs and data go to `folder`.
    pub(crate) async fn start(programs: &Programs, folder: &Path) -> anyhow::Result<Arc<Self>> {
        let http = Http::new();
        let [redis_port, postgres_port, first, first_ops, second, second_ops] = free_ports()?;
        let redis = Redis::start(folder, redis_port).await?;
        let postgres = Postgres::start(&programs.postgres, folder, postgres_port).await?;

        let redis_url = format!("redis://127.0.0.1:{redis_port}");
        let postgres_url = Postgres::url(postgres_port);
        let ways = async || Ways {
            redis: Mutex::new(Proxy::to(&redis_url).await),
            postgres: Mutex::new(Proxy::to(&postgres_url).await),
        };
        let ways = [ways().await, ways().await];

        let mut instances = Vec::new();
        for (index, ports) in [[first, first_ops], [second, second_ops]].into_iter().enumerate() {
            let own = [
                ("HEADCOUNT_REDIS__URL", ways[index].redis.lock().await.by(&redis_url)),
                ("HEADCOUNT_POSTGRES__URL", ways[index].postgres.lock().await.by(&postgres_url)),
                ("HEADCOUNT_PRESENCE__ACK", BEAT_ACKS[index].to_owned()),
            ];
            let log = folder.join(format!("instance-{index}.log"));
            let instance = Instance::start(&programs.headcount, log, ports, &own, http.clone()).await;
            instances.push(instance.with_context(|| format!("instance {index}"))?);
        }
        let [one, other] = <[Instance; INSTANCES]>::try_from(instances).ok().context("two instances")?;
        let urls = [one.url().to_owned(), other.url().to_owned()];
        Ok(Arc::new(Self {
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
