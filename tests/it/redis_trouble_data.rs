//! Redis restarts with its data, without it, or slowly; its scripts go; it can't save; its password
//! changes. As in `redis_trouble`, each on a server of the test's own.

use std::time::Duration;

use futures::future::join_all;
use headcount::{
    backend,
    clock::SystemClock,
    config::{Config, SecretUrl},
    error::Part,
    lifecycle::Lifecycle,
    plays::Recorded,
};
use headcount_support::OwnRedis;

use crate::world::{World, a_play, eventually, secs};

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

async fn world_by(redis: &OwnRedis, query: &str) -> World {
    World::redis_with(|config| config.redis.url = SecretUrl::new(redis.url(query))).await
}

impl World {
    /// Sends a play until it is answered, as a player does.
    async fn play_surely(&self, video: &str, viewer: &str) -> Recorded {
        let mut recorded = None;
        eventually("the play is answered", async || {
            let result = self.stores.plays.record(a_play(video, Some(viewer), None)).await;
            recorded = result.inspect_err(|error| assert!(error.is_transient(), "{error}")).ok();
            recorded.is_some()
        })
        .await;
        recorded.unwrap()
    }

    async fn is_ready(&self) -> bool {
        self.stores.health.check().await.failed.is_empty()
    }

    async fn is_not_ready(&self) -> bool {
        let failed = self.stores.health.check().await.failed;
        failed.iter().any(|error| error.part() == Part::Redis && error.is_transient())
    }
}

fn words(words: &[&str]) -> redis::Cmd {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command
}

#[tokio::test]
async fn after_a_restart_with_its_data_each_play_counts_once_and_what_was_counted_is_known() {
    let mut redis = OwnRedis::start(&DURABLE).await;
    let world = world_by(&redis, "").await;
    let viewers: Vec<String> = (0..100).map(|viewer| format!("viewer-{viewer}")).collect();
    // Before, while and after it is killed.
    let sent = join_all(viewers.iter().map(async |viewer| {
        tokio::task::yield_now().await;
        world.play_surely("film", viewer).await
    }));
    let killed = async {
        redis.kill().await;
        redis.start_again().await;
    };
    futures::future::join(sent, killed).await;
    // Another instance, which can't know by itself.
    let another = world.another().await;
    for viewer in &viewers {
        assert_eq!(another.play_surely("film", viewer).await, Recorded::Duplicate);
    }
    world.flush().await;
    assert_eq!(another.plays("film").await.plays, Some(100));
}

