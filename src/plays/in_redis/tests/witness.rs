//! What an instance reports, and what becomes of plays whose answer was lost.

use std::time::Duration;

use uuid::Uuid;

use super::{super::record::RECORD, Proxy, Way, World, eventually, play, video, world};
use crate::{
    clock::{SystemClock, Timestamp},
    config::{Config, SecretUrl},
    error::StoreError,
    plays::Recorded,
};

impl World {
    /// The rows of the witnesses, those of the nil id as `None`.
    async fn witnesses(&self) -> Vec<(Option<Uuid>, i16, i64)> {
        let rows = "select nullif(instance, '00000000-0000-0000-0000-000000000000'), partition, plays
            from play_witness order by instance, partition";
        self.select(sqlx::query_as(rows)).await
    }

    async fn witnessed(&self) -> i64 {
        self.witnesses().await.iter().map(|(_, _, plays)| plays).sum()
    }

    async fn behind_proxies(change: impl FnOnce(&mut Config)) -> (Self, Proxy, Proxy) {
        let direct = world::settings().await;
        let redis = Proxy::to(direct.redis.url.expose()).await;
        let postgres = Proxy::to(direct.postgres.url.expose()).await;
        let mut config = direct.clone();
        config.redis.url = SecretUrl::new(redis.by(direct.redis.url.expose()));
        config.redis.deadline = Duration::from_millis(500);
        config.postgres.url = SecretUrl::new(postgres.by(direct.postgres.url.expose()));
        change(&mut config);
        (Self::open(direct, config, SystemClock::start()).await, redis, postgres)
    }
}

#[tokio::test]
async fn counts_are_reported_whole_and_only_where_they_grew() {
    let world = World::new().await;
    let partition = video("1").partition().number();
    world.report().await;
    assert_eq!(world.witnesses().await, [], "nothing was counted");
    world.played("1", 5).await;
    for _ in 0..3 {
        world.report().await;
    }
    let [(instance, told, 5)] = world.witnesses().await[..] else { panic!("{:?}", world.witnesses().await) };
    assert_eq!((instance.is_some(), told), (true, partition));
    assert_eq!(world.record(play("1", "ann", "")).await.unwrap(), Recorded::Counted);
    let elsewhere = world.instance();
    for result in elsewhere.writer.write(&[play("1", "ann", "")]).await {
        assert_eq!(result.unwrap(), Recorded::Duplicate);
    }
    elsewhere.witness.tell().await.unwrap();
    world.report().await;
    assert_eq!(world.witnesses().await, [(instance, partition, 6)]);
}

#[tokio::test]
async fn what_could_not_be_reported_is_reported_later() {
    let (world, _redis, postgres) = World::behind_proxies(|_| {}).await;
    world.played("1", 5).await;
    postgres.set(Way::Cut);
    eventually("postgres is missed", async || world.postgres.is_down()).await;
    assert!(world.plays.witness.tell().await.is_err());
    world.played("1", 2).await;
    postgres.set(Way::Open);
    eventually("postgres is back", async || !world.postgres.is_down()).await;
    world.report().await;
    assert_eq!(world.witnessed().await, 7);
}

#[tokio::test]
async fn without_redis_what_was_counted_is_still_reported() {
    let (world, redis, _postgres) = World::behind_proxies(|_| {}).await;
    world.played("1", 5).await;
    redis.set(Way::Cut);
    eventually("redis is missed", async || world.redis.connection().is_err()).await;
    world.report().await;
    assert_eq!(world.witnessed().await, 5);
}

