//! Whole runs against a small service, honest and not.

use std::{
    future::{pending, ready},
    time::Duration,
};

use tokio::{net::TcpListener, time::sleep};

use super::{
    Difference, LISTED, Options, Verdict,
    fake::{Fake, Faults},
    listing,
    options::{Patience, parse},
    simulate,
};

const WINDOW: Duration = Duration::from_secs(2);

/// A run of few seconds: short rhythms, and people who leave. About a hundred beats a second, as tests
/// share their machine, and one that can't keep up looks like a service that can't.
fn options(targets: &str, more: &[&str]) -> Options {
    let targets = format!("--targets={targets}");
    let mut arguments = vec![
        targets.as_str(),
        "--viewers=24",
        "--videos=8",
        "--heartbeat-every=250ms",
        "--duration=1s",
        "--churn=30",
        "--plays-per-viewer=3",
        "--window=2s",
        "--sweep-every=50ms",
        "--seed=42",
    ];
    arguments.extend(more);
    parse(&arguments).unwrap()
}

async fn run(options: &Options) -> Verdict {
    let patience = Patience {
        timeout: Duration::from_secs(1),
        margin: Duration::from_millis(100),
        grace: Duration::from_secs(5),
        reread: Duration::from_secs(2),
    };
    simulate(options, &patience, pending()).await.unwrap()
}

/// An address on which nobody listens.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn differences(verdict: Verdict) -> Vec<Difference> {
    assert_eq!(verdict.exit_code(), std::process::ExitCode::FAILURE);
    match verdict {
        Verdict::Different(differences) => differences,
        other => panic!("no difference was found: {other:?}"),
    }
}

#[tokio::test]
async fn an_honest_service_is_found_exact() {
    let fake = Fake::start(WINDOW, 2, Faults::default()).await;
    let verdict = run(&options(&fake.targets(), &["--verify"])).await;

    assert_eq!(verdict, Verdict::Fine);
    assert_eq!(verdict.exit_code(), std::process::ExitCode::SUCCESS);
}

#[tokio::test]
async fn a_service_that_decides_later_is_found_exact() {
    let faults = Faults { decides_later: true, ..Faults::default() };
    let fake = Fake::start(WINDOW, 1, faults).await;
    assert_eq!(run(&options(&fake.targets(), &["--verify"])).await, Verdict::Fine);
}

#[tokio::test]
async fn a_lost_play_is_found_on_every_target() {
    let faults = Faults { lost_plays: 1, ..Faults::default() };
    let fake = Fake::start(WINDOW, 2, faults).await;
    let found = differences(run(&options(&fake.targets(), &["--verify"])).await);

    assert_eq!(found.len(), 2, "{found:?}");
    for (difference, target) in found.iter().zip(fake.targets().split(',')) {
        assert_eq!((difference.what, difference.target.as_deref()), ("plays", Some(target)));
        let expected: u64 = difference.expected.parse().unwrap();
        assert_eq!(difference.got, (expected - 1).to_string());
    }
}

#[tokio::test]
async fn a_viewer_too_many_is_found() {
    let faults = Faults { phantom: true, ..Faults::default() };
    let fake = Fake::start(WINDOW, 1, faults).await;
    let found = differences(run(&options(&fake.targets(), &["--verify"])).await);

    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].what, found[0].video.as_deref()), ("online", Some("sim-42-0")));
    let expected: u64 = found[0].expected.parse().unwrap();
    assert_eq!(found[0].got, (expected + 1).to_string());
}

#[tokio::test]
async fn refusals_and_lost_answers_make_no_new_viewer_and_no_new_play() {
    let faults = Faults { flaky: true, ..Faults::default() };
    let fake = Fake::start(WINDOW, 2, faults).await;

    assert_eq!(run(&options(&fake.targets(), &["--verify"])).await, Verdict::Fine);
    assert!(fake.inner.lock().swallowed > 10, "the run met the faults");
}

#[tokio::test]
async fn what_was_there_before_is_not_counted_again() {
    let fake = Fake::start(WINDOW, 1, Faults::default()).await;
    let options = options(&fake.targets(), &["--verify"]);
    assert_eq!(run(&options).await, Verdict::Fine);
    assert_eq!(run(&options).await, Verdict::Fine, "the same viewers and plays once more");
}

#[tokio::test]
async fn viewers_of_a_dead_instance_move_to_the_next_and_verify_names_the_dead_one() {
    let fake = Fake::start(WINDOW, 1, Faults::default()).await;
    let dead = nobody().await;
    let targets = format!("{dead},{}", fake.targets());
    assert_eq!(run(&options(&targets, &[])).await, Verdict::Fine);

    let found = differences(run(&options(&targets, &["--verify", "--prefix=again"])).await);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].to_string(),
        format!("{dead}: counts: expected those of 8 videos, got no connection")
    );
}

