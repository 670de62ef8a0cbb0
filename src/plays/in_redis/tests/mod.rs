//! Plays over a real Redis and a real Postgres: `TEST_REDIS_URL` and `TEST_POSTGRES_URL` say where,
//! `scripts/with-services` starts both. Each test has a key prefix and a database of its own.

mod away;
mod faults;
mod flush;
mod jobs;
mod ledger;
mod proxy;
mod read;
mod record;
mod scripts;
mod server;
mod viewers;
mod world;

use self::{
    proxy::Proxy,
    server::OwnRedis,
    world::{World, eventually, play, sibling, video},
};
use super::RedisPlays;
use crate::plays::Plays;
