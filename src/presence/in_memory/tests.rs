use futures::future::join_all;
use tempfile::TempDir;

use super::{snapshot::encode, viewers::Copied, *};
use crate::{clock::ManualClock, ids::ViewerId};

const MINUTE: Duration = Duration::from_secs(60);

struct World {
    folder: TempDir,
    clock: Arc<ManualClock>,
    sqlite: Sqlite,
    presence: Arc<InMemoryPresence>,
}

fn settings() -> Settings {
    Settings {
        window: Duration::from_secs(600),
        heartbeat_every: Duration::from_secs(30),
        sweep_every: MINUTE,
        snapshot_every: Duration::from_secs(10),
        max_viewers: 1_000_000,
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn video(id: &str) -> VideoId {
    VideoId::parse(id).unwrap()
}

fn beat(id: &str, viewer: &str) -> Beat {
    Beat { video: video(id), viewer: ViewerId::from_stored(viewer) }
}

impl World {
    async fn new() -> Self {
        Self::with(settings()).await
    }

    async fn with(settings: Settings) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        Self::open(tempfile::tempdir().unwrap(), settings, clock).await
    }

    async fn open(folder: TempDir, settings: Settings, clock: Arc<ManualClock>) -> Self {
        let sqlite = Sqlite::open(folder.path()).await.unwrap();
        let presence = InMemoryPresence::open(settings, &sqlite, clock.clone()).await.unwrap();
        Self { folder, clock, sqlite, presence }
    }

    /// The next process on the same file, `later`.
    async fn restart(self, later: Duration) -> Self {
        self.sqlite.close().await;
        self.clock.advance(later);
        Self::open(self.folder, settings(), self.clock).await
    }

    async fn run(&self, job: &str) {
        for found in self.presence.jobs(&self.sqlite).iter().filter(|found| found.name() == job) {
            found.run().await.unwrap();
        }
    }

    /// Lets time pass as it does, with a sweep each minute.
    async fn minutes(&self, minutes: u32) {
        for _ in 0..minutes {
            self.clock.advance(MINUTE);
            self.run("sweep").await;
        }
    }

    async fn beat(&self, id: &str, viewer: &str) -> u64 {
        self.presence.beat(beat(id, viewer)).await.unwrap()
    }

    async fn online(&self, id: &str) -> OnlineCount {
        self.presence.online(&[video(id)]).await[0]
    }

    fn fresh(&self, online: u64) -> OnlineCount {
        OnlineCount { online: Some(online), as_of: Some(self.clock.now()), stale: false }
    }

    fn held(&self) -> (usize, usize) {
        let videos = self.presence.shards.iter().map(|shard| shard.lock().videos()).sum();
        (videos, self.presence.viewers.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn a_viewer_is_online_for_exactly_one_window() {
    let world = World::new().await;
    assert_eq!(world.online("film").await, world.fresh(0));
    assert_eq!(world.beat("film", "ann").await, 1);
    world.minutes(10).await;
    assert_eq!(world.online("film").await, world.fresh(1));
    world.clock.advance(secs(1));
    world.run("sweep").await;
    assert_eq!(world.online("film").await, world.fresh(0));
    assert_eq!(world.held(), (0, 0));
}

#[tokio::test]
async fn viewers_count_once_each_and_a_read_stores_nothing() {
    let world = World::new().await;
    for _ in 0..3 {
        for viewer in ["ann", "bob", "tv:ann"] {
            world.beat("film", viewer).await;
        }
    }
    let asked = ["show", "film", "x", "film"].map(video);
    let counts: Vec<_> =
        world.presence.online(&asked).await.iter().map(|count| count.online.unwrap()).collect();
    assert_eq!(counts, [0, 3, 0, 3]);
    assert_eq!(world.held(), (1, 3));
}

#[tokio::test]
async fn leaving_twice_or_without_having_come_harms_nobody() {
    let world = World::new().await;
    for viewer in ["ann", "bob"] {
        world.beat("film", viewer).await;
    }
    for (viewer, left) in [("cid", 2), ("ann", 1), ("ann", 1), ("bob", 0), ("bob", 0)] {
        assert_eq!(world.presence.leave(beat("film", viewer)).await.unwrap(), world.fresh(left));
    }
    assert_eq!(world.presence.leave(beat("show", "ann")).await.unwrap(), world.fresh(0));
    assert_eq!(world.held(), (0, 0));
}

/// S1.
#[tokio::test]
async fn a_video_watched_for_hours_is_still_swept() {
    let world = World::new().await;
    for minute in 0..180 {
        world.beat("film", "ann").await;
        if minute < 60 {
            let beats = (0..100).map(|number| beat("film", &format!("u{number}"))).collect();
            assert!(world.presence.beat_many(beats).await.iter().all(Result::is_ok));
        }
        world.minutes(1).await;
    }
    assert_eq!(world.online("film").await, world.fresh(1));
    assert_eq!(world.held(), (1, 1));
}

/// S2 and S6.
#[tokio::test]
async fn without_sweeps_no_number_is_given_as_fresh_and_the_first_one_clears_up() {
    let world = World::new().await;
    for number in 0..2_500 {
        world.beat(&format!("v{}", number % 7), &format!("u{number}")).await;
    }
    world.beat("film", "ann").await;
    world.clock.advance(2 * MINUTE);
    assert!(!world.online("film").await.stale);
    world.clock.advance(secs(1));
    let stale = OnlineCount { online: Some(1), as_of: Some(world.clock.now()), stale: true };
    assert_eq!(world.online("film").await, stale);
    assert!(world.presence.top(1).await.stale);
    world.clock.advance(30 * MINUTE);
    // The right number would be 0, and nothing vouches for that.
    assert_eq!(world.online("film").await, OnlineCount::UNKNOWN);
    assert_eq!(world.beat("film", "bob").await, 1);
    assert_eq!(world.online("film").await.online, Some(1));
    world.clock.advance(180 * MINUTE);
    world.run("sweep").await;
    assert_eq!(world.held(), (0, 0));
    assert_eq!(world.online("film").await, world.fresh(0));
}

/// S5.
#[tokio::test]
async fn who_beats_is_seen_at_once() {
    let world = World::new().await;
    assert_eq!(world.online("film").await.online, Some(0));
    assert_eq!(world.beat("film", "ann").await, 1);
    assert_eq!(world.online("film").await.online, Some(1));
}

#[tokio::test]
async fn at_the_limit_new_viewers_are_refused_and_known_ones_go_on() {
    let world = World::with(Settings { max_viewers: 2, ..settings() }).await;
    world.beat("film", "ann").await;
    world.beat("show", "ann").await;
    let full = world.presence.beat(beat("film", "bob")).await.unwrap_err();
    assert!(matches!(full, StoreError::Full { part: Part::Memory, queue: "viewers" }), "{full}");
    let many = vec![beat("film", "cid"), beat("film", "ann"), beat("show", "ann"), beat("new", "ann")];
    let results: Vec<bool> = world.presence.beat_many(many).await.iter().map(Result::is_ok).collect();
    assert_eq!(results, [false, true, true, false]);
    assert_eq!(world.held(), (2, 2));
    world.presence.leave(beat("show", "ann")).await.unwrap();
    assert_eq!(world.beat("film", "bob").await, 2);
}

#[tokio::test]
async fn the_most_watched_are_ranked_by_the_sweep() {
    let world = World::new().await;
    assert_eq!(world.presence.top(5).await.videos, []);
    for number in 0..300_u32 {
        for viewer in 0..=(number % 250) {
            world.beat(&format!("v{number:03}"), &format!("u{viewer}")).await;
        }
    }
    assert_eq!(world.presence.top(5).await.videos, []);
    world.minutes(1).await;
    let at = world.clock.now();
    world.clock.advance(secs(30));
    let top = world.presence.top(3).await;
    assert_eq!(top.videos, [(video("v249"), 250), (video("v248"), 249), (video("v247"), 248)]);
    assert_eq!((top.as_of, top.stale), (Some(at), false));
    let all = world.presence.top(1_000).await.videos;
    assert_eq!(all.len(), 200);
    assert!(all.is_sorted_by(|one, next| one.1 > next.1 || (one.1 == next.1 && one.0 < next.0)));
}

#[tokio::test]
async fn a_clock_that_jumps_removes_nobody_for_two_beat_periods() {
    for jump in [3_600_000, -3_600_000] {
        let world = World::new().await;
        world.beat("film", "stays").await;
        world.beat("film", "goes").await;
        world.clock.advance(secs(30));
        world.clock.jump(jump);
        world.run("sweep").await;
        assert_eq!(world.online("film").await, world.fresh(2), "{jump}");
        for _ in 0..2 {
            world.clock.advance(secs(59));
            world.beat("film", "stays").await;
            world.run("sweep").await;
            assert_eq!(world.online("film").await, world.fresh(2), "{jump}");
        }
        // Whoever has not beaten by then goes a window after the jump at the latest.
        for _ in 0..10 {
            world.beat("film", "stays").await;
            world.minutes(1).await;
        }
        assert_eq!(world.online("film").await, world.fresh(1), "{jump}");
    }
}

#[tokio::test]
async fn a_jump_just_before_a_read_that_no_sweep_vouches_for_loses_nobody() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    world.clock.advance(3 * MINUTE);
    world.clock.jump(3_600_000);
    assert_eq!(world.online("film").await.online, Some(1));
}

#[tokio::test]
async fn after_a_short_restart_all_are_back_and_vouched_for() {
    let world = World::new().await;
    world.beat("film", "early").await;
    world.minutes(9).await;
    for number in 0..3_000 {
        world.beat(&format!("v{}", number % 100), &format!("u{number}")).await;
        world.beat("film", &format!("u{number}")).await;
    }
    world.run("snapshot").await;
    let world = world.restart(secs(61)).await;
    assert_eq!(world.online("film").await, world.fresh(3_000));
    assert_eq!(world.online("v42").await, world.fresh(30));
    assert_eq!(world.held(), (101, 6_000));
    assert_eq!(world.presence.top(1).await.videos, [(video("film"), 3_000)]);
    world.minutes(9).await;
    assert_eq!(world.online("film").await, world.fresh(0));
}

#[tokio::test]
async fn a_stop_saves_everybody() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    for job in world.presence.jobs(&world.sqlite) {
        job.finish().await;
    }
    let world = world.restart(secs(1)).await;
    assert_eq!(world.online("film").await, world.fresh(1));
}

#[tokio::test]
async fn a_first_start_vouches_for_zero() {
    let world = World::new().await;
    assert_eq!(world.online("film").await, world.fresh(0));
    let world = world.restart(secs(86_400)).await;
    assert_eq!(world.online("film").await, world.fresh(0));
}

#[tokio::test]
async fn after_a_long_restart_the_old_number_stands_until_all_have_beaten_again() {
    let world = World::new().await;
    for number in 0..10 {
        world.beat("film", &format!("u{number}")).await;
        world.beat("show", &format!("u{number}")).await;
    }
    world.run("snapshot").await;
    let saved = world.clock.now();
    // Longer than 2.5 sweeps; all but those who beat again are gone by the window.
    world.presence.beat(beat("film", "unsaved")).await.unwrap();
    let world = world.restart(secs(599)).await;
    let before = OnlineCount { online: Some(10), as_of: Some(saved), stale: true };
    assert_eq!(world.online("film").await, before);
    assert_eq!(world.online("new").await, OnlineCount::UNKNOWN);
    assert!(world.presence.top(1).await.stale);
    world.clock.advance(secs(2));
    world.run("sweep").await;
    // Over a window ago, the old number says nothing any more.
    assert_eq!(world.online("show").await, OnlineCount::UNKNOWN);
    assert_eq!(world.beat("film", "u3").await, 1);
    assert_eq!(world.beat("film", "u4").await, 2);
    let live = OnlineCount { online: Some(2), as_of: Some(world.clock.now()), stale: true };
    assert_eq!(world.online("film").await, live);
    world.clock.advance(secs(118));
    world.run("sweep").await;
    assert_eq!(world.online("film").await, world.fresh(2));
    assert_eq!(world.online("show").await, world.fresh(0));
    assert!(!world.presence.top(1).await.stale);
}

#[tokio::test]
async fn after_a_long_restart_a_beat_is_answered_with_the_old_number_where_that_is_more() {
    let world = World::new().await;
    for number in 0..10 {
        world.beat("film", &format!("u{number}")).await;
    }
    world.run("snapshot").await;
    let world = world.restart(secs(400)).await;
    assert_eq!(world.beat("film", "u1").await, 10);
    assert_eq!(world.beat("film", "new").await, 11);
    assert_eq!(world.beat("other", "new").await, 1);
}

#[tokio::test]
async fn a_restart_does_not_end_the_doubt_of_the_one_before() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    world.run("snapshot").await;
    let world = world.restart(secs(300)).await;
    world.run("snapshot").await;
    let world = world.restart(secs(10)).await;
    assert!(world.online("film").await.stale);
    world.clock.advance(secs(109));
    world.run("sweep").await;
    assert!(world.online("film").await.stale);
    world.clock.advance(secs(1));
    assert_eq!(world.online("film").await, world.fresh(1));
}

#[tokio::test]
async fn a_snapshot_from_the_future_is_not_vouched_for() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    world.run("snapshot").await;
    world.clock.jump(-7_200_000);
    let world = world.restart(secs(1)).await;
    let online = world.online("film").await;
    assert_eq!((online.online, online.stale), (Some(1), true));
    world.minutes(10).await;
    assert_eq!(world.online("film").await, world.fresh(1));
    world.minutes(1).await;
    assert_eq!(world.online("film").await, world.fresh(0));
}