#[tokio::test]
async fn viewers_of_an_instance_that_never_answers_are_counted_by_the_next() {
    let fake = Fake::start(WINDOW, 1, Faults::default()).await;
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute_url = format!("http://{}", mute.local_addr().unwrap());
    let targets = format!("{},{mute_url}", fake.targets());
    let found = differences(run(&options(&targets, &["--verify"])).await);

    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].to_string(), format!("{mute_url}: counts: expected those of 8 videos, got timeout"));
}

#[tokio::test]
async fn one_seed_is_one_run() {
    let mut plays = Vec::new();
    for seed in ["--seed=1", "--seed=1", "--seed=2"] {
        let fake = Fake::start(WINDOW, 1, Faults::default()).await;
        assert_eq!(run(&options(&fake.targets(), &[seed, "--prefix=same"])).await, Verdict::Fine);
        plays.push(fake.inner.lock().plays.clone());
    }
    assert_eq!(plays[0], plays[1]);
    assert_ne!(plays[0], plays[2]);
}

#[tokio::test]
async fn a_run_in_which_nothing_worked_is_a_failure() {
    let verdict = run(&options(&nobody().await, &["--duration=200ms"])).await;
    assert_eq!(verdict, Verdict::NothingWorked);
    assert_eq!(verdict.exit_code(), std::process::ExitCode::FAILURE);
}

#[tokio::test]
async fn verify_does_not_begin_without_numbers_to_begin_from() {
    let options = options(&nobody().await, &["--verify"]);
    let patience = Patience { reread: Duration::from_millis(200), ..Patience::default() };
    let error = simulate(&options, &patience, pending()).await.unwrap_err();
    assert!(format!("{error:#}").contains("before the run"), "{error:#}");
}

#[tokio::test]
async fn the_window_is_asked_for_where_it_is_not_given() {
    let fake = Fake::start(WINDOW, 1, Faults::default()).await;
    let mut options = options(&fake.targets(), &["--verify"]);
    options.window = None;
    assert_eq!(run(&options).await, Verdict::Fine);
}

#[tokio::test]
async fn an_interrupted_run_stops_early() {
    let fake = Fake::start(WINDOW, 1, Faults::default()).await;
    let options = options(&fake.targets(), &["--duration=1h"]);
    let interrupted = async {
        while fake.inner.lock().beats < 10 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let verdict = simulate(&options, &Patience::default(), interrupted).await.unwrap();

    assert_eq!(verdict, Verdict::Interrupted);
    assert_eq!(verdict.exit_code(), std::process::ExitCode::from(130));
}

#[tokio::test]
async fn an_interruption_before_the_first_request_is_one_too() {
    let options = options(&nobody().await, &["--verify"]);
    let verdict = simulate(&options, &Patience::default(), ready(())).await.unwrap();
    assert_eq!(verdict, Verdict::Interrupted);
}

#[tokio::test]
async fn a_longer_rhythm_is_obeyed_only_when_told_to() {
    let faults = Faults { next_heartbeat: 60, ..Faults::default() };
    let mut beats = Vec::new();
    for more in [&[][..], &["--obey-next"]] {
        let fake = Fake::start(WINDOW, 1, faults).await;
        let calm = ["--churn=0", "--plays-per-viewer=0", "--heartbeat-every=500ms", "--duration=3s"];
        let options = options(&fake.targets(), &[more, &calm].concat());
        assert_eq!(run(&options).await, Verdict::Fine);
        beats.push(fake.inner.lock().beats);
    }
    assert!(beats[0] > 96, "five beats or more of each viewer, not {beats:?}");
    // One of each, and some more where the machine takes longer to answer than to the next beat.
    assert!(beats[1] < 72, "{beats:?}");
}

#[tokio::test]
async fn viewers_beat_less_often_while_the_service_asks_for_it_and_stay_counted() {
    let mut beats = Vec::new();
    for loaded_after in [0, 48] {
        let faults = Faults { next_heartbeat: 1, loaded_after, ..Faults::default() };
        let fake = Fake::start(WINDOW, 1, faults).await;
        let more = ["--churn=0", "--plays-per-viewer=0", "--duration=4s", "--verify"];
        assert_eq!(run(&options(&fake.targets(), &more)).await, Verdict::Fine);
        beats.push(fake.inner.lock().beats);
    }
    // Sixteen each or more, on a machine that keeps up; six then, and some while it settles.
    assert!(beats[1] * 4 < beats[0] * 3, "{beats:?}");
}

#[test]
fn of_many_differences_fifty_are_listed_and_the_others_counted() {
    let one = Difference {
        video: Some("film".to_owned()),
        target: Some("http://a".to_owned()),
        what: "online",
        expected: "3".to_owned(),
        got: "4".to_owned(),
    };
    let text = listing(&vec![one; LISTED + 1_200]);

    assert_eq!(text.lines().count(), LISTED + 1);
    assert_eq!(text.lines().next(), Some("film at http://a: online: expected 3, got 4"));
    assert_eq!(text.lines().last(), Some("and 1,200 further differences"));
}
