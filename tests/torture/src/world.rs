//! Everything that is tortured: two instances, their stores, and a way from each to each. With Kafka also
//! its brokers and a third process that counts.
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
    instance::{Does, Instance, migrate},
    kafka::{Brokers, Kafka},
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
    /// One Redis, Postgres, and Kafka, which takes the plays.
    Kafka,
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
    pub(crate) kafka: Option<Kafka>,
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
        let [redis_port, postgres_port, first, first_ops, second, second_ops, third, third_ops] =
            free_ports()?;
        let redis = match kind {
            Kind::Single | Kind::Kafka => AnyRedis::One(Redis::start(folder, redis_port).await?),
            Kind::Cluster => AnyRedis::Cluster(here(Cluster::start())),
        };
        let postgres = Postgres::start(&programs.postgres, folder, postgres_port).await?;

        let redis_url = format!("redis://127.0.0.1:{redis_port}");
        let postgres_url = Postgres::url(postgres_port);
        let ways = async || Ways {
            redis: match kind {
                Kind::Single | Kind::Kafka => Some(Mutex::new(Proxy::to(&redis_url).await)),
                Kind::Cluster => None,
            },
            postgres: Mutex::new(Proxy::to(&postgres_url).await),
        };
        let ways = [ways().await, ways().await];

        let brokers = if kind == Kind::Kafka { Some(Brokers::start().await) } else { None };
        let of_kafka = brokers.as_ref().map(Brokers::settings).unwrap_or_default();
        let mut straight = vec![
            ("HEADCOUNT_POSTGRES__URL", postgres_url.clone()),
            ("HEADCOUNT_REDIS__URL", redis_url.clone()),
        ];
        straight.extend(of_kafka.clone());
        if brokers.is_some() {
            migrate(&programs.headcount, &straight).await?;
        }

        let mut instances = Vec::new();
        for (index, ports) in [[first, first_ops], [second, second_ops]].into_iter().enumerate() {
            let mut own = vec![
                ("HEADCOUNT_POSTGRES__URL", ways[index].postgres.lock().await.by(&postgres_url)),
                ("HEADCOUNT_PRESENCE__ACK", BEAT_ACKS[index].to_owned()),
            ];
            own.extend(redis.settings());
            own.extend(of_kafka.clone());
            if let Some(way) = &ways[index].redis {
                own.push(("HEADCOUNT_REDIS__URL", way.lock().await.by(&redis_url)));
            }
            let log = folder.join(format!("instance-{index}.log"));
            let instance =
                Instance::start(&programs.headcount, Does::Serve, log, ports, &own, http.clone()).await;
            instances.push(instance.with_context(|| format!("instance {index}"))?);
        }
        let [one, other] = <[Instance; INSTANCES]>::try_from(instances).ok().context("two instances")?;
        let kafka = match brokers {
            Some(brokers) => {
                let log = folder.join("consumer.log");
                let ports = [third, third_ops];
                let consumer =
                    Instance::start(&programs.headcount, Does::Consume, log, ports, &straight, http.clone())
                        .await;
                Some(Kafka::new(brokers, consumer.context("the consumer")?))
            }
            None => None,
        };
        let urls = [one.url().to_owned(), other.url().to_owned()];
        Ok(Arc::new(Self {
            kind,
            http,
            urls,
            instances: [Mutex::new(one), Mutex::new(other)],
            redis: Mutex::new(redis),
            postgres: Mutex::new(postgres),
            ways,
            kafka,
        }))
    }

    /// Whether an answer to a play says that it is kept, and not yet whether it counts.
    pub(crate) fn counts_later(&self) -> bool {
        self.kafka.is_some()
    }

    /// Whether an answer to a beat means that it is in the store.
    pub(crate) fn stores_beats(instance: usize) -> bool {
        BEAT_ACKS[instance] == "stored"
    }
}
