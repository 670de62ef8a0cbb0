//! A deployment that real processes serve: its stores, what was sent to it, and what must come of it.

use std::{collections::BTreeMap, time::Duration};

use headcount::config::{BackendKind, SecretUrl};
use headcount_support::OwnRedis;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    process::{Service, ran},
    world::{World, eventually, video_id},
};

/// Videos in each partition.
const IN_EACH: usize = 2;

/// Plays of each video that lie in the store before any process starts, and that are sent to one.
const BEFORE: usize = 3;
const SENT: usize = 2;

/// Viewers of each video: more than [`IN_A_SHARD`], so that sweeps change the shards of each and beats move
/// its viewers.
const VIEWERS: usize = 12;

/// Viewers in one shard, at most.
const IN_A_SHARD: &str = "10";

/// How long a client waits for one answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the numbers may take to be right, however slow the machine.
const LONG: Duration = Duration::from_secs(180);

/// The limit of a drain: above it lies only one that hangs.
const DRAIN: &str = "6s";

pub struct Deployment {
    world: World,
    videos: Vec<String>,
    /// A video whose row takes no more plays.
    full: Option<String>,
    client: reqwest::Client,
    _redis: Option<OwnRedis>,
}

/// Who serves just now.
pub struct Living(Mutex<String>);

impl Living {
    pub fn at(base: &str) -> Self {
        Self(Mutex::new(base.to_owned()))
    }

    pub fn set(&self, base: &str) {
        base.clone_into(&mut self.0.lock());
    }
}

impl Deployment {
    /// With plays in Redis that nobody has flushed; `with_full` also of a video whose row refuses them.
    pub async fn on_redis(with_full: bool) -> Self {
        // Its keys are looked through again and again: among all that other tests left, that takes most of
        // the time of this one.
        let redis = OwnRedis::start(&[]).await;
        let world = World::redis_with(|config| config.redis.url = SecretUrl::new(redis.url(""))).await;
        let mut deployment = Self { _redis: Some(redis), ..Self::over(world) };
        if with_full {
            let full = deployment.videos[0].clone();
            let row = "insert into videos (video_id, views) values ($1, 9223372036854775807)";
            sqlx::query(row).bind(&full).execute(&mut deployment.rows().await).await.unwrap();
            deployment.full = Some(full);
        }
        for video in &deployment.videos {
            for play in 0..BEFORE {
                deployment.world.play(video, None, Some(&format!("before-{play}"))).await;
            }
        }
        assert_eq!(deployment.world.run_jobs("witness").await, 1);
        deployment.world.stop().await;
        deployment
    }

    /// An empty file.
    pub async fn embedded() -> Self {
        // The file is the process's from the start: nothing lies in it before.
        let world = World::embedded().await;
        world.stop().await;
        Self::over(world)
    }

    fn over(world: World) -> Self {
        let mut by_partition: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for number in 0.. {
            let video = format!("video-{number}");
            let videos = by_partition.entry(video_id(&video).partition().index()).or_default();
            if videos.len() < IN_EACH {
                videos.push(video);
            }
            if by_partition.len() == 16 && by_partition.values().all(|videos| videos.len() == IN_EACH) {
                break;
            }
        }
        headcount::tls::choose_provider();
        let client = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        let videos = by_partition.into_values().flatten().collect();
        Self { world, videos, full: None, client, _redis: None }
    }

    pub fn is_embedded(&self) -> bool {
        self.world.config.backend == BackendKind::Embedded
    }

    /// A process on these stores, with these failpoints.
    pub async fn start(&self, failpoints: &str) -> Service {
        let mut variables = self.settings();
        variables.extend([
            ("FAILPOINTS", failpoints),
            ("HEADCOUNT_JOBS__FLUSH_EVERY", "200ms"),
            ("HEADCOUNT_JOBS__SWEEP_EVERY", "2s"),
            ("HEADCOUNT_PRESENCE__VIEWERS_PER_SHARD", IN_A_SHARD),
            ("HEADCOUNT_EMBEDDED__SNAPSHOT_EVERY", "1s"),
            ("HEADCOUNT_SERVER__DRAIN", DRAIN),
            ("HEADCOUNT_LOG__FILTER", "warn,headcount::app=info"),
        ]);
        Service::start(&self.world.config.embedded.path, &variables).await
    }

