//! What is in the log is counted once, whatever fails meanwhile.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;
use headcount::{
    config::{Config, SecretUrl},
    error::Part,
    ids::Partition,
    plays::{Play, Recorded, in_kafka::topics},
};
use headcount_support::{OwnKafka, Proxy, Way};
use rdkafka::{
    Message as _, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier},
    config::ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
    message::Headers as _,
    producer::{FutureProducer, FutureRecord},
};
use sqlx::Connection as _;

use super::{PATIENCE, shared_with, world_with};
use crate::world::{World, a_play, eventually, video_id};

/// How many records are counted.
const COUNTED: &str = "select coalesce(sum(next_offset), 0)::bigint from kafka_offset";

/// Counts, and soon: what tests wait for.
pub fn soon(config: &mut Config) {
    config.kafka.consume = true;
    config.kafka.window = Duration::from_millis(10);
    config.kafka.properties.set("session.timeout.ms", "3000");
    config.kafka.properties.set("heartbeat.interval.ms", "500");
}

/// One instance that counts what it has written.
pub async fn world() -> World {
    shared_with(soon).await
}

impl World {
    /// Asks the database for a number.
    pub async fn rows(&self, sql: &'static str) -> i64 {
        let mut database = self.database().await;
        let (number,): (i64,) = sqlx::query_as(sql).fetch_one(&mut database).await.unwrap();
        database.close().await.unwrap();
        number
    }

    /// Tells the database something, as an operator would.
    pub async fn execute(&self, sql: &str) {
        let mut database = self.database().await;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    }

    /// How many records are counted.
    pub async fn counted(&self) -> i64 {
        self.rows(COUNTED).await
    }

    pub async fn views(&self) -> i64 {
        self.rows("select coalesce(sum(views), 0)::bigint from videos").await
    }

    /// Waits until so many records are counted, and no more.
    pub async fn counts(&self, records: i64) {
        let mut database = self.database().await;
        eventually("the log is counted", async || {
            let (counted,): (i64,) = sqlx::query_as(COUNTED).fetch_one(&mut database).await.unwrap();
            assert!(counted <= records, "{counted} of {records} records are counted");
            counted == records
        })
        .await;
        database.close().await.unwrap();
    }

    /// Writes a play and waits for what it comes to.
    pub async fn play_decided(&self, play: Play) -> Recorded {
        let mark = self.key(&format!("video:views:settled:{{{}}}", play.video.partition()));
        let mut mark_now = redis::cmd("GET");
        mark_now.arg(mark);
        let mark = || self.redis_command::<Option<String>>(&mark_now);
        let (records, views, before) = (self.counted().await, self.views().await, mark().await);
        assert_eq!(self.stores.plays.record(play).await.unwrap(), Recorded::Accepted);
        self.counts(records + 1).await;
        if self.views().await == views {
            return Recorded::Duplicate;
        }
        eventually("redis is told", async || mark().await != before).await;
        self.forget_what_was_read();
        Recorded::Counted
    }

