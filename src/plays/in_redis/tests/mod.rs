//! Plays over a real Redis and a real Postgres: `TEST_REDIS_URL` and `TEST_POSTGRES_URL` say where,
//! `scripts/with-services` starts both. Each test has a key prefix and a database of its own.

mod away;
mod conservation;
mod cut;
mod faults;
mod flush;
mod jobs;
mod ledger;
mod read;
mod record;
mod scripts;
mod trouble;
mod viewers;
mod witness;
mod world;

use headcount_support::{OwnRedis, Proxy, Way, eventually};

use self::world::{World, play, sibling, video};
use super::RedisPlays;
use crate::plays::Plays;
