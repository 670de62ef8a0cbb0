//! What holds of presence in Redis: several instances, lost data, refused commands, keys and their lives.

use headcount::{config::Shards, error::StoreError};

use crate::world::{NOON, World, beat, eventually, secs, video_id};

/// The keys that live without an expiry, by design.
fn lives_for_ever(key: &str) -> bool {
    [
        "video:active:",
        "video:rank:",
        "video:swept:",
        "video:since:",
        "video:{shards}:",
        "video:views:settled:",
    ]
    .iter()
    .any(|kind| key.starts_with(kind))
}

#[tokio::test]
async fn a_beat_is_a_field_of_its_viewers_shard_with_the_second_it_came() {
    let world = World::redis().await;
    world.beat("film", "ann").await;
    let mut get = redis::cmd("HGET");
    get.arg(world.shard_key("film", "ann")).arg("ann");
    assert_eq!(world.redis_command::<i64>(&get).await, NOON.secs());

    let mut score = redis::cmd("ZSCORE");
    let partition = video_id("film").partition();
    score.arg(world.key(&format!("video:active:{{{partition}}}"))).arg("film");
    assert_eq!(world.redis_command::<i64>(&score).await, NOON.secs());
}

#[tokio::test]
async fn every_key_has_a_life_but_the_few_that_need_none() {
    let world = World::redis().await;
    world.beat_all("film", 0..200).await;
    world.beat("song", "ann").await;
    world.sweep().await;
    world.online("film").await;
    let keys = world.redis_keys().await;
    assert!(keys.iter().any(|key| key.starts_with("video:online-count:")), "{keys:?}");
    for key in keys.iter().filter(|key| !lives_for_ever(key)) {
        let life: i64 = world.redis_command(redis::cmd("TTL").arg(world.key(key))).await;
        assert!(life > 0, "{key} lives for ever");
    }
}

#[tokio::test]
async fn a_shard_lives_a_window_a_note_and_two_sweeps() {
    let world = World::redis().await;
    world.beat("film", "ann").await;
    let life: u64 = world.redis_command(redis::cmd("TTL").arg(world.shard_key("film", "ann"))).await;
    assert!((740..=750).contains(&life), "{life}");
}

#[tokio::test]
async fn reads_store_nothing() {
    let world = World::redis().await;
    world.sweep().await;
    let before = world.redis_keys().await;
    world.online("never-watched").await;
    world.stores.presence.top(10).await;
    world.leave("never-watched", "stranger").await;
    assert_eq!(world.redis_keys().await, before);
}

#[tokio::test]
async fn two_instances_count_together() {
    let one = World::redis().await;
    let two = one.another().await;
    one.beat_all("film", 0..60).await;
    two.beat_all("film", 40..100).await;
    assert_eq!(one.swept_count("film").await, Some(100));
    two.forget_what_was_read();
    assert_eq!(two.online("film").await.online, Some(100));
}

/// [S3]
#[tokio::test]
async fn a_beat_that_comes_while_a_stale_one_is_swept_stays() {
    let world = World::redis().await;
    world.beat("film", "ann").await;
    world.pass(secs(700));
    let (beaten, ()) = futures::future::join(world.beat("film", "ann"), world.sweep()).await;
    assert_eq!(beaten, 1);
    assert_eq!(world.swept_count("film").await, Some(1));
}

/// [S4] The look at the registry and the removal from it are one step.
#[tokio::test]
async fn a_video_that_is_watched_again_is_not_taken_off_the_registry() {
    let world = World::redis().await;
    world.beat("film", "ann").await;
    world.pass_swept(13).await;
    for _ in 0..20 {
        let sweep = world.sweep();
        let beat = world.beat("film", "ann");
        futures::future::join(sweep, beat).await;
        assert_eq!(world.swept_count("film").await, Some(1));
        assert_eq!(world.stores.presence.top(1).await.videos, [(video_id("film"), 1)]);
        world.pass_swept(13).await;
    }
}

