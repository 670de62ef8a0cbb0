//! What Redis's answers mean: a value, a refusal that may pass, or one that won't.

use redis::{FromRedisValue, Value};

use crate::error::{Part, StoreError};

/// In place of what a node of a cluster didn't answer. Redis has no such codes.
const UNHEARD: &str = "UNHEARD";
const AWAY: &str = "AWAY";

/// In place of the answer to a command that was sent, and may have been carried out.
pub(super) fn unheard(error: &StoreError) -> Value {
    refused(UNHEARD, &error.to_string())
}

/// In place of the answer to a command that was not sent.
pub(super) fn away(node: &str) -> Value {
    refused(AWAY, &format!("the node that has its keys is away: {node}"))
}

fn refused(code: &str, reason: &str) -> Value {
    let line = format!("-{code} {}\r\n", reason.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).unwrap_or(Value::Nil)
}

/// Whether this stands in place of an answer that was not heard: the command may have been carried out.
#[must_use]
pub fn is_unheard(value: &Value) -> bool {
    server_error_code(value) == Some(UNHEARD)
}

/// Reads one value of a pipeline's answer.
///
/// # Errors
/// Redis refused the command, or answered with something else than `T`.
pub fn reply<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    if let Value::ServerError(error) = &value {
        return Err(refusal(&format!("{} {}", error.code(), error.details().unwrap_or_default())));
    }
    redis::from_redis_value(value).map_err(|error| StoreError::unexpected(Part::Redis, error))
}

/// What it means that Redis refused with `text`, whose first word is the code; for the errors that a
/// script hands on.
#[must_use]
pub fn refusal(text: &str) -> StoreError {
    if is_passing(text.split_whitespace().next().unwrap_or_default()) {
        StoreError::unavailable(Part::Redis, text)
    } else {
        StoreError::unexpected(Part::Redis, text)
    }
}

/// Whether Redis, having refused with this code, may say yes later.
fn is_passing(code: &str) -> bool {
    matches!(
        code,
        "OOM"
            | "READONLY"
            | "LOADING"
            | "BUSY"
            | "MASTERDOWN"
            | "MISCONF"
            | "NOREPLICAS"
            | "NOSCRIPT"
            | "NOAUTH"
            | "WRONGPASS"
            | "CLUSTERDOWN"
            | "TRYAGAIN"
            | "MOVED"
            | "ASK"
            | UNHEARD
            | AWAY
    )
}

pub(super) fn server_error_code(value: &Value) -> Option<&str> {
    match value {
        Value::ServerError(error) => Some(error.code()),
        _ => None,
    }
}
