//! A log that real processes count: what is in it, what befalls one of them, and what must come of it.

use headcount_support::eventually;

use super::COUNTING;
use crate::{
    kafka::{counting::plays, rebuild::settings, shared_with},
    process::Service,
    world::{World, a_play},
};

/// Plays in the log, each of another video; some stand there twice.
const PLAYS: u32 = 30;

/// What the database has of the first video before anything is counted: Redis keeps it by then, and has to
/// be told of more.
const BEFORE: i64 = 5;

/// A log with plays in it that nobody has counted, and what is right once all of it is.
pub(super) struct Log {
    world: World,
    records: i64,
    views: i64,
}

impl Log {
    pub(super) async fn written(step: &str) -> Self {
        let world = shared_with(|config| config.kafka.consume = false).await;
        world.execute(&format!("insert into videos (video_id, views) values ('film-0', {BEFORE})")).await;
        assert_eq!(world.plays("film-0").await.plays, Some(BEFORE.unsigned_abs()));
        let mut records = world.write(plays(0, PLAYS)).await;
        let mut views = BEFORE + i64::from(PLAYS);
        match step {
            "window.letter" => {
                world.write_junk("film-0", "no play").await;
                records += 1;
            }
            "window.refuse" => {
                world.execute("alter table videos add check (video_id <> 'film-1')").await;
                views -= 1;
            }
            _ => {}
        }
        Self { world, records, views }
    }

    pub(super) async fn start(&self, failpoints: &str) -> Service {
        let mut all = settings(&self.world);
        all.extend(
            [
                ("FAILPOINTS", failpoints),
                ("HEADCOUNT_KAFKA__PROPERTIES__SESSION__TIMEOUT__MS", "1500"),
                ("HEADCOUNT_KAFKA__PROPERTIES__HEARTBEAT__INTERVAL__MS", "300"),
                // A transaction of one that stands still is over then.
                ("HEADCOUNT_POSTGRES__DEADLINE", "2s"),
                ("HEADCOUNT_SERVER__DRAIN", "10s"),
                ("HEADCOUNT_LOG__FILTER", "warn,headcount::app=info"),
            ]
            .map(|(name, value)| (name, value.to_owned())),
        );
        let all: Vec<(&str, &str)> = all.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Service::start_as(&["consume"], self.world.folder(), &all).await
    }

    /// Waits until all is counted, and looks whether it is right everywhere.
    pub(super) async fn becomes_exact(&self, step: &str, fault: &str) {
        self.world.counts(self.records).await;
        assert_eq!(self.world.views().await, self.views, "{step} {fault}");
        let days = self.world.rows("select sum(views)::bigint from video_daily").await;
        assert_eq!(days, self.views - BEFORE, "{step} {fault}");
        let told = Some(BEFORE.unsigned_abs() + 1);
        eventually("redis is told", async || {
            self.world.forget_what_was_read();
            let count = self.world.plays("film-0").await;
            assert!(count.plays <= told, "{step} {fault}: {count:?}");
            count.plays == told && count.unique_viewers == Some(1)
        })
        .await;
        self.world.books_agree().await;
    }

    /// Gives its connections back.
    pub(super) async fn close(self) {
        self.world.stop().await;
    }

    /// One play more, for whoever counts now.
    pub(super) async fn goes_on(&mut self, step: &str, fault: &str) {
        self.records += self.world.write([a_play("another", Some("ann"), None)]).await;
        self.views += 1;
        self.becomes_exact(step, fault).await;
    }
}

/// Whether a step of those is only reached after another has failed.
pub(super) fn failpoints(step: &str, fault: &str) -> String {
    assert!(COUNTING.contains(&step));
    let before = if step == "window.look" { "window.commit=1*return(lost);" } else { "" };
    format!("{before}{step}=1*return({fault})")
}
