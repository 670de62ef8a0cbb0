//! What each setting of durability is worth: replicas that lag and are promoted, a Redis that comes back
//! with an older file.
//!
//! Of the table in README.md, "Losing Redis", these are tested here: what is counted twice over a failover
//! with `redis.wait_replicas` and without, that with `plays.wait` it forgets nothing that was acknowledged,
//! and that after a power cut (an older file put back) nothing is counted twice where less than
//! `redis.batch_min_age` is forgotten, and is where more is, as from a backup. How much a server forgets by
//! its `appendfsync` or its snapshots is Redis's own promise, which no test here cuts the power to see. The
//! lost disk is in `redis_trouble_data.rs`.

use std::path::Path;

use headcount::{config::SecretUrl, plays::Recorded};
use headcount_support::{OwnRedis, Proxy, Way};

use crate::world::{World, a_play, eventually, secs};

/// A primary and a replica of it, with a way between them that can be broken.
struct Pair {
    primary: OwnRedis,
    replica: OwnRedis,
    link: Proxy,
}

impl Pair {
    async fn start() -> Self {
        let primary = OwnRedis::start_primary(&[]).await;
        let link = Proxy::to(&format!("redis://127.0.0.1:{}", primary.port())).await;
        let by = url::Url::parse(&link.by("redis://127.0.0.1:1")).unwrap();
        let replica = OwnRedis::start_replica(by.port().unwrap(), &[]).await;
        Self { primary, replica, link }
    }

    async fn world(&self, wait_replicas: u32, wait: bool) -> World {
        World::redis_with(|config| {
            config.redis.url = SecretUrl::new(self.primary.url(""));
            config.redis.wait_replicas = wait_replicas;
            config.plays.wait = wait;
            // A call that waits in vain does so for three eighths of this.
            config.redis.deadline = secs(4);
        })
        .await
    }

    /// From here on the replica gets nothing of what the primary takes, and nobody has noticed.
    fn lag(&self) {
        self.link.set(Way::Stalled);
    }

    /// Waits until the replica has all that the primary has.
    async fn in_step(&self) {
        eventually("the replica is in step", async || {
            let size = async |redis: &OwnRedis| redis.query::<u64>(redis::cmd("DBSIZE")).await.unwrap();
            let offset = async |redis: &OwnRedis, field: &str| {
                let mut info = redis::cmd("INFO");
                info.arg("replication");
                let info: String = redis.query(info).await.unwrap();
                let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
                found.map(|offset| offset.trim().parse::<u64>().unwrap())
            };
            size(&self.primary).await == size(&self.replica).await
                && offset(&self.primary, "master_repl_offset").await
                    == offset(&self.replica, "slave_repl_offset").await
        })
        .await;
    }

    /// The primary dies, with whatever didn't reach the replica, which becomes the primary.
    async fn fail_over(&mut self) {
        self.primary.kill().await;
        self.link.set(Way::Cut);
        self.replica.follow("NO ONE").await;
    }

    /// An instance whose Redis is the one that was promoted.
    async fn world_after(&self, before: &World) -> World {
        before
            .another_with(|config| {
                config.redis.url = SecretUrl::new(self.replica.url(""));
                config.redis.wait_replicas = 0;
                config.plays.wait = false;
            })
            .await
    }
}

/// What the database itself holds of all videos.
async fn views(world: &World) -> i64 {
    let mut connection = world.database().await;
    let sum = "select coalesce(sum(views), 0)::bigint from videos";
    sqlx::query_scalar(sum).fetch_one(&mut connection).await.unwrap()
}

async fn flush_until(world: &World, wanted: i64) {
    eventually("all plays are in the database", async || {
        world.flush().await;
        views(world).await == wanted
    })
    .await;
    // And stay so.
    world.flush().await;
    assert_eq!(views(world).await, wanted);
}

async fn played(world: &World, viewers: std::ops::Range<u32>) -> Vec<Recorded> {
    let mut results = Vec::new();
    for viewer in viewers {
        results.push(world.play("film", Some(&format!("viewer-{viewer}")), None).await);
    }
    results
}