    /// Where the stores are.
    fn settings(&self) -> Vec<(&str, &str)> {
        let config = &self.world.config;
        vec![
            ("HEADCOUNT_BACKEND", config.backend.name()),
            ("HEADCOUNT_EMBEDDED__PATH", config.embedded.path.to_str().unwrap()),
            ("HEADCOUNT_REDIS__URL", config.redis.url.expose()),
            ("HEADCOUNT_REDIS__PREFIX", &config.redis.prefix),
            ("HEADCOUNT_REDIS__BATCH_MIN_AGE", "0s"),
            ("HEADCOUNT_POSTGRES__URL", config.postgres.url.expose()),
            ("HEADCOUNT_POSTGRES__MIGRATE", "false"),
        ]
    }

    /// Sends plays, each until it is answered, and some of them twice; and beats.
    pub async fn plays_on(&self, living: &Living) {
        for video in &self.videos {
            for play in 0..SENT {
                let first = self.play(living, video, &format!("sent-{play}")).await;
                assert!(first["counted"].is_boolean(), "{first}");
            }
            let again = self.play(living, video, "sent-0").await;
            assert_eq!(again["counted"], false, "{again}");
        }
        if !self.is_embedded() {
            let again = self.play(living, &self.videos[1], "before-0").await;
            assert_eq!(again["counted"], false, "{again}");
        }
        self.beat(living).await;
    }

    async fn play(&self, living: &Living, video: &str, play: &str) -> Value {
        let path = format!("/api/video/{video}/play?playId={play}");
        self.until_answered(living, &path, &json!({})).await
    }

    /// Beats of all viewers of all videos, until they are taken.
    pub async fn beat(&self, living: &Living) {
        let beats: Vec<Value> = self
            .videos
            .iter()
            .flat_map(|video| (0..VIEWERS).map(move |viewer| json!({ "videoId": video, "userId": viewer })))
            .collect();
        eventually("all beats are taken", async || {
            let answer = self.until_answered(living, "/api/heartbeats", &json!({ "beats": beats })).await;
            answer["accepted"] == beats.len()
        })
        .await;
    }

    async fn until_answered(&self, living: &Living, path: &str, body: &Value) -> Value {
        let mut answer = Value::Null;
        eventually("somebody answers", async || {
            let url = format!("{}{path}", living.0.lock());
            match self.client.post(url).json(body).send().await {
                Ok(response) if response.status() == 200 => match response.json().await {
                    Ok(told) => {
                        answer = told;
                        true
                    }
                    Err(_) => false,
                },
                Ok(response) => {
                    assert_eq!(response.status(), 503);
                    false
                }
                Err(_) => false,
            }
        })
        .await;
        answer
    }

    fn plays_of_each(&self) -> usize {
        if self.is_embedded() { SENT } else { BEFORE + SENT }
    }

