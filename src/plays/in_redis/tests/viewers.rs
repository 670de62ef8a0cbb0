//! Unique viewers are about right, never made up, and outlive what Redis forgets.

use std::time::Duration;

use super::{Plays, World, play, video};
use crate::clock::Timestamp;

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

impl World {
    async fn watched(&self, id: &str, viewers: std::ops::Range<u32>) {
        let plays: Vec<_> = viewers.map(|viewer| play(id, &format!("viewer{viewer}"), "")).collect();
        for chunk in plays.chunks(2_000) {
            assert!(self.plays.writer.write(chunk).await.iter().all(Result::is_ok));
        }
    }

    fn sketch_key(&self, id: &str) -> String {
        self.direct.keys().unique_viewers(video(id).partition(), &video(id))
    }

    async fn kept(&self, id: &str) -> (Option<i64>, usize) {
        let kept = "select unique_viewers, viewer_sketch from videos where video_id = $1";
        let rows: Vec<(Option<i64>, Option<Vec<u8>>)> = self.select(sqlx::query_as(kept).bind(id)).await;
        rows.into_iter().next().map_or((None, 0), |(count, sketch)| (count, sketch.unwrap_or_default().len()))
    }
}

#[tokio::test]
async fn a_flush_keeps_the_sketch_and_its_count() {
    let world = World::new().await;
    world.watched("1", 0..30).await;
    world.flush_all().await;
    let (count, length) = world.kept("1").await;
    assert_eq!(count, Some(30));
    assert!((30..3_000).contains(&length), "{length}");
    assert_eq!(world.kept("2").await, (None, 0));
}

#[tokio::test]
async fn what_redis_lost_comes_back_with_the_next_flush_and_is_not_missed_meanwhile() {
    let world = World::new().await;
    world.watched("1", 0..100).await;
    world.flush_all().await;
    assert_eq!(world.count(&video("1")).await.unique_viewers, Some(100));
    for round in 1..=3 {
        // Only the sketch: it runs out by itself, 30 days after the last play.
        world.ask::<i64>(&format!("DEL {}", world.sketch_key("1"))).await;
        assert_eq!(
            world.fresh_count("1").await.unique_viewers,
            world.count(&video("1")).await.unique_viewers
        );
        // Half of these were there before.
        world.watched("1", 95 + 5 * round..105 + 5 * round).await;
        let meanwhile = world.fresh_count("1").await.unique_viewers.unwrap();
        assert!(meanwhile >= 95 + 5 * u64::from(round), "{meanwhile}");
        world.flush_all().await;
        let wanted = 105 + 5 * i64::from(round);
        let kept = world.kept("1").await.0.unwrap();
        assert!((wanted - 2..=wanted + 2).contains(&kept), "{kept}, not {wanted}");
        let count = world.fresh_count("1").await.unique_viewers;
        assert_eq!(count, Some(u64::try_from(kept).unwrap()));
    }
}

#[tokio::test]
async fn a_new_process_merges_before_it_keeps() {
    let world = World::new().await;
    world.watched("1", 0..100).await;
    world.flush_all().await;
    world.ask::<i64>(&format!("DEL {}", world.sketch_key("1"))).await;
    // More than the database knows of, and none of those: without merging they would replace them.
    world.watched("1", 1_000..1_150).await;
    let other = world.instance();
    other.flusher().flush_once(&world.connection(), video("1").partition()).await.unwrap();
    let kept = world.kept("1").await.0.unwrap();
    assert!((245..=255).contains(&kept), "{kept}");
    let merged: i64 = world.ask(&format!("PFCOUNT {}", world.sketch_key("1"))).await;
    assert_eq!(merged, kept);
    let life: i64 = world.ask(&format!("TTL {}", world.sketch_key("1"))).await;
    assert!(life > 29 * 24 * 3_600);
    assert!(!world.keys().await.iter().any(|key| key.contains("views:sketch")));
}

