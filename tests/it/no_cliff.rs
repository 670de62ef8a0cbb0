//! No cliff: whatever is lost or restarted while an audience goes on beating, no reader is told a low
//! number as a fresh one, and the right number is there again within one heartbeat period.

use headcount::{
    clock::{Clock as _, Timestamp},
    config::{Config, SecretUrl},
};
use headcount_support::OwnRedis;

use crate::world::{World, eventually, secs, video_id};

const VIEWERS: u32 = 1_000;
const LEAST: u64 = 900;

/// In so many shards they are at most.
const MOST_SHARDS: u32 = 16;

/// Heartbeats come every 30 s, a tenth of the viewers each 3 s.
const SLOTS: u32 = 10;
const SLOT_SECONDS: u64 = 3;

/// Viewers of one video, who beat whatever happens, on the clock of a test.
struct Audience {
    slot: u32,
}

impl Audience {
    const fn new() -> Self {
        Self { slot: 0 }
    }

    /// A tenth of a heartbeat period: a tenth of the viewers beat, each by another instance than the
    /// one beside; every minute one instance sweeps; and everybody reads.
    async fn slot(&mut self, instances: &[&World]) {
        instances[0].pass(secs(SLOT_SECONDS));
        let place = self.slot % SLOTS;
        for (index, world) in instances.iter().enumerate() {
            let mine = (0..VIEWERS).filter(|viewer| viewer % SLOTS == place);
            let mine = mine.filter(|viewer| (viewer / SLOTS) as usize % instances.len() == index);
            world.beat_all("film", mine).await;
        }
        self.slot += 1;
        if self.slot.is_multiple_of(2 * SLOTS) {
            let turn = (self.slot / (2 * SLOTS)) as usize % instances.len();
            instances[turn].sweep().await;
        }
        for world in instances {
            assert_no_cliff(world).await;
        }
    }

    async fn heartbeat_periods(&mut self, periods: u32, instances: &[&World]) {
        for _ in 0..periods * SLOTS {
            self.slot(instances).await;
        }
    }

    /// Everybody has come, and was counted.
    async fn settled(&mut self, instances: &[&World]) {
        for world in instances {
            // There is nothing to compare with before.
            world.sweep().await;
        }
        let first = instances[0];
        first.beat_all("film", 0..VIEWERS).await;
        first.sweep().await;
        self.heartbeat_periods(2, instances).await;
        for world in instances {
            assert_right(world).await;
        }
    }
}

/// Neither as fresh nor as stale is a number told that is far too low, nor none at all.
async fn assert_no_cliff(world: &World) {
    let count = world.online("film").await;
    assert!(count.online.is_some_and(|online| online >= LEAST), "{count:?}");
}

async fn assert_right(world: &World) {
    world.forget_what_was_read();
    let count = world.online("film").await;
    assert_eq!((count.online, count.stale), (Some(u64::from(VIEWERS)), false));
}

async fn over(redis: &OwnRedis, change: impl FnOnce(&mut Config)) -> World {
    World::redis_with(|config| {
        config.redis.url = SecretUrl::new(redis.url(""));
        change(config);
    })
    .await
}

/// How many viewers Redis itself holds.
async fn held(redis: &OwnRedis, world: &World) -> u64 {
    let mut held = 0;
    for shard in 0..MOST_SHARDS {
        let key = world.key(&format!("video:online:film:{shard}"));
        let mut length = redis::cmd("HLEN");
        length.arg(key);
        held += redis.query::<u64>(length).await.unwrap();
    }
    held
}

/// Waits until an instance writes again, as players do who are told to try again.
async fn writes_again(world: &World) {
    eventually("beats are taken", async || world.try_beat("film", "viewer-0").await.is_ok()).await;
}

async fn lost(redis: &mut OwnRedis, killed: bool) {
    if killed {
        redis.kill().await;
        redis.start_again().await;
    } else {
        redis.query::<String>(redis::cmd("FLUSHALL")).await.unwrap();
    }
}

