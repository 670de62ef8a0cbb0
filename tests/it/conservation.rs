//! What was counted is somewhere, wherever plays are counted; and `headcount audit` says so.

use std::process::Output;

use headcount::plays::audit::{Audited, Terms};

use crate::world::{World, video_id};

on_every_backend!(
    every_play_is_accounted_for_whenever_one_looks,
    what_somebody_takes_off_or_adds_by_hand_shows_exactly,
    rows_that_somebody_makes_by_hand_are_no_plays,
    what_is_known_can_be_accepted_by_the_command,
);

async fn audited(world: &World) -> Audited {
    let audited = world.stores.audit.read().await.unwrap();
    assert_eq!(audited.unverified().count(), 0, "nothing moves");
    (*audited).clone()
}

async fn amiss(world: &World) -> (i128, i128) {
    let audited = audited(world).await;
    (audited.lost(), audited.unreported())
}

fn terms(audited: &Audited, video: &str) -> Terms {
    audited.partitions[video_id(video).partition().index()].unwrap()
}

/// Runs a statement in the database as an operator would.
async fn by_hand(world: &World, sql: &str) {
    use sqlx::Connection as _;

    let sql = sqlx::AssertSqlSafe(sql.to_owned());
    if world.is_redis() {
        let mut connection = world.database().await;
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    } else {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&world.config.embedded.path);
        let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    }
}

/// Lets the jobs take rows in.
async fn adopt(world: &World) {
    world.run_jobs(if world.is_redis() { "upkeep" } else { "adopt" }).await;
}

async fn every_play_is_accounted_for_whenever_one_looks(world: World) {
    assert_eq!(amiss(&world).await, (0, 0));
    for n in 0..100 {
        world.play(&format!("film-{}", n % 30), Some(&format!("viewer-{n}")), None).await;
        world.play("film-0", Some(&format!("viewer-{}", n % 10)), None).await;
    }
    assert_eq!(amiss(&world).await, (0, 0));
    world.flush().await;
    let audited = audited(&world).await;
    assert_eq!((audited.lost(), audited.unreported()), (0, 0));
    let totals = audited.totals().unwrap();
    assert_eq!((totals.witnessed, totals.views, totals.pending), (totals.views, totals.witnessed, 0));
    let world = world.restarted().await;
    assert_eq!(amiss(&world).await, (0, 0));
    world.play("film-1", Some("somebody"), None).await;
    assert_eq!(amiss(&world).await, (0, 0));
}

async fn what_somebody_takes_off_or_adds_by_hand_shows_exactly(world: World) {
    for n in 0..20 {
        world.play("film", Some(&format!("viewer-{n}")), None).await;
    }
    world.flush().await;
    by_hand(&world, "update videos set views = views - 5 where video_id = 'film'").await;
    assert_eq!(amiss(&world).await, (5, 0));
    assert_eq!(terms(&audited(&world).await, "film").difference(), 5);
    by_hand(&world, "update videos set views = views + 7 where video_id = 'film'").await;
    assert_eq!(amiss(&world).await, (0, 2));
    world.play("film", Some("another"), None).await;
    world.flush().await;
    assert_eq!(amiss(&world).await, (0, 2));
}

async fn rows_that_somebody_makes_by_hand_are_no_plays(world: World) {
    by_hand(&world, "insert into videos (video_id, views) values ('old', 1000), ('older', 70), ('new', 0)")
        .await;
    assert_eq!(amiss(&world).await, (0, 0));
    for video in ["old", "new"] {
        world.play(video, Some("ann"), None).await;
    }
    assert_eq!(amiss(&world).await, (0, 0));
    world.flush().await;
    assert_eq!(amiss(&world).await, (0, 0));
    adopt(&world).await;
    assert_eq!(amiss(&world).await, (0, 0));
    let totals = audited(&world).await.totals().unwrap();
    assert_eq!((totals.imported, totals.witnessed, totals.views), (1_070, 2, 1_072));
}

/// `headcount audit` with the settings of this world.
async fn audit(world: &World, arguments: &[&str]) -> (Output, String) {
    let config = &world.config;
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_headcount"))
        .arg("audit")
        .args(arguments)
        .env("HEADCOUNT_BACKEND", config.backend.name())
        .env("HEADCOUNT_EMBEDDED__PATH", &config.embedded.path)
        .envs(crate::world::ways_to_redis(&config.redis))
        .env("HEADCOUNT_REDIS__PREFIX", &config.redis.prefix)
        .env("HEADCOUNT_POSTGRES__URL", config.postgres.url.expose())
        .env("HEADCOUNT_POSTGRES__MIGRATE", config.postgres.migrate.to_string())
        .env("HEADCOUNT_JOBS__FLUSH_EVERY", "100ms")
        .output()
        .await
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

async fn what_is_known_can_be_accepted_by_the_command(world: World) {
    for n in 0..20 {
        world.play("film", Some(&format!("viewer-{n}")), None).await;
    }
    world.flush().await;
    // It reports for itself; the command can't do that for it.
    assert_eq!(amiss(&world).await, (0, 0));
    let (output, text) = audit(&world, &[]).await;
    assert!(output.status.success() && text.contains("every play"), "{output:?}");
    by_hand(&world, "update videos set views = views - 5 where video_id = 'film'").await;
    let (output, text) = audit(&world, &[]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text.contains("5 plays were counted and are nowhere"), "{text}");
    let (output, text) = audit(&world, &["--accept", "a test of it"]).await;
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("written down as known: 5 in partition"), "{text}");
    let (output, text) = audit(&world, &["--json"]).await;
    assert!(output.status.success(), "{output:?}");
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    let totals = &told["totals"];
    assert_eq!(
        (&totals["lost"], &totals["adjustments"], &told["verified"]),
        (&0.into(), &5.into(), &true.into())
    );
    assert_eq!(amiss(&world).await, (0, 0));
}
