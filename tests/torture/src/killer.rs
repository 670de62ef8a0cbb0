//! Strikes by a schedule, two at a time at most, and undoes each before it goes on.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use headcount_support::{Proxy, Way};
use redis::Cmd;
use rustix::process::Signal;
use sqlx::Connection as _;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    cluster::{AnyRedis, END_CLIENTS, LOSE_SCRIPTS, here},
    faults::{Deed, Schedule, Stroke},
    instance::{self, Instance, wrong_with},
    keys,
    stores::{Redis, expire},
    tails::Tails,
    tally::{Tally, Wrong},
    world::World,
};

/// Faults that may go on at the same time.
const AT_ONCE: u32 = 2;

/// How long a service may need to be well when everything around it is.
const RECOVERY: Duration = Duration::from_secs(30);

/// Between two looks whether an instance is there that nobody has ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Longer than a task takes to see that its way is cut.
const SEEN: Duration = Duration::from_millis(300);

/// Does what is drawn.
pub(crate) struct Killer {
    pub(crate) world: Arc<World>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) tails: Arc<Tails>,
}

impl Killer {
    /// Strikes until `until`, and returns when all of it is undone.
    ///
    /// # Errors
    /// Something could not be started again: that is no fault of the service's.
    pub(crate) async fn run(self: Arc<Self>, seed: u64, until: Instant) -> anyhow::Result<()> {
        let mut schedule = Schedule::new(seed, self.world.kind);
        let places = Arc::new(Semaphore::new(AT_ONCE as usize));
        let mut under_way = JoinSet::new();
        loop {
            let stroke = schedule.next();
            sleep(stroke.after).await;
            let wanted = if stroke.fault.deed == Deed::DrainInstanceAlone { AT_ONCE } else { 1 };
            let place = places.clone().acquire_many_owned(wanted).await.context("nobody closes it")?;
            if Instant::now() >= until {
                break;
            }
            let killer = self.clone();
            under_way.spawn(async move {
                let struck = killer.strike(&stroke).await;
                drop(place);
                struck.with_context(|| format!("after {}", stroke.fault.name))
            });
            while let Some(ended) = under_way.try_join_next() {
                ended??;
            }
        }
        while let Some(ended) = under_way.join_next().await {
            ended??;
        }
        Ok(())
    }

    /// Looks whether instances end that nobody has ended.
    ///
    /// # Errors
    /// One that did could not be started again.
    pub(crate) async fn watch(self: Arc<Self>) -> anyhow::Result<()> {
        loop {
            sleep(LOOK_EVERY).await;
            for (index, instance) in self.world.instances.iter().enumerate() {
                // Whoever has it locked looks himself.
                let Ok(mut instance) = instance.try_lock() else { continue };
                if let Some(status) = instance.has_ended() {
                    self.tally.wrong(Wrong::Promise, &format!("instance {index} ended by itself: {status}"));
                    self.tails.ended(index, false);
                    instance.start_again().await?;
                }
            }
        }
    }

    async fn strike(&self, stroke: &Stroke) -> anyhow::Result<()> {
        let Stroke { fault, instance, lasts, .. } = stroke;
        let on = match fault.deed {
            Deed::KillInstance | Deed::DrainInstance | Deed::DrainInstanceAlone | Deed::StopInstance => {
                self.on_instance(stroke).await?;
                format!(" {instance}")
            }
            Deed::BreakWayToRedis(way) => {
                let proxy = self.world.ways[*instance].redis.as_ref().context("no way to break")?;
                self.on_way(&*proxy.lock().await, stroke, way).await;
                format!(" of {instance}")
            }
            Deed::BreakWayToPostgres(way) => {
                self.on_way(&*self.world.ways[*instance].postgres.lock().await, stroke, way).await;
                format!(" of {instance}")
            }
            Deed::KillPostgres
            | Deed::RestartPostgres
            | Deed::StopPostgres
            | Deed::EndPostgresSessions
            | Deed::LockRows => {
                self.on_postgres(stroke).await?;
                String::new()
            }
            Deed::KillBroker | Deed::StopBroker => {
                let kafka = self.world.kafka.as_ref().context("no brokers to strike")?;
                let mut brokers = kafka.brokers.lock().await;
                self.begins(stroke);
                brokers.strike(stroke).await;
                String::new()
            }
            _ => {
                self.on_redis(stroke).await?;
                String::new()
            }
        };
        self.tally.log(&format!("over:  {}{on}, {:.3} s", fault.name, lasts.as_secs_f64()));
        Ok(())
    }

    /// Notes that what the stroke is for is done now.
    fn begins(&self, stroke: &Stroke) {
        self.tally.fault(stroke.fault.name);
        let (name, secs) = (stroke.fault.name, stroke.lasts.as_secs_f64());
        self.tally.log(&format!("fault: {name}, {} if it concerns one, {secs:.3} s", stroke.instance));
    }