    /// Writes plays, many at a time, each until it is taken: so many records, where no write's outcome was
    /// unknown, which is repeated and may be there twice.
    pub async fn write(&self, plays: impl IntoIterator<Item = Play>) -> i64 {
        let plays: Vec<Play> = plays.into_iter().collect();
        for plays in plays.chunks(1_000) {
            let writing = plays.iter().map(async |play| {
                while self.stores.plays.record(play.clone()).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            join_all(writing).await;
        }
        i64::try_from(plays.len()).unwrap()
    }

    /// The books agree, and nothing is left unreported.
    pub async fn books_agree(&self) {
        eventually("the books are read", async || {
            self.stores.audit.read().await.is_ok_and(|audited| audited.unverified().next().is_none())
        })
        .await;
        let audited = self.stores.audit.read().await.unwrap();
        assert_eq!((audited.lost(), audited.unreported()), (0, 0), "{audited:?}");
        assert_eq!(audited.totals().unwrap().views, i128::from(self.views().await));
    }

    /// Writes what is no play.
    pub async fn write_junk(&self, key: &str, value: &str) {
        self.write_junk_of(key, value, None).await;
    }

    /// Writes what is no play, of some time.
    pub async fn write_junk_of(&self, key: &str, value: &str, millis: Option<i64>) {
        let producer: FutureProducer =
            ClientConfig::new().set("bootstrap.servers", &self.config.kafka.brokers).create().unwrap();
        let mut record = FutureRecord::to(&self.config.kafka.topic).key(key).payload(value);
        record.timestamp = millis;
        producer.send(record, PATIENCE).await.unwrap();
    }
}

/// So many plays of some videos, each by a viewer of its own and some of them sent twice.
pub fn plays(round: u32, many: u32) -> impl Iterator<Item = Play> {
    (0..many).flat_map(move |n| {
        let play = a_play(
            &format!("film-{}", n % 50),
            Some(&format!("viewer-{round}-{n}")),
            Some(&format!("p-{round}-{n}")),
        );
        std::iter::repeat_n(play, if n % 10 == 0 { 2 } else { 1 })
    })
}

#[tokio::test]
async fn plays_at_once_are_counted_once_each_and_the_books_agree() {
    let world = world().await;
    let records = world.write(plays(0, 1_000)).await;
    assert_eq!(records, 1_100);
    world.counts(records).await;
    assert_eq!(world.views().await, 1_000);
    assert_eq!(world.rows("select sum(views)::bigint from video_daily").await, 1_000);
    world.books_agree().await;
    // Kafka's own offsets are there for tools that show how far a group is.
    let config = world.config.kafka.clone();
    eventually("kafka is told", async || {
        let config = config.clone();
        tokio::task::spawn_blocking(move || committed(&config.brokers, &config.group, &config.topic))
            .await
            .unwrap()
            == records
    })
    .await;
}

fn committed(brokers: &str, group: &str, topic: &str) -> i64 {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", group).create().unwrap();
    let mut parts = TopicPartitionList::new();
    parts.add_partition_range(topic, 0, 2);
    let told = consumer.committed_offsets(parts, PATIENCE).unwrap();
    told.elements().iter().map(|part| part.offset().to_raw().unwrap().max(0)).sum()
}

/// More than lanes and queues hold, so that parts are paused and go on; and all in one part.
#[tokio::test]
async fn a_backlog_is_counted_to_its_end_with_parts_paused_on_the_way() {
    const VIEWERS: u32 = 20_000;
    let world = shared_with(|config| config.kafka.window_records = 700).await;
    let backlog = (0..VIEWERS).map(|n| a_play("film", Some(&format!("viewer-{n}")), None));
    world.write(backlog).await;
    let counting = world
        .another_with(|config| {
            soon(config);
            config.kafka.window_records = 700;
        })
        .await;
    counting.counts(VIEWERS.into()).await;
    assert_eq!(counting.views().await, i64::from(VIEWERS));
    let count = counting.plays("film").await;
    assert_eq!(count.plays, Some(VIEWERS.into()));
    let viewers = count.unique_viewers.unwrap();
    assert!(viewers.abs_diff(VIEWERS.into()) * 50 <= u64::from(VIEWERS), "{viewers}");
}

#[tokio::test]
async fn what_cant_be_read_is_put_aside_with_the_reason_and_holds_nothing_up() {
    let world = world().await;
    world.write([a_play("film", Some("ann"), None)]).await;
    world.write_junk("film", "{\"v\":1,").await;
    world.write_junk("no video's id: {}", "{\"v\":1,\"viewer\":\"ann\"}").await;
    world.write_junk("film", "{\"v\":99,\"viewer\":\"ann\"}").await;
    world.write([a_play("film", Some("bob"), None)]).await;
    world.counts(5).await;
    assert_eq!(world.views().await, 2);
    let (brokers, topic) = (world.config.kafka.brokers.clone(), world.config.kafka.dead_letter_topic.clone());
    let letters = tokio::task::spawn_blocking(move || letters(&brokers, &topic, 3)).await.unwrap();
    let reasons: BTreeSet<&str> = letters.iter().map(|(reason, _)| reason.as_str()).collect();
    let said = |part: &str| reasons.iter().any(|reason| reason.contains(part));
    assert!(said("it ends too early") && said("no videoId") && said("version 99"), "{reasons:?}");
    assert!(letters.iter().any(|(_, value)| value == "{\"v\":1,"));
}

/// One that brokers would never take as it is would stop its part for ever.
#[tokio::test]
async fn what_the_dead_letter_topic_refuses_for_its_size_or_its_time_is_put_there_all_the_same() {
    let world = world().await;
    let kafka = &world.config.kafka;
    let admin: AdminClient<_> =
        ClientConfig::new().set("bootstrap.servers", &kafka.brokers).create().unwrap();
    let topic = ResourceSpecifier::Topic(&kafka.dead_letter_topic);
    let strict = AlterConfig::new(topic)
        .set("message.timestamp.before.max.ms", "3600000")
        .set("max.message.bytes", "9000");
    admin.alter_configs(&[strict], &AdminOptions::new()).await.unwrap();
    eventually("the topic is strict", async || {
        let told = admin.describe_configs([&topic], &AdminOptions::new()).await.unwrap().remove(0).unwrap();
        told.get("max.message.bytes").is_some_and(|entry| entry.value.as_deref() == Some("9000"))
    })
    .await;
    world.write_junk("film", &"x".repeat(990_000)).await;
    world.write_junk_of("film", "of 1970", Some(1)).await;
    world.write([a_play("film", Some("bob"), None)]).await;
    world.counts(3).await;
    let (brokers, topic) = (kafka.brokers.clone(), kafka.dead_letter_topic.clone());
    let letters = tokio::task::spawn_blocking(move || letters(&brokers, &topic, 2)).await.unwrap();
    assert!(letters.iter().any(|(_, value)| value == &"x".repeat(512)), "{letters:?}");
}

/// Reason and value of each record.
fn letters(brokers: &str, topic: &str, many: usize) -> Vec<(String, String)> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).set("group.id", "reads").create().unwrap();
    let mut parts = TopicPartitionList::new();
    parts.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&parts).unwrap();
    let until = std::time::Instant::now() + PATIENCE;
    let mut letters = Vec::new();
    while letters.len() < many {
        assert!(std::time::Instant::now() < until, "{letters:?}");
        let Some(Ok(letter)) = consumer.poll(Duration::from_millis(100)) else { continue };
        let headers = letter.headers().unwrap();
        let names: Vec<&str> = headers.iter().map(|header| header.key).collect();
        assert!(names.starts_with(&["reason", "topic", "partition", "offset"]), "{names:?}");
        let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
        letters.push((text(headers.get(0).value), text(letter.payload())));
    }
    letters
}

