//! The OpenAPI document tells of every route and of no other.

use std::{collections::BTreeSet, sync::Arc};

use super::{World, contract::operations, request};

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];

#[tokio::test]
async fn the_document_and_the_routers_have_the_same_operations() {
    let world = World::new();
    let mut documented = BTreeSet::new();
    for (method, path, _) in operations() {
        documented.insert((method, path.to_owned()));
    }
    let mut routed = BTreeSet::new();
    let listed: BTreeSet<&str> = [
        crate::api::public_routes().into_iter().collect::<Vec<_>>(),
        crate::api::operators_routes(Arc::new(String::new)).into(),
    ]
    .into_iter()
    .flatten()
    .flat_map(|group| group.routes)
    .map(|(path, _)| path)
    .collect();
    for path in &listed {
        for method in METHODS {
            let uri = path.replace("{videoId}", "film");
            for router in [&world.public, &world.operators] {
                let reply = super::call(router, request(method, &uri, None, "".into())).await;
                if !["not_found", "method_not_allowed"].contains(&&*reply.outcome().1) {
                    routed.insert((method.to_owned(), (*path).to_owned()));
                }
            }
        }
    }
    assert_eq!(routed, documented);
}

#[test]
fn the_document_names_each_operation_once_and_says_what_it_is_for() {
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations() {
        let id = operation["operationId"].as_str().unwrap();
        assert!(ids.insert(id), "{id} stands twice");
        assert!(operation["summary"].as_str().is_some_and(|summary| summary.len() > 8), "{method} {path}");
        assert!(operation["tags"].as_array().is_some_and(|tags| tags.len() == 1), "{method} {path}");
    }
}
