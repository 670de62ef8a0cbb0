//! Whether the stores do their work, as `/readyz` tells it.

use async_trait::async_trait;

use crate::error::{Part, StoreError};

/// What a look at the stores found.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Parts without which nothing can be taken: not ready.
    pub failed: Vec<StoreError>,
    /// Parts that are missed without a request failing for it.
    pub degraded: Vec<Part>,
}

/// Looks at the stores.
#[async_trait]
pub trait HealthCheck: Send + Sync {
    /// Does a small real write and read on each store. Callers ask at most once a second.
    async fn check(&self) -> Health;
}
