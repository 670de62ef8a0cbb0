//! Shards that follow the audience: while their number changes, by itself or by an operator, nobody is lost
//! or counted twice.

use std::collections::BTreeMap;

use headcount::{
    clock::Clock as _,
    config::{Ack, Config, Shards},
};

use crate::world::{World, eventually, secs, viewer_id};

/// Everything about one video that lies in Redis.
pub struct Stored {
    /// The shards that a count covers.
    pub covered: u32,
    /// Viewers and their last beats, by shard.
    pub shards: BTreeMap<u32, BTreeMap<String, i64>>,
}

impl Stored {
    /// Read past the service, as a stranger would who knows only what the keys are documented to mean.
    pub async fn of(world: &World, video: &str) -> Self {
        let now = world.clock.now().secs();
        let mut get = redis::cmd("HMGET");
        get.arg(world.key("video:{shards}:map")).arg("*").arg(video);
        let (every, own): (Option<String>, Option<String>) = world.redis_command(&get).await;
        let parts = |stored: Option<String>| -> Vec<(String, i64)> {
            let stored = stored.unwrap_or_default();
            let parts = stored.split(' ').filter(|part| !part.is_empty());
            let part = |part: &str| {
                let (number, until) = part.split_once(':').unwrap_or((part, "9999999999"));
                (number.to_owned(), until.parse().unwrap())
            };
            parts.map(part).filter(|(_, until)| now < *until).collect()
        };
        let (every, own) = (parts(every), parts(own));
        let own_now = own.first().map_or(1, |(number, _)| number.parse().unwrap());
        let auto = every.is_empty() || every.iter().any(|(number, _)| number == "auto");
        let fixed = every.iter().filter_map(|(number, _)| number.parse().ok());
        let formers = own.iter().skip(1).map(|(number, _)| number.parse().unwrap());
        let covered = fixed.chain(auto.then_some(own_now)).chain(formers).max().unwrap_or(1);

        let prefix = world.key(&format!("video:online:{video}:"));
        let keys: Vec<String> = world.redis_command(redis::cmd("KEYS").arg(format!("{prefix}*"))).await;
        let mut shards = BTreeMap::new();
        for key in keys {
            let held = world.redis_command(redis::cmd("HGETALL").arg(&key)).await;
            shards.insert(key[prefix.len()..].parse().unwrap(), held);
        }
        Self { covered, shards }
    }

    /// At how many covered places a viewer is who beat at `since` or later.
    pub fn places_of(&self, viewer: &str, since: i64) -> usize {
        let covered = self.shards.range(..self.covered);
        covered.filter(|(_, held)| held.get(viewer).is_some_and(|at| *at >= since)).count()
    }
}

async fn with_few_a_shard() -> World {
    World::redis_with(|config| config.presence.viewers_per_shard = 10).await
}

/// What stands in the map about a video.
async fn entry(world: &World, video: &str) -> Option<String> {
    let mut get = redis::cmd("HGET");
    get.arg(world.key("video:{shards}:map")).arg(video);
    world.redis_command(&get).await
}

pub async fn number_of_shards(world: &World, video: &str) -> u32 {
    let entry = entry(world, video).await;
    entry.map_or(1, |entry| entry.split(' ').next().unwrap().parse().unwrap())
}

/// Lets a heartbeat period pass in which `viewers` beat, some at each instance, a tenth every 3 s, and
/// sees to it that every instance tells `online` all along.
async fn heartbeat_period(instances: &[&World], viewers: std::ops::Range<u32>, online: u64) {
    for slot in 0..10 {
        instances[0].pass(secs(3));
        for (index, world) in instances.iter().enumerate() {
            let mine = viewers.clone().filter(|viewer| viewer % 10 == slot);
            let mine = mine.filter(|viewer| (viewer / 10) as usize % instances.len() == index);
            world.beat_all("film", mine).await;
        }
        if slot % 5 == 4 {
            instances[slot as usize % instances.len()].sweep().await;
            instances[0].forget_what_was_read();
            for world in instances {
                let count = world.online("film").await;
                assert_eq!((count.online, count.stale), (Some(online), false), "slot {slot}");
            }
        }
    }
}