#[tokio::test]
async fn a_claim_that_a_replica_lacks_is_not_applied_so_its_promotion_doubles_nothing() {
    let mut pair = Pair::start().await;
    let world = pair.world(1, false).await;
    played(&world, 0..7).await;
    pair.in_step().await;
    pair.lag();
    for _ in 0..2 {
        world.flush().await;
        assert_eq!(views(&world).await, 0, "claimed, and not applied");
    }
    let batches: Vec<String> = world.redis_command(redis::cmd("KEYS").arg("*video:views:batch*")).await;
    assert_eq!(batches.len(), 1, "it was claimed");
    pair.fail_over().await;
    let after = pair.world_after(&world).await;
    flush_until(&after, 7).await;
    assert_eq!(after.plays("film").await.plays, Some(7));
}

/// Why there is `redis.wait_replicas`.
#[tokio::test]
async fn without_wait_replicas_a_failover_to_a_replica_that_lags_may_count_plays_twice() {
    let mut pair = Pair::start().await;
    let world = pair.world(0, false).await;
    played(&world, 0..7).await;
    pair.in_step().await;
    pair.lag();
    flush_until(&world, 7).await;
    pair.fail_over().await;
    let after = pair.world_after(&world).await;
    flush_until(&after, 14).await;
}

#[tokio::test]
async fn a_batch_waits_for_replicas_and_is_applied_when_they_are_back() {
    let pair = Pair::start().await;
    let world = pair.world(1, false).await;
    played(&world, 0..3).await;
    flush_until(&world, 3).await;
    pair.link.set(Way::Cut);
    played(&world, 3..5).await;
    world.flush().await;
    assert_eq!(views(&world).await, 3);
    assert_eq!(world.plays("film").await.plays, Some(5), "they are counted all the same");
    pair.link.set(Way::Open);
    // The scripts are lost besides: the claim that is sent again has its WAIT behind it.
    let mut flush = redis::cmd("SCRIPT");
    world.redis_command::<()>(flush.arg("FLUSH")).await;
    flush_until(&world, 5).await;
}

#[tokio::test]
async fn with_plays_wait_an_acknowledged_play_survives_the_promotion_of_a_replica_that_lagged() {
    let mut pair = Pair::start().await;
    let world = pair.world(1, true).await;
    eventually("the replica is waited for", async || {
        world.stores.plays.record(a_play("film", Some("witness"), None)).await.is_ok()
    })
    .await;
    assert!(played(&world, 0..20).await.iter().all(|result| *result == Recorded::Counted));
    pair.lag();
    let plays = (20..30).map(|viewer| a_play("film", Some(&format!("viewer-{viewer}")), None));
    let unsure = plays.map(|play| world.stores.plays.record(play));
    for result in futures::future::join_all(unsure).await {
        assert!(result.as_ref().is_err_and(headcount::error::StoreError::is_transient), "{result:?}");
    }
    pair.fail_over().await;
    let after = pair.world_after(&world).await;
    assert!(played(&after, 0..20).await.iter().all(|result| *result == Recorded::Duplicate));
    // What was answered with 503 is sent again, and counts once whether it had been taken or not.
    played(&after, 20..30).await;
    flush_until(&after, 31).await;
}

#[tokio::test]
async fn with_plays_wait_a_duplicate_is_acknowledged_only_when_replicas_have_the_play() {
    let mut pair = Pair::start().await;
    let world = pair.world(1, true).await;
    let hasty = world.another_with(|config| config.plays.wait = false).await;
    let ann = || a_play("film", Some("ann"), None);
    eventually("the replica is waited for", async || {
        world.stores.plays.record(a_play("film", Some("witness"), None)).await.is_ok()
    })
    .await;
    pair.lag();
    assert_eq!(hasty.stores.plays.record(ann()).await.unwrap(), Recorded::Counted);
    for _ in 0..2 {
        let result = world.stores.plays.record(ann()).await;
        assert!(result.as_ref().is_err_and(headcount::error::StoreError::is_transient), "{result:?}");
    }
    pair.link.set(Way::Open);
    eventually("the duplicate is acknowledged", async || {
        world.stores.plays.record(ann()).await.is_ok_and(|result| result == Recorded::Duplicate)
    })
    .await;
    pair.fail_over().await;
    let after = pair.world_after(&world).await;
    assert_eq!(after.stores.plays.record(ann()).await.unwrap(), Recorded::Duplicate);
    flush_until(&after, 2).await;
}

