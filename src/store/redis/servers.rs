//! Where Redis is: one server, the primary that sentinels name, or the nodes of a cluster.

use std::time::Duration;

use futures::future::join_all;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, FromRedisValue, aio::MultiplexedConnection};
use tokio::sync::Mutex;

use super::{
    address::{Certificates, explained},
    slots::SlotMap,
};
use crate::{
    config::{self, Topology},
    error::{Part, StoreError},
};

/// What `redis.topology` says.
#[derive(Clone)]
pub(super) enum Servers {
    One(Box<Client>),
    Sentinels(std::sync::Arc<Sentinels>),
    Cluster(Vec<Client>),
}

/// Those who know which server is the primary.
pub(super) struct Sentinels {
    name: String,
    /// How to reach the primary, wherever it is.
    primary: Client,
    asked: Vec<Sentinel>,
}

struct Sentinel {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Servers {
    pub(super) fn new(settings: &config::Redis) -> Result<Self, StoreError> {
        let certificates = Certificates::read(settings)?;
        let clients = || -> Result<Vec<Client>, StoreError> {
            settings.urls.iter().map(|url| certificates.client(url)).collect()
        };
        Ok(match settings.topology {
            Topology::Single => Self::One(Box::new(certificates.client(&settings.url)?)),
            Topology::Cluster => Self::Cluster(clients()?),
            Topology::Sentinel => {
                let sentinel = |client| Sentinel { client, connection: Mutex::default() };
                Self::Sentinels(std::sync::Arc::new(Sentinels {
                    name: settings.sentinel_master.clone(),
                    primary: certificates.client(&settings.url)?,
                    asked: clients()?.into_iter().map(sentinel).collect(),
                }))
            }
        })
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// The same user, password and way of encryption at another address, `host:port`.
pub(super) fn at(client: &Client, address: &str) -> Result<Client, StoreError> {
    let unusable = || StoreError::unexpected(Part::Redis, format!("{address:?} is no address of a server"));
    let (host, port) = address.rsplit_once(':').ok_or_else(unusable)?;
    let (host, port) = (host.trim_matches(['[', ']']).to_owned(), port.parse().map_err(|_| unusable())?);
    let info = client.get_connection_info();
    let address = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Client::open(info.clone().set_addr(address)).map_err(|_| unusable())
}

/// `host:port` of a client's server.
pub(super) fn address_of(client: &Client) -> String {
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        other => other.to_string(),
    }
}

/// Asks who has which slots.
pub(super) fn cluster_slots() -> Cmd {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    slots
}

/// Who has which slots, by the word of the first of these nodes that answers. It may be a replica.
pub(super) async fn ask_seeds(
    seeds: &[Client],
    connect: &AsyncConnectionConfig,
    deadline: Duration,
) -> Result<SlotMap, StoreError> {
    let mut failure = StoreError::unexpected(Part::Redis, "redis.urls is empty");
    for seed in seeds {
        match ask_seed(seed, connect, deadline).await {
            Ok(map) => return Ok(map),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn ask_seed(
    seed: &Client,
    connect: &AsyncConnectionConfig,
    deadline: Duration,
) -> Result<SlotMap, StoreError> {
    let of = |reason: &dyn std::fmt::Display| {
        StoreError::unavailable(Part::Redis, format!("{}: {reason}", address_of(seed)))
    };
    let mut connection = seed
        .get_multiplexed_async_connection_with_config(connect)
        .await
        .map_err(|error| of(&explained(&error.to_string(), seed)))?;
    let slots = cluster_slots();
    let asking = slots.query_async::<redis::Value>(&mut connection);
    let answer = tokio::time::timeout(deadline, asking).await.map_err(|_| of(&"no answer"))?;
    SlotMap::read(answer.map_err(|error| of(&error))?, &address_of(seed))
}

/// How to reach every primary that there is just now, by its address, and slots that nobody has.
///
/// # Errors
/// Nobody who knows them answers.
pub async fn primaries(
    settings: &config::Redis,
    connect: &AsyncConnectionConfig,
) -> Result<(Vec<(String, Client)>, usize), StoreError> {
    match Servers::new(settings)? {
        Servers::One(client) => Ok((vec![(settings.url.redacted(), *client)], 0)),
        Servers::Sentinels(sentinels) => {
            let client = sentinels.primary(connect, settings.connect_timeout).await?;
            Ok((vec![(address_of(&client), client)], 0))
        }
        Servers::Cluster(seeds) => {
            let map = ask_seeds(&seeds, connect, settings.connect_timeout).await?;
            let client = |address: &String| Ok((address.clone(), at(&seeds[0], address)?));
            let clients = map.primaries.iter().map(client).collect::<Result<_, StoreError>>()?;
            Ok((clients, map.uncovered()))
        }
    }
}

impl Sentinels {
    /// How to reach the primary, by the word of most of the sentinels that answer: one that was cut off
    /// from the others may still name a server that is none any more.
    pub(super) async fn primary(
        &self,
        connect: &AsyncConnectionConfig,
        deadline: Duration,
    ) -> Result<Client, StoreError> {
        let address = self.primary_address(connect, deadline).await?;
        at(&self.primary, &address)
    }

    /// Its address, `host:port`.
    pub(super) async fn primary_address(
        &self,
        connect: &AsyncConnectionConfig,
        deadline: Duration,
    ) -> Result<String, StoreError> {
        // Those that say nothing are not waited for: one that stands still may do so for long.
        let asked = self.asked.iter().map(async |sentinel| {
            let told = tokio::time::timeout(deadline, sentinel.primary_address(&self.name, connect)).await;
            told.unwrap_or_else(|_| Err("no answer".to_owned()))
        });
        let told = join_all(asked).await;
        let names: Vec<&String> = told.iter().filter_map(|told| told.as_ref().ok()?.as_ref()).collect();
        let votes = |name: &&&String| names.iter().filter(|other| other == name).count();
        if let Some(name) = names.iter().max_by_key(votes) {
            return Ok((*name).clone());
        }
        let of = |reason: &str| {
            StoreError::unavailable(
                Part::Redis,
                format!("no sentinel of redis.urls names a primary: {reason}"),
            )
        };
        // One that answers and knows of none says more than one that is away.
        let nobody = format!("they know of none called {:?} (redis.sentinel_master)", self.name);
        let knows_none = told.iter().any(Result::is_ok);
        Err(of(&told.into_iter().find_map(Result::err).filter(|_| !knows_none).unwrap_or(nobody)))
    }
}

impl Sentinel {
    async fn primary_address(
        &self,
        name: &str,
        connect: &AsyncConnectionConfig,
    ) -> Result<Option<String>, String> {
        let mut kept = self.connection.lock().await;
        // Put back once it has answered; who gives up waiting throws it away.
        let mut connection = kept.take();
        let told = self.ask(&mut connection, name, connect).await;
        *kept = connection.filter(|_| told.is_ok());
        told
    }

    async fn ask(
        &self,
        kept: &mut Option<MultiplexedConnection>,
        name: &str,
        connect: &AsyncConnectionConfig,
    ) -> Result<Option<String>, String> {
        let connection = if let Some(connection) = kept {
            connection
        } else {
            let connected = self.client.get_multiplexed_async_connection_with_config(connect).await;
            kept.insert(connected.map_err(|error| explained(&error.to_string(), &self.client))?)
        };
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer: redis::Value =
            question.query_async(connection).await.map_err(|error| error.to_string())?;
        let told: Option<(String, u16)> =
            FromRedisValue::from_redis_value(answer).map_err(|error| error.to_string())?;
        Ok(told.map(|(host, port)| format!("{host}:{port}")))
    }
}