#[tokio::test]
async fn a_cold_video_is_one_hash_and_has_no_count_of_its_own() {
    let world = World::redis().await;
    world.beat_all("film", 0..100).await;
    assert_eq!(world.swept_count("film").await, Some(100));
    let keys = world.redis_keys().await;
    let of_film: Vec<&String> = keys.iter().filter(|key| key.starts_with("video:online")).collect();
    assert_eq!(of_film, ["video:online:film:0"]);
    assert_eq!(entry(&world, "film").await, None);
}

#[tokio::test]
async fn shards_grow_straight_to_what_fits_and_viewers_move_with_their_beats() {
    let world = with_few_a_shard().await;
    world.beat_all("film", 0..300).await;
    assert_eq!(world.swept_count("film").await, Some(300));
    assert_eq!(number_of_shards(&world, "film").await, 32);
    assert_eq!(world.online("film").await.online, Some(300));
    // Half of them move; nobody is missing or there twice.
    world.pass(secs(20));
    world.beat_all("film", 0..150).await;
    assert_eq!(world.swept_count("film").await, Some(300));
    world.beat_all("film", 150..300).await;
    assert_eq!(world.swept_count("film").await, Some(300));

    let stored = Stored::of(&world, "film").await;
    assert!(stored.shards.len() > 25, "{}", stored.shards.len());
    for (shard, held) in &stored.shards {
        let misplaced = held.keys().find(|viewer| viewer_id(viewer).hash64() & 31 != u64::from(*shard));
        assert_eq!(misplaced, None, "in {shard}");
    }
}

