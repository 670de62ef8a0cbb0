//! One connection over a Redis that loses scripts, and one beside it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use headcount_support::{OwnRedis, eventually};

use super::{Connection, Redis, Replicas, Sent, WaitFor};
use crate::{
    clock::SystemClock,
    config::{SecretUrl, load::load},
    error::StoreError,
    lifecycle::Lifecycle,
    store::{keys::Keys, probe::PROBE, time::StoreClock},
};

async fn connected(server: &OwnRedis, deadline: Duration) -> (Redis, Lifecycle) {
    let mut settings = load(None, Some(HashMap::new())).unwrap().config.redis;
    settings.url = SecretUrl::new(server.url(""));
    settings.deadline = deadline;
    let clock = Arc::new(StoreClock::new(SystemClock::start(), Duration::from_secs(60)));
    let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
    let redis = Redis::new(&settings, Keys::new("", false), clock, vec![&PROBE]).unwrap();
    redis.start(&lifecycle);
    eventually("redis is connected", async || redis.connection().is_ok()).await;
    (redis, lifecycle)
}

fn flush() -> redis::Cmd {
    let mut flush = redis::cmd("SCRIPT");
    flush.arg("FLUSH");
    flush
}

async fn probe(connection: &Connection, value: &str) -> Result<String, StoreError> {
    connection.query(PROBE.call(&["probe"], &[value, "60"])).await
}

#[tokio::test]
async fn scripts_that_are_lost_again_and_again_fail_no_call_for_good() {
    let server = OwnRedis::start(&[]).await;
    let (redis, _lifecycle) = connected(&server, Duration::from_secs(20)).await;
    let connection = redis.connection().unwrap();
    let (throwing, _other) = connected(&server, Duration::from_secs(20)).await;
    let throwing = throwing.connection().unwrap();
    let calls = async {
        for number in 0..300 {
            let value = number.to_string();
            match probe(&connection, &value).await {
                Ok(read) => assert_eq!(read, value),
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    };
    let throwing_away = async {
        loop {
            throwing.query::<()>(flush()).await.unwrap();
        }
    };
    tokio::select! {
        () = calls => {}
        () = throwing_away => {}
    }
    assert_eq!(probe(&connection, "calm").await.unwrap(), "calm");
}

#[tokio::test]
async fn a_script_that_is_none_of_ours_is_not_called_for_ever() {
    static STRANGER: crate::store::script::LuaScript =
        crate::store::script::LuaScript::new("stranger", "return 1");
    let server = OwnRedis::start(&[]).await;
    let (redis, _lifecycle) = connected(&server, Duration::from_secs(20)).await;
    let call = STRANGER.call::<&str, &str>(&[], &[]);
    let result = redis.connection().unwrap().query::<i64>(call).await;
    assert!(matches!(result, Err(StoreError::Unavailable { .. })), "{result:?}");
}

/// What is behind a call vouches for it, so it may not run before it.
#[tokio::test]
async fn what_is_sent_behind_a_call_stays_behind_it_when_the_script_was_lost() {
    let server = OwnRedis::start(&[]).await;
    let (redis, _lifecycle) = connected(&server, Duration::from_secs(20)).await;
    let connection = redis.connection().unwrap();
    connection.query::<()>(flush()).await.unwrap();
    let mut get = redis::cmd("GET");
    get.arg("probe");
    let probes = vec![PROBE.call(&["probe"], &["here", "60"])];
    let (values, behind) = connection.pipe_before(probes, &get).await.unwrap();
    let read: Vec<String> =
        values.into_iter().chain(behind).map(|value| super::reply(value).unwrap()).collect();
    assert_eq!(read, ["here", "here"]);
}

#[tokio::test]
async fn a_replica_too_few_is_unavailable_is_told_once_and_holds_nobody_else_up() {
    let server = OwnRedis::start(&[]).await;
    let (redis, lifecycle) = connected(&server, Duration::from_secs(8)).await;
    let lines = crate::telemetry::capture();
    let replicas = Replicas::start(&redis, &lifecycle, 1, WaitFor::Flush);
    eventually("the way beside is there", async || replicas.beside.connection().is_ok()).await;
    let write = async || {
        let mut set = redis::cmd("SET");
        set.arg("a").arg("b");
        replicas.query::<String>(set).await
    };
    let connection = redis.connection().unwrap();
    for _ in 0..2 {
        let waiting = write();
        let meanwhile = async {
            eventually("it is written", async || {
                let mut get = redis::cmd("GET");
                get.arg("a");
                connection.query::<Option<String>>(get).await.unwrap().is_some()
            })
            .await;
            assert_eq!(probe(&connection, "meanwhile").await.unwrap(), "meanwhile");
        };
        let (result, ()) = tokio::join!(waiting, meanwhile);
        assert!(matches!(&result, Err(StoreError::Unavailable { .. })), "{result:?}");
        assert!(replicas.are_short());
    }
    let told = lines.text();
    assert_eq!(told.matches("redis.wait_replicas isn't reached").count(), 1, "{told}");
    let mut count = redis::cmd("INCR");
    count.arg("plays");
    let unvouched = replicas.pipe(vec![count]).await.unwrap_err();
    let Sent::Answered(values, short) = unvouched.sent else { panic!("{unvouched:?}") };
    assert_eq!((values, short), (vec![::redis::Value::Int(1)], vec![true]), "what Redis did is told");
}

/// [StackExchange.Redis#2264] The socket of a node that was demoted stays open.
#[tokio::test]
async fn the_way_beside_is_left_when_its_server_is_demoted_and_made_anew() {
    let server = OwnRedis::start(&[]).await;
    let (redis, lifecycle) = connected(&server, Duration::from_secs(20)).await;
    let beside = redis.beside(&lifecycle);
    eventually("the way beside is there", async || beside.connection().is_ok()).await;
    let before = beside.connection().unwrap();
    server.follow("127.0.0.1 1").await;
    let result = probe(&before, "x").await;
    assert!(matches!(&result, Err(StoreError::Unavailable { .. })), "{result:?}");
    assert!(before.is_broken());
    eventually("it says why", async || {
        beside.connection().is_err_and(|error| error.to_string().contains("it is a replica"))
    })
    .await;
    server.follow("NO ONE").await;
    eventually("it is back", async || beside.connection().is_ok()).await;
    assert!(probe(&beside.connection().unwrap(), "y").await.is_ok());
}

/// Neither can be done without, and the doctor says so.
#[tokio::test]
async fn a_user_who_may_not_ask_for_role_or_time_is_told_what_is_missing() {
    let server = OwnRedis::start(&[]).await;
    for command in ["info", "time"] {
        let refused = format!("-{command}");
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", command, "on", ">secret", "~*", "&*", "+@all", &refused]);
        server.query::<()>(user).await.unwrap();
        let mut settings = load(None, Some(HashMap::new())).unwrap().config.redis;
        settings.url = SecretUrl::new(server.url(&format!("?user={command}&pass=secret")));
        let clock = Arc::new(StoreClock::new(SystemClock::start(), Duration::from_secs(60)));
        let lifecycle = Lifecycle::new(Duration::ZERO, Duration::from_secs(20));
        let redis = Redis::new(&settings, Keys::new("", false), clock, vec![&PROBE]).unwrap();
        redis.start(&lifecycle);
        eventually("it is said", async || {
            let error = redis.connection().err().map(|error| error.to_string()).unwrap_or_default();
            error.contains("NOPERM") && error.contains(&format!("'{command}'"))
        })
        .await;
    }
}
