//! Players that send each play until it is answered, at any of the instances, and again on purpose.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use crate::{
    ledger::{VIDEOS, Video},
    tails::Tails,
    tally::{Tally, Wrong},
    world::{INSTANCES, World},
};

/// Players at work at the same time.
const PLAYERS: u32 = 60;

/// Plays that are remembered to be sent once more, long after they were answered.
const REMEMBERED: usize = 2_000;

/// Everything that plays.
pub(crate) struct Players {
    world: Arc<World>,
    tally: Arc<Tally>,
    tails: Arc<Tails>,
    videos: Arc<Vec<Video>>,
    /// Plays answered before.
    answered: Mutex<VecDeque<Arc<Play>>>,
}

/// One playback: whatever is sent of it counts once in all.
struct Play {
    video: usize,
    user: Option<String>,
    /// Its `playId`.
    name: Option<String>,
    /// Whether an answer has said that it counted.
    counted: AtomicBool,
}

/// What an instance said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Counted,
    Duplicate,
    /// It is kept; whether it counts shows later.
    Accepted,
    /// Nothing that settles it.
    Nothing,
}

impl Play {
    fn new(video: usize) -> Self {
        let number: u64 = rand::random();
        let [user, name] = [format!("u{number:016x}"), format!("p{number:016x}")];
        let (user, name) = match rand::random_range(0..3) {
            0 => (Some(user), None),
            1 => (None, Some(name)),
            _ => (Some(user), Some(name)),
        };
        Self { video, user, name, counted: AtomicBool::new(false) }
    }

    fn body(&self) -> Value {
        match (&self.user, &self.name) {
            (Some(user), Some(name)) => json!({ "userId": user, "playId": name }),
            (Some(user), None) => json!({ "userId": user }),
            (None, name) => json!({ "playId": name }),
        }
    }

    /// As somebody would send it who wants it counted twice: one of its names is new.
    fn disguised(&self) -> Value {
        let new = format!("n{:016x}", rand::random::<u64>());
        match (&self.user, &self.name) {
            (Some(user), Some(_)) if rand::random() => json!({ "userId": user, "playId": new }),
            (Some(_), Some(name)) => json!({ "userId": new, "playId": name }),
            (Some(user), None) => json!({ "userId": user, "playId": new }),
            (None, name) => json!({ "userId": new, "playId": name }),
        }
    }
}

impl Players {
    pub(crate) fn new(
        world: Arc<World>,
        tally: Arc<Tally>,
        tails: Arc<Tails>,
        videos: Arc<Vec<Video>>,
    ) -> Self {
        Self { world, tally, tails, videos, answered: Mutex::default() }
    }

    /// Plays `a_second` videos a second, all players together; one player for each future.
    pub(crate) fn start(self, a_second: u32) -> Vec<impl Future<Output = ()>> {
        let every = Duration::from_secs(1) * PLAYERS / a_second.max(1);
        let players = Arc::new(self);
        (0..PLAYERS)
            .map(|_| {
                let players = players.clone();
                async move {
                    tokio::time::sleep(every.mul_f64(rand::random())).await;
                    let mut ticks = tokio::time::interval(every);
                    // What was held up by a fault isn't made up for: the load stays bounded.
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    while !players.tally.stopping() {
                        ticks.tick().await;
                        players.play().await;
                    }
                }
            })
            .collect()
    }

    /// Plays one video and doesn't give up before that is answered.
    async fn play(&self) {
        // The first ones are played far more often than the last.
        let video = (0..3).map(|_| rand::random_range(0..VIDEOS)).min().unwrap_or(0);
        let play = Arc::new(Play::new(video));
        self.videos[video].begin();
        self.tally.begun.one();
        if rand::random_ratio(1, 8) {
            // As a proxy would that doesn't wait for the first answer.
            let (one, other) = tokio::join!(self.send(&play, 0), self.send(&play, 1));
            if [one, other] == [Said::Nothing; 2] {
                self.send_until_answered(&play).await;
            }
        } else {
            self.send_until_answered(&play).await;
        }
        let counts_later = self.world.counts_later();
        self.videos[video].acknowledge(counts_later);
        self.tally.acknowledged.one();
        if !counts_later && !play.counted.load(Ordering::SeqCst) {
            self.tally.silent.one();
        }
        self.send_again(play).await;
    }

    async fn send_until_answered(&self, play: &Play) {
        let mut instance = rand::random_range(0..INSTANCES);
        while self.send(play, instance).await == Said::Nothing {
            self.tally.retries.one();
            tokio::time::sleep(Duration::from_millis(rand::random_range(20..400))).await;
            if rand::random() {
                instance = (instance + 1) % INSTANCES;
            }
        }
    }

    async fn send(&self, play: &Play, instance: usize) -> Said {
        let said = self.post(play, &play.body(), instance).await;
        if said == Said::Counted && play.counted.swap(true, Ordering::SeqCst) {
            let id = &self.videos[play.video].id;
            self.tally.wrong(Wrong::Double, &format!("counted twice, the answers say: {id} {}", play.body()));
        }
        said
    }

    /// What was answered counts nothing any more, however and wherever it is sent.
    async fn send_again(&self, play: Arc<Play>) {
        let old = {
            let mut answered = self.answered.lock();
            if answered.len() == REMEMBERED {
                answered.pop_front();
            }
            answered.push_back(play.clone());
            answered.get(rand::random_range(0..answered.len())).cloned()
        };
        let again = match rand::random_range(0..8) {
            0 => Some((play.body(), play)),
            1 => Some((play.disguised(), play)),
            2 => old.map(|old| (old.body(), old)),
            3 => old.map(|old| (old.disguised(), old)),
            _ => None,
        };
        let Some((body, play)) = again else { return };
        self.tally.duplicates_sent.one();
        if self.post(&play, &body, rand::random_range(0..INSTANCES)).await == Said::Counted {
            let id = &self.videos[play.video].id;
            self.tally.wrong(Wrong::Double, &format!("answered before, now counted: {id} {body}"));
        }
    }

    async fn post(&self, play: &Play, body: &Value, instance: usize) -> Said {
        self.tally.plays_sent.one();
        let id = &self.videos[play.video].id;
        let url = format!("{}/api/video/{id}/play", self.world.urls[instance]);
        let Ok(answer) = self.world.http.post(&url, body).await else { return Said::Nothing };
        self.tally.answered(answer.status);
        match (answer.status, answer.body["counted"].as_bool()) {
            (202, _) if self.world.counts_later() && answer.body["accepted"] == true => Said::Accepted,
            (200, Some(true)) if !self.world.counts_later() => {
                self.tails.counted(instance);
                Said::Counted
            }
            (200, Some(false)) if !self.world.counts_later() => Said::Duplicate,
            (503, _) if answer.body["retryable"] == true => Said::Nothing,
            (status, _) => {
                let what = format!("instance {instance} answers a play with {status} {}", answer.body);
                self.tally.wrong(Wrong::Promise, &what);
                Said::Nothing
            }
        }
    }
}
