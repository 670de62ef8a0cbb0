//! A play counts once, however often it is sent and whatever fails on the way.

use std::time::Duration;

use futures::{StreamExt, future::join_all, stream};

use super::{OwnRedis, Plays, World, eventually, play, video};
use crate::{config::SecretUrl, error::StoreError, plays::Recorded};

const COUNTED: Result<Recorded, &str> = Ok(Recorded::Counted);
const DUPLICATE: Result<Recorded, &str> = Ok(Recorded::Duplicate);

impl World {
    /// Records through an instance that remembers nothing.
    async fn record_elsewhere(
        &self,
        id: &str,
        viewer: &str,
        play_id: &str,
    ) -> Result<Recorded, &'static str> {
        match self.instance().record(play(id, viewer, play_id)).await {
            Ok(recorded) => Ok(recorded),
            Err(StoreError::Unavailable { .. }) => Err("unavailable"),
            Err(_) => Err("unexpected"),
        }
    }

    /// Records until there is an answer, as a player does.
    async fn record_surely(&self, id: &str, viewer: u32) {
        while let Err(error) = self.record(play(id, &format!("viewer{viewer}"), "")).await {
            assert!(error.is_transient(), "{error}");
        }
    }

    fn key(&self, name: &str, id: &str) -> String {
        let partition = video(id).partition();
        format!("{}video:views:{name}:{{{partition}}}:{id}", self.config.redis.prefix)
    }
}

#[tokio::test]
async fn a_viewer_and_a_play_id_must_both_be_new() {
    let world = World::new().await;
    assert_eq!(world.record_elsewhere("1", "ann", "").await, COUNTED);
    assert_eq!(world.record_elsewhere("1", "ann", "").await, DUPLICATE);
    assert_eq!(world.record_elsewhere("1", "ann", "x1").await, DUPLICATE);
    assert_eq!(world.record_elsewhere("1", "", "x1").await, COUNTED, "the one before took nothing");
    assert_eq!(world.record_elsewhere("1", "ben", "x1").await, DUPLICATE);
    assert_eq!(world.record_elsewhere("1", "ben", "x2").await, COUNTED, "the one before took nothing");
    assert_eq!(world.record_elsewhere("2", "ann", "x1").await, COUNTED, "another video");
    assert_eq!(world.count(&video("1")).await.plays, Some(3));
    assert_eq!(world.count(&video("2")).await.plays, Some(1));
}

#[tokio::test]
async fn a_play_id_is_no_viewer() {
    let world = World::new().await;
    assert_eq!(world.record_elsewhere("1", "same", "").await, COUNTED);
    assert_eq!(world.record_elsewhere("1", "", "same").await, COUNTED);
}

#[tokio::test]
async fn a_play_that_fails_is_forgotten_and_its_retry_counts_while_others_are_untouched() {
    let world = World::new().await;
    let delta = world.key("delta", "bad");
    world.ask::<i64>(&format!("RPUSH {delta} x")).await;
    let plays = ["bad", "good", "bad"].map(|id| play(id, "ann", "x1"));
    let results = world.plays.writer.write(&plays).await;
    assert!(matches!(results[0], Err(StoreError::Unexpected { .. })), "{results:?}");
    assert!(matches!(results[1], Ok(Recorded::Counted)), "{results:?}");
    assert!(matches!(results[2], Err(StoreError::Unexpected { .. })), "{results:?}");
    let seen = world.keys().await.into_iter().filter(|key| key.contains("seen") && key.contains("bad"));
    assert_eq!(seen.collect::<Vec<_>>(), [""; 0]);

    world.ask::<i64>(&format!("DEL {delta}")).await;
    assert_eq!(world.record_elsewhere("bad", "ann", "x1").await, COUNTED);
    assert_eq!(world.record_elsewhere("bad", "ann", "x1").await, DUPLICATE);
}