#[tokio::test]
async fn a_sketch_that_is_broken_is_passed_over() {
    for broken in ["'no sketch'", "'\\x48594c4c0100000000000000000000800102030405'"] {
        let world = World::new().await;
        world.watched("1", 0..20).await;
        world.flush_all().await;
        world.operate(&format!("update videos set viewer_sketch = {broken}, unique_viewers = 10")).await;
        world.watched("1", 20..40).await;
        let other = world.instance();
        other.flusher().flush_once(&world.connection(), video("1").partition()).await.unwrap();
        assert_eq!(world.views(&video("1")).await, 40);
        assert_eq!(world.kept("1").await.0, Some(40), "{broken} is replaced");
        assert_eq!(other.counts(&[video("1")]).await[0].unique_viewers, Some(40));
    }
}

#[tokio::test]
async fn a_broken_sketch_in_redis_stops_no_flush() {
    let world = World::new().await;
    world.ask::<String>(&format!("SET {} x", world.sketch_key("1"))).await;
    world.watched("1", 0..20).await;
    world.watched("2", 0..20).await;
    world.flush_all().await;
    assert_eq!((world.views(&video("1")).await, world.kept("1").await.0), (20, None));
    assert_eq!(world.kept("2").await.0, Some(20));
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.unique_viewers), (Some(20), None), "not known is not 0");
}

#[tokio::test]
async fn a_dense_sketch_is_kept_once_a_minute_and_what_is_owed_then_or_at_the_end() {
    let (world, clock) = World::at(NOW, |_| {}).await;
    let sketches = &world.plays.flusher().sketches();
    let partition = video("1").partition();
    let kept = async || world.kept("1").await.0.unwrap();

    world.watched("1", 0..4_000).await;
    world.flush_all().await;
    let first = kept().await;
    assert_eq!(world.kept("1").await.1, 12_304, "it is dense");
    world.watched("1", 4_000..8_000).await;
    world.flush_all().await;
    assert_eq!(kept().await, first, "too early");
    sketches.keep_owed(&world.connection(), partition, false).await.unwrap();
    assert_eq!(kept().await, first, "too early");
    clock.advance(Duration::from_secs(60));
    sketches.keep_owed(&world.connection(), partition, false).await.unwrap();
    let second = kept().await;
    assert!(second > first + 3_000, "{second}");

    world.watched("1", 8_000..12_000).await;
    world.flush_all().await;
    assert_eq!(kept().await, second, "too early");
    sketches.keep_owed(&world.connection(), partition, true).await.unwrap();
    assert!(kept().await > second + 3_000);
}

#[tokio::test]
async fn plays_without_a_viewer_make_up_no_viewers() {
    let world = World::new().await;
    for id in ["x1", "x2", "x3"] {
        world.record(play("1", "", id)).await.unwrap();
    }
    let count = world.count(&video("1")).await;
    assert_eq!((count.plays, count.unique_viewers), (Some(3), None));
    world.flush_all().await;
    assert_eq!(world.fresh_count("1").await.unique_viewers, None);
    world.record(play("1", "ann", "")).await.unwrap();
    assert_eq!(world.count(&video("1")).await.unique_viewers, Some(1));
}

#[tokio::test]
async fn a_redis_that_came_back_empty_shows_what_the_database_knows() {
    let world = World::new().await;
    world.watched("1", 0..100).await;
    world.flush_all().await;
    for key in world.keys().await {
        world.ask::<i64>(&format!("DEL {}{key}", world.config.redis.prefix)).await;
    }
    let count = world.fresh_count("1").await;
    assert_eq!((count.plays, count.unique_viewers, count.stale), (Some(100), Some(100), false));
    world.watched("1", 200..201).await;
    let count = world.fresh_count("1").await;
    assert_eq!((count.plays, count.unique_viewers), (Some(101), Some(100)));
    world.flush_all().await;
    let count = world.fresh_count("1").await;
    assert_eq!((count.plays, count.unique_viewers), (Some(101), Some(101)));
}
