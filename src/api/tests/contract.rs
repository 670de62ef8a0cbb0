//! Holds an answer against what is promised: the OpenAPI document, RFC 9457, the cache headers.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use axum::http::Method;
use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Reply;

/// The document, as clients get it.
pub(super) static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::to_value(crate::api::document()).unwrap());

static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// What the document says of each of its operations: method, path, description.
pub(super) fn operations() -> impl Iterator<Item = (String, &'static str, &'static Value)> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    paths.iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap();
        methods.iter().map(move |(method, operation)| (method.to_uppercase(), path.as_str(), operation))
    })
}

/// Whether `path` is of the shape of `pattern`.
fn fits(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted == given || wanted.starts_with('{') => {}
            _ => return false,
        }
    }
}

fn operation(method: &Method, path: &str) -> Option<&'static Value> {
    let found: Vec<_> =
        operations().filter(|(name, pattern, _)| *method == **name && fits(pattern, path)).collect();
    // "/api/videos/counts" fits nothing else: the patterns don't overlap.
    assert!(found.len() < 2, "{method} {path} fits several operations");
    found.first().map(|(_, _, operation)| *operation)
}

/// Fails where an answer breaks its promise.
pub(super) fn check(method: &Method, path: &str, reply: &Reply) {
    let status = reply.status.as_u16();
    if *method == Method::POST || status >= 400 {
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{method} {path}: {reply:?}");
        assert_eq!(reply.header("cdn-cache-control"), None);
    }
    if *method == Method::HEAD {
        assert_eq!(reply.body, "");
        return;
    }
    assert_eq!(reply.header("retry-after").is_some(), status == 503, "{method} {path}: {reply:?}");
    if status >= 400 {
        problem(reply);
    }
    if reply.outcome().1 == "not_found" {
        // The document tells of both listeners; a path of the one is none of the other.
        return;
    }
    let Some(operation) = operation(method, path) else {
        assert!([400, 404, 405].contains(&status), "{method} {path} is not in the document: {reply:?}");
        return;
    };
    let described = &operation["responses"][status.to_string()];
    assert!(
        described.is_object(),
        "{method} {path} answered {status}, which is not in the document: {reply:?}"
    );
    for name in
        reply.headers.keys().filter(|name| !["content-type", "content-length"].contains(&name.as_str()))
    {
        let told = described["headers"]
            .as_object()
            .is_some_and(|headers| headers.keys().any(|header| header.eq_ignore_ascii_case(name.as_str())));
        assert!(told, "{method} {path} sent {name}, which is not in the document");
    }
    let Some(content) = described["content"].as_object() else {
        assert_eq!(reply.body, "", "{method} {path} {status} is promised to be empty");
        return;
    };
    let given = reply.header("content-type").expect("a body has a type");
    let essence = given.split(';').next().unwrap();
    let schema =
        &content.get(essence).unwrap_or_else(|| panic!("{essence} is not in the document"))["schema"];
    if essence.ends_with("json") {
        valid(&reply.json(), schema, &format!("{method} {path} {status}"));
    }
}

fn problem(reply: &Reply) {
    assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{reply:?}");
    let problem = reply.json();
    valid(&problem, &json!({ "$ref": "#/components/schemas/Problem" }), "a problem");
    let code = problem["code"].as_str().unwrap();
    assert_eq!(problem["status"], reply.status.as_u16());
    assert_eq!(problem["type"], format!("urn:headcount:problem:{code}"));
    assert_eq!(problem["retryable"], matches!(reply.status.as_u16(), 408 | 503));
    for secret in ["10.0.0.", "panicked", "src/"] {
        assert!(!reply.body.contains(secret), "a cause must not be told: {reply:?}");
    }
}

fn valid(value: &Value, schema: &Value, what: &str) {
    let mut validators = VALIDATORS.lock();
    let validator = validators.entry(schema.to_string()).or_insert_with(|| {
        let mut whole = schema.clone();
        whole["components"] = DOCUMENT["components"].clone();
        Arc::new(jsonschema::validator_for(&whole).unwrap())
    });
    if let Err(error) = validator.validate(value) {
        panic!("{what} is not as the document says: {error} in {value}");
    }
}
