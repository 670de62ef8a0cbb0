//! Plays over a real Redis and a real Postgres: `TEST_REDIS_URL` and `TEST_POSTGRES_URL` say where,
//! `scripts/with-services` starts both. Each test has a key prefix and a database of its own.

mod faults;
mod flush;
mod proxy;
mod record;
mod scripts;
mod server;
mod world;

use self::{
    proxy::Proxy,
    server::OwnRedis,
    world::{World, eventually, play, video},
};
use crate::plays::Plays;