#[tokio::test]
async fn a_damaged_snapshot_is_lost_data_and_the_rest_is_used() {
    for damage in [
        "update viewer_snapshot set viewers = x'09' where shard = (select min(shard) from viewer_snapshot)",
        "delete from viewer_snapshot_saved",
    ] {
        let world = World::new().await;
        for number in 0..50 {
            world.beat(&format!("v{number}"), "ann").await;
        }
        world.run("snapshot").await;
        let mut transaction = world.sqlite.write().await.unwrap();
        sqlx::raw_sql(damage).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
        let world = world.restart(secs(1)).await;
        assert!(world.held().0 >= 40);
        for number in 0..50 {
            let online = world.online(&format!("v{number}")).await;
            assert!(online.stale && online.online != Some(0), "{online:?}");
        }
        world.minutes(2).await;
        assert_eq!(world.online("other").await, world.fresh(0));
    }
}

#[tokio::test]
async fn only_shards_that_changed_are_written_again() {
    let world = World::new().await;
    for number in 0..50 {
        world.beat(&format!("v{number}"), "ann").await;
    }
    let jobs = world.presence.jobs(&world.sqlite);
    let saver = jobs.iter().find(|job| job.name() == "snapshot").unwrap();
    saver.run().await.unwrap();
    let marked = "update viewer_snapshot set viewers = x'00'";
    let left = "select count(*) from viewer_snapshot where viewers = x'00'";
    let mut transaction = world.sqlite.write().await.unwrap();
    let rows = sqlx::raw_sql(marked).execute(&mut *transaction).await.unwrap().rows_affected();
    transaction.commit().await.unwrap();
    saver.run().await.unwrap();
    let unwritten: i64 = sqlx::query_scalar(left).fetch_one(world.sqlite.readers()).await.unwrap();
    assert_eq!(unwritten.unsigned_abs(), rows);
    world.clock.advance(secs(1));
    world.beat("v7", "ann").await;
    saver.run().await.unwrap();
    let unwritten: i64 = sqlx::query_scalar(left).fetch_one(world.sqlite.readers()).await.unwrap();
    assert_eq!(unwritten.unsigned_abs(), rows - 1);
}

