//! A Redis that answers and takes no writes isn't ready: `/readyz` says which part and with which word,
//! and is well again when Redis is.

use headcount::config::SecretUrl;
use headcount_support::OwnRedis;

use crate::{
    routes::get,
    world::{World, eventually},
};

async fn world_over(redis: &OwnRedis) -> World {
    World::redis_with(|config| config.redis.url = SecretUrl::new(redis.url(""))).await
}

/// Waits until the probe says no, and is told why.
async fn refused(redis: &OwnRedis, world: &World, word: &str) {
    let mut said = serde_json::Value::Null;
    eventually("it isn't ready", async || {
        let answer = get(world, "/readyz").await;
        said = answer.body;
        // The first look may find the connection that was dropped for it, and no reason yet.
        answer.status == 503 && said["detail"].as_str().unwrap().contains(word)
    })
    .await;
    assert_eq!(said["code"], "not_ready", "{said}");
    assert_eq!(said["parts"], serde_json::json!(["redis"]), "{said}");
    assert_eq!(said["detail"], format!("not working: redis ({word})"), "{said}");
    // One that can't save refuses even PING.
    let mut echo = redis::cmd("ECHO");
    echo.arg("here");
    assert_eq!(redis.query::<String>(echo).await.unwrap(), "here", "it answers all the same");
}

async fn ready_again(world: &World) {
    eventually("it is ready", async || get(world, "/readyz").await.status == 200).await;
}

async fn set(redis: &OwnRedis, name: &str, value: &str) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg(name).arg(value);
    redis.query::<String>(set).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_was_demoted_is_not_ready() {
    let redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    redis.follow("127.0.0.1 1").await;
    refused(&redis, &world, "READONLY").await;
    redis.follow("NO ONE").await;
    ready_again(&world).await;
}

#[tokio::test]
async fn a_redis_without_memory_is_not_ready() {
    let redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    set(&redis, "maxmemory", "1").await;
    refused(&redis, &world, "OOM").await;
    set(&redis, "maxmemory", "0").await;
    ready_again(&world).await;
}

#[tokio::test]
async fn a_redis_that_cannot_save_is_not_ready() {
    let redis = OwnRedis::start(&["--save", "3600 1", "--dbfilename", "dump.rdb"]).await;
    let world = world_over(&redis).await;
    let in_the_way = redis.folder().join("dump.rdb");
    std::fs::create_dir_all(in_the_way.join("occupied")).unwrap();
    let _ = redis.query::<String>(redis::cmd("BGSAVE")).await;
    refused(&redis, &world, "MISCONF").await;
    std::fs::remove_dir_all(in_the_way).unwrap();
    eventually("it saves", async || redis.query::<String>(redis::cmd("SAVE")).await.is_ok()).await;
    ready_again(&world).await;
}

#[tokio::test]
async fn a_redis_that_misses_its_replicas_is_not_ready() {
    let redis = OwnRedis::start(&[]).await;
    let world = world_over(&redis).await;
    set(&redis, "min-replicas-to-write", "1").await;
    refused(&redis, &world, "NOREPLICAS").await;
    set(&redis, "min-replicas-to-write", "0").await;
    ready_again(&world).await;
}
