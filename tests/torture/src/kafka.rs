//! Kafka's brokers of this run, a third process that counts, and what happens to them.
//!
//! One broker at a time is away, and the topic is on three: what was acknowledged is on two of them at
//! least. One that is back may still be catching up when the next one goes; then plays wait.

use std::{fs, path::Path, time::Duration};

use headcount_support::OwnKafka;
use rustix::process::Signal;
use tokio::{
    sync::Mutex,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    faults::{Deed, Stroke},
    instance::{Instance, wrong_with},
    tally::{Tally, Wrong},
};

const BROKERS: usize = 3;

/// How often the third consumer goes or comes: each time the parts are shared out anew.
const REBALANCE_EVERY: Duration = Duration::from_secs(5);

/// Short where that exercises the protocols. A consumer is missed sooner than it comes back.
const SETTINGS: &[(&str, &str)] = &[
    ("HEADCOUNT_KAFKA__PARTITIONS", "6"),
    ("HEADCOUNT_KAFKA__DEADLINE", "2s"),
    ("HEADCOUNT_KAFKA__WINDOW", "200ms"),
    ("HEADCOUNT_KAFKA__PROPERTIES__SESSION__TIMEOUT__MS", "3000"),
    ("HEADCOUNT_KAFKA__PROPERTIES__HEARTBEAT__INTERVAL__MS", "500"),
];

/// What an instance logs whenever it is given parts of the topic.
const TAKEN_UP: &str = "partitions of the log";

/// The log of plays and who counts it beside the instances.
pub(crate) struct Kafka {
    pub(crate) brokers: Mutex<Brokers>,
    consumer: Mutex<Instance>,
}

/// Three brokers.
pub(crate) struct Brokers {
    brokers: OwnKafka,
    /// Which one is struck next.
    next: usize,
}

/// How a consumer goes.
#[derive(Clone, Copy)]
enum Goes {
    /// It is asked to, and says so to the group.
    Drained,
    Killed,
    /// It stands still, and learns afterwards that its parts are others'.
    Stopped,
}

impl Kafka {
    pub(crate) fn new(brokers: Brokers, consumer: Instance) -> Self {
        Self { brokers: Mutex::new(brokers), consumer: Mutex::new(consumer) }
    }

    /// Lets the third consumer go and come until `until`, and returns when it is back.
    ///
    /// # Errors
    /// It could not be started again.
    pub(crate) async fn rebalance(&self, tally: &Tally, until: Instant) -> anyhow::Result<()> {
        let mut ticks = interval(REBALANCE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        for goes in [Goes::Drained, Goes::Killed, Goes::Stopped].into_iter().cycle() {
            ticks.tick().await;
            if Instant::now() >= until {
                break;
            }
            let mut consumer = self.consumer.lock().await;
            if let Some(status) = consumer.has_ended() {
                tally.wrong(Wrong::Promise, &format!("the consumer ended by itself: {status}"));
                consumer.start_again().await?;
            }
            goes.strike(&mut consumer, tally).await?;
            ticks.tick().await;
            match goes {
                Goes::Drained | Goes::Killed => consumer.start_again().await?,
                Goes::Stopped => consumer.signal(Signal::CONT),
            }
            tally.consumer("comes back");
        }
        Ok(())
    }

    /// Ends the third consumer while nothing is in its way.
    pub(crate) async fn drain(&self, tally: &Tally) -> anyhow::Result<()> {
        let drained = self.consumer.lock().await.drain().await?;
        if let Some(wrong) = wrong_with(drained.as_ref(), true) {
            tally.wrong(Wrong::Promise, &format!("the consumer was asked to stop and {wrong}"));
        }
        Ok(())
    }
}

impl Goes {
    async fn strike(self, consumer: &mut Instance, tally: &Tally) -> anyhow::Result<()> {
        match self {
            Self::Drained => {
                tally.consumer("drained");
                if let Some(wrong) = wrong_with(consumer.drain().await?.as_ref(), false) {
                    tally.wrong(Wrong::Promise, &format!("the consumer was asked to stop and {wrong}"));
                }
            }
            Self::Killed => {
                tally.consumer("killed");
                consumer.kill().await?;
            }
            Self::Stopped => {
                tally.consumer("stopped");
                consumer.signal(Signal::STOP);
            }
        }
        Ok(())
    }
}

impl Brokers {
    pub(crate) async fn start() -> Self {
        Self { brokers: OwnKafka::start(BROKERS, &[]).await, next: 0 }
    }

    /// What all processes must be told to find and to use them.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let all = SETTINGS.iter().map(|(name, value)| (*name, (*value).to_owned()));
        all.chain([("HEADCOUNT_KAFKA__BROKERS", self.brokers.addresses())]).collect()
    }

    /// Strikes one after the other, and returns when it answers again.
    pub(crate) async fn strike(&mut self, stroke: &Stroke) {
        let struck = self.next;
        self.next = (struck + 1) % BROKERS;
        if stroke.fault.deed == Deed::KillBroker {
            self.brokers.kill(struck).await;
            sleep(stroke.lasts).await;
            self.brokers.start_again(struck).await;
        } else {
            self.brokers.signal(struck, "-STOP").await;
            sleep(stroke.lasts).await;
            self.brokers.signal(struck, "-CONT").await;
        }
    }
}

/// How often parts of the topic were taken up, all processes together, as their logs in `folder` say.
pub(crate) fn taken_up(folder: &Path) -> usize {
    let logs = ["instance-0.log", "instance-1.log", "consumer.log"];
    let log = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
    logs.map(|name| log(name).matches(TAKEN_UP).count()).iter().sum()
}
