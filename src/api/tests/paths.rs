//! What stands in a path, and paths and methods that aren't there.

use super::{World, contract::operations, request};

const OF_A_VIDEO: [(&str, &str); 6] = [
    ("POST", "heartbeat"),
    ("POST", "leave"),
    ("POST", "play"),
    ("GET", "online-count"),
    ("GET", "play-count"),
    ("GET", "counts"),
];

#[tokio::test]
async fn a_video_id_is_decoded_once_and_then_checked() {
    let world = World::new();
    let (longest, too_long) = ("x".repeat(64), "x".repeat(65));
    for (raw, id) in [
        ("film", Some("film")),
        ("BV1xx411c7mD", Some("BV1xx411c7mD")),
        ("42", Some("42")),
        ("%66ilm", Some("film")),
        ("a.b_c-d", Some("a.b_c-d")),
        ("..", Some("..")),
        (&longest, Some(&longest)),
        (&too_long, None),
        ("%00", None),
        ("a%00b", None),
        ("%2F", None),
        ("a%2Fb", None),
        ("%2e%2e%2f", None),
        ("%FF", None),
        ("%C3%28", None),
        ("%2566ilm", None),
        ("a%20b", None),
        ("a+b", None),
        ("a;b", None),
        ("a%3Fb", None),
        ("%E7%94%B5%E5%BD%B1", None),
        ("%F0%9F%8E%AC", None),
        ("%7B%7D", None),
        ("a%7Db", None),
        ("%7D", None),
        ("%", None),
        ("", None),
    ] {
        for (method, action) in OF_A_VIDEO {
            let path = format!("/api/video/{raw}/{action}?userId=ann");
            let reply = world.call(request(method, &path, None, "".into())).await;
            match id {
                Some(id) => {
                    assert_eq!(reply.status, 200, "{method} {path}");
                    assert_eq!(reply.json()["videoId"], id, "{method} {path}");
                }
                None => reply.refused(400, "invalid_video_id"),
            }
        }
    }
    assert_eq!(world.presence.viewers_of("film"), Vec::<String>::new(), "the viewer has left again");
    assert_eq!(world.presence.viewers.lock().len(), 6);
    assert_eq!(world.plays.recorded.lock().len(), 7);
}

#[tokio::test]
async fn a_path_that_isnt_there_is_a_404_problem() {
    let world = World::new();
    for path in [
        "/",
        "/api",
        "/api/video/film",
        "/api/video/film/heartbeat/",
        "/api/video/film/heartbeats",
        "/api/video/a/b/heartbeat",
        "/API/video/film/heartbeat",
        "/api/videos",
        "/api/videos/",
        "//api/heartbeats",
        "/metrics",
        "/openapi.json",
        "/%00",
        "/%FF",
    ] {
        for method in ["GET", "POST", "DELETE", "OPTIONS"] {
            world.call(request(method, path, None, "".into())).await.refused(404, "not_found");
        }
    }
    let nowhere = world.call_operators(request("POST", "/api/video/film/heartbeat", None, "".into())).await;
    nowhere.refused(404, "not_found");
}

/// A build that is measured has them (`noop.rs`), and no other.
#[cfg(not(feature = "bench"))]
#[tokio::test]
async fn the_empty_handlers_of_the_bench_arent_there() {
    let world = World::new();
    for action in ["heartbeat", "play", "online-count"] {
        for method in ["GET", "POST"] {
            let path = format!("/api/video/film/noop/{action}?userId=ann");
            world.call(request(method, &path, None, "".into())).await.refused(404, "not_found");
        }
    }
}

#[tokio::test]
async fn a_method_that_isnt_there_is_405_and_says_which_are() {
    let world = World::new();
    for (path, allowed) in [
        ("/api/video/film/heartbeat", "POST"),
        ("/api/video/film/leave", "POST"),
        ("/api/video/film/play", "POST"),
        ("/api/heartbeats", "POST"),
        ("/api/video/film/online-count", "GET,HEAD"),
        ("/api/videos/counts", "GET,HEAD,POST"),
        ("/api/videos/top", "GET,HEAD"),
        ("/livez", "GET,HEAD"),
    ] {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            if allowed.split(',').any(|allowed| allowed == method) {
                continue;
            }
            let reply = world.call(request(method, path, None, "".into())).await;
            reply.refused(405, "method_not_allowed");
            assert_eq!(reply.header("allow"), Some(allowed), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn head_answers_like_get_without_the_body() {
    let world = World::new();
    world.post("/api/video/film/heartbeat", r#"{"userId":"ann"}"#).await;
    for (method, path, _) in operations() {
        if method != "GET" {
            continue;
        }
        let path = format!("{}?ids=film", path.replace("{videoId}", "film"));
        for router in [&world.public, &world.operators] {
            let got = super::call(router, request("GET", &path, None, "".into())).await;
            let head = super::call(router, request("HEAD", &path, None, "".into())).await;
            assert_eq!(head.status, got.status, "{path}");
            let length = got.body.len().to_string();
            assert_eq!(head.header("content-length"), Some(&*length), "{path}");
            assert_eq!(head.header("content-type"), got.header("content-type"));
        }
    }
}

#[tokio::test]
async fn a_body_over_its_limit_is_413() {
    let world = World::new();
    let padded = |bytes: usize| {
        let start = r#"{"userId":"ann"}"#;
        format!("{start}{}", " ".repeat(bytes - start.len()))
    };
    for action in ["heartbeat", "leave", "play"] {
        let path = format!("/api/video/film/{action}");
        assert_eq!(world.post(&path, padded(4_096)).await.status, 200);
        world.post(&path, padded(4_097)).await.refused(413, "payload_too_large");
    }
    let ids = |bytes: usize| format!(r#"{{"ids":["a"]{}}}"#, " ".repeat(bytes - 13));
    assert_eq!(world.post("/api/videos/counts", ids(512 * 1_024)).await.status, 200);
    world.post("/api/videos/counts", ids(512 * 1_024 + 1)).await.refused(413, "payload_too_large");
}
