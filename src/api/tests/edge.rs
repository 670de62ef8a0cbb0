//! What every request goes through.

use std::{io::Write, sync::Arc};

use metrics_exporter_prometheus::PrometheusBuilder;
use parking_lot::Mutex;

use super::{World, request};
use crate::error::{Part, StoreError};

const ANN: &str = r#"{"userId":"ann"}"#;

#[tokio::test]
async fn a_prefetch_does_nothing() {
    let world = World::new();
    for (name, value) in [
        ("sec-purpose", "prefetch"),
        ("sec-purpose", "prefetch;prerender"),
        ("Purpose", "prefetch"),
        ("purpose", "Prefetch"),
    ] {
        for path in [
            "/api/video/film/heartbeat",
            "/api/video/film/leave",
            "/api/video/film/play",
            "/api/video/%00/play",
            "/api/heartbeats",
            "/api/videos/counts",
        ] {
            let mut request = request("POST", path, Some("application/json"), ANN.into());
            request
                .headers_mut()
                .insert(axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
            let reply = world.call(request).await;
            assert_eq!((reply.status.as_u16(), &*reply.body), (204, ""), "{name}: {value} {path}");
        }
    }
    assert!(world.presence.viewers.lock().is_empty());
    assert!(world.plays.recorded.lock().is_empty());

    let mut other = request("POST", "/api/video/film/heartbeat", None, ANN.into());
    other.headers_mut().insert("sec-purpose", "navigate".parse().unwrap());
    assert_eq!(world.call(other).await.status, 200);
    let mut read = request("GET", "/api/video/film/online-count", None, "".into());
    read.headers_mut().insert("sec-purpose", "prefetch".parse().unwrap());
    assert_eq!(world.call(read).await.json()["online"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_too_long_is_503() {
    let world = World::new();
    let began = tokio::time::Instant::now();
    world.post("/api/video/hang/heartbeat", ANN).await.refused(503, "timeout");
    assert_eq!(began.elapsed().as_secs(), 10);

    let slow = axum::body::Body::from_stream(futures::stream::pending::<Result<&[u8], std::io::Error>>());
    world.post("/api/video/film/heartbeat", slow).await.refused(408, "request_timeout");
    assert!(world.presence.viewers_of("film").is_empty());
}

#[tokio::test]
async fn a_body_that_breaks_off_is_400() {
    let world = World::new();
    let parts = [Ok(&b"{\"userId\":"[..]), Err(std::io::Error::other("reset"))];
    let broken = axum::body::Body::from_stream(futures::stream::iter(parts));
    world.post("/api/video/film/heartbeat", broken).await.refused(400, "invalid_body");
}

#[tokio::test]
async fn a_panic_is_one_500_and_no_more() {
    let world = World::new();
    world.post("/api/video/panic/heartbeat", ANN).await.refused(500, "internal");
    assert_eq!(world.post("/api/video/film/heartbeat", ANN).await.status, 200);
}

#[tokio::test]
async fn requests_beats_and_plays_are_counted_by_route_and_outcome() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let world = World::new();
    for body in [ANN, ANN, "{}"] {
        world.post("/api/video/film/heartbeat", body).await;
        world.post("/api/video/film/play", body).await;
    }
    world.post("/api/video/away/heartbeat", ANN).await;
    world.post("/api/heartbeats", r#"{"beats":[{"videoId":"a","userId":"b"},{}]}"#).await;
    world.get("/api/video/%00/online-count").await;
    world.call(request("PUT", "/api/videos/top", None, "".into())).await;
    world.get("/nowhere/else").await;

    let text = recorder.handle().render();
    for line in [
        r#"headcount_http_requests_total{route="/api/video/{videoId}/heartbeat",status="200"} 2"#,
        r#"headcount_http_requests_total{route="/api/video/{videoId}/heartbeat",status="400"} 1"#,
        r#"headcount_http_requests_total{route="/api/video/{videoId}/heartbeat",status="503"} 1"#,
        r#"headcount_http_requests_total{route="/api/video/{videoId}/online-count",status="400"} 1"#,
        r#"headcount_http_requests_total{route="/api/videos/top",status="405"} 1"#,
        r#"headcount_http_requests_total{route="other",status="404"} 1"#,
        r#"headcount_heartbeats_total{outcome="accepted"} 3"#,
        r#"headcount_heartbeats_total{outcome="invalid"} 2"#,
        r#"headcount_heartbeats_total{outcome="unavailable"} 1"#,
        r#"headcount_plays_total{outcome="counted"} 1"#,
        r#"headcount_plays_total{outcome="duplicate"} 1"#,
        r#"headcount_plays_total{outcome="invalid"} 1"#,
        r#"headcount_http_request_duration_seconds_count{route="/api/video/{videoId}/heartbeat"} 4"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_dead_store_is_logged_with_its_cause_but_not_for_each_request() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);

    let world = World::new();
    *world.presence.failing.lock() = Some(StoreError::unavailable(Part::Redis, "10.0.0.7 refused"));
    let began = std::time::Instant::now();
    for _ in 0..500 {
        world.post("/api/video/film/heartbeat", ANN).await.refused(503, "unavailable");
    }
    world.post("/api/video/%00/heartbeat", ANN).await.refused(400, "invalid_video_id");

    let most = 1 + began.elapsed().as_secs();
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let told = text.lines().filter(|line| line.contains("10.0.0.7 refused")).count() as u64;
    assert!((1..=most).contains(&told), "{told} lines in\n{text}");
    assert_eq!(text.lines().count() as u64, told);
    assert!(text.contains("/api/video/{videoId}/heartbeat answered unavailable"), "{text}");
}
