//! Many beats and plays at once, to bring a service into a state that is then measured.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::{
    audience::{body_of, video},
    http::{Connection, post},
};

/// As many as a gateway may send in one request.
const BEATS_AT_ONCE: usize = 1_000;

/// What is asked at the same time.
const CONNECTIONS: usize = 32;

/// How often a request is sent again where the service had no room for it.
const TRIES: usize = 600;

/// How long it is left alone before.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct Taken {
    accepted: usize,
}

#[derive(Deserialize)]
struct Played {
    counted: bool,
}

/// Sends beats of (video, viewer), as gateways do, until all are taken.
pub(crate) async fn beat(
    address: SocketAddr,
    beats: impl Iterator<Item = (String, u32)>,
) -> anyhow::Result<()> {
    let mut connection = Connection::open(address).await?;
    let mut beats = beats.peekable();
    while beats.peek().is_some() {
        let mut sent = 0;
        let body = body_of(beats.by_ref().take(BEATS_AT_ONCE).inspect(|_| sent += 1));
        let request = post("/api/heartbeats", &body);
        let mut tries = 0;
        // What was refused for want of room may be sent again with the others: a beat more changes nothing.
        loop {
            let answer = connection.exchange(&request).await?;
            if answer.status == 200 && serde_json::from_slice::<Taken>(answer.body)?.accepted == sent {
                break;
            }
            tries += 1;
            ensure!(
                tries < TRIES,
                "beats aren't taken: {} {}",
                answer.status,
                String::from_utf8_lossy(answer.body)
            );
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Plays each of so many videos once.
pub(crate) async fn play_each(address: SocketAddr, videos: u32, run: u32) -> anyhow::Result<()> {
    let ids = (0..usize::try_from(videos)?).map(|number| (video(number), format!("{run}-{number}")));
    play(address, "playId", ids.collect()).await?;
    Ok(())
}

/// Sends plays of (video, `field`) until all are taken; how many of them were new to the service.
pub(crate) async fn play(
    address: SocketAddr,
    field: &'static str,
    plays: Vec<(String, String)>,
) -> anyhow::Result<usize> {
    let plays = Arc::new(plays);
    let mut connections = JoinSet::new();
    for first in 0..CONNECTIONS {
        let plays = Arc::clone(&plays);
        connections.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut new = 0;
            for (video, play) in plays.iter().skip(first).step_by(CONNECTIONS) {
                let request =
                    post(&format!("/api/video/{video}/play"), &format!("{{\"{field}\":\"{play}\"}}"));
                let mut tries = 0;
                loop {
                    let answer = connection.exchange(&request).await?;
                    if answer.status == 200 {
                        new += usize::from(serde_json::from_slice::<Played>(answer.body)?.counted);
                        break;
                    }
                    tries += 1;
                    ensure!(tries < TRIES, "a play isn't taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
            anyhow::Ok(new)
        });
    }
    let mut new = 0;
    while let Some(ended) = connections.join_next().await {
        new += ended.context("a task panicked")??;
    }
    Ok(new)
}