#[tokio::test]
async fn a_snapshot_that_failed_is_made_up_for_by_the_next() {
    let world = World::new().await;
    world.beat("film", "ann").await;
    let mut transaction = world.sqlite.write().await.unwrap();
    sqlx::raw_sql("alter table viewer_snapshot rename to away").execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    let jobs = world.presence.jobs(&world.sqlite);
    let saver = jobs.iter().find(|job| job.name() == "snapshot").unwrap();
    assert!(saver.run().await.is_err());
    let mut transaction = world.sqlite.write().await.unwrap();
    sqlx::raw_sql("alter table away rename to viewer_snapshot").execute(&mut *transaction).await.unwrap();
    transaction.commit().await.unwrap();
    saver.run().await.unwrap();
    let world = world.restart(secs(1)).await;
    assert_eq!(world.online("film").await, world.fresh(1));
}

#[tokio::test]
async fn beats_sweeps_and_snapshots_at_the_same_time_agree_in_the_end() {
    let world = World::new().await;
    let beating = join_all((0..8).map(|task| {
        let world = &world;
        async move {
            for number in 0..1_000 {
                world.beat(&format!("v{}", number % 5), &format!("u{task}-{number}")).await;
                if number % 3 == 0 {
                    world
                        .presence
                        .leave(beat(&format!("v{}", number % 5), &format!("u{task}-{number}")))
                        .await
                        .unwrap();
                }
                tokio::task::yield_now().await;
            }
        }
    }));
    let upkeep = async {
        for _ in 0..20 {
            world.run("sweep").await;
            world.run("snapshot").await;
        }
    };
    tokio::join!(beating, upkeep);
    let mut online = 0;
    for number in 0..5 {
        online += world.online(&format!("v{number}")).await.online.unwrap();
    }
    assert_eq!(online, 8 * 666);
    assert_eq!(world.held(), (5, 8 * 666));
    world.run("snapshot").await;
    let world = world.restart(secs(1)).await;
    assert_eq!(world.held(), (5, 8 * 666));
}

#[test]
fn a_snapshot_takes_few_bytes_a_viewer() {
    let viewer = |number: i64| {
        (
            ViewerId::from_stored(&format!("{}", 100_000_000 + number)),
            Timestamp::from_millis(1_800_000_000_000 + number),
        )
    };
    let copied: Copied = vec![(video("film"), (0..100_000).map(viewer).collect())];
    assert!(encode(&copied).len() < 1_400_000);
}