/// [S9]
#[tokio::test]
async fn who_sweeps_keeps_the_lock_and_others_wait_for_it() {
    let one = World::redis().await;
    let two = one.another().await;
    one.beat("film", "ann").await;
    one.sweep().await;
    let waits: Vec<_> = futures::future::join_all(
        two.stores.jobs.iter().filter(|job| job.name() == "sweep").map(async |job| job.run().await.unwrap()),
    )
    .await;
    for wait in waits {
        let wait = wait.expect("refused until the lock runs out").as_secs_f64();
        assert!((50.0..=63.0).contains(&wait), "{wait}");
    }
}

/// [S9, sidekiq-unique-jobs#94]
#[tokio::test]
async fn a_stopping_instance_gives_its_own_locks_back_and_no_others() {
    let one = World::redis().await;
    let two = one.another().await;
    one.sweep().await;
    let lock = one.key("task:lock:sweep:{3}");
    let () = one.redis_command(redis::cmd("SET").arg(&lock).arg("another's token")).await;
    for job in one.stores.jobs.iter().chain(&two.stores.jobs) {
        job.finish().await;
    }
    let left: Vec<String> =
        one.redis_keys().await.into_iter().filter(|key| key.starts_with("task:lock:sweep")).collect();
    assert_eq!(left, ["task:lock:sweep:{3}"]);
}

#[tokio::test]
async fn a_key_of_a_wrong_type_fails_its_own_beats_only() {
    let world = World::redis().await;
    let () = world.redis_command(redis::cmd("SET").arg(world.shard_key("film", "ann")).arg("x")).await;
    let results = world
        .stores
        .presence
        .beat_many(vec![beat("film", "ann"), beat("song", "ann"), beat("song", "bob")])
        .await;
    assert!(matches!(results[0], Err(StoreError::Unexpected { .. })), "{results:?}");
    assert!(results[1].is_ok() && results[2].is_ok(), "{results:?}");
    world.sweep().await;
    world.forget_what_was_read();
    assert_eq!(world.online("song").await.online, Some(2));
}

#[tokio::test]
async fn fields_that_are_no_numbers_are_swept_away() {
    let world = World::redis().await;
    world.beat("film", "ann").await;
    let key = world.shard_key("film", "ann");
    let () = world.redis_command(redis::cmd("HSET").arg(&key).arg("x").arg("soon").arg("y").arg("")).await;
    assert_eq!(world.swept_count("film").await, Some(1));
    let fields: Vec<String> = world.redis_command(redis::cmd("HKEYS").arg(&key)).await;
    assert_eq!(fields, ["ann"]);
}

/// Lost data is not the end of the audience.
#[tokio::test]
async fn after_redis_lost_everything_low_numbers_are_not_shown_as_fresh() {
    let world = World::redis().await;
    world.beat_all("film", 0..1_000).await;
    assert_eq!(world.swept_count("film").await, Some(1_000));
    for key in world.redis_keys().await {
        let () = world.redis_command(redis::cmd("DEL").arg(world.key(&key))).await;
    }
    for second in 0..20 {
        world.pass(secs(6));
        world.beat_all("film", second * 50..(second + 1) * 50).await;
        let count = world.online("film").await;
        assert!(count.stale, "{count:?}");
        assert!(count.online.is_some_and(|online| online >= 1_000), "{count:?}");
    }
    world.pass(secs(60));
    assert_eq!(world.swept_count("film").await, Some(1_000));
}

#[tokio::test]
async fn an_instance_that_never_saw_a_good_number_says_nothing_after_a_loss() {
    let world = World::redis().await;
    world.beat_all("film", 0..10).await;
    let gone = world.key(&format!("video:since:{{{}}}", video_id("film").partition()));
    let () = world
        .redis_command(redis::cmd("SET").arg(&gone).arg(format!("{} another-run again", NOON.secs())))
        .await;
    let another = world.another().await;
    world.sweep().await;
    let count = another.online("film").await;
    assert_eq!((count.online, count.stale), (None, true));
}