#[tokio::test]
async fn redis_loses_everything_and_no_reader_sees_a_cliff() {
    for killed in [false, true] {
        let mut redis = OwnRedis::start(&[]).await;
        let one = over(&redis, |_| {}).await;
        let two = one.another().await;
        let mut audience = Audience::new();
        audience.settled(&[&one, &two]).await;
        lost(&mut redis, killed).await;
        for world in [&one, &two] {
            writes_again(world).await;
            assert_no_cliff(world).await;
        }
        assert!(held(&redis, &one).await < 10, "it is gone");
        audience.heartbeat_periods(1, &[&one, &two]).await;
        assert_eq!(held(&redis, &one).await, u64::from(VIEWERS), "within one period all are back");
        for world in [&one, &two] {
            let count = world.online("film").await;
            assert_eq!(count.online, Some(u64::from(VIEWERS)), "and told, if stale: {count:?}");
        }
        // Two of the longest intervals (hidden tabs beat once a minute) and a sweep later it is vouched for.
        audience.heartbeat_periods(8, &[&one, &two]).await;
        for world in [&one, &two] {
            assert_right(world).await;
        }
        // And then a real goodbye is believed.
        one.pass_swept(12).await;
        assert_eq!(one.swept_count("film").await, Some(0));
    }
}

#[tokio::test]
async fn instances_are_replaced_one_after_the_other_and_no_reader_sees_a_cliff() {
    let one = World::redis().await;
    let two = one.another().await;
    let mut audience = Audience::new();
    audience.settled(&[&one, &two]).await;
    let one = one.drained().await;
    audience.heartbeat_periods(1, &[&two]).await;
    let one = one.started().await;
    assert_no_cliff(&one).await;
    audience.heartbeat_periods(1, &[&one, &two]).await;
    let two = two.drained().await;
    audience.heartbeat_periods(1, &[&one]).await;
    let two = two.started().await;
    assert_no_cliff(&two).await;
    audience.heartbeat_periods(2, &[&one, &two]).await;
    for world in [&one, &two] {
        assert_right(world).await;
    }
}

/// No instance is left that remembers anything. What the database holds tells that it is no new
/// deployment.
#[tokio::test]
async fn redis_loses_everything_while_all_instances_restart_and_no_newcomer_vouches_for_what_is_left() {
    let mut redis = OwnRedis::start(&[]).await;
    let world = over(&redis, |_| {}).await;
    let mut audience = Audience::new();
    audience.settled(&[&world]).await;
    world.play("film", Some("ann"), None).await;
    world.flush().await;
    // The test's clock isn't Postgres's.
    applied_at(&world, world.clock.now() - secs(3_600)).await;
    let world = world.drained().await;
    lost(&mut redis, true).await;
    let world = world.started().await;
    let another = world.another().await;
    for slot in 0..2 * SLOTS {
        world.pass(secs(SLOT_SECONDS));
        world.beat_all("film", (0..VIEWERS).filter(|viewer| viewer % SLOTS == slot % SLOTS)).await;
        if slot == 3 {
            world.sweep().await;
        }
        for world in [&world, &another] {
            let count = world.online("film").await;
            assert!(count.stale || count.online.is_some_and(|online| online >= LEAST), "{count:?}");
        }
    }
    for _ in 0..3 {
        world.beat_all("film", 0..VIEWERS).await;
        world.pass_swept(1).await;
    }
    for world in [&world, &another] {
        assert_right(world).await;
    }
}

/// The same where plays are counted from a log. No batch tells of them.
#[tokio::test]
async fn what_was_counted_from_a_log_tells_a_newcomer_that_redis_lost_everything() {
    let mut redis = OwnRedis::start(&[]).await;
    let world = over(&redis, |_| {}).await;
    world.beat("film", "ann").await;
    let counted = "with part as (
            insert into kafka_offset (topic, partition, topic_id, witness)
            values ('log', 0, gen_random_uuid(), gen_random_uuid()) returning position)
        insert into play_seen select 'film', 'u:ann', to_timestamp($1::bigint), position from part";
    let mut database = world.database().await;
    let long_ago = (world.clock.now() - secs(600)).secs();
    sqlx::query(counted).bind(long_ago).execute(&mut database).await.unwrap();
    let world = world.drained().await;
    lost(&mut redis, true).await;
    let world = world.started().await;
    world.beat("film", "bob").await;
    world.sweep().await;
    world.forget_what_was_read();
    let count = world.online("film").await;
    assert_eq!((count.online, count.stale), (None, true));
}

