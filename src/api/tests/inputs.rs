//! Where the fields of a POST may come from, and what may stand in them.

use serde_json::{Value, json};

use super::{Settings, World, request};
use crate::config::Identity;

const BEAT: &str = "/api/video/film/heartbeat";
const PLAY: &str = "/api/video/film/play";
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// Sends a beat and tells who was seen, or the code of the refusal.
async fn seen(query: &str, content_type: &str, body: &'static [u8]) -> String {
    let world = World::new();
    let content_type = (!content_type.is_empty()).then_some(content_type);
    let reply = world.call(request("POST", &format!("{BEAT}{query}"), content_type, body.into())).await;
    match reply.status.as_u16() {
        200 => world.presence.viewers_of("film").join(" "),
        status => format!("{status} {}", reply.outcome().1),
    }
}

#[tokio::test]
async fn a_field_may_come_from_a_json_body_a_form_or_the_query() {
    for (query, content_type, body, expected) in [
        ("", JSON, br#"{"userId":"ann"}"# as &[u8], "ann"),
        ("", "application/json; charset=utf-8", br#"{"userId":"ann"}"#, "ann"),
        ("", "APPLICATION/JSON", br#"{"userId":"ann"}"#, "ann"),
        ("", "text/plain;charset=UTF-8", br#"{"userId":"ann"}"#, "ann"),
        ("", "", br#"{"userId":"ann"}"#, "ann"),
        ("", JSON, b" {\n\"userId\" :\t\"ann\" } ", "ann"),
        ("", FORM, b"userId=ann", "ann"),
        ("", "application/x-www-form-urlencoded;charset=UTF-8", b"userId=ann", "ann"),
        ("?userId=ann", "", b"", "ann"),
        ("?userId=ann", JSON, b"", "ann"),
        ("?userId=ann", "image/png", b"", "ann"),
        ("?userId=ann", JSON, b"{}", "ann"),
        ("?&&x&userId=ann&=y&", "", b"", "ann"),
    ] {
        assert_eq!(seen(query, content_type, body).await, expected, "{query} {content_type} {body:?}");
    }
}

#[tokio::test]
async fn a_field_has_two_spellings_and_what_isnt_known_is_passed_over() {
    for (query, content_type, body) in [
        ("", JSON, br#"{"user_id":"ann"}"# as &[u8]),
        ("", FORM, b"user_id=ann"),
        ("?user_id=ann", "", b""),
        ("", JSON, br#"{"userId":"ann","position":12.5,"tags":[{"a":null}],"playId":[],"ann":true}"#),
        ("?playId=&t=1", FORM, b"userId=ann&playId=a+b&x=1"),
        ("", JSON, br#"{"userId":"ann","UserId":"bob","userid":"bob"}"#),
        ("", JSON, br#"{"\u0075serId":"\u0061nn"}"#),
        ("", FORM, b"user%49d=a%6en"),
    ] {
        assert_eq!(seen(query, content_type, body).await, "ann", "{query} {content_type} {body:?}");
    }
}

#[tokio::test]
async fn two_mentions_of_a_field_must_agree() {
    for (query, content_type, body, expected) in [
        ("?userId=7", JSON, br#"{"userId":7,"user_id":"7"}"# as &[u8], "7"),
        ("?userId=ann&userId=ann", FORM, b"user_id=ann", "ann"),
        ("", JSON, br#"{"userId":"ann","userId":"ann"}"#, "ann"),
        ("", JSON, br#"{"userId":"ann","userId":"bob"}"#, "400 conflicting_user_id"),
        ("", JSON, br#"{"userId":"ann","user_id":"bob"}"#, "400 conflicting_user_id"),
        ("?userId=bob", JSON, br#"{"userId":"ann"}"#, "400 conflicting_user_id"),
        ("?userId=", JSON, br#"{"userId":"ann"}"#, "400 conflicting_user_id"),
        ("?userId=bob", FORM, b"user_id=ann", "400 conflicting_user_id"),
        ("?userId=ann&user_id=bob", "", b"", "400 conflicting_user_id"),
        ("", FORM, b"userId=ann&userId=bob", "400 conflicting_user_id"),
        ("?deviceId=tv", JSON, br#"{"userId":"ann","device_id":"phone"}"#, "400 conflicting_device_id"),
    ] {
        assert_eq!(seen(query, content_type, body).await, expected, "{query} {content_type} {body:?}");
    }
}

#[tokio::test]
async fn an_integer_is_its_digits_however_many_and_nothing_else_is_an_id() {
    for (value, expected) in [
        ("7", "7"),
        ("-7", "-7"),
        ("0", "0"),
        ("9007199254740993", "9007199254740993"),
        ("18446744073709551616", "18446744073709551616"),
        ("12345678901234567890123", "12345678901234567890123"),
        (r#""12345678901234567890123""#, "12345678901234567890123"),
        ("1.5", "400 invalid_user_id"),
        ("1.0", "400 invalid_user_id"),
        ("1e3", "400 invalid_user_id"),
        ("1E3", "400 invalid_user_id"),
        ("-0.0", "400 invalid_user_id"),
        ("true", "400 invalid_user_id"),
        ("null", "400 invalid_user_id"),
        ("[7]", "400 invalid_user_id"),
        (r#"{"id":7}"#, "400 invalid_user_id"),
        (r#""""#, "400 invalid_user_id"),
        (r#""a b""#, "400 invalid_user_id"),
        (r#""a\u0000b""#, "400 invalid_user_id"),
        (r#""\ud800""#, "400 invalid_user_id"),
        (r#""ünï""#, "400 invalid_user_id"),
        (r#""\"\\""#, "\"\\"),
        ("01", "400 invalid_body"),
        ("+1", "400 invalid_body"),
        ("NaN", "400 invalid_body"),
    ] {
        let body = format!(r#"{{"userId":{value}}}"#).into_bytes();
        assert_eq!(seen("", JSON, body.leak()).await, expected, "{value}");
    }
}

#[tokio::test]
async fn an_id_is_at_most_64_bytes() {
    let longest = "x".repeat(64);
    assert_eq!(seen(&format!("?userId={longest}"), "", b"").await, longest);
    assert_eq!(seen(&format!("?userId={longest}y"), "", b"").await, "400 invalid_user_id");
    let digits = "9".repeat(65);
    let body = format!(r#"{{"userId":{digits}}}"#).into_bytes();
    assert_eq!(seen("", JSON, body.leak()).await, "400 invalid_user_id");
}

#[tokio::test]
async fn what_cant_be_read_is_400_and_another_kind_of_body_415() {
    for (query, content_type, body, expected) in [
        ("", JSON, b"" as &[u8], "400 missing_user_id"),
        ("", JSON, b"{}", "400 missing_user_id"),
        ("", FORM, b"x=1", "400 missing_user_id"),
        ("", JSON, b"[]", "400 invalid_body"),
        ("", JSON, b"\"ann\"", "400 invalid_body"),
        ("", JSON, b"null", "400 invalid_body"),
        ("", JSON, b"userId=ann", "400 invalid_body"),
        ("", "", b"userId=ann", "400 invalid_body"),
        ("", JSON, br#"{"userId":"ann""#, "400 invalid_body"),
        ("", JSON, br#"{"userId":"ann"} {}"#, "400 invalid_body"),
        ("", JSON, br#"{"userId":"ann",}"#, "400 invalid_body"),
        ("", JSON, br#"{"userId":true"#, "400 invalid_body"),
        ("", JSON, b"{\"userId\":\"ann\xff\"}", "400 invalid_body"),
        ("", JSON, b"{\"userId\":\"ann\",\"x\":\"\xff\"}", "400 invalid_body"),
        ("", FORM, b"userId=ann%FF", "400 invalid_body"),
        ("", FORM, b"userId=ann&x=%FF", "400 invalid_body"),
        ("", FORM, b"userId=ann\xff", "400 invalid_body"),
        ("?userId=ann%FF", "", b"", "400 invalid_query"),
        ("?userId=ann&x=%FF", "", b"", "400 invalid_query"),
        ("?userId=a%00b", "", b"", "400 invalid_user_id"),
        ("?userId=a+b", "", b"", "400 invalid_user_id"),
        ("?userId", "", b"", "400 invalid_user_id"),
        ("", "multipart/form-data; boundary=x", b"--x", "415 unsupported_media_type"),
        ("", "application/xml", b"<a/>", "415 unsupported_media_type"),
        ("", "application/octet-stream", br#"{"userId":"ann"}"#, "415 unsupported_media_type"),
        ("", "json", br#"{"userId":"ann"}"#, "415 unsupported_media_type"),
        ("?userId=ann", "application/xml", b"<a/>", "415 unsupported_media_type"),
    ] {
        assert_eq!(seen(query, content_type, body).await, expected, "{query} {content_type} {body:?}");
    }
}

#[tokio::test]
async fn a_compressed_body_is_415() {
    let world = World::new();
    for (encoding, status, code) in [("gzip", 415, "unsupported_media_type"), ("identity", 200, "")] {
        let mut request = request("POST", BEAT, Some(JSON), r#"{"userId":"ann"}"#.into());
        request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        world.call(request).await.refused(status, code);
    }
}

#[tokio::test]
async fn what_a_form_escapes_is_read_once() {
    assert_eq!(seen("", FORM, b"userId=a%2Bb%26c%3Dd%25").await, "a+b&c=d%");
    assert_eq!(seen("?userId=100%", "", b"").await, "100%");
    assert_eq!(seen("?userId=%252F", "", b"").await, "%2F");
    assert_eq!(seen("?userId=a=b", "", b"").await, "a=b");
}

#[tokio::test]
async fn deep_or_repetitive_json_does_no_harm() {
    let deep = format!(r#"{{"x":{}{},"userId":"ann"}}"#, "[".repeat(1_900), "]".repeat(1_900)).into_bytes();
    assert_eq!(seen("", JSON, deep.leak()).await, "ann");
    let many = format!("{{{}\"userId\":\"ann\"}}", r#""userId":"ann","#.repeat(200)).into_bytes();
    assert_eq!(seen("", JSON, many.leak()).await, "ann");
}

#[tokio::test]
async fn a_device_is_a_viewer_only_where_the_service_says_so() {
    let users = World::new();
    for device in ["tv", "phone"] {
        let reply = users.post(BEAT, json!({ "userId": "ann", "deviceId": device }).to_string()).await;
        assert_eq!(reply.json()["online"], 1);
    }
    users.post(BEAT, r#"{"userId":"ann","deviceId":""}"#).await.refused(400, "invalid_device_id");

    let devices = World::with(Settings { identity: Identity::Device, ..Settings::default() });
    for (index, device) in [json!("tv"), json!("phone"), json!(3)].into_iter().enumerate() {
        let reply = devices.post(BEAT, json!({ "userId": "ann", "deviceId": device }).to_string()).await;
        assert_eq!(reply.json()["online"], index + 1);
    }
    assert_eq!(devices.presence.viewers_of("film"), ["3:ann", "phone:ann", "tv:ann"]);

    let missing = devices.post(BEAT, r#"{"userId":"ann"}"#).await;
    missing.refused(400, "missing_device_id");
    assert!(missing.json()["detail"].as_str().unwrap().contains("presence.identity"));
    devices.post(BEAT, r#"{"deviceId":"tv"}"#).await.refused(400, "missing_user_id");
    devices.post(PLAY, r#"{"userId":"ann","playId":"p"}"#).await.refused(400, "missing_device_id");
    assert_eq!(devices.post(PLAY, r#"{"playId":"p"}"#).await.json()["counted"], Value::Bool(true));
}

#[tokio::test]
async fn a_play_names_a_user_or_a_playback() {
    let world = World::new();
    for (body, viewer, play_id) in [
        (r#"{"userId":"ann"}"#, Some("ann"), None),
        (r#"{"playId":"p1"}"#, None, Some("p1")),
        (r#"{"user_id":5,"play_id":6}"#, Some("5"), Some("6")),
    ] {
        assert_eq!(world.post(PLAY, body).await.status, 200);
        let recorded = world.plays.recorded.lock();
        let play = recorded.last().unwrap();
        assert_eq!(play.viewer.as_ref().map(crate::ids::ViewerId::as_str), viewer);
        assert_eq!(play.play_id.as_ref().map(crate::ids::PlayId::as_str), play_id);
    }
    for (body, code) in [
        ("", "missing_user_or_play_id"),
        (r#"{"deviceId":"tv"}"#, "missing_user_or_play_id"),
        (r#"{"playId":""}"#, "invalid_play_id"),
        (r#"{"playId":null,"userId":"ann"}"#, "invalid_play_id"),
        (r#"{"playId":"a","play_id":"b"}"#, "conflicting_play_id"),
        (r#"{"playId":"a","userId":1.5}"#, "invalid_user_id"),
        (r#"{"playId":"a","deviceId":" "}"#, "invalid_device_id"),
    ] {
        world.post(PLAY, body).await.refused(400, code);
    }
    assert_eq!(world.plays.recorded.lock().len(), 3);
}