/// [lobehub#14444] A way to the database that is dark, and answers of commits that are lost.
#[tokio::test]
async fn while_the_database_is_away_plays_wait_in_the_log_and_each_is_counted_once_after() {
    let world = shared_with(|_| {}).await;
    let proxy = Proxy::to(world.config.postgres.url.expose()).await;
    let through = proxy.by(world.config.postgres.url.expose());
    let counting = world
        .another_with(|config| {
            soon(config);
            config.postgres.url = SecretUrl::new(through);
            config.postgres.deadline = Duration::from_millis(500);
        })
        .await;
    let mut records = world.write(plays(0, 200)).await;
    world.counts(records).await;
    for (round, way) in [(1, Way::Dark), (2, Way::DeafAfter("commit\0")), (3, Way::Cut)] {
        proxy.set(way);
        let views = world.views().await;
        records += world.write(plays(round, 200)).await;
        eventually(&format!("it is in trouble, {way:?}"), async || {
            if way == Way::DeafAfter("commit\0") {
                // It is counted, and who counted it isn't told.
                return world.views().await > views;
            }
            counting.stores.health.check().await.degraded.contains(&Part::Postgres)
        })
        .await;
        proxy.set(Way::Open);
        world.counts(records).await;
    }
    assert_eq!(world.views().await, 800);
    counting.books_agree().await;
}

