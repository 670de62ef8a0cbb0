//! The numbers, of one video and of many.

use serde_json::{Value, json};

use super::{Settings, World, now, request, video};
use crate::{config::Unknown, presence::Ranking};

const AS_OF: &str = "2026-01-02T03:04:05Z";
const SHARED: &str = "public, max-age=1, stale-while-revalidate=30";

#[tokio::test]
async fn a_count_says_when_it_was_right_and_for_which_window() {
    let world = World::new();
    world.presence.tell("film", Some(3), false);
    assert_eq!(
        world.get("/api/video/film/online-count").await.json(),
        json!({ "videoId": "film", "online": 3, "asOf": AS_OF, "windowSeconds": 600, "stale": false })
    );
    world.presence.tell("film", None, true);
    assert_eq!(
        world.get("/api/video/film/online-count").await.json(),
        json!({ "videoId": "film", "online": null, "asOf": null, "windowSeconds": 600, "stale": true })
    );
    world.plays.tell("film", Some(9_007_199_254_740_993), Some(2), false);
    assert_eq!(
        world.get("/api/video/film/play-count").await.json(),
        json!({
            "videoId": "film", "plays": 9_007_199_254_740_993_u64, "uniqueViewers": 2,
            "asOf": AS_OF, "stale": false,
        })
    );
    assert_eq!(
        world.get("/api/video/other/play-count").await.json(),
        json!({ "videoId": "other", "plays": null, "uniqueViewers": null, "asOf": null, "stale": true })
    );
}

fn both(id: &str) -> Value {
    json!({
        "videoId": id, "online": 3, "onlineAsOf": AS_OF, "onlineStale": false, "windowSeconds": 600,
        "plays": 7, "uniqueViewers": 5, "playsAsOf": AS_OF, "playsStale": false,
    })
}

fn world_with(ids: &[&str]) -> World {
    let world = World::new();
    for id in ids {
        world.presence.tell(id, Some(3), false);
        world.plays.tell(id, Some(7), Some(5), false);
    }
    world
}

#[tokio::test]
async fn both_numbers_come_in_one_answer() {
    assert_eq!(world_with(&["film"]).get("/api/video/film/counts").await.json(), both("film"));
}

