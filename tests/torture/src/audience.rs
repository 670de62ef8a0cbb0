//! Viewers that beat, and what may be said of how many they are.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    tally::{Tally, Wrong},
    world::{INSTANCES, World},
};

/// How many watch each video.
const WATCHING: [usize; 6] = [3, 8, 13, 21, 34, 41];

/// Far oftener than `presence.heartbeat_every`: a beat that is lost with its instance is soon repeated.
const BEAT_EVERY: Duration = Duration::from_secs(2);

/// `presence.window`.
const WINDOW: Duration = Duration::from_secs(45);

/// A process that is stopped between a look at the clock and the write may set a viewer back by as
/// long as it was stopped, until that viewer's next beat; and times are kept in whole seconds.
const SET_BACK: Duration = Duration::from_secs(16);

/// How old a count may be that is called fresh: two sweeps and a cache.
const OLDEST_COUNT: Duration = Duration::from_secs(12);

/// A video that is watched, by always the same viewers.
pub(crate) struct Watched {
    pub(crate) id: String,
    viewers: Vec<Viewer>,
}

struct Viewer {
    name: String,
    /// When beats that are surely in the store were sent and answered.
    beats: Mutex<VecDeque<(Instant, Instant)>>,
}

impl Watched {
    pub(crate) fn all() -> Vec<Self> {
        let watched = WATCHING.iter().enumerate().map(|(index, viewers)| Self {
            id: format!("watched-{index}"),
            viewers: (0..*viewers)
                .map(|viewer| Viewer { name: format!("viewer-{viewer}"), beats: Mutex::default() })
                .collect(),
        });
        watched.collect()
    }

    /// Says what is wrong with a count that was asked for at `asked` and is answered now.
    pub(crate) fn judge(&self, asked: Instant, online: Option<u64>, stale: bool) -> Result<(), String> {
        let Some(online) = online else { return Ok(()) };
        let most = self.viewers.len() as u64;
        if online > most {
            return Err(format!("{online} watch {}, which has {most} viewers", self.id));
        }
        if stale {
            return if online == 0 { Err(format!("a 0 for {} that isn't fresh", self.id)) } else { Ok(()) };
        }
        let least = self.surely(asked, Instant::now());
        if online < least {
            return Err(format!("{online} watch {}, fresh, and {least} surely do", self.id));
        }
        Ok(())
    }

    /// How many were surely there whenever between `asked` and `now` a fresh count was made.
    fn surely(&self, asked: Instant, now: Instant) -> u64 {
        let there = |viewer: &&Viewer| {
            let beats = viewer.beats.lock();
            beats
                .iter()
                .any(|(sent, answered)| *answered + OLDEST_COUNT <= asked && *sent + WINDOW >= now + SET_BACK)
        };
        self.viewers.iter().filter(there).count() as u64
    }
}

/// Lets everybody watch; one viewer for each future.
pub(crate) fn start(
    world: &Arc<World>,
    tally: &Arc<Tally>,
    videos: &Arc<Vec<Watched>>,
) -> Vec<impl Future<Output = anyhow::Result<()>> + use<>> {
    let places = videos
        .iter()
        .enumerate()
        .flat_map(|(video, watched)| (0..watched.viewers.len()).map(move |viewer| (video, viewer)));
    let watch = |(video, viewer)| {
        let (world, tally, videos) = (world.clone(), tally.clone(), videos.clone());
        async move { watch(&world, &tally, &videos[video], viewer).await }
    };
    places.map(watch).collect()
}

async fn watch(world: &World, tally: &Tally, video: &Watched, viewer: usize) -> anyhow::Result<()> {
    let viewer = &video.viewers[viewer];
    let mut instance = rand::random_range(0..INSTANCES);
    tokio::time::sleep(BEAT_EVERY.mul_f64(rand::random())).await;
    loop {
        let url = format!("{}/api/video/{}/heartbeat", world.urls[instance], video.id);
        let sent = Instant::now();
        let answer = world.http.post(&url, &json!({ "userId": viewer.name })).await;
        tally.beats.one();
        let wait = match answer {
            Ok(answer) if answer.status == 200 => {
                let online = answer.body["online"].as_u64();
                if online.is_none_or(|online| online < 1 || online > video.viewers.len() as u64) {
                    let what =
                        format!("instance {instance} answers a beat of {} with {}", video.id, answer.body);
                    tally.wrong(Wrong::Online, &what);
                }
                if World::stores_beats(instance) {
                    let mut beats = viewer.beats.lock();
                    beats.push_back((sent, Instant::now()));
                    while beats.front().is_some_and(|(sent, _)| sent.elapsed() > WINDOW) {
                        beats.pop_front();
                    }
                }
                BEAT_EVERY.mul_f64(rand::random_range(0.8..1.2))
            }
            _ => {
                tally.beats_failed.one();
                Duration::from_millis(rand::random_range(100..500))
            }
        };
        // A load balancer knows no viewers.
        if rand::random() {
            instance = (instance + 1) % INSTANCES;
        }
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_viewer_is_surely_there_from_a_while_after_a_beat_until_a_while_before_the_window_ends() {
        let video = Watched::all().remove(0);
        let beat = Instant::now();
        video.viewers[0].beats.lock().push_back((beat, beat + secs(1)));
        let surely = |after: Duration| video.surely(beat + after, beat + after);
        assert_eq!(surely(secs(5)), 0, "a cache may be older");
        assert_eq!(surely(secs(13)), 1);
        assert_eq!(surely(secs(29)), 1);
        assert_eq!(surely(secs(30)), 0, "it may have been set back");
        assert!(video.judge(beat, Some(4), true).is_err(), "more than there are");
        assert!(video.judge(beat, Some(0), true).is_err(), "nobody vouches for that 0");
        assert!(video.judge(beat, Some(0), false).is_ok(), "nobody is surely there yet");
    }
}
