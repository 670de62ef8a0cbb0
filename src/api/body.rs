//! What a POST carries: its query and its body, JSON or a form.

use std::{task::Poll, time::Duration};

use axum::{
    body::Bytes,
    extract::{
        FromRequest, Request,
        rejection::{BytesRejection, FailedToBufferBody},
    },
    http::{HeaderMap, header},
};
use serde_json::value::RawValue;

use super::{
    fields::{self, Field, Fields},
    problem::ApiError,
};

/// How a body is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Json,
    Form,
    Other,
}

impl Kind {
    /// `navigator.sendBeacon` sends text/plain: anything else would cost a CORS preflight.
    fn of(headers: &HeaderMap) -> Self {
        if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Self::Other;
        }
        let Some(given) = headers.get(header::CONTENT_TYPE) else { return Self::Json };
        let bytes = given.as_bytes();
        let end = bytes.iter().position(|byte| *byte == b';').unwrap_or(bytes.len());
        let essence = bytes[..end].trim_ascii();
        let is = |name: &str| essence.eq_ignore_ascii_case(name.as_bytes());
        if is("application/json") || is("text/plain") || essence.is_empty() {
            Self::Json
        } else if is("application/x-www-form-urlencoded") {
            Self::Form
        } else {
            Self::Other
        }
    }
}

/// What `coming` brings within `patience`. The timer is made when it is first waited for: most bodies are
/// there with their heads.
async fn within<T>(patience: Duration, coming: impl Future<Output = T>) -> Option<T> {
    let mut coming = std::pin::pin!(coming);
    let first = std::future::poll_fn(|context| Poll::Ready(coming.as_mut().poll(context)));
    match first.await {
        Poll::Ready(came) => Some(came),
        Poll::Pending => tokio::time::timeout(patience, coming).await.ok(),
    }
}

/// The query and the body of a POST.
pub(super) struct Sent {
    query: Option<String>,
    kind: Kind,
    body: Bytes,
}

impl Sent {
    /// Takes what comes within `patience`.
    pub(super) async fn read(request: Request, patience: Duration) -> Result<Self, ApiError> {
        let query = request.uri().query().map(ToOwned::to_owned);
        let kind = Kind::of(request.headers());
        match within(patience, Bytes::from_request(request, &())).await.ok_or(ApiError::RequestTimeout)? {
            Ok(body) => Ok(Self { query, kind, body }),
            Err(BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))) => {
                Err(ApiError::PayloadTooLarge)
            }
            Err(_) => Err(ApiError::InvalidBody("the body broke off".into())),
        }
    }

    /// Those of the `known` fields that were sent, wherever.
    pub(super) fn fields(&self, known: &'static [Field]) -> Result<Fields<'_>, ApiError> {
        let mut fields = Fields::new(known);
        if let Some(query) = &self.query {
            fields.add_query(query.as_bytes())?;
        }
        match self.kind {
            _ if self.body.is_empty() => {}
            Kind::Json => fields.add_object(fields::json_text(&self.body)?)?,
            Kind::Form => fields.add_form(&self.body)?,
            Kind::Other => {
                return Err(ApiError::UnsupportedMediaType(
                    "JSON (also as text/plain) or a form, not compressed",
                ));
            }
        }
        Ok(fields)
    }

    /// The elements of the one list in a JSON body.
    pub(super) fn list(&self, wanted: &str) -> Result<Option<Vec<&RawValue>>, ApiError> {
        if self.body.is_empty() {
            return Ok(None);
        }
        if self.kind != Kind::Json {
            return Err(ApiError::UnsupportedMediaType("JSON (also as text/plain), not compressed"));
        }
        let mut list = None;
        fields::each_member(fields::json_text(&self.body)?, |name, value| {
            if name == wanted {
                if list.is_some() {
                    return Err(ApiError::InvalidBody(format!("{wanted} is given more than once")));
                }
                let elements = serde_json::from_str(value.get())
                    .map_err(|_| ApiError::InvalidBody(format!("{wanted} must be a list")))?;
                list = Some(elements);
            }
            Ok(())
        })?;
        Ok(list)
    }
}
