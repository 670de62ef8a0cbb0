//! A store that keeps up is never held back, and one that doesn't answers what it takes in time.

use tokio::task::JoinSet;

use super::*;

const MILLI: Duration = Duration::from_millis(1);
const BOUNDS: Bounds = Bounds { waiting: 10_000, batch: 100, prompt: true };

/// What came of requests that were sent at a steady rate.
#[derive(Default)]
struct Seen {
    /// How long the accepted ones took, the shortest first.
    waits: Vec<Duration>,
    refused: usize,
    fullest: f64,
}

impl Seen {
    fn p99(&self) -> Duration {
        self.waits[self.waits.len() * 99 / 100]
    }
}

/// A store that takes `each_batch` for a batch and `each_request` more for every request in it. The
/// clock is the test's.
fn store(lifecycle: &Lifecycle, each_batch: Duration, each_request: Duration) -> Arc<Batcher<(), ()>> {
    let run = move |requests: Vec<()>| async move {
        tokio::time::sleep(each_batch + each_request * u32::try_from(requests.len()).unwrap()).await;
        requests.into_iter().map(Ok).collect()
    };
    Batcher::start(lifecycle, "test", Part::Redis, BOUNDS, run)
}

/// Sends `rate` requests every millisecond of `millis`.
async fn send(batcher: &Arc<Batcher<(), ()>>, rate: usize, millis: u32) -> Seen {
    let (mut sent, mut seen) = (JoinSet::new(), Seen::default());
    let mut ticks = tokio::time::interval(MILLI);
    for _ in 0..millis {
        ticks.tick().await;
        seen.fullest = seen.fullest.max(batcher.fullness());
        for _ in 0..rate {
            let batcher = batcher.clone();
            sent.spawn(async move {
                let began = Instant::now();
                batcher.submit(()).await.map(|()| began.elapsed())
            });
        }
    }
    for answer in sent.join_all().await {
        match answer {
            Ok(wait) => seen.waits.push(wait),
            Err(StoreError::Full { .. }) => seen.refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    seen.waits.sort_unstable();
    seen
}

fn lifecycle() -> Lifecycle {
    Lifecycle::new(Duration::ZERO, Duration::from_secs(1))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_keeps_up_refuses_nothing_and_slows_nobody_down_whatever_a_batch_costs() {
    for (each_batch, rate) in [(30 * MILLI, 1), (30 * MILLI, 3), (12 * MILLI, 7)] {
        let lifecycle = lifecycle();
        let batcher = store(&lifecycle, each_batch, Duration::ZERO);
        let seen = send(&batcher, rate, 3_000).await;
        assert_eq!(seen.refused, 0, "{rate} a millisecond, {each_batch:?} a batch");
        assert!(seen.fullest <= 0.02, "{} full", seen.fullest);
        assert_eq!(seen.waits.len(), rate * 3_000);
    }
}

#[tokio::test(start_paused = true)]
async fn at_twice_what_a_store_takes_it_takes_that_and_answers_in_time_and_then_all_again() {
    // Eight requests a millisecond, and a little for each batch.
    let lifecycle = lifecycle();
    let batcher = store(&lifecycle, MILLI, MILLI / 8);
    send(&batcher, 16, 2_000).await;
    let seen = send(&batcher, 16, 2_000).await;
    assert!(seen.p99() <= 50 * MILLI, "{:?}", seen.p99());
    assert!(seen.waits.len() >= 13_000, "{} accepted", seen.waits.len());
    assert!(seen.refused > 13_000, "{} refused", seen.refused);
    assert!(seen.fullest >= 0.99, "players are not told");

    send(&batcher, 1, 300).await;
    let seen = send(&batcher, 6, 2_000).await;
    assert_eq!(seen.refused, 0);
    assert!(seen.fullest <= 0.02, "{} full", seen.fullest);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_many_batches_is_waited_for() {
    let lifecycle = lifecycle();
    let batcher = store(&lifecycle, MILLI, MILLI / 10);
    let seen = send(&batcher, 1_500, 1).await;
    assert_eq!((seen.waits.len(), seen.refused), (1_500, 0));
}

/// What may wait after `batches` of so many, each `every` apart and each with as many left.
fn bound_after(pace: &mut Pace, batches: u32, every: Duration, served: usize, left: usize) -> usize {
    let began = Instant::now();
    (0..batches).map(|number| pace.bound(BOUNDS, served, left, began + every * number)).last().unwrap()
}

#[tokio::test]
async fn only_full_batches_that_leave_another_are_overload_and_only_where_it_lasts() {
    let most = BOUNDS.waiting;
    for (served, left) in [(100, 99), (99, 5_000), (64, 64), (1, 1)] {
        assert_eq!(
            bound_after(&mut Pace::default(), 400, 30 * MILLI, served, left),
            most,
            "{served}, {left}"
        );
    }
    let mut pace = Pace::default();
    assert_eq!(bound_after(&mut pace, 5, 10 * MILLI, 100, 5_000), most, "for 40 ms only");
    let mut pace = Pace::default();
    assert_eq!(bound_after(&mut pace, 6, 10 * MILLI, 100, 100), 100);
    assert_eq!(bound_after(&mut pace, 5, 10 * MILLI, 100, 99), 100, "for 40 ms only");
    assert_eq!(bound_after(&mut pace, 1, MILLI, 100, 100), 100, "and not in one go");
    assert_eq!(bound_after(&mut pace, 6, 10 * MILLI, 100, 99), most);
}
