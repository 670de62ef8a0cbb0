//! What the users of docs/security.md may do: all that the service needs, and no more than it uses.
//!
//! Every world runs as these users (`world.rs`), so each law is also one about their rights.

use std::{collections::BTreeSet, path::Path};

use headcount::config::{self, SecretUrl};
use headcount_support::{OwnRedis, service};
use sqlx::{Connection as _, Executor as _};
use tokio::sync::OnceCell;
use url::Url;

use crate::world::World;

const PAGE: &str = include_str!("../../docs/security.md");
/// The one that the page leaves open.
pub const PASSWORD: &str = "wordofatest";

/// The only block of the page that begins so, without its first line where that is a comment.
fn block(begins: &str) -> &'static str {
    let blocks = PAGE.split("\n```").filter_map(|block| Some(block.split_once('\n')?.1));
    let found: Vec<&str> = blocks.filter(|block| block.starts_with(begins)).collect();
    assert_eq!(found.len(), 1, "docs/security.md has one block that begins with {begins:?}");
    found[0]
}

/// The rules of the documented user, for keys with any prefix.
fn redis_rules() -> Vec<String> {
    let line = block("user headcount ").trim();
    let rules = line.split(' ').skip(2).map(|rule| match rule {
        ">PASSWORD" => format!(">{PASSWORD}"),
        keys if keys.starts_with('~') => keys.replace('~', "~*"),
        rule => rule.to_owned(),
    });
    rules.collect()
}

fn set_user(rules: &[String]) -> redis::Cmd {
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER").arg("headcount").arg("reset").arg(rules);
    set
}

/// The address of the Redis that tests share, as the documented user.
pub async fn of_shared_redis() -> SecretUrl {
    static MADE: OnceCell<()> = OnceCell::const_new();
    let server = service("TEST_REDIS_URL");
    MADE.get_or_init(async || {
        let mut connection = headcount_support::redis_connection(&server).await.unwrap();
        let () = set_user(&redis_rules()).query_async(&mut connection).await.unwrap();
    })
    .await;
    as_user(&server)
}

fn as_user(server: &str) -> SecretUrl {
    let mut url = Url::parse(server).unwrap();
    url.set_username("headcount").unwrap();
    url.set_password(Some(PASSWORD)).unwrap();
    SecretUrl::new(url.to_string())
}

/// An address as the owner of the server that tests share has it; another as it is.
pub fn as_owner(address: &SecretUrl, shared: &str) -> String {
    let mut url = Url::parse(address.expose()).unwrap();
    if url.username() == "headcount" {
        let owner = Url::parse(&service(shared)).unwrap();
        url.set_username(owner.username()).unwrap();
        url.set_password(owner.password()).unwrap();
    }
    url.to_string()
}

/// Brings the schema up to date as the owner, and makes these the settings of the documented role.
pub async fn grant(settings: &mut config::Postgres) {
    let owner = headcount::store::postgres::Postgres::new(settings).unwrap();
    owner.migrate().await.unwrap();
    let mut connection = sqlx::PgConnection::connect(settings.url.expose()).await.unwrap();
    // Roles are the whole server's: others may make it at the same time.
    let role = format!(
        "do $$ begin create role headcount login password '{PASSWORD}'; \
         exception when duplicate_object or unique_violation then null; end $$"
    );
    connection.execute(sqlx::AssertSqlSafe(role)).await.unwrap();
    connection.close().await.unwrap();
    grant_by(settings.url.expose()).await;
    settings.url = as_user(settings.url.expose());
    settings.migrate = false;
}

/// Makes the documented roles and their database on a server of the test's own.
pub async fn make_roles(administrator: &str) {
    let mut connection = sqlx::PgConnection::connect(administrator).await.unwrap();
    let text = block("-- As an administrator, once:").replace("PASSWORD", PASSWORD);
    // One by one: a database can't be made in a transaction, which several together are.
    for statement in text.split(';').filter(|statement| !statement.trim().is_empty()) {
        connection.execute(sqlx::AssertSqlSafe(statement.to_owned())).await.unwrap();
    }
}

/// Grants what is documented, as the owner at this address.
pub async fn grant_by(owner: &str) {
    let mut connection = sqlx::PgConnection::connect(owner).await.unwrap();
    connection.execute(block("-- In the database headcount:")).await.unwrap();
}

/// The words in capitals, between quotes, of the files that are no tests.
fn words(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            words(&path, found);
        } else if name != "tests.rs" && path.extension().is_some_and(|it| it == "rs" || it == "lua") {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let is_word = |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
            found.extend(text.split(['"', '\'']).filter(is_word).map(str::to_lowercase));
        }
    }
}

