//! What holds while Postgres is stopped or has crashed, on a server of the test's own. What else can be
//! wrong with it is in `src/plays/in_redis/tests/trouble.rs`.

use headcount::{config::SecretUrl, error::Part, plays::Recorded};
use headcount_support::OwnPostgres;
use sqlx::Connection as _;

use crate::world::{World, eventually};

async fn views(postgres: &OwnPostgres) -> i64 {
    let mut connection = sqlx::PgConnection::connect(&postgres.url()).await.unwrap();
    let views = "select coalesce(sum(views), 0)::bigint from videos";
    sqlx::query_scalar(views).fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn while_postgres_is_stopped_plays_are_taken_and_drain_without_a_restart_when_it_is_back() {
    let mut postgres = OwnPostgres::start().await;
    let world = World::redis_with(|config| config.postgres.url = SecretUrl::new(postgres.url())).await;
    let mut taken = 0;
    for crashes in [false, true] {
        for _ in 0..20 {
            taken += 1;
            let viewer = format!("viewer-{taken}");
            assert_eq!(world.play("film", Some(&viewer), None).await, Recorded::Counted);
        }
        world.flush().await;
        assert_eq!(views(&postgres).await.unsigned_abs(), taken);
        if crashes {
            postgres.crash().await;
        } else {
            postgres.stop().await;
        }
        eventually("it is missed", async || {
            let health = world.stores.health.check().await;
            assert!(health.failed.is_empty(), "players don't need it: {:?}", health.failed);
            health.degraded == [Part::Postgres]
        })
        .await;
        for _ in 0..20 {
            taken += 1;
            let viewer = format!("viewer-{taken}");
            assert_eq!(world.play("film", Some(&viewer), None).await, Recorded::Counted);
            let count = world.plays("film").await;
            assert_eq!((count.plays, count.stale), (Some(taken), false));
        }
        // Each tells of it once, not sixteen times a period.
        world.flush().await;
        postgres.start_again().await;
        eventually("it is flushed", async || {
            for job in world.stores.jobs.iter().filter(|job| job.name() == "flush") {
                drop(job.run().await);
            }
            views(&postgres).await.unsigned_abs() == taken
        })
        .await;
        eventually("it is well", async || world.stores.health.check().await.degraded.is_empty()).await;
    }
    assert_eq!(world.plays("film").await.plays, Some(taken));
}
