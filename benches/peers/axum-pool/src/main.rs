//! Viewers and plays as one would write them on axum with a pool: one hash for each shard of a video's
//! viewers, a cached count, `SET NX` and `INCR` for plays; one round trip a step, on a connection of its own.
//!
//! What would only make it slower is left out: the sweep, the flush, checks of what clients send.

use std::{
    env,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use deadpool_redis::{
    Config, Pool, PoolConfig, PoolError, Runtime,
    redis::{AsyncCommands as _, ExistenceCheck, RedisError, SetExpiry, SetOptions, pipe},
};
use serde::{Deserialize, Serialize};

const SHARDS: u64 = 16;
const CONNECTIONS: usize = 16;
const COUNT_LIVES: u64 = 600;
const PLAY_IS_REMEMBERED: u64 = 1_800;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut redis = Config::from_url(env::var("REDIS_URL")?);
    redis.pool = Some(PoolConfig::new(CONNECTIONS));
    let app = Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/api/video/{video}/heartbeat", post(heartbeat))
        .route("/api/video/{video}/play", post(play))
        .route("/api/video/{video}/online-count", get(online_count))
        .with_state(redis.create_pool(Some(Runtime::Tokio1))?);
    let listener = tokio::net::TcpListener::bind(env::var("LISTEN")?).await?;
    axum::serve(listener, app).await?;
    Ok(())
}

struct Unavailable;

impl From<PoolError> for Unavailable {
    fn from(_: PoolError) -> Self {
        Self
    }
}

impl From<RedisError> for Unavailable {
    fn from(_: RedisError) -> Self {
        Self
    }
}

impl IntoResponse for Unavailable {
    fn into_response(self) -> Response {
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Beat {
    user_id: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Beaten {
    video_id: String,
    next_heartbeat_seconds: u64,
}

async fn heartbeat(
    State(pool): State<Pool>,
    Path(video): Path<String>,
    Json(beat): Json<Beat>,
) -> Result<Json<Beaten>, Unavailable> {
    let mut hasher = DefaultHasher::new();
    beat.user_id.hash(&mut hasher);
    let shard = hasher.finish() % SHARDS;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();

    let mut connection = pool.get().await?;
    pipe()
        .hset(format!("video:online:{video}:{shard}"), beat.user_id, now)
        .ignore()
        .zadd("video:active", &video, now)
        .ignore()
        .query_async::<()>(&mut connection)
        .await?;
    Ok(Json(Beaten { video_id: video, next_heartbeat_seconds: 30 }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Play {
    play_id: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Played {
    video_id: String,
    counted: bool,
}

async fn play(
    State(pool): State<Pool>,
    Path(video): Path<String>,
    Json(play): Json<Play>,
) -> Result<Json<Played>, Unavailable> {
    let mut connection = pool.get().await?;
    let seen = format!("video:views:seen:{video}:{}", play.play_id);
    let once = SetOptions::default()
        .conditional_set(ExistenceCheck::NX)
        .with_expiration(SetExpiry::EX(PLAY_IS_REMEMBERED));
    let is_new: Option<String> = connection.set_options(seen, 1, once).await?;
    if is_new.is_some() {
        pipe()
            .incr(format!("video:views:delta:{video}"), 1)
            .ignore()
            .sadd("video:views:dirty_set", &video)
            .ignore()
            .query_async::<()>(&mut connection)
            .await?;
    }
    Ok(Json(Played { video_id: video, counted: is_new.is_some() }))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Online {
    video_id: String,
    online: u64,
}

async fn online_count(
    State(pool): State<Pool>,
    Path(video): Path<String>,
) -> Result<Json<Online>, Unavailable> {
    let mut connection = pool.get().await?;
    let cached = format!("video:online:count:{video}");
    if let Some(online) = connection.get(&cached).await? {
        return Ok(Json(Online { video_id: video, online }));
    }
    let mut lengths = pipe();
    for shard in 0..SHARDS {
        lengths.hlen(format!("video:online:{video}:{shard}"));
    }
    let lengths: Vec<u64> = lengths.query_async(&mut connection).await?;
    let online = lengths.iter().sum();
    let _: () = connection.set_ex(cached, online, COUNT_LIVES).await?;
    Ok(Json(Online { video_id: video, online }))
}