#[tokio::test]
async fn scripts_that_redis_lost_are_loaded_again_unnoticed() {
    let world = World::redis().await;
    let mut flush = redis::cmd("SCRIPT");
    flush.arg("FLUSH");
    for viewer in 0..5 {
        let () = world.redis_command(&flush).await;
        world.beat("film", &format!("viewer-{viewer}")).await;
        world.leave("film", "viewer-0").await;
    }
    let () = world.redis_command(&flush).await;
    assert_eq!(world.swept_count("film").await, Some(4));
}

#[tokio::test]
async fn merged_beats_reach_redis_within_a_linger() {
    let world = World::redis_with(|config| config.presence.ack = headcount::config::Ack::Received).await;
    world.beat("film", "ann").await;
    let key = world.shard_key("film", "ann");
    eventually("the beat is stored", async || {
        world.redis_command::<i64>(redis::cmd("EXISTS").arg(&key)).await == 1
    })
    .await;
}

#[tokio::test]
async fn a_stopping_instance_writes_the_beats_it_took() {
    let world = World::redis_with(|config| {
        config.presence.ack = headcount::config::Ack::Received;
        config.presence.linger = secs(2);
    })
    .await;
    world.beat_all("film", 0..500).await;
    world.lifecycle.stop();
    world.lifecycle.run().await;
    let next = world.another().await;
    assert_eq!(next.swept_count("film").await, Some(500));
}

#[tokio::test]
async fn a_video_of_one_shard_is_counted_by_its_length() {
    let world = World::redis_with(|config| config.presence.shards = Shards::Fixed(1)).await;
    world.beat_all("film", 0..300).await;
    assert_eq!(world.swept_count("film").await, Some(300));
    let keys = world.redis_keys().await;
    assert!(!keys.iter().any(|key| key.starts_with("video:online-count")), "{keys:?}");
    world.pass_swept(11).await;
    assert_eq!(world.swept_count("film").await, Some(0));
}

async fn stamp(world: &World, partition: u16) -> String {
    let key = world.key(&format!("video:since:{{{partition}}}"));
    world.redis_command::<Option<String>>(redis::cmd("GET").arg(key)).await.unwrap_or_default()
}

async fn lose_everything(world: &World) {
    for key in world.redis_keys().await {
        let () = world.redis_command(redis::cmd("DEL").arg(world.key(&key))).await;
    }
}

/// One who was not here before takes an empty Redis for a new one.
#[tokio::test]
async fn a_newcomer_does_not_hide_a_loss_from_those_who_come_after() {
    let one = World::redis().await;
    one.beat_all("film", 0..10).await;
    one.sweep().await;
    lose_everything(&one).await;
    one.pass(secs(10));
    let two = one.another().await;
    let partition = video_id("film").partition().to_string().parse().unwrap();
    assert!(stamp(&two, partition).await.ends_with(" new"));

    one.pass(secs(30));
    one.beat("film", "viewer-1").await;
    assert!(stamp(&two, partition).await.ends_with(" again"));
    two.sweep().await;
    two.forget_what_was_read();
    assert_eq!(two.online("film").await.online, None, "one of ten is no number to show");
}

/// Who was asked to beat every 200 s need not have beaten twice after two minutes.
#[tokio::test]
async fn an_instance_knows_that_another_slowed_its_players_down_and_doubts_low_numbers_for_longer() {
    let first = World::redis().await;
    let second = first.another().await;
    first.beat_all("film", 0..10).await;
    first.stores.presence.press(1.0);
    assert_eq!(first.stores.presence.next_heartbeat(), secs(200));
    for world in [&first, &second] {
        assert_eq!(world.run_jobs("rhythm").await, 1);
    }
    assert_eq!(second.stores.presence.next_heartbeat(), secs(30), "its own players are in no hurry less");
    assert_eq!(second.swept_count("film").await, Some(10));

    lose_everything(&first).await;
    for _ in 0..6 {
        second.pass(secs(60));
        second.beat("film", "viewer-0").await;
        second.sweep().await;
        second.forget_what_was_read();
        let count = second.online("film").await;
        assert_eq!((count.online, count.stale), (Some(10), true));
    }
    second.pass(secs(100));
    second.beat("film", "viewer-0").await;
    assert_eq!(second.swept_count("film").await, Some(1));
}