/// The same window would take as long again, and the log be counted no further.
#[tokio::test]
async fn a_window_that_is_too_much_for_the_database_is_counted_in_smaller_ones() {
    let world = shared_with(|_| {}).await;
    world
        .execute(
            "create function slow() returns trigger language plpgsql as
                'begin perform pg_sleep(0.01); return new; end';
            create trigger slow before insert on play_seen for each row execute function slow()",
        )
        .await;
    world.write((0..120).map(|n| a_play("film", Some(&format!("viewer-{n}")), None))).await;
    let counting = world
        .another_with(|config| {
            soon(config);
            config.kafka.window = Duration::from_secs(1);
            config.postgres.deadline = Duration::from_millis(500);
        })
        .await;
    counting.counts(120).await;
    assert_eq!(counting.views().await, 120);
    counting.books_agree().await;
}

/// One partition's totals that can't be raised, as where a node of a cluster is away, make no other's stale.
#[tokio::test]
async fn totals_are_raised_where_others_cant_be_and_those_once_they_can() {
    let world = world().await;
    let films = ["film-0", "film-1", "film-2", "film-3"].map(|film| (film, video_id(film).partition()));
    let (_, first) = films.into_iter().min_by_key(|(_, partition)| partition.number()).unwrap();
    let play = |film: &str, viewer: &str| a_play(film, Some(viewer), None);
    world.write(films.map(|(film, _)| play(film, "ann"))).await;
    world.counts(4).await;
    for (film, _) in films {
        assert_eq!(world.plays(film).await.plays, Some(1));
    }
    // What a script can't read.
    let settled = world.key(&format!("video:views:settled:{{{first}}}"));
    world.redis_command::<i64>(redis::cmd("DEL").arg(&settled)).await;
    world.redis_command::<i64>(redis::cmd("LPUSH").arg(&settled).arg("x")).await;
    world.write(films.map(|(film, _)| play(film, "bob"))).await;
    world.counts(8).await;
    let kept = async |film: &str, partition: Partition| {
        let total = world.key(&format!("video:views:total:{{{partition}}}:{film}"));
        world.redis_command::<Option<String>>(redis::cmd("GET").arg(total)).await
    };
    for (film, partition) in films.into_iter().filter(|(_, partition)| *partition != first) {
        eventually("the others are raised", async || kept(film, partition).await.as_deref() == Some("2"))
            .await;
    }
    world.redis_command::<i64>(redis::cmd("DEL").arg(&settled)).await;
    for (film, partition) in films {
        eventually("all are raised", async || kept(film, partition).await.as_deref() == Some("2")).await;
    }
}

/// A replica that was behind leads now, or a snapshot was put back.
#[tokio::test]
async fn totals_are_raised_again_where_redis_came_back_older() {
    let world = shared_with(|_| {}).await;
    let proxy = Proxy::to(world.config.redis.url.expose()).await;
    let through = proxy.by(world.config.redis.url.expose());
    let _counting = world
        .another_with(|config| {
            soon(config);
            config.redis.url = SecretUrl::new(through);
        })
        .await;
    let total = world.key(&format!("video:views:total:{{{}}}:film", video_id("film").partition()));
    let mut kept = redis::cmd("GET");
    kept.arg(&total);
    world.write((0..10).map(|n| a_play("film", Some(&format!("viewer-{n}")), None))).await;
    world.counts(10).await;
    assert_eq!(world.plays("film").await.plays, Some(10));
    proxy.set(Way::Cut);
    world.redis_command::<String>(redis::cmd("SET").arg(&total).arg(3).arg("EX").arg(3_600)).await;
    proxy.set(Way::Open);
    let raised = async || world.redis_command::<String>(&kept).await == "10";
    eventually("redis is told again", raised).await;
}