#[tokio::test]
async fn a_month_after_its_last_report_an_instance_is_folded_and_one_that_wakes_goes_on_under_a_new_id() {
    let (world, clock) = World::at(Timestamp::from_secs(1_000_000), |_| {}).await;
    let gone = World::beside(&world).await;
    let late = World::beside(&world).await;
    for (instance, plays) in [(&gone, 3), (&late, 4), (&world, 5)] {
        instance.played("1", plays).await;
        instance.played("2", 1).await;
        instance.report().await;
    }
    let ids = world.witnesses().await;
    let own = "update play_witness set reported_at = now() - interval '31 days' where plays in (3, 4) or instance in
        (select instance from play_witness where plays in (3, 4))";
    world.operate(own).await;
    for _ in 0..2 {
        world.plays.upkeep.forget_batches().await.unwrap();
        world.plays.books().fold().await;
        let rows = world.witnesses().await;
        assert_eq!(rows.len(), 4, "{rows:?}");
        let folded: Vec<i64> = rows.iter().filter(|row| row.0.is_none()).map(|row| row.2).collect();
        assert_eq!(folded.iter().sum::<i64>(), 9, "{rows:?}");
        assert_eq!(world.witnessed().await, 15);
    }
    // One that couldn't report for so long counts on.
    clock.advance(Duration::from_secs(30 * 24 * 3_600));
    late.played("1", 10).await;
    late.report().await;
    assert_eq!(world.witnessed().await, 25);
    late.played("1", 1).await;
    late.played("2", 1).await;
    late.report().await;
    late.report().await;
    let rows = world.witnesses().await;
    assert_eq!(world.witnessed().await, 27, "{rows:?}");
    let new: Vec<_> = rows.iter().filter(|row| row.0.is_some() && !ids.contains(row)).collect();
    assert_eq!(new.iter().map(|row| row.2).sum::<i64>(), 12, "{rows:?}");
    world.flush_all().await;
    world.assert_nothing_is_amiss("after all").await;
}

#[tokio::test]
async fn what_a_database_that_came_back_older_no_longer_knows_is_reported_again() {
    let world = World::new().await;
    for forgotten in ["true", "plays = 5"] {
        world.played("1", 5).await;
        world.played("2", 3).await;
        world.report().await;
        let told = world.witnesses().await;
        world.operate(&format!("delete from play_witness where {forgotten}")).await;
        world.played("1", 1).await;
        world.report().await;
        let rows = world.witnesses().await;
        assert_eq!(rows.len(), 2, "{told:?} {rows:?}");
        world.flush_all().await;
        world.assert_nothing_is_amiss(forgotten).await;
    }
    assert_eq!(world.witnessed().await, 18);
}

#[tokio::test]
async fn calls_without_an_answer_are_looked_up_many_at_once_and_each_tells_its_own() {
    let world = World::new().await;
    let (keys, unanswered) = (world.direct.keys(), world.plays.witness.unanswered());
    for number in 0..250_u32 {
        let (id, viewer) = (format!("v{}", number % 40), format!("ann{number}"));
        let (sent, video) = (play(&id, &viewer, ""), video(&id));
        let seen = keys.seen_viewer(video.partition(), &video, sent.viewer.as_ref().unwrap());
        // Every other one was another's.
        let token = if number % 2 == 0 { number } else { number + 1_000 };
        world.ask::<String>(&format!("SET {seen} {token}")).await;
        unanswered.keep(keys, number, &[(0, &sent)]);
    }
    world.report().await;
    assert_eq!((world.witnessed().await, unanswered.plays()), (125, 125));
}

#[tokio::test]
async fn the_last_report_tells_what_is_known_though_calls_without_an_answer_cant_be_looked_up() {
    let (world, redis, _postgres) =
        World::behind_proxies(|config| config.redis.deadline = Duration::from_secs(60)).await;
    world.played("1", 5).await;
    let sent = play("2", "ann", "");
    world.plays.witness.unanswered().keep(world.direct.keys(), 7, &[(0, &sent)]);
    redis.set(Way::Deaf);
    for job in world.plays.jobs() {
        if job.name() == "witness" {
            job.finish().await;
        }
    }
    assert_eq!(world.witnessed().await, 5);
}

#[tokio::test]
async fn an_instance_that_counts_nothing_says_daily_that_it_is_there() {
    let (world, clock) = World::at(Timestamp::from_secs(1_000_000), |_| {}).await;
    world.played("1", 5).await;
    world.report().await;
    world.operate("update play_witness set reported_at = now() - interval '31 days'").await;
    let old = async || {
        let old = "select count(*) from play_witness where reported_at < now() - interval '30 days'";
        world.select::<(i64,)>(sqlx::query_as(old)).await[0].0
    };
    world.report().await;
    assert_eq!(old().await, 1, "it has nothing to tell");
    clock.advance(Duration::from_secs(24 * 3_600));
    world.report().await;
    assert_eq!(old().await, 0);
    assert_eq!(world.witnessed().await, 5);
}