#[tokio::test]
async fn many_are_answered_in_the_order_asked_from_one_call_to_each_store() {
    let world = world_with(&["a", "b", "7"]);
    let expected = json!({ "counts": [
        both("b"),
        { "videoId": "a/b", "error": "invalid_video_id" },
        both("a"),
        both("b"),
        both("7"),
        { "videoId": "", "error": "invalid_video_id" },
    ] });
    let asked = world.get("/api/videos/counts?ids=b,a%2Fb,a,b&x=1&ids=7,").await;
    let posted = world.post("/api/videos/counts", r#"{"ids":["b","a/b","a","b",7,""]}"#).await;
    for reply in [asked, posted] {
        assert_eq!((reply.status.as_u16(), reply.json()), (200, expected.clone()));
    }
    let once = ["b", "a", "b", "7"].map(video).to_vec();
    assert_eq!(*world.presence.asked.lock(), [once.clone(), once.clone()]);
    assert_eq!(*world.plays.asked.lock(), [once.clone(), once]);
}

#[tokio::test]
async fn what_is_no_id_is_told_back_as_it_was_sent() {
    let world = World::new();
    let ids = json!([1.5, null, true, ["a"], { "a": 1 }, "é", "\u{0}", 12_345_678_901_234_567_890_u64]);
    let reply = world.post("/api/videos/counts", json!({ "ids": ids }).to_string()).await;
    let told: Vec<Value> =
        reply.json()["counts"].as_array().unwrap().iter().map(|entry| entry["videoId"].clone()).collect();
    assert_eq!(
        json!(told),
        json!(["1.5", "null", "true", r#"["a"]"#, r#"{"a":1}"#, "é", "\u{0}", "12345678901234567890"])
    );
}

#[tokio::test]
async fn how_many_may_be_asked_for_is_bounded() {
    let world = World::new();
    let ids = |count: usize| (0..count).map(|id| id.to_string()).collect::<Vec<_>>();
    let get = async |count| world.get(&format!("/api/videos/counts?ids={}", ids(count).join(","))).await;
    let post = async |count| world.post("/api/videos/counts", json!({ "ids": ids(count) }).to_string()).await;

    assert_eq!(get(100).await.json()["counts"].as_array().unwrap().len(), 100);
    get(101).await.refused(400, "too_many_ids");
    assert_eq!(post(500).await.json()["counts"].as_array().unwrap().len(), 500);
    post(501).await.refused(400, "too_many_ids");

    world.get("/api/videos/counts").await.refused(400, "missing_ids");
    world.get("/api/videos/counts?id=a").await.refused(400, "missing_ids");
    world.get("/api/videos/counts?ids=%FF").await.refused(400, "invalid_query");
    world.post("/api/videos/counts", "").await.refused(400, "missing_ids");
    world.post("/api/videos/counts", "{}").await.refused(400, "missing_ids");
    world.post("/api/videos/counts", r#"{"ids":"a,b"}"#).await.refused(400, "invalid_body");
    assert_eq!(world.get("/api/videos/counts?ids=").await.json(), json!({ "counts": [] }));
    assert_eq!(post(0).await.json(), json!({ "counts": [] }));
}

#[tokio::test]
async fn unknown_videos_are_errors_of_their_own_entries() {
    let world = World::with(Settings { unknown: Unknown::Reject, ..Settings::default() });
    let reply = world.get("/api/videos/counts?ids=other,known,},known2").await.json();
    let entries: Vec<_> = reply["counts"].as_array().unwrap().iter().map(|entry| &entry["error"]).collect();
    assert_eq!(entries, [&json!("unknown_video"), &Value::Null, &json!("invalid_video_id"), &Value::Null]);
    assert_eq!(*world.presence.asked.lock(), [["known", "known2"].map(video).to_vec()]);
    world.get("/api/videos/counts?ids=known,unreachable").await.refused(503, "unavailable");
}

#[tokio::test]
async fn a_cdn_may_keep_good_numbers_for_a_second_and_nobody_anything_else() {
    let world = world_with(&["good"]);
    world.presence.tell("zero", Some(0), false);
    world.presence.tell("old", Some(3), true);
    for (id, plays, unique, stale) in [
        ("zero", Some(0), Some(0), false),
        ("old", Some(7), Some(5), true),
        ("anonymous", Some(7), Some(0), false),
    ] {
        world.plays.tell(id, plays, unique, stale);
    }
    for (path, kept) in [
        ("/api/video/good/online-count", true),
        ("/api/video/zero/online-count", false),
        ("/api/video/old/online-count", false),
        ("/api/video/good/play-count", true),
        ("/api/video/zero/play-count", false),
        ("/api/video/old/play-count", false),
        ("/api/video/nobody/play-count", false),
        ("/api/video/anonymous/play-count", true),
        ("/api/video/good/counts", true),
        ("/api/video/anonymous/counts", false),
        ("/api/videos/counts?ids=good,good", true),
        ("/api/videos/counts?ids=good,zero", false),
        ("/api/videos/counts?ids=good,old", false),
        ("/api/videos/counts?ids=good,}", false),
        ("/api/videos/top", false),
    ] {
        let expected = if kept { (Some("no-cache"), Some(SHARED)) } else { (Some("no-store"), None) };
        for method in ["GET", "HEAD"] {
            let reply = world.call(request(method, path, None, "".into())).await;
            assert_eq!(reply.status, 200);
            let given = (reply.header("cache-control"), reply.header("cdn-cache-control"));
            assert_eq!(given, expected, "{method} {path}");
        }
    }
    let posted = world.post("/api/videos/counts", r#"{"ids":["good"]}"#).await;
    assert_eq!(posted.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn the_most_watched_are_told_most_watched_first() {
    let world = World::new();
    assert_eq!(
        world.get("/api/videos/top").await.json(),
        json!({ "videos": [], "asOf": null, "stale": true })
    );
    let videos = (0..150_u64).map(|place| (video(&format!("v{place}")), 1_000 - place)).collect();
    *world.presence.ranking.lock() = Some(Ranking { videos, as_of: Some(now()), stale: false });

    let reply = world.get("/api/videos/top?limit=2").await;
    let expected = json!({
        "videos": [{ "videoId": "v0", "online": 1_000 }, { "videoId": "v1", "online": 999 }],
        "asOf": AS_OF, "stale": false,
    });
    assert_eq!(reply.json(), expected);
    assert_eq!(reply.header("cdn-cache-control"), Some(SHARED));

    for (query, count) in
        [("", 20), ("?limit=1", 1), ("?limit=100", 100), ("?limit=5&limit=5", 5), ("?x=%20", 20)]
    {
        let reply = world.get(&format!("/api/videos/top{query}")).await;
        assert_eq!(reply.json()["videos"].as_array().unwrap().len(), count, "{query}");
    }
    for limit in ["0", "101", "-1", "a", "", "1.0", "99999999999999999999", "5&limit=6"] {
        world.get(&format!("/api/videos/top?limit={limit}")).await.refused(400, "invalid_limit");
    }
    world.get("/api/videos/top?limit=%FF").await.refused(400, "invalid_query");
}
