//! TLS to Redis and to Postgres, with certificates of the test's own: who is trusted, who isn't, and
//! what is said of it.

use std::time::Duration;

use headcount::{
    clock::SystemClock,
    config::{Config, SecretUrl, load::load},
    plays::Recorded,
};
use headcount_support::{Authority, OwnPostgres, OwnRedis, Proxy, Way, eventually};
use sqlx::{Connection as _, Executor as _};

use crate::{
    process::ran,
    rights,
    world::{World, a_play, secs},
};

fn by_tls(redis: &OwnRedis, host: &str) -> SecretUrl {
    SecretUrl::new(format!("rediss://{host}:{}", redis.port()))
}

/// A client that trusts this authority.
fn trusting(authority: &Authority, url: SecretUrl) -> impl FnOnce(&mut Config) {
    let file = authority.file();
    move |config| {
        config.redis.url = url;
        config.redis.ca_file = file;
    }
}

#[tokio::test]
async fn over_tls_the_service_works_and_comes_back_by_itself_when_redis_was_killed() {
    let authority = Authority::new("ours");
    let (shown, ours) = (authority.issue("localhost"), authority.issue("headcount"));
    let kept = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut redis = OwnRedis::start_with_tls(&shown, Some(&authority), &kept).await;
    let world = World::redis_with(|config| {
        trusting(&authority, by_tls(&redis, "localhost"))(config);
        (config.redis.client_cert_file, config.redis.client_key_file) = (ours.certificate(), ours.key());
    })
    .await;
    assert_eq!(world.beat("film", "ann").await, 1);
    assert_eq!(world.play("film", Some("ann"), None).await, Recorded::Counted);
    redis.kill().await;
    eventually("it is missed", async || !world.stores.health.check().await.failed.is_empty()).await;
    redis.start_again().await;
    let again = a_play("film", Some("bob"), None);
    eventually("plays are taken", async || world.stores.plays.record(again.clone()).await.is_ok()).await;
    assert_eq!(world.plays("film").await.plays, Some(2));
    let report = headcount::doctor::examine(&world.config, world.clock.as_ref()).await;
    assert!(report.table().contains("it is a primary"), "the doctor gets in as well:\n{}", report.table());
}

/// What the service says of a Redis that it can't use.
async fn complaint(change: impl FnOnce(&mut Config)) -> String {
    complaint_with("", change).await
}

/// The first complaint that has `text` in it: of a server that hangs up, what is heard of its reason
/// depends on who is quicker.
async fn complaint_with(text: &str, change: impl FnOnce(&mut Config)) -> String {
    let mut config = load(None, Some(std::collections::HashMap::new())).unwrap().config;
    config.backend = headcount::config::BackendKind::Redis;
    config.postgres.url = SecretUrl::new("postgres://x@127.0.0.1:1/x");
    change(&mut config);
    crate::world::complaint(&config, SystemClock::start(), text).await
}

#[tokio::test]
async fn a_redis_that_cannot_be_trusted_is_refused_with_the_reason() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let redis = OwnRedis::start_with_tls(&ours.issue("localhost"), None, &[]).await;
    let said = complaint(trusting(&theirs, by_tls(&redis, "localhost"))).await;
    assert!(said.contains("UnknownIssuer") && said.contains("is redis.ca_file the right one?"), "{said}");
    let said = complaint(|config| config.redis.url = by_tls(&redis, "localhost")).await;
    assert!(said.contains("UnknownIssuer"), "by the public ones: {said}");
    let said = complaint(trusting(&ours, by_tls(&redis, "127.0.0.1"))).await;
    assert!(said.contains("not valid for name \"127.0.0.1\""), "{said}");

    let expired = OwnRedis::start_with_tls(&ours.issue_expired("localhost"), None, &[]).await;
    let said = complaint(trusting(&ours, by_tls(&expired, "localhost"))).await;
    assert!(said.contains("certificate expired"), "{said}");

    let plain = OwnRedis::start_primary(&[]).await;
    let said = complaint(trusting(&ours, by_tls(&plain, "localhost"))).await;
    assert!(said.contains("timed out (at a port that doesn't speak TLS"), "{said}");

    let wary = OwnRedis::start_with_tls(&ours.issue("localhost"), Some(&ours), &[]).await;
    let wants = "it wants a client's certificate";
    complaint_with(wants, trusting(&ours, by_tls(&wary, "localhost"))).await;
}