#[tokio::test]
async fn the_mark_and_the_plays_are_both_there_or_neither() {
    let world = World::new().await;
    // The set that marks videos can't take one.
    let partition = video("1").partition();
    let dirty = format!("{}video:views:dirty:{{{partition}}}", world.config.redis.prefix);
    world.ask::<String>(&format!("SET {dirty} x")).await;
    assert_eq!(world.record_elsewhere("1", "ann", "").await, Err("unexpected"));
    assert_eq!(world.keys().await, [&dirty[world.config.redis.prefix.len()..]], "nothing was written");
    world.ask::<i64>(&format!("DEL {dirty}")).await;
    assert_eq!(world.record_elsewhere("1", "ann", "").await, COUNTED);
}

#[tokio::test]
async fn a_sketch_that_is_broken_stops_no_play() {
    let world = World::new().await;
    world.ask::<String>(&format!("SET {} x", world.key("uv", "1"))).await;
    assert_eq!(world.record_elsewhere("1", "ann", "").await, COUNTED);
    assert_eq!(world.count(&video("1")).await.plays, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_plays_at_once_count_two_hundred() {
    let world = World::new().await;
    let plays = (0..200).map(|viewer| world.record(play("1", &format!("v{viewer}"), "")));
    assert!(join_all(plays).await.into_iter().all(|result| matches!(result, Ok(Recorded::Counted))));
    assert_eq!(world.count(&video("1")).await.plays, Some(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_play_sent_many_times_at_once_counts_once() {
    let world = World::new().await;
    let other = world.instance();
    let plays = (0..50).flat_map(|_| {
        let here = world.plays.record(play("1", "ann", "x1"));
        let there = other.record(play("1", "ann", "x1"));
        [here, there]
    });
    let counted = join_all(plays).await.into_iter().filter(|result| matches!(result, Ok(Recorded::Counted)));
    assert_eq!(counted.count(), 1);
}

#[tokio::test]
async fn after_the_window_a_viewer_counts_again() {
    let world = World::with(|config| config.plays.dedupe_window = Duration::from_secs(1)).await;
    assert!(matches!(world.record(play("1", "ann", "")).await, Ok(Recorded::Counted)));
    assert!(matches!(world.record(play("1", "ann", "")).await, Ok(Recorded::Duplicate)));
    eventually("it counts again", async || {
        matches!(world.record(play("1", "ann", "")).await, Ok(Recorded::Counted))
    })
    .await;
    assert_eq!(world.count(&video("1")).await.plays, Some(2));
}

/// Where a sketch decided, about one in five of these would count.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_200_000_viewers_counts_and_unique_viewers_are_right_within_2_percent() {
    const VIEWERS: u32 = 200_000;
    let world = World::new().await;
    let plays = stream::iter(0..VIEWERS).map(|viewer| world.record_surely("1", viewer));
    plays.buffer_unordered(4_000).for_each(|()| async {}).await;
    let count = world.count(&video("1")).await;
    assert_eq!(count.plays, Some(u64::from(VIEWERS)));
    let unique = count.unique_viewers.unwrap();
    assert!((196_000..=204_000).contains(&unique), "{unique}");
}

#[tokio::test]
async fn scripts_that_redis_lost_are_loaded_again() {
    let server = OwnRedis::start(&["--maxmemory-policy", "noeviction"]).await;
    let world = World::with(|config| config.redis.url = SecretUrl::new(server.url(""))).await;
    world.ask::<String>("SCRIPT FLUSH").await;
    assert!(matches!(world.record(play("1", "ann", "")).await, Ok(Recorded::Counted)));
    world.ask::<String>("SCRIPT FLUSH").await;
    assert_eq!(world.count(&video("1")).await.plays, Some(1));
    world.ask::<String>("SCRIPT FLUSH").await;
    world.flush(&video("1")).await.unwrap();
    assert_eq!(world.views(&video("1")).await, 1);
}