#[tokio::test]
async fn the_user_in_redis_may_use_what_is_used_and_nothing_else() {
    let mut used = BTreeSet::new();
    words(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut used);
    let mut connection = headcount_support::redis_connection(&service("TEST_REDIS_URL")).await.unwrap();
    let mut list = redis::cmd("COMMAND");
    let known: BTreeSet<String> = list.arg("LIST").query_async(&mut connection).await.unwrap();
    used.retain(|word| known.contains(word));
    // What is asked for only where it may be: the page says what it is good for.
    assert!(used.remove("config"));
    // What only a cluster is asked.
    assert!(used.remove("cluster") && used.remove("asking"));
    // What a replica answers; as a command it would be for reading from one.
    assert!(used.remove("readonly"));
    let rules = redis_rules();
    let allowed = rules.iter().filter_map(|rule| rule.strip_prefix('+'));
    let allowed: BTreeSet<String> = allowed.map(|rule| rule.split('|').next().unwrap().to_owned()).collect();
    assert_eq!(allowed, used);
    for whole in ["+object", "+script"] {
        assert!(rules.iter().all(|rule| rule != whole), "{whole} is more than is used of it");
    }
}

/// Where an operator looks for what a user was refused.
async fn refused(redis: &OwnRedis) -> Vec<String> {
    let mut log = redis::cmd("ACL");
    log.arg("LOG");
    let entries: Vec<std::collections::HashMap<String, redis::Value>> = redis.query(log).await.unwrap();
    let object = |entry: &std::collections::HashMap<String, redis::Value>| {
        redis::from_redis_value(entry["object"].clone()).unwrap()
    };
    entries.iter().map(object).collect()
}

#[tokio::test]
async fn a_day_of_the_service_leaves_nothing_in_the_log_of_refusals() {
    let redis = OwnRedis::start(&["--appendonly", "yes"]).await;
    redis.query::<()>(set_user(&redis_rules())).await.unwrap();
    let url = redis.url(&format!("?user=headcount&pass={PASSWORD}"));
    let world = World::redis_with(|config| {
        config.redis.url = SecretUrl::new(url);
        config.presence.viewers_per_shard = 10;
    })
    .await;
    world.beat_all("film", 0..100).await;
    world.leave("film", "viewer-1").await;
    for _ in 0..3 {
        world.pass_swept(4).await;
        world.beat_all("film", 0..20).await;
        world.play("film", Some("ann"), Some("one")).await;
        world.flush().await;
    }
    assert_eq!(world.swept_count("film").await, Some(20));
    assert_eq!(world.plays("film").await.plays, Some(1));
    let report = headcount::doctor::examine(&world.config, world.clock.as_ref()).await;
    assert!(report.table().contains("config|get"), "CONFIG GET is refused:\n{}", report.table());
    let refused = refused(&redis).await;
    assert!(refused.iter().all(|what| what == "config|get"), "{refused:?}");

    let mut foreign = redis::cmd("SET");
    foreign.arg("another:key").arg("1");
    let by = format!("?user=headcount&pass={PASSWORD}");
    let answer = redis.query_by::<()>(&by, foreign).await;
    assert_eq!(answer.unwrap_err().code(), Some("NOPERM"));
    let answer = redis.query_by::<()>(&by, redis::cmd("FLUSHALL")).await;
    assert_eq!(answer.unwrap_err().code(), Some("NOPERM"));
}

#[tokio::test]
async fn the_role_in_postgres_can_change_no_schema_and_remove_no_video_and_every_table_is_granted() {
    let world = World::redis().await;
    let mut role = sqlx::PgConnection::connect(world.config.postgres.url.expose()).await.unwrap();
    for forbidden in [
        "create table mine (id int)",
        "drop table videos",
        "alter table videos drop column views",
        "delete from videos",
        "truncate play_batch",
        "delete from play_adjustment",
        "update _sqlx_migrations set success = false",
    ] {
        let error = role.execute(forbidden).await.unwrap_err();
        let code = error.as_database_error().and_then(|error| error.code().map(Into::into));
        assert_eq!(code, Some("42501".to_owned()), "{forbidden}: {error}");
    }
    let tables = "select tablename::text from pg_tables where schemaname = 'public'";
    let tables: Vec<String> = sqlx::query_scalar(tables).fetch_all(&mut role).await.unwrap();
    let granted = block("-- In the database headcount:");
    for table in tables {
        assert!(granted.contains(&table), "docs/security.md grants nothing on {table}");
    }
}