#[tokio::test]
async fn shards_halve_at_each_sweep_of_an_audience_that_goes_and_the_entry_goes_last() {
    let world = with_few_a_shard().await;
    world.beat_all("film", 0..300).await;
    assert_eq!(world.swept_count("film").await, Some(300));
    let mut numbers = Vec::new();
    for minute in 0..40 {
        // Three stay for half an hour.
        if minute < 30 {
            world.beat_all("film", 0..3).await;
        }
        world.pass(secs(54));
        let left = if minute < 10 {
            300
        } else if minute < 39 {
            3
        } else {
            0
        };
        assert_eq!(world.swept_count("film").await, Some(left), "minute {minute}");
        numbers.push(number_of_shards(&world, "film").await);
    }
    numbers.dedup();
    assert_eq!(numbers, [32, 16, 8, 4, 2, 1]);
    assert_eq!(entry(&world, "film").await, None);
    world.pass_swept(3).await;
    let left: Vec<String> = world.redis_keys().await;
    let of_film = left.iter().filter(|key| key.contains("film") || key.starts_with("video:active:"));
    assert_eq!(of_film.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[tokio::test]
async fn changes_at_several_sweeps_in_a_row_up_and_down_lose_and_double_nobody() {
    let world = with_few_a_shard().await;
    let two = world.another().await;
    let mut last: BTreeMap<u32, i64> = BTreeMap::new();
    // By number of viewers who beat: they come, go and come again within one window, and beat only once
    // in two minutes, half of them at a time.
    for (minute, viewers) in [20, 20, 300, 300, 40, 40, 5, 5, 600, 600, 5, 5, 90, 90, 90].iter().enumerate() {
        let mine = (0..*viewers).filter(|viewer| (viewer + u32::try_from(minute).unwrap()) % 2 == 0);
        let instance = if minute % 3 == 0 { &two } else { &world };
        instance.beat_all("film", mine.clone()).await;
        let now = world.clock.now().secs();
        last.extend(mine.map(|viewer| (viewer, now)));
        world.pass(secs(54));
        let since = world.clock.now().secs() - 600;
        let online = last.values().filter(|at| **at >= since).count() as u64;
        assert_eq!(instance.swept_count("film").await, Some(online), "minute {minute}");
        let stored = Stored::of(&world, "film").await;
        for (viewer, at) in last.iter().filter(|(_, at)| **at >= since) {
            let viewer = format!("viewer-{viewer}");
            assert_eq!(stored.places_of(&viewer, *at), 1, "{viewer} in minute {minute}");
        }
    }
}

/// One that stalled, or was told late, writes to no place that is no longer covered.
#[tokio::test]
async fn an_instance_that_learns_late_of_a_change_follows_in_the_same_batch() {
    for pause in [0, 9, 20 * 60] {
        let world = with_few_a_shard().await;
        let late = world.another().await;
        late.beat_all("film", 0..200).await;
        assert_eq!(world.swept_count("film").await, Some(200));
        assert_eq!(number_of_shards(&world, "film").await, 32);
        world.pass(secs(1));
        if pause > 600 {
            // The others go on.
            for _ in 0..pause / 60 {
                world.beat_all("film", 0..200).await;
                world.pass_swept(1).await;
            }
        } else {
            world.pass(secs(pause));
        }
        late.beat_all("film", 0..200).await;
        // What was written by the older map is written once more, within a linger.
        eventually("everybody is at one place, the right one", async || {
            let stored = Stored::of(&world, "film").await;
            (0..200).all(|viewer| {
                let viewer = format!("viewer-{viewer}");
                let shard = u32::try_from(viewer_id(&viewer).hash64() & 31).unwrap();
                stored.places_of(&viewer, 0) == 1
                    && stored.shards.get(&shard).is_some_and(|held| held.contains_key(&viewer))
            })
        })
        .await;
        assert_eq!(world.swept_count("film").await, Some(200), "after {pause} s");
    }
}

#[tokio::test]
async fn who_says_goodbye_is_gone_from_former_places_too() {
    let world = with_few_a_shard().await;
    world.beat_all("film", 0..50).await;
    world.sweep().await;
    assert_eq!(number_of_shards(&world, "film").await, 8);
    for viewer in 0..25 {
        world.leave("film", &format!("viewer-{viewer}")).await;
    }
    assert_eq!(world.swept_count("film").await, Some(25));
    // Who had moved already, and who has come back.
    world.beat_all("film", 20..30).await;
    world.leave("film", "viewer-27").await;
    assert_eq!(world.swept_count("film").await, Some(29));
}

/// [S7, refinery#570] Fixed numbers, the audience's, and back; some instances know the new one before others.
#[tokio::test]
async fn another_number_of_shards_is_changed_while_everybody_watches() {
    let fixed = |shards| move |config: &mut Config| config.presence.shards = Shards::Fixed(shards);
    let mut one = World::redis_with(fixed(16)).await;
    one.beat_all("film", 0..1_000).await;
    assert_eq!(one.swept_count("film").await, Some(1_000));
    heartbeat_period(&[&one], 0..1_000, 1_000).await;
    for shards in [Shards::Fixed(32), Shards::Fixed(8), Shards::Auto, Shards::Fixed(2), Shards::Auto] {
        let two = one.another_with(|config| config.presence.shards = shards).await;
        heartbeat_period(&[&one, &two], 0..1_000, 1_000).await;
        heartbeat_period(&[&two, &one], 0..1_000, 1_000).await;
        one.drained().await;
        one = two;
    }
    for _ in 0..24 {
        heartbeat_period(&[&one], 0..1_000, 1_000).await;
    }
    let stored = Stored::of(&one, "film").await;
    assert_eq!(stored.covered, 16, "1,000 viewers, 100 a shard");
    let beyond: usize = stored.shards.range(16..).map(|(_, held)| held.len()).sum();
    assert_eq!(beyond, 0, "the old shards drained");
    assert_eq!(entry(&one, "*").await.unwrap().split(' ').next(), Some("auto"));
}

/// [TemporalStore#857] All go by what Redis holds, whatever they are told.
#[tokio::test]
async fn instances_that_are_told_different_numbers_use_the_same() {
    let one = World::redis_with(|config| config.presence.shards = Shards::Fixed(16)).await;
    let two = one.another_with(|config| config.presence.shards = Shards::Fixed(4)).await;
    for round in 0..30 {
        one.beat_all("film", 0..300).await;
        two.beat_all("film", 200..500).await;
        one.pass(secs(54));
        let sweeper = if round % 2 == 0 { &one } else { &two };
        assert_eq!(sweeper.swept_count("film").await, Some(500), "round {round}");
    }
    assert_eq!(entry(&one, "*").await.unwrap().split(' ').next(), Some("4"), "the last that started");
}

/// Whoever sweeps changes the number to what fits by its own settings: nobody is lost by it.
#[tokio::test]
async fn instances_that_fill_shards_differently_count_alike_while_numbers_go_up_and_down() {
    let one = World::redis_with(|config| config.presence.viewers_per_shard = 10).await;
    let two = one.another_with(|config| config.presence.viewers_per_shard = 400).await;
    one.beat_all("film", 0..300).await;
    let mut numbers = std::collections::BTreeSet::new();
    for round in 0..20 {
        heartbeat_period(&[&one, &two], 0..300, 300).await;
        let sweeper = if round % 2 == 0 { &one } else { &two };
        assert_eq!(sweeper.swept_count("film").await, Some(300), "round {round}");
        numbers.insert(number_of_shards(&one, "film").await);
    }
    assert!(numbers.len() > 1, "they don't agree: {numbers:?}");
}

/// Whoever sweeps drops by its own window, the other counts what is left.
#[tokio::test]
async fn instances_with_different_windows_agree_on_who_beats_and_differ_only_about_who_left() {
    let long = World::redis().await;
    let short = long.another_with(|config| config.presence.window = secs(300)).await;
    long.beat("film", "gone").await;
    for round in 1..=20_u64 {
        let (beats, sweeps) = if round % 2 == 0 { (&long, &short) } else { (&short, &long) };
        // A hidden tab beats once a minute.
        beats.beat("film", "ann").await;
        beats.beat("film", "bob").await;
        long.pass(secs(54));
        let count = sweeps.swept_count("film").await.unwrap();
        let since = 60 * round;
        assert!(count >= 2, "round {round}: {count}, and both beat");
        assert!(since > 300 || count == 3, "round {round}: {count}, and nobody is out of any window yet");
        assert!(since <= 600 || count == 2, "round {round}: {count}, and one is out of every window");
    }
}

/// A build that kept no map had 16 shards for each video.
#[tokio::test]
async fn what_an_earlier_build_left_is_counted_and_taken_over() {
    let mut before = World::redis_with(|config| config.presence.shards = Shards::Fixed(16)).await;
    before.beat_all("film", 0..400).await;
    before.sweep().await;
    let map = [before.key("video:{shards}:map"), before.key("video:{shards}:version")];
    let mut connection = before.redis_connection().await;
    before.config.presence.shards = Shards::Auto;
    let stopped = before.drained().await;
    let () = redis::cmd("DEL").arg(&map).query_async(&mut connection).await.unwrap();

    let world = stopped.started().await;
    assert_eq!(Stored::of(&world, "film").await.covered, 16);
    assert_eq!(world.swept_count("film").await, Some(400));
    heartbeat_period(&[&world], 0..400, 400).await;
    for _ in 0..24 {
        heartbeat_period(&[&world], 0..400, 400).await;
    }
    assert_eq!(Stored::of(&world, "film").await.covered, 4);
}

#[tokio::test]
async fn former_numbers_of_all_videos_leave_the_map_a_window_after_their_time() {
    let one = World::redis_with(|config| config.presence.shards = Shards::Fixed(16)).await;
    let two = one.another_with(|config| config.presence.shards = Shards::Fixed(4)).await;
    let every = entry(&two, "*").await.unwrap();
    assert!(every.starts_with("4 16:"), "{every}");
    one.drained().await;
    // An instance looks at the map every few seconds of its own.
    two.pass(secs(620));
    two.sweep().await;
    assert_eq!(entry(&two, "*").await.unwrap(), every, "after a jump of the clock they would all count");
    two.pass(secs(601));
    eventually("they are gone", async || entry(&two, "*").await.unwrap() == "4").await;
}

/// What Redis will never do is not tried again and again, and costs nobody a beat.
#[tokio::test]
async fn a_former_place_that_is_no_hash_costs_no_beat() {
    let world = World::redis_with(|config| {
        config.presence.viewers_per_shard = 10;
        config.presence.ack = Ack::Stored;
    })
    .await;
    world.beat_all("film", 0..50).await;
    world.sweep().await;
    assert_eq!(number_of_shards(&world, "film").await, 8);
    let place = world.key("video:online:film:0");
    let () = world.redis_command(redis::cmd("SET").arg(&place).arg("no hash")).await;
    let shard = |viewer: &u32| viewer_id(&format!("viewer-{viewer}")).hash64() & 7;
    let elsewhere: Vec<u32> = (0..50).filter(|viewer| shard(viewer) != 0).collect();
    for _ in 0..2 {
        world.pass(secs(30));
        // Each of them is answered when it is written, and would fail here.
        world.beat_all("film", elsewhere.clone()).await;
    }
    let stored = world.redis_command::<String>(redis::cmd("GET").arg(&place)).await;
    assert_eq!(stored, "no hash");
    let in_time = world.clock.now().secs();
    for viewer in elsewhere {
        let name = format!("viewer-{viewer}");
        let mut get = redis::cmd("HGET");
        get.arg(world.key(&format!("video:online:film:{}", shard(&viewer)))).arg(&name);
        assert_eq!(world.redis_command::<Option<i64>>(&get).await, Some(in_time), "{name}");
    }
}

#[tokio::test]
async fn an_entry_that_can_not_be_read_is_forgotten() {
    let world = with_few_a_shard().await;
    let mut garbage = redis::cmd("HSET");
    garbage.arg(world.key("video:{shards}:map")).arg("film").arg("7 eggs").arg("no {video}").arg("4");
    let () = world.redis_command(&garbage).await;
    let another = world.another().await;
    another.beat_all("film", 0..30).await;
    assert_eq!(another.swept_count("film").await, Some(30));
    assert_eq!(another.swept_count("film").await, Some(30));
    assert_eq!(number_of_shards(&another, "film").await, 4);
}

/// The map goes with the rest: whoever held a copy of it writes by it no longer.
#[tokio::test]
async fn where_the_map_is_lost_viewers_are_written_where_they_are_looked_for() {
    let world = with_few_a_shard().await;
    world.beat_all("film", 0..200).await;
    world.sweep().await;
    world.pass(secs(30));
    world.beat_all("film", 0..200).await;
    for key in world.redis_keys().await {
        let () = world.redis_command(redis::cmd("DEL").arg(world.key(&key))).await;
    }
    world.pass(secs(1));
    world.beat_all("film", 0..200).await;
    eventually("everybody is in the one shard", async || {
        let stored = Stored::of(&world, "film").await;
        stored.covered == 1
            && stored.shards.len() == 1
            && stored.shards.get(&0).is_some_and(|held| held.len() == 200)
    })
    .await;
}

/// A sweep that comes first makes what is left look like an earlier build's.
#[tokio::test]
async fn where_the_map_of_a_fixed_number_is_lost_nobody_is_written_where_only_a_lost_map_looks() {
    let world = World::redis_with(|config| {
        config.presence.shards = Shards::Fixed(4);
        config.presence.ack = Ack::Stored;
    })
    .await;
    world.beat_all("film", 0..200).await;
    world.sweep().await;
    for key in world.redis_keys().await {
        let () = world.redis_command(redis::cmd("DEL").arg(world.key(&key))).await;
    }
    world.pass(secs(1));
    world.sweep().await;
    world.beat_all("film", 0..200).await;
    // It looks at the map first thing, and makes it say something.
    let newcomer = world.another().await;
    for instance in [&world, &newcomer] {
        world.pass(secs(2));
        instance.beat_all("film", 0..200).await;
    }
    assert!(entry(&world, "*").await.is_some_and(|every| every.starts_with('4')));
    eventually("everybody is at one place", async || {
        let stored = Stored::of(&world, "film").await;
        (0..200).all(|viewer| stored.places_of(&format!("viewer-{viewer}"), 0) == 1)
    })
    .await;
}
