//! Requests with a deadline; an answer is a status and JSON.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, header::CONTENT_TYPE};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

/// Longer than the service takes to say that it couldn't; shorter than the longer stops.
const DEADLINE: Duration = Duration::from_secs(4);

/// Makes requests; clones share its connections.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Null where it is no JSON.
    pub(crate) body: Value,
}

impl Http {
    pub(crate) fn new() -> Self {
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(64).build_http();
        Self { client }
    }

    /// Fails without an answer: whether it was done is unknown.
    pub(crate) async fn get(&self, url: &str) -> anyhow::Result<Answer> {
        self.send(Method::GET, url, String::new()).await
    }

    /// Fails without an answer: whether it was done is unknown.
    pub(crate) async fn post(&self, url: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send(Method::POST, url, body.to_string()).await
    }

    async fn send(&self, method: Method, url: &str, body: String) -> anyhow::Result<Answer> {
        let request = Request::builder().method(method).uri(url).header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::from(body))?;
        tokio::time::timeout(DEADLINE, async {
            let response = self.client.request(request).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await?.to_bytes();
            Ok(Answer { status, body: serde_json::from_slice(&body).unwrap_or_default() })
        })
        .await?
    }
}