    async fn on_instance(&self, stroke: &Stroke) -> anyhow::Result<()> {
        let index = stroke.instance;
        let mut instance = self.world.instances[index].lock().await;
        if stroke.fault.deed == Deed::DrainInstanceAlone {
            self.wait_until_well(index).await;
        }
        self.begins(stroke);
        match stroke.fault.deed {
            Deed::KillInstance => {
                instance.kill().await?;
                self.tails.ended(index, false);
            }
            Deed::DrainInstance => self.drain(index, &mut instance, false).await?,
            Deed::DrainInstanceAlone => self.drain(index, &mut instance, true).await?,
            _ => {
                instance.signal(Signal::STOP);
                sleep(stroke.lasts).await;
                instance.signal(Signal::CONT);
                return Ok(());
            }
        }
        sleep(stroke.lasts).await;
        instance.start_again().await
    }

    /// Asks an instance to stop. It does so in its time, and with 0 where all around it is `quiet`.
    pub(crate) async fn drain(
        &self,
        index: usize,
        instance: &mut Instance,
        quiet: bool,
    ) -> anyhow::Result<()> {
        let drained = instance.drain().await?;
        self.tails.ended(index, quiet);
        if let Some(wrong) = wrong_with(drained.as_ref(), quiet) {
            self.tally.wrong(Wrong::Promise, &format!("instance {index} was asked to stop and {wrong}"));
        }
        Ok(())
    }

    /// Waits until nothing is left of earlier faults.
    pub(crate) async fn wait_until_well(&self, index: usize) {
        let until = Instant::now() + RECOVERY;
        while !instance::is_well(&self.world.http, &self.world.urls[index]).await {
            if Instant::now() > until {
                self.tally
                    .wrong(Wrong::Promise, &format!("instance {index} isn't well though all around it is"));
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn on_redis(&self, stroke: &Stroke) -> anyhow::Result<()> {
        let mut redis = self.world.redis.lock().await;
        self.begins(stroke);
        match stroke.fault.deed {
            Deed::ExpireTotals => return expire(&redis.ports(), &keys::totals(), stroke.lasts).await,
            Deed::ExpireLocks => return expire(&redis.ports(), &keys::locks(), stroke.lasts).await,
            _ => {}
        }
        let redis = match &mut *redis {
            AnyRedis::One(redis) => redis,
            AnyRedis::Cluster(cluster) => return here(cluster.strike(stroke)),
        };
        match stroke.fault.deed {
            Deed::KillRedis | Deed::RestartRedis => {
                if stroke.fault.deed == Deed::KillRedis {
                    redis.kill().await?;
                } else {
                    redis.end_politely().await?;
                }
                sleep(stroke.lasts).await;
                redis.start_again().await?;
            }
            Deed::StopRedis => {
                redis.signal(Signal::STOP);
                sleep(stroke.lasts).await;
                redis.signal(Signal::CONT);
            }
            Deed::FillRedis => {
                for limit in ["1", "0"] {
                    tell(redis, &["CONFIG", "SET", "maxmemory", limit]).await?;
                    sleep(stroke.lasts).await;
                }
            }
            Deed::DemoteRedis => {
                // Nobody is there: it waits for its primary, and keeps what it has.
                tell(redis, &["REPLICAOF", "127.0.0.1", "1"]).await?;
                sleep(stroke.lasts).await;
                tell(redis, &["REPLICAOF", "NO", "ONE"]).await?;
            }
            Deed::FlushRedis => tell(redis, &["FLUSHALL"]).await?,
            Deed::LoseScripts => tell(redis, &LOSE_SCRIPTS).await?,
            Deed::EndRedisClients => tell(redis, &END_CLIENTS).await?,
            // One that is under way already is as good.
            _ => drop(tell(redis, &["BGREWRITEAOF"]).await),
        }
        Ok(())
    }

    async fn on_postgres(&self, stroke: &Stroke) -> anyhow::Result<()> {
        let mut postgres = self.world.postgres.lock().await;
        self.begins(stroke);
        match stroke.fault.deed {
            Deed::KillPostgres | Deed::RestartPostgres => {
                if stroke.fault.deed == Deed::KillPostgres {
                    postgres.kill().await?;
                } else {
                    postgres.end_politely().await?;
                }
                sleep(stroke.lasts).await;
                postgres.start_again().await?;
            }
            Deed::StopPostgres => {
                postgres.signal(Signal::STOP);
                sleep(stroke.lasts).await;
                postgres.signal(Signal::CONT);
            }
            Deed::LockRows => {
                let mut connection = postgres.connect().await?;
                sqlx::raw_sql("begin; lock table videos in access exclusive mode")
                    .execute(&mut connection)
                    .await?;
                sleep(stroke.lasts).await;
                connection.close().await?;
            }
            _ => {
                postgres
                    .run(
                        "select pg_terminate_backend(pid) from pg_stat_activity
                            where pid <> pg_backend_pid() and backend_type = 'client backend'",
                    )
                    .await?;
            }
        }
        Ok(())
    }

    async fn on_way(&self, proxy: &Proxy, stroke: &Stroke, way: Way) {
        self.begins(stroke);
        proxy.set(way);
        sleep(stroke.lasts).await;
        if way == Way::Deaf {
            // No network goes on with a connection of which it has lost a part.
            proxy.set(Way::Cut);
            sleep(SEEN).await;
        }
        proxy.set(Way::Open);
    }
}

async fn tell(redis: &Redis, command: &[&str]) -> anyhow::Result<()> {
    let mut told = Cmd::new();
    for part in command {
        told.arg(*part);
    }
    redis.ask::<redis::Value>(&told).await.map(drop)
}