/// The other side of it: a new deployment needs no time to be believed.
#[tokio::test]
async fn a_new_deployment_vouches_for_its_first_viewer() {
    let redis = OwnRedis::start(&[]).await;
    let world = over(&redis, |_| {}).await;
    world.sweep().await;
    world.beat("film", "ann").await;
    let count = world.online("film").await;
    assert_eq!((count.online, count.stale), (Some(1), false));
    // Nor does one whose first plays are just in the database.
    world.play("film", Some("ann"), None).await;
    world.flush().await;
    applied_at(&world, world.clock.now()).await;
    let another = world.another().await;
    let count = another.online("film").await;
    assert_eq!((count.online, count.stale), (Some(1), false));
}

/// Postgres can't say whether it is new.
#[tokio::test]
async fn with_both_stores_in_trouble_at_the_first_start_numbers_are_doubted_for_a_while() {
    let lifecycle = headcount::lifecycle::Lifecycle::new(secs(0), secs(20));
    let redis = OwnRedis::start(&[]).await;
    let world = World::redis().await;
    let mut config = world.config.clone();
    config.redis.url = SecretUrl::new(redis.url(""));
    config.postgres.url = SecretUrl::new("postgres://x@127.0.0.1:1/x");
    let stores = headcount::backend::open(&config, &lifecycle, world.clock.clone()).await.unwrap();
    eventually("redis is there", async || stores.health.check().await.failed.is_empty()).await;
    stores.presence.beat(crate::world::beat("film", "ann")).await.unwrap();
    for job in stores.jobs.iter().filter(|job| job.name() == "sweep") {
        job.run().await.unwrap();
    }
    world.forget_what_was_read();
    let count = stores.presence.online(&[video_id("film")]).await[0];
    assert_eq!((count.online, count.stale), (None, true), "one of how many?");
    lifecycle.stop();
    lifecycle.run().await;
}

/// Dates what the database holds of batches.
async fn applied_at(world: &World, at: Timestamp) {
    let mut connection = world.database().await;
    let date = "update play_batch set applied_at = to_timestamp($1::bigint)";
    let dated = sqlx::query(date).bind(at.secs()).execute(&mut connection).await.unwrap();
    assert!(dated.rows_affected() > 0);
}

#[tokio::test]
async fn embedded_stopped_and_started_again_everybody_is_there_and_vouched_for() {
    let world = World::embedded().await;
    let mut audience = Audience::new();
    audience.settled(&[&world]).await;
    let world = world.restarted().await;
    assert_right(&world).await;
    audience.heartbeat_periods(2, &[&world]).await;
    assert_right(&world).await;
}

#[tokio::test]
async fn embedded_killed_and_started_again_the_last_saved_number_is_told_as_stale_until_all_have_beaten() {
    let world = World::embedded().await;
    let mut audience = Audience::new();
    audience.settled(&[&world]).await;
    world.run_jobs("snapshot").await;
    // Up to ten seconds are not in it.
    world.pass(secs(9));
    let world = world.killed().await;
    let count = world.online("film").await;
    assert_eq!((count.online, count.stale), (Some(u64::from(VIEWERS)), true));
    audience.heartbeat_periods(1, &[&world]).await;
    let count = world.online("film").await;
    assert_eq!(
        (count.online, count.stale),
        (Some(u64::from(VIEWERS)), true),
        "right, and not vouched for yet"
    );
    audience.heartbeat_periods(5, &[&world]).await;
    assert_right(&world).await;
}
