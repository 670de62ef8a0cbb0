//! A connection that breaks at any byte of what is asked or answered: nothing is half done, and what
//! is done again counts once.
//!
//! Each partition has an instance of its own here, with a way of its own that breaks, so that many
//! breaks are tried at the same time.

use std::sync::Arc;

use futures::future::join_all;

use super::{Plays, Proxy, RedisPlays, Way, World, eventually, play, video};
use crate::{
    config::{Config, SecretUrl},
    error::StoreError,
    ids::Partition,
    plays::{Play, Recorded, flush::Flushed},
    store::{postgres::Postgres, redis::Redis},
};

/// Which bytes are counted until the break.
type Break = fn(usize) -> Way;

/// An instance and its way to one of the stores.
struct Lane<'a> {
    world: &'a World,
    proxy: Proxy,
    redis: Redis,
    plays: Arc<RedisPlays>,
    /// The video played here, the only one of its partition.
    id: String,
    /// Its plays so far.
    sent: usize,
}

/// The way to which store is the lane's own.
#[derive(Clone, Copy)]
enum Through {
    Redis,
    Postgres,
}

impl<'a> Lane<'a> {
    async fn new(world: &'a World, partition: Partition, through: Through) -> Self {
        let direct = &world.config;
        let ids = (0..).map(|number| format!("video{number}"));
        let id = ids.into_iter().find(|id| video(id).partition() == partition).unwrap();
        let mut config: Config = direct.clone();
        // One for the flush, and nobody who looks whether it answers.
        config.postgres.max_connections = 2;
        let (proxy, postgres) = match through {
            Through::Redis => {
                let proxy = Proxy::to(direct.redis.url.expose()).await;
                config.redis.url = SecretUrl::new(proxy.by(direct.redis.url.expose()));
                (proxy, world.postgres.clone())
            }
            Through::Postgres => {
                let proxy = Proxy::to(direct.postgres.url.expose()).await;
                config.postgres.url = SecretUrl::new(proxy.by(direct.postgres.url.expose()));
                (proxy, Postgres::new(&config.postgres).unwrap())
            }
        };
        let (redis, plays) = world.instance_by(&config, &postgres).await;
        Self { world, proxy, redis, plays, id, sent: 0 }
    }

    /// All of them, one a partition.
    async fn all(world: &'a World, through: Through) -> Vec<Self> {
        join_all(Partition::all().map(|partition| Self::new(world, partition, through))).await
    }

    /// Flushes until nothing is left; then everything is in the database once.
    async fn flush_all(&self) {
        let (flusher, partition) = (self.plays.flusher(), video(&self.id).partition());
        eventually("it is flushed", async || match self.redis.connection() {
            Ok(connection) => {
                flusher.flush_once(&connection, partition).await.is_ok_and(|f| f == Flushed::Nothing)
            }
            Err(_) => false,
        })
        .await;
        let views = self.world.views(&video(&self.id)).await;
        assert_eq!((views, self.waits().await), (i64::try_from(self.sent).unwrap(), (0, false)));
    }

    /// How many plays wait, and whether they are marked.
    async fn waits(&self) -> (i64, bool) {
        let dirty = self.world.direct.keys().dirty(video(&self.id).partition());
        let marked: bool = self.world.ask(&format!("SISMEMBER {dirty} {}", self.id)).await;
        (self.world.delta(&self.id).await, marked)
    }
}