#[tokio::test]
async fn a_redis_that_lost_its_data_costs_plays_not_yet_flushed_and_no_total_steps_back() {
    let mut redis = OwnRedis::start(&[]).await;
    let world = world_by(&redis, "").await;
    for viewer in 0..5 {
        world.play_surely("film", &format!("viewer-{viewer}")).await;
    }
    world.flush().await;
    for viewer in 5..8 {
        world.play_surely("film", &format!("viewer-{viewer}")).await;
    }
    let before = world.plays("film").await;
    assert_eq!((before.plays, before.stale), (Some(8), false));
    redis.kill().await;
    redis.start_again().await;
    eventually("it is ready", async || world.is_ready().await).await;
    world.forget_what_was_read();
    let after = world.plays("film").await;
    assert_eq!((after.plays, after.stale, after.as_of), (Some(8), true, before.as_of), "what was right then");
    let another = world.another().await;
    assert_eq!(another.plays("film").await.plays, Some(5), "the others are lost");
    // A minute of doubt is worth more than a total that goes back and forth; then the store is right.
    world.pass(secs(601));
    world.play_surely("film", "viewer-9").await;
    world.flush().await;
    for world in [&world, &another] {
        world.forget_what_was_read();
        let count = world.plays("film").await;
        assert_eq!((count.plays, count.stale), (Some(6), false), "none twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_go_again_and_again_under_load_cost_nobody_anything() {
    let redis = OwnRedis::start(&[]).await;
    let world = world_by(&redis, "").await;
    let load = join_all((0..400).map(async |viewer| {
        let viewer = format!("viewer-{viewer}");
        world.play_surely("film", &viewer).await;
        eventually("the beat is taken", async || world.try_beat("film", &viewer).await.is_ok()).await;
        tokio::task::yield_now().await;
        world.play_surely("song", &viewer).await
    }));
    let forget = async {
        for _ in 0..100 {
            redis.query::<String>(words(&["SCRIPT", "FLUSH"])).await.unwrap();
            world.run_jobs("flush").await;
        }
    };
    let (recorded, ()) = futures::future::join(load, forget).await;
    assert_eq!(recorded.len(), 400);
    world.flush().await;
    for video in ["film", "song"] {
        assert_eq!(world.plays(video).await.plays, Some(400));
    }
    assert_eq!(world.swept_count("film").await, Some(400));
}

/// It answers meanwhile: "LOADING".
#[tokio::test]
async fn while_redis_loads_its_data_beats_and_plays_are_refused_and_then_all_is_there() {
    let slow = ["--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"];
    let mut redis = OwnRedis::start(&slow).await;
    let world = world_by(&redis, "").await;
    world.play_surely("film", "ann").await;
    world.beat("film", "ann").await;
    let fill = "for n = 1, 4000 do redis.call('SET', 'filler:' .. n, n) end return 'OK'";
    redis.query::<String>(words(&["EVAL", fill, "0"])).await.unwrap();
    redis.query::<String>(words(&["SAVE"])).await.unwrap();
    redis.kill().await;
    redis.begin_again();
    let is_loading = async || {
        let asked = redis.query::<String>(words(&["GET", "filler:1"])).await;
        asked.is_err_and(|error| error.code() == Some("LOADING"))
    };
    eventually("it is loading", is_loading).await;
    let mut refused = 0;
    while is_loading().await {
        let play = world.stores.plays.record(a_play("film", Some("ben"), None)).await;
        let (ready, beat) = (world.is_ready().await, world.try_beat("film", "bob").await);
        if is_loading().await {
            assert!(!ready && beat.is_err_and(|error| error.is_transient()));
            assert!(play.is_err_and(|error| error.is_transient()));
            refused += 1;
        }
    }
    assert!(refused > 0, "it took longer to ask than to load");
    world.play_surely("film", "ben").await;
    assert_eq!(world.play_surely("film", "bob").await, Recorded::Counted);
    assert_eq!(world.play_surely("film", "ann").await, Recorded::Duplicate);
    eventually("beats are taken", async || world.try_beat("film", "bob").await.is_ok()).await;
    assert_eq!(world.another().await.plays("film").await.plays, Some(3));
}

/// "MISCONF": its disk is full, or its folder is gone.
#[tokio::test]
async fn a_redis_that_can_not_save_refuses_writes_and_takes_them_when_it_can() {
    let redis = OwnRedis::start(&["--save", "3600 1"]).await;
    let world = world_by(&redis, "").await;
    world.play_surely("film", "ann").await;
    world.flush().await;
    // A folder where its file should be.
    let in_the_way = redis.folder().join("dump.rdb");
    std::fs::create_dir(&in_the_way).unwrap();
    std::fs::write(in_the_way.join("file"), "").unwrap();
    let saved = async |wanted: &str| {
        redis.query::<String>(words(&["BGSAVE"])).await.ok();
        let info: String = redis.query(words(&["INFO", "persistence"])).await.unwrap();
        info.contains(&format!("rdb_last_bgsave_status:{wanted}"))
    };
    eventually("it can't save", async || saved("err").await).await;
    eventually("it isn't ready", async || world.is_not_ready().await).await;
    let play = a_play("film", Some("bob"), None);
    let refused = world.stores.plays.record(play).await.unwrap_err();
    assert!(refused.is_transient() && refused.to_string().contains("MISCONF"), "{refused}");
    let count = world.plays("film").await;
    assert_eq!(count.plays, Some(1), "it is still read");
    std::fs::remove_dir_all(in_the_way).unwrap();
    eventually("it can save", async || saved("ok").await).await;
    assert_eq!(world.play_surely("film", "bob").await, Recorded::Counted);
    assert!(world.is_ready().await);
}

#[tokio::test]
async fn a_password_that_is_wrong_at_the_start_is_not_ready_and_tried_until_it_is_right() {
    let redis = OwnRedis::start(&[]).await;
    redis.query::<String>(words(&["CONFIG", "SET", "requirepass", "right"])).await.unwrap();
    let mut config: Config = World::redis().await.config.clone();
    config.redis.url = SecretUrl::new(redis.url("?pass=wrong"));
    let lifecycle = Lifecycle::new(Duration::ZERO, secs(20));
    let stores = backend::open(&config, &lifecycle, SystemClock::start()).await.unwrap();
    for _ in 0..3 {
        let failed = stores.health.check().await.failed;
        assert!(failed.iter().any(|error| error.part() == Part::Redis && error.is_transient()), "{failed:?}");
        assert!(failed.iter().all(|error| !error.to_string().contains("wrong")), "{failed:?}");
    }
    let play = a_play("film", Some("ann"), None);
    assert!(stores.plays.record(play.clone()).await.is_err_and(|error| error.is_transient()));
    redis.query_by::<String>("?pass=right", words(&["CONFIG", "SET", "requirepass", "wrong"])).await.unwrap();
    eventually("it is ready", async || stores.health.check().await.failed.is_empty()).await;
    eventually("plays are taken", async || stores.plays.record(play.clone()).await.is_ok()).await;
    lifecycle.stop();
    lifecycle.run().await;
}

#[tokio::test]
async fn a_password_that_changes_disturbs_no_connection_and_one_that_breaks_waits_for_the_right_one() {
    let redis = OwnRedis::start(&[]).await;
    redis.query::<String>(words(&["CONFIG", "SET", "requirepass", "old"])).await.unwrap();
    let world = world_by(&redis, "?pass=old").await;
    let set = async |old: &str, new: &str| {
        let set = words(&["CONFIG", "SET", "requirepass", new]);
        redis.query_by::<String>(old, set).await.unwrap();
    };
    set("?pass=old", "new").await;
    assert_eq!(world.play("film", Some("ann"), None).await, Recorded::Counted, "it was let in before");
    assert!(world.is_ready().await);
    let end = words(&["CLIENT", "KILL", "TYPE", "normal"]);
    redis.query_by::<i64>("?pass=new", end).await.unwrap();
    eventually("it is missed", async || world.is_not_ready().await).await;
    let play = a_play("film", Some("bob"), None);
    assert!(world.stores.plays.record(play).await.is_err_and(|error| error.is_transient()));
    set("?pass=new", "old").await;
    assert_eq!(world.play_surely("film", "bob").await, Recorded::Counted);
    assert_eq!(world.plays("film").await.plays, Some(2));
}