#[tokio::test]
async fn plays_whose_answer_was_lost_are_witnessed_in_the_end() {
    let (world, redis, _postgres) = World::behind_proxies(|_| {}).await;
    for (round, lost) in [Way::Deaf, Way::CutAfter("EVALSHA"), Way::Deaf].into_iter().enumerate() {
        // Of several partitions, some of them twice in a call.
        let sent: Vec<_> = (0..60)
            .map(|n| {
                play(
                    &format!("v{}", n % 20),
                    &format!("ann{}-{round}", n % 7),
                    &format!("x{}-{round}", n % 9),
                )
            })
            .collect();
        redis.set(lost);
        let results = world.plays.writer.write(&sent).await;
        assert!(
            results.iter().all(|result| matches!(result, Err(StoreError::Unavailable { .. }))),
            "{lost:?}"
        );
        redis.set(Way::Open);
        eventually("redis is back", async || world.redis.connection().is_ok()).await;
        // The player sends them again, and nobody counts them.
        for result in world.plays.writer.write(&sent).await {
            assert_eq!(result.unwrap(), Recorded::Duplicate, "{lost:?}");
        }
        world.assert_nothing_is_amiss("sent again").await;
        world.flush_all().await;
        world.assert_nothing_is_amiss("flushed").await;
    }
    assert!(world.witnessed().await > 60);
}

#[tokio::test]
async fn a_call_that_arrives_late_is_found_and_one_that_never_does_is_given_up() {
    let (world, clock) = World::at(Timestamp::from_secs(1_000_000), |_| {}).await;
    let (keys, partition) = (world.direct.keys(), video("1").partition());
    let unanswered = world.plays.witness.unanswered();
    let call = |viewer: &str, token: &str| {
        let (ann, id) = (play("1", viewer, ""), video("1"));
        let seen = keys.seen_viewer(partition, &id, ann.viewer.as_ref().unwrap());
        let keys =
            [keys.dirty(partition), keys.delta(partition, &id), keys.unique_viewers(partition, &id), seen];
        RECORD.call(&keys, &["1800", "2592000", token, "1", "1", viewer, "0"])
    };
    for arrives in [true, false] {
        let viewer = format!("ann-{arrives}");
        unanswered.keep(keys, 7, &[(0, &play("1", &viewer, ""))]);
        world.report().await;
        assert_eq!(world.witnessed().await, i64::from(!arrives), "it left no trace yet");
        if arrives {
            world.connection().query::<Vec<i64>>(call(&viewer, "7")).await.unwrap();
        }
        world.report().await;
        assert_eq!(world.witnessed().await, i64::from(!arrives), "it isn't time to look again");
        clock.advance(Duration::from_secs(5));
        for _ in 0..3 {
            world.report().await;
            assert_eq!(world.witnessed().await, 1);
            clock.advance(Duration::from_secs(5));
        }
        // It is looked for no more.
        if !arrives {
            world.connection().query::<Vec<i64>>(call(&viewer, "7")).await.unwrap();
            world.report().await;
            assert_eq!(world.witnessed().await, 1);
        }
    }
}

#[tokio::test]
async fn more_calls_without_an_answer_than_can_be_kept_are_told_once_and_left_out() {
    let world = World::new().await;
    let lines = crate::telemetry::capture();
    let unanswered = world.plays.witness.unanswered();
    let plays: Vec<_> = (0..300).map(|n| play("1", &format!("v{n}"), "")).collect();
    let plays: Vec<_> = plays.iter().enumerate().collect();
    for token in 0..40 {
        unanswered.keep(world.direct.keys(), token, &plays);
    }
    assert_eq!(unanswered.plays(), 9_900);
    let told = lines.text();
    assert_eq!(told.matches("it stays unknown").count(), 1, "{told}");
}
