//! What is right at the end, when everything is well: every play is in the database once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    keys,
    ledger::Video,
    tally::{Tally, Wrong},
    world::World,
};

/// How long nothing may move that is to come to its end.
const PATIENCE: Duration = Duration::from_secs(60);

const VIEWS: &str = "select video_id, views from videos where views <> 0";
const VIEWS_BY_DAY: &str = "select video_id, sum(views)::bigint from video_daily group by video_id";
const POSITIONS: &str = "select partition::text, next_offset from kafka_offset";

/// How long a log stands still that is counted to its end: longer than a consumer waits for another try.
const STILL: Duration = Duration::from_secs(6);

/// Waits until no play is on its way any more.
pub(crate) async fn settle(world: &World, tally: &Tally, videos: &[Video]) -> anyhow::Result<()> {
    if world.counts_later() {
        settle_log(world, videos).await?;
    }
    settle_redis(world, tally).await
}

/// Waits until the database has what it must have and Kafka's log is counted no further, or until it is
/// counted no further for long although it doesn't.
async fn settle_log(world: &World, videos: &[Video]) -> anyhow::Result<()> {
    let expected = expected(videos);
    let mut before = BTreeMap::new();
    let mut since = Instant::now();
    loop {
        let positions = rows(world, POSITIONS).await?;
        if positions != before {
            (before, since) = (positions, Instant::now());
        }
        let patience = if rows(world, VIEWS).await? == expected { STILL } else { PATIENCE };
        if since.elapsed() > patience {
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn settle_redis(world: &World, tally: &Tally) -> anyhow::Result<()> {
    let mut before = Vec::new();
    let mut until = Instant::now() + PATIENCE;
    loop {
        let pending = pending(world).await?;
        if pending.is_empty() {
            return Ok(());
        }
        if pending != before {
            until = Instant::now() + PATIENCE;
        }
        if Instant::now() > until {
            tally.wrong(Wrong::Lost, &format!("stranded in redis: {}", pending.join(", ")));
            return Ok(());
        }
        before = pending;
        sleep(Duration::from_millis(100)).await;
    }
}

async fn pending(world: &World) -> anyhow::Result<Vec<String>> {
    world.redis.lock().await.there(&keys::pending()).await
}

/// How many plays the database has too few or too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Off {
    pub(crate) lost: u64,
    pub(crate) double: u64,
}

/// Holds the database and each instance against what was acknowledged.
pub(crate) async fn pass(world: &World, tally: &Tally, videos: &[Video]) -> anyhow::Result<Off> {
    let expected = expected(videos);
    let off = compare(tally, "the database", &expected, &rows(world, VIEWS).await?);
    compare(tally, "the database by day", &expected, &rows(world, VIEWS_BY_DAY).await?);
    for instance in 0..world.urls.len() {
        let name = format!("instance {instance}");
        compare(tally, &name, &expected, &totals(world, instance, &expected).await?);
    }
    Ok(off)
}

fn expected(videos: &[Video]) -> BTreeMap<String, u64> {
    let acknowledged = videos.iter().map(|video| (video.id.clone(), video.acknowledged()));
    acknowledged.filter(|(_, plays)| *plays > 0).collect()
}

async fn rows(world: &World, sql: &'static str) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut connection = world.postgres.lock().await.connect().await?;
    let rows: Vec<(String, i64)> = sqlx::query_as(sql).fetch_all(&mut connection).await?;
    rows.into_iter().map(|(video, views)| Ok((video, u64::try_from(views)?))).collect()
}

/// The totals an instance vouches for: the right ones as soon as its cache has run out, or what it
/// says after a long wait.
async fn totals(
    world: &World,
    instance: usize,
    expected: &BTreeMap<String, u64>,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let url = format!("{}/api/videos/counts", world.urls[instance]);
    let asked = serde_json::json!({ "ids": expected.keys().collect::<Vec<_>>() });
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = world.http.post(&url, &asked).await;
        let body = answer.map(|answer| answer.body).unwrap_or_default();
        let counts = body["counts"].as_array().map(Vec::as_slice).unwrap_or_default();
        let good = |count: &&serde_json::Value| count["playsStale"] == false;
        let totals: BTreeMap<String, u64> = counts
            .iter()
            .filter(good)
            .filter_map(|count| Some((count["videoId"].as_str()?.to_owned(), count["plays"].as_u64()?)))
            .collect();
        if totals == *expected || Instant::now() > until {
            return Ok(totals);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn compare(
    tally: &Tally,
    place: &str,
    expected: &BTreeMap<String, u64>,
    found: &BTreeMap<String, u64>,
) -> Off {
    let mut off = Off::default();
    let ids: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    for id in ids {
        let (expected, found) = (*expected.get(id).unwrap_or(&0), *found.get(id).unwrap_or(&0));
        let what = format!("{place} has {found} plays of {id}, of which {expected} were acknowledged");
        if found < expected {
            off.lost += expected - found;
            tally.wrong(Wrong::Lost, &what);
        } else if found > expected {
            off.double += found - expected;
            tally.wrong(Wrong::Double, &what);
        }
    }
    off
}
