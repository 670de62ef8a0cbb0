//! What a stop promises: order, patience, limits, and that no task dies unseen.

use super::*;

const DELAY: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(20);

/// A task that notes when it is told to end, and takes a second for it.
fn note(lifecycle: &Lifecycle, phase: Phase, ended: &Arc<Mutex<Vec<Phase>>>) {
    let stopping = lifecycle.stopping(phase);
    let ended = ended.clone();
    lifecycle.spawn(phase, "noting", async move {
        stopping.cancelled().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        ended.lock().push(phase);
    });
}

/// A task that never ends.
fn hang(lifecycle: &Lifecycle, phase: Phase) {
    lifecycle.spawn(phase, "hanging", std::future::pending());
}

#[tokio::test(start_paused = true)]
async fn phases_end_one_after_the_other_each_waited_for() {
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    let ended = Arc::new(Mutex::new(Vec::new()));
    for phase in [Phase::Links, Phase::Jobs, Phase::Http, Phase::Writers] {
        note(&lifecycle, phase, &ended);
    }
    let began = tokio::time::Instant::now();
    lifecycle.stop();
    assert_eq!(lifecycle.run().await, Stopped::Drained);
    assert_eq!(*ended.lock(), PHASES);
    assert_eq!(began.elapsed(), DELAY + Duration::from_secs(4));
    assert!(lifecycle.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_ends_before_the_delay_is_over_but_everyone_can_see_the_drain() {
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    let ended = Arc::new(Mutex::new(Vec::new()));
    note(&lifecycle, Phase::Http, &ended);
    assert!(!lifecycle.draining().is_cancelled());
    lifecycle.stop();
    assert!(lifecycle.draining().is_cancelled());
    let early = tokio::time::timeout(DELAY / 2, lifecycle.run()).await;
    assert!(early.is_err() && !lifecycle.stopping(Phase::Http).is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_returns_early_stops_the_service_without_the_delay() {
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    let ended = Arc::new(Mutex::new(Vec::new()));
    note(&lifecycle, Phase::Writers, &ended);
    lifecycle.spawn(Phase::Jobs, "early", async {});
    let began = tokio::time::Instant::now();
    assert_eq!(lifecycle.run().await, Stopped::TaskDied);
    assert_eq!(*ended.lock(), [Phase::Writers], "the others still finish what they have");
    assert!(began.elapsed() < DELAY);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_stops_the_service() {
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    lifecycle.spawn(Phase::Jobs, "panicking", async { panic!("as a test wants it") });
    assert_eq!(lifecycle.run().await, Stopped::TaskDied);
}

#[tokio::test(start_paused = true)]
async fn a_panic_during_the_stop_is_no_clean_stop() {
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    let stopping = lifecycle.stopping(Phase::Jobs);
    lifecycle.spawn(Phase::Jobs, "last-flush", async move {
        stopping.cancelled().await;
        panic!("as a test wants it");
    });
    lifecycle.stop();
    assert_eq!(lifecycle.run().await, Stopped::TaskDied);
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_cuts_the_drain_short_at_once() {
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    hang(&lifecycle, Phase::Http);
    let began = tokio::time::Instant::now();
    lifecycle.stop();
    let second = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        lifecycle.stop();
    };
    let (stopped, ()) = tokio::join!(lifecycle.run(), second);
    assert_eq!(stopped, Stopped::CutShort);
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    assert_eq!(lifecycle.running(), ["hanging"]);
}

#[tokio::test(start_paused = true)]
async fn the_limit_cuts_the_drain_short_and_counts_the_delay_in() {
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    hang(&lifecycle, Phase::Writers);
    let began = tokio::time::Instant::now();
    lifecycle.stop();
    assert_eq!(lifecycle.run().await, Stopped::CutShort);
    assert_eq!(began.elapsed(), DRAIN);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_given_up_blames_no_task() {
    let lines = crate::telemetry::capture();
    let lifecycle = Lifecycle::new(DELAY, DRAIN);
    hang(&lifecycle, Phase::Links);
    lifecycle.spawn(Phase::Links, "early", async {});
    lifecycle.abandon();
    while lifecycle.running() != ["hanging"] {
        tokio::task::yield_now().await;
    }
    assert_eq!(lines.text(), "");
}
