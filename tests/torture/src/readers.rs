//! Pages that look at counts all the time, at each instance, one by one and many together.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    audience::Watched,
    ledger::{Floor, Video},
    tally::{Tally, Wrong},
    world::{INSTANCES, World},
};

/// Readers of each kind at each instance: their answers must agree with each other as well.
const READERS: usize = 2;

/// Between two reads of one reader.
const SINGLE_EVERY: Duration = Duration::from_millis(40);
const BULK_EVERY: Duration = Duration::from_millis(250);

/// What every instance knows within this time, its cache's and then some.
const TURN: Duration = Duration::from_secs(6);

/// Everything that reads.
pub(crate) struct Readers {
    pub(crate) world: Arc<World>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) videos: Arc<Vec<Video>>,
    pub(crate) watched: Arc<Vec<Watched>>,
}

impl Readers {
    /// Lets turns go by; see [`Video::turn`].
    pub(crate) async fn turn(self: Arc<Self>) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(TURN).await;
            self.videos.iter().for_each(Video::turn);
        }
    }

    /// One reader for each future.
    pub(crate) fn start(self: Arc<Self>) -> Vec<impl Future<Output = anyhow::Result<()>>> {
        let kinds = (0..READERS * INSTANCES)
            .flat_map(|reader| [(reader % INSTANCES, false), (reader % INSTANCES, true)]);
        let read = |(instance, in_bulk): (usize, bool)| {
            let readers = self.clone();
            async move {
                loop {
                    if in_bulk {
                        readers.many(instance).await;
                        tokio::time::sleep(BULK_EVERY).await;
                    } else {
                        readers.one(instance).await;
                        tokio::time::sleep(SINGLE_EVERY).await;
                    }
                }
            }
        };
        kinds.map(read).collect()
    }

    /// Reads one video in one of the three ways.
    async fn one(&self, instance: usize) {
        let url = &self.world.urls[instance];
        let video = &self.videos[rand::random_range(0..self.videos.len())];
        let watched = &self.watched[rand::random_range(0..self.watched.len())];
        match rand::random_range(0..3) {
            0 => {
                let floor = video.floor(instance);
                let answer = self.get(instance, &format!("{url}/api/video/{}/play-count", video.id)).await;
                answer.inspect(|answer| self.total(video, floor, &answer["plays"], &answer["stale"]));
            }
            1 => {
                let floor = video.floor(instance);
                let answer = self.get(instance, &format!("{url}/api/video/{}/counts", video.id)).await;
                answer.inspect(|answer| self.total(video, floor, &answer["plays"], &answer["playsStale"]));
            }
            _ => {
                let asked = Instant::now();
                let answer =
                    self.get(instance, &format!("{url}/api/video/{}/online-count", watched.id)).await;
                answer.inspect(|answer| {
                    self.online(instance, watched, asked, &answer["online"], &answer["stale"]);
                });
            }
        }
    }

    /// Reads all videos together.
    async fn many(&self, instance: usize) {
        let url = &self.world.urls[instance];
        let played = self.videos.iter().map(|video| video.id.as_str());
        let ids: Vec<&str> = played.chain(self.watched.iter().map(|watched| watched.id.as_str())).collect();
        let floors: Vec<Floor> = self.videos.iter().map(|video| video.floor(instance)).collect();
        let asked = Instant::now();
        let answer = if rand::random() {
            self.get(instance, &format!("{url}/api/videos/counts?ids={}", ids.join(","))).await
        } else {
            let answer =
                self.world.http.post(&format!("{url}/api/videos/counts"), &json!({ "ids": ids })).await;
            answer.ok().filter(|answer| answer.status == 200).map(|answer| answer.body)
        };
        let Some(counts) = answer.as_ref().and_then(|answer| answer["counts"].as_array()) else { return };
        if counts.iter().map(|count| &count["videoId"]).ne(ids.iter()) {
            self.tally
                .wrong(Wrong::Promise, &format!("instance {instance} answers for other videos: {counts:?}"));
            return;
        }
        let (played, watched) = counts.split_at(self.videos.len());
        for ((video, floor), count) in self.videos.iter().zip(floors).zip(played) {
            self.total(video, floor, &count["plays"], &count["playsStale"]);
        }
        for (video, count) in self.watched.iter().zip(watched) {
            self.online(instance, video, asked, &count["online"], &count["onlineStale"]);
        }
    }

    async fn get(&self, instance: usize, url: &str) -> Option<Value> {
        let answer = self.world.http.get(url).await.ok()?;
        // Reads are answered whatever the stores do: with a number, a stale one or none.
        if answer.status != 200 && answer.status != 503 {
            let what = format!("instance {instance} answers {url} with {} {}", answer.status, answer.body);
            self.tally.wrong(Wrong::Promise, &what);
        }
        (answer.status == 200).then_some(answer.body)
    }

    fn total(&self, video: &Video, floor: Floor, total: &Value, stale: &Value) {
        self.tally.totals_read.one();
        match (total.as_u64(), stale.as_bool()) {
            (Some(total), Some(false)) => {
                if let Err((wrong, what)) = video.judge(floor, total) {
                    self.tally.wrong(wrong, &what);
                }
            }
            (Some(_), Some(true)) => self.tally.totals_unsure.one(),
            (None, Some(_)) if total.is_null() => self.tally.totals_unsure.one(),
            _ => self
                .tally
                .wrong(Wrong::Promise, &format!("the total of {} is {total}, stale {stale}", video.id)),
        }
    }

    fn online(&self, instance: usize, video: &Watched, asked: Instant, online: &Value, stale: &Value) {
        let count = online.as_u64();
        let Some(stale) = stale.as_bool().filter(|_| count.is_some() || online.is_null()) else {
            self.tally.wrong(Wrong::Promise, &format!("{online} watch {}, stale {stale}", video.id));
            return;
        };
        match (count, stale) {
            (None, _) => self.tally.online_unknown.one(),
            (_, true) => self.tally.online_stale.one(),
            (_, false) => self.tally.online_fresh.one(),
        }
        if let Err(what) = video.judge(asked, count, stale) {
            self.tally.wrong(Wrong::Online, &format!("instance {instance}: {what}"));
        }
    }
}
