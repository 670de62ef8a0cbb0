use super::*;

fn received() -> config::Plays {
    config::Plays { ack: Ack::Received, linger: Duration::from_millis(200), ..settings() }
}

#[tokio::test]
async fn a_received_play_is_answered_at_once_and_counted_once_soon() {
    let world = World::with(received()).await;
    for _ in 0..3 {
        assert_eq!(world.plays.record(play("film", "ann", "p1")).await.unwrap(), Recorded::Accepted);
    }
    world.until_plays_are("film", 1).await;
    assert_eq!(world.plays.record(play("film", "ann", "p1")).await.unwrap(), Recorded::Accepted);
    assert_eq!(world.plays.record(play("film", "bob", "p2")).await.unwrap(), Recorded::Accepted);
    world.until_plays_are("film", 2).await;
}

#[tokio::test]
async fn received_plays_are_on_disk_after_a_stop() {
    let world = World::with(config::Plays { linger: Duration::from_secs(3_600), ..received() }).await;
    for number in 0..5_000 {
        world.plays.record(play("film", &format!("u{number}"), "")).await.unwrap();
    }
    world.lifecycle.stop();
    assert_eq!(world.lifecycle.run().await, Stopped::Drained);
    let World { folder, clock, .. } = world;
    let restarted = World::open(folder, received(), clock).await;
    assert_eq!(restarted.plays_of("film").await, Some(5_000));
}

#[tokio::test]
async fn received_plays_are_refused_once_one_has_waited_too_long_and_none_is_lost() {
    let world = World::with(received()).await;
    let mut intruder = world.intruder().await;
    execute(&mut intruder, "begin immediate").await;
    let limit = tokio::time::Instant::now() + Duration::from_secs(30);
    let mut taken = 0;
    let refusal = loop {
        match world.plays.record(play("film", &format!("u{taken}"), "")).await {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(tokio::time::Instant::now() < limit, "never refused");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(matches!(refusal, StoreError::Unavailable { .. }), "{refusal}");
    assert!(taken > 0);
    execute(&mut intruder, "rollback").await;
    world.until_plays_are("film", taken).await;
    let again = world.plays.record(play("film", &format!("u{taken}"), "")).await;
    assert_eq!(again.unwrap(), Recorded::Accepted);
    world.until_plays_are("film", taken + 1).await;
}

#[tokio::test]
async fn more_received_plays_than_may_wait_are_refused() {
    let world = World::with(config::Plays { max_pending: 100, ..received() }).await;
    for number in 0..100 {
        world.plays.record(play("film", &format!("u{number}"), "")).await.unwrap();
    }
    let refusal = world.plays.record(play("film", "u100", "")).await.unwrap_err();
    assert!(matches!(refusal, StoreError::Full { queue: "plays", .. }), "{refusal}");
    world.until_plays_are("film", 100).await;
}
