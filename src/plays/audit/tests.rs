//! What follows from a reading, and that reading is done once at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::{clock::ManualClock, jobs::Job as _};

/// Books that answer when they are let.
struct Slow {
    reads: AtomicUsize,
    let_through: Semaphore,
}

#[async_trait]
impl Books for Slow {
    async fn read(&self) -> Result<Reading, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.let_through.acquire().await.unwrap().forget();
        Ok([Some(Terms::default()); PARTITIONS as usize])
    }

    async fn adjust(&self, _: &[(Partition, i128)], _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}

#[tokio::test]
async fn who_asks_while_the_books_are_read_waits_for_that_reading_and_who_asks_later_has_them_read_anew() {
    let books = Arc::new(Slow { reads: AtomicUsize::new(0), let_through: Semaphore::new(0) });
    let audit = Audit::new(books.clone(), ManualClock::at(Timestamp::from_secs(1)));
    for round in 1..=2 {
        let mut all = futures::future::join_all((0..10).map(|_| audit.read()));
        assert!(futures::poll!(&mut all).is_pending());
        books.let_through.add_permits(1);
        assert!(all.await.iter().all(Result::is_ok));
        assert_eq!(books.reads.load(Ordering::SeqCst), round);
    }
}

#[tokio::test]
async fn a_reading_that_nobody_waits_for_any_more_holds_nobody_up() {
    let books = Arc::new(Slow { reads: AtomicUsize::new(0), let_through: Semaphore::new(0) });
    let audit = Audit::new(books.clone(), ManualClock::at(Timestamp::from_secs(1)));
    let mut given_up = Box::pin(audit.read());
    assert!(futures::poll!(&mut given_up).is_pending());
    drop(given_up);
    books.let_through.add_permits(1);
    assert!(audit.read().await.is_ok());
    assert_eq!(books.reads.load(Ordering::SeqCst), 2);
}

#[test]
fn a_loss_in_one_partition_is_not_made_up_for_by_another_and_sums_are_whole_or_none() {
    let mut audited =
        Audited { partitions: [Some(Terms::default()); PARTITIONS as usize], as_of: Timestamp::from_secs(1) };
    audited.partitions[0] = Some(Terms { witnessed: 7, imported: 3, views: 5, ..Terms::default() });
    audited.partitions[1] = Some(Terms { pending: 2, refused: 1, adjustments: 1, ..Terms::default() });
    assert_eq!((audited.lost(), audited.unreported()), (5, 4));
    assert_eq!(audited.totals().unwrap().difference(), 1);
    audited.partitions[2] = None;
    assert_eq!(audited.totals(), None);
    assert_eq!(audited.unverified().map(Partition::index).collect::<Vec<_>>(), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_look_of_the_job_that_takes_too_long_is_given_up_and_told_when_that_begins_and_ends() {
    let books = Arc::new(Slow { reads: AtomicUsize::new(0), let_through: Semaphore::new(0) });
    let job = AuditJob::new(Audit::new(books.clone(), ManualClock::at(Timestamp::from_secs(1))), 0.0);
    let lines = crate::telemetry::capture();
    for looks in 1..=2 {
        let began = tokio::time::Instant::now();
        assert!(job.run().await.is_ok());
        assert_eq!(began.elapsed().as_secs(), 60);
        assert_eq!(books.reads.load(Ordering::SeqCst), looks);
    }
    books.let_through.add_permits(2);
    for _ in 0..2 {
        assert!(job.run().await.is_ok());
    }
    let told = lines.text();
    assert_eq!(told.matches("isn't done within 60 s").count(), 1, "{told}");
    assert_eq!(told.matches("is done in time again").count(), 1, "{told}");
}