#[tokio::test]
async fn a_password_that_is_wrong_is_told_by_tls_too_and_not_named() {
    let ours = Authority::new("ours");
    let redis = OwnRedis::start_with_tls(&ours.issue("localhost"), None, &[]).await;
    redis.require("right").await;
    let url = SecretUrl::new(format!("rediss://:hunter2@localhost:{}", redis.port()));
    let said = complaint(trusting(&ours, url)).await;
    assert!(said.contains("Password authentication failed") && !said.contains("hunter2"), "{said}");
}

/// Case 96: the limit of an answer is none of a handshake.
#[tokio::test]
async fn a_handshake_may_take_longer_than_a_call_but_not_longer_than_its_own_limit() {
    const HANDSHAKE: Duration = Duration::from_millis(800);
    let ours = Authority::new("ours");
    let redis = OwnRedis::start_with_tls(&ours.issue("localhost"), None, &[]).await;
    let proxy = Proxy::to(by_tls(&redis, "localhost").expose()).await;
    proxy.set(Way::LateToBegin(HANDSHAKE));
    let url = SecretUrl::new(proxy.by("rediss://localhost:1").replace("127.0.0.1", "localhost"));
    let world = World::redis_with(|config| {
        trusting(&ours, url.clone())(config);
        config.redis.deadline = Duration::from_millis(300);
        config.redis.connect_timeout = secs(20);
    })
    .await;
    let play = a_play("film", Some("ann"), None);
    eventually("plays are taken", async || world.stores.plays.record(play.clone()).await.is_ok()).await;

    let said = complaint(|config| {
        trusting(&ours, url)(config);
        config.redis.connect_timeout = HANDSHAKE / 2;
    })
    .await;
    assert!(said.contains("timed out"), "{said}");
}

/// What `headcount migrate` says to these addresses, and whether it went through.
async fn migrated(url: &str) -> (Option<i32>, String) {
    let output = ran(&["migrate"], &[("HEADCOUNT_BACKEND", "redis"), ("HEADCOUNT_POSTGRES__URL", url)]).await;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code(), said)
}

#[tokio::test]
async fn postgres_is_asked_for_its_certificate_and_its_host_and_a_password_of_scram() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let postgres = OwnPostgres::start_with_passwords(Some(&ours.issue("localhost"))).await;
    rights::make_roles(&postgres.url()).await;
    let address = |user: &str, password: &str, host: &str, trusted: &Authority| {
        let (port, file) = (postgres.port(), trusted.file());
        let query = format!("sslmode=verify-full&sslrootcert={}", file.display());
        format!("postgres://{user}:{password}@{host}:{port}/headcount?{query}")
    };
    let (owner, word) = ("headcount_owner", rights::PASSWORD);
    for (url, reason) in [
        (address(owner, word, "localhost", &theirs), "is sslrootcert in postgres.url the right one?"),
        (address(owner, word, "127.0.0.1", &ours), "not valid for name"),
        (address(owner, "hunter2", "localhost", &ours), "password authentication failed"),
        (address(owner, word, "localhost", &ours).replace("ca.pem", "gone.pem"), "No such file"),
    ] {
        let (code, said) = migrated(&url).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(reason) && !said.contains("hunter2") && !said.contains(word), "{said}");
    }
    let (code, said) = migrated(&address(owner, word, "localhost", &ours)).await;
    assert_eq!(code, Some(0), "{said}");
    rights::grant_by(&address(owner, word, "localhost", &ours)).await;

    let world = World::redis_with(|config| {
        config.postgres.url = SecretUrl::new(address("headcount", word, "localhost", &ours));
        config.postgres.migrate = false;
    })
    .await;
    assert_eq!(world.play("film", Some("ann"), None).await, Recorded::Counted);
    world.flush().await;
    let mut connection = sqlx::PgConnection::connect(world.config.postgres.url.expose()).await.unwrap();
    let row: (i64, bool) = sqlx::query_as(
        "select views, (select ssl from pg_stat_ssl where pid = pg_backend_pid()) from videos",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(row, (1, true));

    let plain = OwnPostgres::start_with_passwords(None).await;
    let mut by_socket = sqlx::PgConnection::connect(&plain.url()).await.unwrap();
    by_socket.execute("create role headcount_owner login superuser password 'x'").await.unwrap();
    let url = format!("postgres://headcount_owner:x@localhost:{}/postgres?sslmode=verify-full", plain.port());
    let (code, said) = migrated(&url).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("it doesn't speak TLS at this port"), "{said}");
}
