//! Makes a connection to the primary, watches over it, and makes the next one.

use std::{sync::Arc, time::Duration};

use redis::Client;

use super::{
    Redis,
    connection::{Connection, Live},
    node::Node,
    servers::{Sentinels, Servers, address_of},
};
use crate::error::{Part, StoreError};

/// How often the keeper looks whether an idle connection still answers, and what time it is there.
pub(super) const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long the keeper waits after a failed attempt: well again at most a second after Redis is.
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(50);
pub(super) const RETRY_LAST: Duration = Duration::from_millis(500);

/// What is told of attempts: when it begins that they fail, and when it ends.
pub(super) struct Told {
    quiet: bool,
    failing: bool,
    pub(super) wait: Duration,
}

impl Told {
    pub(super) fn new(quiet: bool) -> Self {
        Self { quiet, failing: false, wait: RETRY_FIRST }
    }

    /// Tells whether attempts had failed.
    pub(super) fn well(&mut self) -> bool {
        if self.failing && !self.quiet {
            tracing::info!("redis is back");
        }
        self.wait = RETRY_FIRST;
        std::mem::take(&mut self.failing)
    }

    pub(super) fn failed(&mut self, error: &StoreError) {
        if !self.failing && !self.quiet {
            tracing::warn!(error = %error, "redis can't be used; trying on");
        }
        self.failing = true;
    }

    /// Waits before the next attempt, the longer the more of them have failed.
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(RETRY_LAST);
    }
}

impl Redis {
    pub(super) async fn keep(self) {
        match self.shared.way.servers.clone() {
            Servers::One(client) => self.keep_one(&client, &mut Told::new(self.shared.beside)).await,
            Servers::Sentinels(sentinels) => self.keep_named(&sentinels).await,
            Servers::Cluster(seeds) => self.keep_cluster(&seeds).await,
        }
    }

    /// Keeps a connection to the primary that sentinels name.
    async fn keep_named(&self, sentinels: &Sentinels) {
        let mut told = Told::new(self.shared.beside);
        loop {
            let named = sentinels.primary(&self.shared.way.connect, self.shared.way.deadline).await;
            let kept = async {
                let client = named?;
                let connection = self.connect(&client).await?;
                Ok((client, connection))
            };
            match kept.await {
                Ok((client, connection)) => {
                    told.well();
                    self.watch(&connection, Some((sentinels, &client))).await;
                }
                Err(error) => self.failed(&mut told, &error),
            }
            self.shared.current.store(None);
            told.pause().await;
        }
    }

    /// Keeps a connection to one server.
    async fn keep_one(&self, client: &Client, told: &mut Told) {
        loop {
            match self.connect(client).await {
                Ok(connection) => {
                    told.well();
                    self.watch(&connection, None).await;
                }
                Err(error) => self.failed(told, &error),
            }
            self.shared.current.store(None);
            told.pause().await;
        }
    }

    pub(super) fn failed(&self, told: &mut Told, error: &StoreError) {
        told.failed(error);
        self.shared.failure.store(Some(Arc::new(reason(error))));
    }

    /// Makes a connection fit for use: to a primary, loaded, greeted.
    async fn connect(&self, client: &Client) -> Result<Connection, StoreError> {
        let node = Arc::new(Node::connect(&self.shared, client, "").await?);
        node.probe(true).await?;
        let live = Live::new(self.next_epoch(), node.run_id.clone(), vec![node], None);
        self.greet_and_publish(live).await
    }

    pub(super) fn next_epoch(&self) -> u64 {
        *self.shared.epoch.borrow() + 1
    }

    /// Lets the greeters speak on a connection, and then everybody.
    pub(super) async fn greet_and_publish(&self, live: Live) -> Result<Connection, StoreError> {
        let shared = &self.shared;
        let connection = Connection { live: Arc::new(live), shared: shared.clone() };
        let greeters = shared.greeters.lock().clone();
        for greeter in greeters {
            greeter.greet(&connection).await?;
        }
        shared.note_end_of_outage();
        shared.failure.store(None);
        shared.current.store(Some(connection.live.clone()));
        shared.epoch.send_replace(connection.live.epoch);
        Ok(connection)
    }

    /// Returns when the connection can't be used any more, or sentinels name another primary.
    async fn watch(&self, connection: &Connection, named: Option<(&Sentinels, &Client)>) {
        let node = &connection.live.nodes.load()[0];
        while !connection.is_broken() {
            let broke = tokio::time::timeout(PROBE_EVERY, self.shared.broke.notified()).await.is_ok();
            if broke {
                continue;
            }
            if node.probe(true).await.is_err() {
                node.give_up("the probe failed");
            }
            // One that was cut off from the sentinels goes on as if nothing had happened.
            let way = &self.shared.way;
            if let Some((sentinels, client)) = named
                && let Ok(address) = sentinels.primary_address(&way.connect, way.deadline).await
                && address != address_of(client)
            {
                node.give_up("the sentinels name another primary");
            }
        }
    }
}

/// The error without what every error of this store begins with.
pub(super) fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { part: Part::Redis, reason } | StoreError::Unexpected { reason, .. } => {
            reason.to_string()
        }
        other => other.to_string(),
    }
}
