//! `/metrics`, in the text format of Prometheus. Where the text comes from is the caller's matter.

use std::sync::Arc;

use axum::{
    Extension,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

/// Renders the metrics.
pub(super) type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// The metrics of this instance.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    tag = "operators",
    responses((status = 200, description = "Prometheus text.", body = String, content_type = "text/plain",
        headers(("Cache-Control" = String, description = "`no-store`")))),
)]
pub(super) async fn scrape(Extension(render): Extension<Render>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, render()).into_response()
}