/// Takes `step` in an open way and tells how many bytes went by: the most of a few times, of which one
/// may have done less. The first doesn't count: it may have to prepare more.
async fn length<T>(
    lane: &mut Lane<'_>,
    at: Break,
    prepare: &impl AsyncFn(&mut Lane<'_>),
    step: &impl AsyncFn(&mut Lane<'_>) -> T,
) -> usize {
    let mut most = 0;
    for first in [true, false, false, false] {
        prepare(lane).await;
        lane.proxy.set(Way::Open);
        step(lane).await;
        let asked = matches!(at(0), Way::CutAsked(_));
        let carried = if asked { lane.proxy.asked() } else { lane.proxy.answered() };
        most = most.max(if first { 0 } else { carried });
    }
    lane.flush_all().await;
    most
}

/// Takes `step` with a break at each byte of it whose number is a multiple of `every`, in sixteen
/// lanes, and looks with `after` what came of it.
async fn at_bytes<T>(
    every: usize,
    world: &World,
    through: Through,
    at: Break,
    prepare: impl AsyncFn(&mut Lane<'_>),
    step: impl AsyncFn(&mut Lane<'_>) -> T,
    after: impl AsyncFn(&mut Lane<'_>, T),
) {
    let mut lanes = Lane::all(world, through).await;
    let length = length(&mut lanes[0], at, &prepare, &step).await;
    assert!(length > 4, "{length}");
    let lanes_at_once = lanes.len();
    let runs = lanes.iter_mut().enumerate().map(async |(first, lane)| {
        for byte in (first * every..=length).step_by(lanes_at_once * every) {
            prepare(lane).await;
            lane.proxy.set(at(byte));
            let outcome = step(lane).await;
            lane.proxy.set(Way::Open);
            after(lane, outcome).await;
        }
    });
    join_all(runs).await;
    world.assert_nothing_waits().await;
    eprintln!("broken at each of {} of {length} bytes", length / every);
}

async fn connected(lane: &mut Lane<'_>) {
    eventually("redis is back", async || lane.redis.connection().is_ok()).await;
}

/// Sends a play of a viewer nobody else is.
async fn send(lane: &mut Lane<'_>) -> (Play, Result<Recorded, StoreError>) {
    lane.sent += 1;
    // As long as any other.
    let sent = play(&lane.id, &format!("viewer{:06}", lane.sent), "");
    let result = lane.plays.record(sent.clone()).await;
    (sent, result)
}

async fn sent_again_it_counts_once(lane: &mut Lane<'_>, sent: (Play, Result<Recorded, StoreError>)) {
    let (sent, first) = sent;
    let waits = lane.waits().await;
    assert!(matches!(waits, (0, false) | (1, true)), "a delta and its mark are one: {waits:?}");
    connected(lane).await;
    let second = lane.plays.record(sent).await.unwrap();
    match first {
        Ok(first) => assert_eq!((first, second), (Recorded::Counted, Recorded::Duplicate)),
        Err(error) => {
            assert!(error.is_transient(), "{error}");
            let expected = if waits == (0, false) { Recorded::Counted } else { Recorded::Duplicate };
            assert_eq!(second, expected, "{waits:?}");
        }
    }
    lane.flush_all().await;
}

/// Plays that wait to be flushed, by a way that doesn't break.
async fn two_plays_wait(lane: &mut Lane<'_>) {
    connected(lane).await;
    lane.sent += 2;
    lane.world.played(&lane.id, 2).await;
}

async fn flush(lane: &mut Lane<'_>) {
    let Ok(connection) = lane.redis.connection() else { return };
    // Whatever comes of it.
    let _ = lane.plays.flusher().flush_once(&connection, video(&lane.id).partition()).await;
}

async fn flushed_again_they_are_added_once(lane: &mut Lane<'_>, (): ()) {
    let views = lane.world.views(&video(&lane.id)).await;
    let (all, (waiting, marked)) = (i64::try_from(lane.sent).unwrap(), lane.waits().await);
    assert!(views == all || views == all - 2, "all of a batch or none of it: {views} of {all}");
    assert!(waiting == all - views || waiting == 2, "{waiting} wait, {views} of {all} are there");
    assert_eq!(marked, waiting > 0);
    lane.flush_all().await;
}

/// Breaks the way after every `step`th byte of a flush, asked or answered.
async fn a_flush_is_cut(step: usize, through: Through, change: impl Fn(&mut Config)) {
    for at in [Way::CutAsked as Break, Way::CutAnswered] {
        let world = World::with(&change).await;
        let after = flushed_again_they_are_added_once;
        at_bytes(step, &world, through, at, two_plays_wait, flush, after).await;
    }
}

/// S13
#[tokio::test(flavor = "multi_thread")]
async fn a_play_cut_at_any_byte_counts_once_when_it_is_sent_again() {
    let world = World::new().await;
    at_bytes(1, &world, Through::Redis, Way::CutAsked, connected, send, sent_again_it_counts_once).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_play_whose_answer_is_cut_at_any_byte_counts_once_when_it_is_sent_again() {
    let world = World::new().await;
    at_bytes(1, &world, Through::Redis, Way::CutAnswered, connected, send, sent_again_it_counts_once).await;
}

/// Claim and settle.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_cut_from_redis_at_any_byte_adds_everything_once() {
    a_flush_is_cut(1, Through::Redis, |_| {}).await;
}

/// Apply. The connection knows the statements from before.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_cut_from_postgres_at_any_byte_adds_everything_once() {
    a_flush_is_cut(1, Through::Postgres, |_| {}).await;
}

/// Each statement is sent whole. That is a lot of text, of which every third byte is broken at.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_cut_from_postgres_without_prepared_statements_adds_everything_once() {
    a_flush_is_cut(3, Through::Postgres, |config| config.postgres.prepared_statements = false).await;
}