#[tokio::test]
async fn without_its_replica_plays_are_refused_only_where_they_wait_for_it_and_taken_when_it_is_back() {
    let mut pair = Pair::start().await;
    let world = pair.world(1, true).await;
    let hasty = world.another_with(|config| config.plays.wait = false).await;
    let play = |viewer: &str| a_play("film", Some(viewer), None);
    eventually("plays are taken", async || world.stores.plays.record(play("ann")).await.is_ok()).await;
    pair.replica.kill().await;
    let refused = tokio::time::timeout(secs(60), world.stores.plays.record(play("ben"))).await.unwrap();
    assert!(refused.as_ref().is_err_and(headcount::error::StoreError::is_transient), "{refused:?}");
    assert_eq!(hasty.stores.plays.record(play("cem")).await.unwrap(), Recorded::Counted);
    assert_eq!(world.beat("film", "ann").await, 1, "heartbeats wait for nobody");
    pair.replica.start_again().await;
    eventually("plays are taken again", async || world.stores.plays.record(play("ben")).await.is_ok()).await;
    flush_until(&world, 3).await;
}

/// A Redis that has every answered write on its disk, so that its file is what it was at that moment.
fn careful() -> [&'static str; 4] {
    ["--appendonly", "yes", "--appendfsync", "always"]
}

async fn world_over(redis: &OwnRedis) -> World {
    World::redis_with(|config| {
        config.redis.url = SecretUrl::new(redis.url(""));
        config.redis.batch_min_age = secs(2);
    })
    .await
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// Kills it and starts it with the files it had when they were copied to `kept`.
async fn put_back(redis: &mut OwnRedis, kept: &Path) {
    redis.kill().await;
    copy(kept, &redis.folder().join("appendonlydir"));
    redis.start_again().await;
}

async fn is_well(world: &World) {
    eventually("the service is well", async || world.stores.health.check().await.failed.is_empty()).await;
}

#[tokio::test]
async fn a_redis_put_back_by_less_than_batch_min_age_doubles_nothing() {
    let mut redis = OwnRedis::start(&careful()).await;
    let world = world_over(&redis).await;
    let kept = tempfile::tempdir().unwrap();
    played(&world, 0..5).await;
    copy(&redis.folder().join("appendonlydir"), kept.path());
    world.flush().await;
    // What everysec may forget, it forgets within so long; a batch waits longer.
    world.pass(std::time::Duration::from_millis(1_999));
    world.flush().await;
    assert_eq!(views(&world).await, 0, "the batch is too young");
    put_back(&mut redis, kept.path()).await;
    is_well(&world).await;
    world.flush().await;
    world.pass(secs(2));
    flush_until(&world, 5).await;
}

/// What no setting of ours saves: a backup is older than any batch waits.
#[tokio::test]
async fn a_redis_put_back_by_more_than_batch_min_age_counts_again_what_was_applied_since() {
    let mut redis = OwnRedis::start(&careful()).await;
    let world = world_over(&redis).await;
    let kept = tempfile::tempdir().unwrap();
    played(&world, 0..5).await;
    copy(&redis.folder().join("appendonlydir"), kept.path());
    played(&world, 5..7).await;
    world.flush().await;
    world.pass(secs(2));
    flush_until(&world, 7).await;
    put_back(&mut redis, kept.path()).await;
    is_well(&world).await;
    world.flush().await;
    world.pass(secs(2));
    flush_until(&world, 12).await;
}