/// Whoever asks for less than another did shortens nothing.
#[tokio::test]
async fn how_long_players_may_beat_slowly_is_only_ever_prolonged() {
    let world = World::redis().await;
    let lasts = async || -> i64 {
        assert_eq!(world.run_jobs("rhythm").await, 1);
        world.redis_command(redis::cmd("PTTL").arg(world.key("video:slowed"))).await
    };
    world.stores.presence.press(1.0);
    let own = lasts().await;
    assert!(own > 500_000, "{own}");
    let mut longer = redis::cmd("PEXPIRE");
    longer.arg(world.key("video:slowed")).arg(3 * own);
    assert_eq!(world.redis_command::<i64>(&longer).await, 1);
    assert!(lasts().await > 2 * own, "another instance asked for more");
    let mut shorter = redis::cmd("PEXPIRE");
    shorter.arg(world.key("video:slowed")).arg(1_000);
    assert_eq!(world.redis_command::<i64>(&shorter).await, 1);
    assert!(lasts().await > 500_000, "and this one needs more than that");
}

/// And without anybody who beats there.
#[tokio::test]
async fn after_a_loss_every_partition_is_vouched_for_again_in_time() {
    let world = World::redis().await;
    world.sweep().await;
    lose_everything(&world).await;
    world.pass(secs(10));
    world.sweep().await;
    for partition in 0..16 {
        assert!(stamp(&world, partition).await.ends_with(" again"), "{partition}");
    }
    assert!(world.online("film").await.stale);
    world.pass_swept(2).await;
    assert_eq!(world.swept_count("film").await, Some(0));
    assert!(!world.stores.presence.top(1).await.stale);
}

#[tokio::test]
async fn a_stamp_that_can_not_be_read_is_written_anew() {
    let world = World::redis().await;
    world.sweep().await;
    let swept = |partition: u16| world.key(&format!("video:swept:{{{partition}}}"));
    let () = world.redis_command(redis::cmd("SET").arg(swept(1)).arg("garbage")).await;
    let () = world.redis_command(redis::cmd("DEL").arg(swept(2))).await;
    let () = world.redis_command(redis::cmd("RPUSH").arg(swept(2)).arg("x")).await;
    world.sweep().await;
    for partition in [1, 2] {
        let time: i64 = world.redis_command(redis::cmd("GET").arg(swept(partition))).await;
        assert_eq!(time, NOON.secs(), "{partition}");
    }
}

/// [valkey#1087 and its like] Nothing keeps everybody out for ever.
#[tokio::test]
async fn a_lock_without_a_lease_is_given_one() {
    let world = World::redis().await;
    let lock = world.key("task:lock:sweep:{4}");
    let () = world.redis_command(redis::cmd("SET").arg(&lock).arg("a stranger's")).await;
    world.run_jobs("sweep").await;
    let life: i64 = world.redis_command(redis::cmd("TTL").arg(&lock)).await;
    assert!((1..=54).contains(&life), "{life}");
}

#[tokio::test]
async fn what_is_no_video_leaves_the_registry_by_the_next_sweep() {
    let world = World::redis().await;
    world.beat("film", "ann").await;
    let partition = video_id("film").partition();
    let registry = world.key(&format!("video:active:{{{partition}}}"));
    let () = world.redis_command(redis::cmd("ZADD").arg(&registry).arg(1).arg("no {video}")).await;
    assert_eq!(world.swept_count("film").await, Some(1));
    let members: Vec<String> = world.redis_command(redis::cmd("ZRANGE").arg(&registry).arg(0).arg(-1)).await;
    assert_eq!(members, ["film"]);
}