    /// Waits until the instance at `base` tells the right numbers of every video, every partition was
    /// swept after `since`, and no play waits any more.
    pub async fn becomes_exact(&self, base: &str, since: i64, step: &str, fault: &str) {
        let living = Living::at(base);
        let wanted = (json!(self.plays_of_each()), json!(VIEWERS));
        let until = tokio::time::Instant::now() + LONG;
        loop {
            self.beat(&living).await;
            let ids = json!({ "ids": self.videos });
            let told = self.until_answered(&living, "/api/videos/counts", &ids).await;
            let counts = told["counts"].as_array().unwrap();
            assert_eq!(counts.len(), self.videos.len());
            let right = |count: &&Value| {
                let full = self.full.as_deref() == count["videoId"].as_str();
                let plays = &count["plays"];
                assert!(full || plays.as_u64() <= wanted.0.as_u64(), "{step} {fault}: too many: {count}");
                let plays = (full || *plays == wanted.0) && count["playsStale"] == false;
                // Where nobody could sweep for so long that low numbers are doubted, none is told.
                let doubted = count["online"].is_null() && count["onlineStale"] == true;
                plays && (count["online"] == wanted.1 || doubted)
            };
            let wrong: Vec<&Value> = counts.iter().filter(|count| !right(count)).collect();
            let (unswept, waiting) = (self.unswept(since).await, self.waiting().await);
            if wrong.is_empty() && unswept.is_empty() && waiting.is_empty() {
                return;
            }
            let now = tokio::time::Instant::now();
            assert!(now < until, "{step} {fault}: never exact: {wrong:?} {unswept:?} {waiting:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until every play is reported, as the operators' listener at `ops` tells.
    pub async fn becomes_reported(&self, ops: &str, step: &str, fault: &str) {
        let mut last = String::new();
        let until = tokio::time::Instant::now() + LONG;
        while tokio::time::Instant::now() < until {
            if let Ok(answer) = self.client.get(format!("{ops}/audit")).send().await
                && let Ok(audit) = answer.json::<Value>().await
            {
                if audit["totals"]["unreported"] == 0 {
                    return;
                }
                last = audit.to_string();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{step} {fault}: never reported: {last}");
    }

    /// The present, in Redis's seconds; 0 where there is no Redis.
    pub async fn now(&self) -> i64 {
        if self.is_embedded() {
            return 0;
        }
        self.world.redis_command::<(i64, i64)>(&redis::cmd("TIME")).await.0
    }

    /// Partitions whose last full sweep began before `since`.
    async fn unswept(&self, since: i64) -> Vec<u16> {
        if self.is_embedded() {
            return Vec::new();
        }
        let stamps = (0..16).map(|partition| self.world.key(&format!("video:swept:{{{partition}}}")));
        let mut ask = redis::cmd("MGET");
        ask.arg(stamps.collect::<Vec<_>>());
        let stamps: Vec<Option<i64>> = self.world.redis_command(&ask).await;
        let unswept = |swept: &Option<i64>| swept.is_none_or(|swept| swept < since);
        (0..).zip(stamps).filter(|(_, swept)| unswept(swept)).map(|(partition, _)| partition).collect()
    }

    /// Every play is in the database, once, and the service's own audit says so as well; what was
    /// killed may have left plays unreported.
    pub async fn is_exact(&self, step: &str, fault: &str) {
        if !self.is_embedded() {
            self.rows_are_exact(step, fault).await;
            assert_eq!(self.waiting().await, Vec::<String>::new(), "{step} {fault}");
        }
        let mut audit = Value::Null;
        // On a starved machine a store may not answer in time; the command says so and prints nothing.
        eventually("the audit is read", async || {
            let told = ran(&["audit", "--json"], &self.settings()).await;
            audit = serde_json::from_slice(&told.stdout).unwrap_or_default();
            audit["verified"] == true
        })
        .await;
        let totals = &audit["totals"];
        assert_eq!(
            (&audit["verified"], &totals["lost"]),
            (&json!(true), &json!(0)),
            "{step} {fault}: {audit}"
        );
        let reported = !["kill-before", "kill-after", "hang"].contains(&fault);
        if reported || self.is_embedded() {
            assert_eq!(totals["unreported"], 0, "{step} {fault}: {audit}");
        }
    }

    async fn rows_are_exact(&self, step: &str, fault: &str) {
        let rows = "select video_id, views from videos";
        let rows: Vec<(String, i64)> = sqlx::query_as(rows).fetch_all(&mut self.rows().await).await.unwrap();
        let daily = "select video_id, sum(views)::bigint from video_daily group by video_id";
        let daily: Vec<(String, i64)> =
            sqlx::query_as(daily).fetch_all(&mut self.rows().await).await.unwrap();
        let wanted = i64::try_from(self.plays_of_each()).unwrap();
        for (video, views) in rows.iter().chain(&daily) {
            let full = self.full.as_ref() == Some(video);
            assert_eq!(*views, if full { i64::MAX } else { wanted }, "{step} {fault}: {video}");
        }
        assert_eq!(rows.len(), self.videos.len(), "{step} {fault}");
    }

    /// The keys of plays that are not in the database and should be.
    async fn waiting(&self) -> Vec<String> {
        if self.is_embedded() {
            return Vec::new();
        }
        let refused = self.full.as_ref().map(|full| {
            let partition = video_id(full).partition();
            let delta = format!("video:views:delta:{{{partition}}}:{full}");
            [delta, format!("video:views:refused:{{{partition}}}")]
        });
        let mut keys = self.world.redis_keys().await;
        keys.retain(|key| {
            let kinds = ["delta", "dirty", "batch", "refused"];
            kinds.iter().any(|kind| key.starts_with(&format!("video:views:{kind}:")))
                && !refused.as_ref().is_some_and(|refused| refused.contains(key))
        });
        keys
    }

    async fn rows(&self) -> sqlx::PgConnection {
        self.world.database().await
    }
}
