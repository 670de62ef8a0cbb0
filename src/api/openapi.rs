//! The OpenAPI document, made from the handlers and the types they answer with.

use std::collections::BTreeMap;

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use utoipa::{
    IntoResponses, OpenApi, ToSchema,
    openapi::{ContentBuilder, HeaderBuilder, Object, Ref, RefOr, Required, ResponseBuilder, schema::Type},
};

use super::{audit, counts, health, heartbeat, many, metrics, plays, problem::Problem, top};

/// What a POST about one video is answered when it isn't answered.
pub(super) struct VideoPost;

/// What a POST about many videos is answered when it isn't answered.
pub(super) struct ListPost;

/// What a GET about one video is answered when it isn't answered.
pub(super) struct VideoGet;

/// What a GET about many videos is answered when it isn't answered.
pub(super) struct ListGet;

type Outcomes = BTreeMap<String, RefOr<utoipa::openapi::Response>>;

const POST: [u16; 5] = [204, 400, 408, 413, 415];

impl IntoResponses for VideoPost {
    fn responses() -> Outcomes {
        outcomes(POST.into_iter().chain([404, 500, 503]))
    }
}

impl IntoResponses for ListPost {
    fn responses() -> Outcomes {
        outcomes(POST.into_iter().chain([500, 503]))
    }
}

impl IntoResponses for VideoGet {
    fn responses() -> Outcomes {
        outcomes([400, 404, 500, 503])
    }
}

impl IntoResponses for ListGet {
    fn responses() -> Outcomes {
        outcomes([400, 500, 503])
    }
}

fn outcomes(statuses: impl IntoIterator<Item = u16>) -> Outcomes {
    statuses.into_iter().map(|status| (status.to_string(), outcome(status).into())).collect()
}

fn outcome(status: u16) -> utoipa::openapi::Response {
    let description = match status {
        204 => "The request was a prefetch (`Sec-Purpose: prefetch`): nothing was done.",
        400 => "The request can't be read; `code` says what of it.",
        404 => "The video isn't known, and this service counts only known ones (`videos.unknown`).",
        408 => "The body didn't come in time (`server.body_timeout`): nothing of it was taken.",
        413 => "The body is too large.",
        415 => "The body is neither JSON (also as `text/plain`) nor, for a single video, a form.",
        500 => "The service failed; sending the request again won't help.",
        _ => "The service can't do this now; sending the request again is safe.",
    };
    let mut response =
        ResponseBuilder::new().description(description).header("Cache-Control", text_header("`no-store`"));
    if status == 503 {
        response = response.header("Retry-After", text_header("Seconds to wait, 1 to 5."));
    }
    if status != 204 {
        let schema = Ref::from_schema_name(Problem::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        response = response.content("application/problem+json", content);
    }
    response.build()
}

fn text_header(description: &str) -> utoipa::openapi::Header {
    HeaderBuilder::new().schema(Some(Object::with_type(Type::String))).description(Some(description)).build()
}

const ABOUT: &str = "How many people are watching a video now, and how often was it played.

Every error is `application/problem+json`, and its `code` is stable. What a client sends may be named \
in `camelCase` or `snake_case`; what isn't known is passed over. An id of the site's own may be an \
integer in place of its digits. A field that is sent more than once must say the same each time.

Besides what stands at each path: what can't be read as HTTP/1.1 is 400 `malformed_request`, a request line and headers over 32 KiB together, or over 100 headers, 431 (shorten the path and query, or send a POST), and where they don't come in time (`server.header_timeout`) 408; the connection is closed after these.";

#[derive(OpenApi)]
#[openapi(
    info(description = ABOUT),
    paths(
        heartbeat::beat, heartbeat::leave, heartbeat::beat_many, plays::record,
        counts::online, counts::plays, counts::both, many::get, many::post, top::top,
        health::live, health::ready, metrics::scrape, audit::read, json,
    ),
    components(schemas(Problem)),
    tags(
        (name = "players", description = "What players send."),
        (name = "gateways", description = "What gateways send for many players."),
        (name = "pages", description = "What pages read."),
        (name = "operators", description = "On the operators' listener; the probes on both."),
    ),
)]
struct Document;

/// The OpenAPI document of this API.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    let mut document = Document::openapi();
    // The fields of a POST about one video may all stand in the query.
    let single = |path: &str| path.starts_with("/api/video/");
    for (_, item) in document.paths.paths.iter_mut().filter(|(path, _)| single(path)) {
        if let Some(RefOr::T(body)) = item.post.as_mut().and_then(|post| post.request_body.as_mut()) {
            body.required = Some(Required::False);
        }
    }
    document
}

/// This document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    tag = "operators",
    responses((status = 200, description = "OpenAPI 3.1.", body = Object, content_type = "application/json",
        headers(("Cache-Control" = String, description = "`no-store`")))),
)]
pub(super) async fn json() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    let document = document().to_json().expect("maps and lists of text always serialize");
    (headers, document).into_response()
}
