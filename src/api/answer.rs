//! Answers that aren't errors: JSON, and how long a cache may keep it.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, Schema, Type},
    },
};

use crate::{
    clock::Timestamp,
    ids::{MAX_ID_BYTES, VideoId},
};

/// Who may keep an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    /// Nobody: it is the answer to a POST, or a number that should be another one soon.
    No,
    /// A CDN for a second. A browser must ask again, or it would show the count of its last look.
    Shared,
}

impl Cache {
    pub(super) const NO_STORE: &str = "no-store";
    pub(super) const NO_CACHE: &str = "no-cache";
    pub(super) const SHARED: &str = "public, max-age=1, stale-while-revalidate=30";

    /// Numbers that everybody may see for a second, or that should not be kept.
    pub(super) fn shared_if(good: bool) -> Self {
        if good { Self::Shared } else { Self::No }
    }
}

/// A JSON answer.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) status: StatusCode,
    pub(super) cache: Cache,
    pub(super) body: T,
    /// Bytes that the body will take, about.
    pub(super) room: usize,
}

/// Room for the body of most answers.
const ROOM: usize = 256;

impl<T> Answer<T> {
    /// 200, for this client only.
    pub(super) fn private(body: T) -> Self {
        Self::cached(Cache::No, body)
    }

    /// 200, kept as `cache` says.
    pub(super) fn cached(cache: Cache, body: T) -> Self {
        Self { status: StatusCode::OK, cache, body, room: ROOM }
    }

    /// The same, of a list of so many: it is not to be copied again and again while it is written.
    pub(super) fn of_many(self, elements: usize) -> Self {
        Self { room: ROOM + elements * ROOM, ..self }
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let mut json = Vec::with_capacity(self.room);
        serde_json::to_writer(&mut json, &self.body)
            .expect("answers are structs of text and numbers, written to memory");
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.cache {
            Cache::No => {
                headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(Cache::NO_STORE));
            }
            Cache::Shared => {
                const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");
                headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(Cache::NO_CACHE));
                headers.insert(CDN_CACHE_CONTROL, HeaderValue::from_static(Cache::SHARED));
            }
        }
        response
    }
}

/// A video id in an answer.
#[derive(Clone, Debug)]
pub(super) struct Id(pub(super) VideoId);

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl PartialSchema for Id {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(MAX_ID_BYTES))
            .pattern(Some("^[A-Za-z0-9._-]+$"))
            .description(Some("Names one video."))
            .into()
    }
}

impl ToSchema for Id {
    fn name() -> std::borrow::Cow<'static, str> {
        "VideoId".into()
    }
}

/// A moment in an answer; in the document it is `String`, with the format `DateTime`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub(super) Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.rfc3339().as_str())
    }
}