/// Redis decides nothing: without it plays are counted on, and its totals are right once it is back.
#[tokio::test]
async fn while_redis_is_away_or_empty_plays_are_counted_and_totals_are_right_after() {
    let world = shared_with(|_| {}).await;
    let proxy = Proxy::to(world.config.redis.url.expose()).await;
    let through = proxy.by(world.config.redis.url.expose());
    let counting = world
        .another_with(|config| {
            soon(config);
            config.redis.url = SecretUrl::new(through);
            config.redis.deadline = Duration::from_millis(300);
        })
        .await;
    let total = async || world.plays("film").await.plays;
    let play = |n: u32| a_play("film", Some(&format!("viewer-{n}")), None);
    world.write((0..10).map(play)).await;
    world.counts(10).await;
    assert_eq!(total().await, Some(10));
    // What Redis keeps now is too little afterwards, and would be for an hour.
    proxy.set(Way::Dark);
    world.write((10..20).map(play)).await;
    world.counts(20).await;
    proxy.set(Way::Open);
    eventually("redis is told", async || {
        world.forget_what_was_read();
        total().await == Some(20)
    })
    .await;
    // Killed between counting and telling: whoever counts next tells.
    proxy.set(Way::Dark);
    world.write((20..30).map(play)).await;
    world.counts(30).await;
    counting.stop().await;
    let next = world.another_with(soon).await;
    eventually("redis is told", async || {
        world.forget_what_was_read();
        total().await == Some(30)
    })
    .await;
    // All that Redis had of plays is gone.
    let keys = next.redis_keys().await.into_iter().filter(|key| key.starts_with("video:views:"));
    let keys: Vec<String> = keys.map(|key| world.key(&key)).collect();
    world.redis_command::<i64>(redis::cmd("DEL").arg(keys)).await;
    world.write((30..40).map(play)).await;
    world.counts(40).await;
    world.forget_what_was_read();
    assert_eq!(total().await, Some(40));
    next.books_agree().await;
}

#[tokio::test]
async fn a_broker_that_is_killed_under_load_costs_no_play_and_doubles_none() {
    let mut kafka = OwnKafka::start(1, &[]).await;
    let world = world_with(&kafka.addresses(), 1, soon).await;
    let mut records = world.write(plays(0, 2_000)).await;
    // Not all is counted yet, or it is: either way none is lost.
    kafka.kill(0).await;
    kafka.start_again(0).await;
    records += world.write(plays(1, 500)).await;
    // A write whose answer was lost is made again, and may be in the log twice; it counts once.
    eventually("the log is counted", async || {
        world.counted().await >= records && world.views().await == 2_500
    })
    .await;
    world.books_agree().await;
}

#[tokio::test]
async fn a_topic_made_anew_is_counted_from_its_beginning() {
    let world = world().await;
    let records = world.write(plays(0, 100)).await;
    world.counts(records).await;
    world.write_junk("film", "no play").await;
    world.counts(records + 1).await;
    let admin: rdkafka::admin::AdminClient<_> =
        ClientConfig::new().set("bootstrap.servers", &world.config.kafka.brokers).create().unwrap();
    let options = rdkafka::admin::AdminOptions::new();
    admin.delete_topics(&[&world.config.kafka.topic], &options).await.unwrap();
    eventually("the topic is there again", async || {
        topics::make(&world.config.kafka).await.is_ok_and(|made| made[0].made)
    })
    .await;
    // More than there was: from where the old one was left some would be passed over.
    world.write(plays(1, 300)).await;
    eventually("all of it is counted", async || world.views().await == 400).await;
    assert_eq!(world.rows("select count(*) from kafka_offset").await, 6);
    assert_eq!(world.plays("film-0").await.plays, Some(8));
    let play = a_play("film-0", Some("viewer-1-0"), None);
    assert_eq!(world.play_decided(play).await, Recorded::Duplicate);
    assert!(world.stores.videos.existing(&[video_id("film-1")]).await.unwrap().len() == 1);
}
