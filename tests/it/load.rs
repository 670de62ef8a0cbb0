//! An audience that goes on while something happens to the stores, and is counted afterwards.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use headcount::plays::Recorded;

use crate::world::{World, a_play, eventually};

/// What an audience does until it is told to stop, and what came of it.
pub struct Load<'a> {
    worlds: [&'a World; 2],
    over: AtomicBool,
    played: AtomicU32,
    refused: AtomicU32,
}

const VIDEOS: u32 = 7;

/// Viewers of each video.
const VIEWERS: u32 = 24;

impl<'a> Load<'a> {
    pub fn new(worlds: [&'a World; 2]) -> Self {
        Self { worlds, over: AtomicBool::new(false), played: 0.into(), refused: 0.into() }
    }

    /// Plays and beats, each sent again until it is taken, with both instances; while `meanwhile` happens.
    pub async fn run(&self, meanwhile: impl Future<Output = ()>) {
        let events = async {
            meanwhile.await;
            self.over.store(true, Ordering::Relaxed);
        };
        let players = futures::future::join_all((0..4).map(|player| self.play(player)));
        let watchers = futures::future::join_all((0..VIDEOS).map(|video| self.watch(video)));
        let jobs = async {
            while !self.over.load(Ordering::Relaxed) {
                for job in &self.worlds[0].stores.jobs {
                    if matches!(job.name(), "flush" | "sweep") {
                        // While a node is away its partitions can't be flushed.
                        let _ = job.run().await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::join!(events, players, watchers, jobs);
        self.over.store(false, Ordering::Relaxed);
    }

    async fn play(&self, player: usize) {
        while !self.over.load(Ordering::Relaxed) {
            let number = self.played.fetch_add(1, Ordering::Relaxed);
            let play_id = format!("play-{number}");
            for attempt in 0.. {
                let world = self.worlds[(player + attempt) % 2];
                let play = a_play(&format!("video-{}", number % VIDEOS), None, Some(&play_id));
                match world.stores.plays.record(play).await {
                    Ok(Recorded::Counted) => break,
                    // One that was not answered, or not vouched for, may have been counted.
                    Ok(_) if attempt > 0 => break,
                    Ok(other) => panic!("{other:?} for a play that is new"),
                    Err(error) => {
                        assert!(error.is_transient(), "{error}");
                        self.refused.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }
    }

    async fn watch(&self, video: u32) {
        for round in 0.. {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let viewer = format!("viewer-{}", round % VIEWERS);
            let world = self.worlds[usize::from(round % 2 == 0)];
            if let Err(error) = world.try_beat(&format!("video-{video}"), &viewer).await {
                assert!(error.is_transient(), "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// How often somebody was told to try again.
    pub fn refused(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }

    /// All plays are counted, once, and all viewers.
    pub async fn is_counted(&self) {
        for world in self.worlds {
            eventually("it is well again", async || world.stores.health.check().await.degraded.is_empty())
                .await;
        }
        // Everybody beats twice more, which is how long low numbers may be doubted.
        for _ in 0..5 {
            for video in 0..VIDEOS {
                for viewer in 0..VIEWERS {
                    let beat = async || {
                        let (video, viewer) = (format!("video-{video}"), format!("viewer-{viewer}"));
                        self.worlds[0].try_beat(&video, &viewer).await.is_ok()
                    };
                    eventually("the beat is taken", beat).await;
                }
            }
            self.worlds[0].pass_swept(1).await;
        }
        let flush = async || {
            let jobs = self.worlds[0].stores.jobs.iter().filter(|job| job.name() == "flush");
            futures::future::join_all(jobs.map(|job| job.run())).await.iter().all(Result::is_ok)
        };
        eventually("all is flushed", flush).await;
        let played = self.played.load(Ordering::Relaxed);
        for world in self.worlds {
            world.forget_what_was_read();
            for video in 0..VIDEOS {
                let name = format!("video-{video}");
                let sent = (0..played).filter(|number| number % VIDEOS == video).count() as u64;
                let plays = world.plays(&name).await;
                assert_eq!((plays.plays, plays.stale), (Some(sent), false), "{name}");
                let online = world.online(&name).await;
                assert_eq!((online.online, online.stale), (Some(u64::from(VIEWERS)), false), "{name}");
            }
        }
    }
}
