//! Every step of record, flush, sweep and drain × {the process is killed before or after it, it fails,
//! its answer is lost, the process stands still before or after it and wakes late}: real processes on
//! real stores, and the totals must be exact each time.
//!
//! Plays and their marks lie in Redis already when the process with the failpoint starts, in every
//! partition; more are sent to it meanwhile, each until it is answered, at whoever lives.

#[cfg(feature = "kafka")]
mod counting;
mod deployment;

use std::{cell::Cell, collections::BTreeSet, time::Duration};

use tokio::sync::Semaphore;

use self::deployment::{Deployment, Living};
use crate::process::Service;

/// Steps of taking plays and beats, and of reporting the plays.
const RECORD: &[&str] = &["record.send", "witness.report", "beats.write", "beats.move"];

/// Steps of a flush.
const FLUSH: &[&str] = &[
    "flush.lock",
    "flush.due",
    "flush.look",
    "flush.claim",
    "flush.begin",
    "flush.note",
    "flush.add",
    "flush.add_days",
    "flush.adopt",
    "flush.refuse",
    "flush.read",
    "flush.commit",
    "flush.sketches",
    "flush.settle",
    "flush.unlock",
];

/// Steps of a sweep.
const SWEEP: &[&str] = &[
    "sweep.lock",
    "sweep.stamps",
    "sweep.registry",
    "sweep.look",
    "sweep.walk",
    "sweep.store",
    "sweep.reshard",
    "sweep.finish",
    "sweep.unlock",
];

/// Steps of the embedded backend.
const EMBEDDED: &[&str] = &["plays.commit", "snapshot.store"];

/// Steps of counting what is in Kafka's log, beside those that it shares with a flush.
const COUNTING: &[&str] = &[
    "window.begin",
    "window.fence",
    "window.seen",
    "window.note",
    "window.refuse",
    "window.read",
    "window.sketches",
    "window.witness",
    "window.move",
    "window.commit",
    "window.look",
    "window.raise",
    "window.tell",
    "window.letter",
    "window.forget",
    "flush.add",
    "flush.add_days",
    "flush.adopt",
];

/// Boundaries of a drain.
const DRAIN: &[&str] = &["drain.http", "drain.writers", "drain.jobs", "drain.links"];

/// What can befall a step.
const FAULTS: &[&str] = &["kill-before", "kill-after", "error", "lost", "stall-before", "stall-after"];

/// Cases at a time; each is a few processes that mostly wait.
static AT_ONCE: Semaphore = Semaphore::const_new(6);

/// Runs one case of each pair.
async fn each(
    steps: &[&'static str],
    faults: &[&'static str],
    case: impl AsyncFn(&'static str, &'static str),
) {
    let case = &case;
    let pairs = steps.iter().flat_map(|step| faults.iter().map(move |fault| (*step, *fault)));
    let cases = pairs.map(|(step, fault)| async move {
        let _turn = AT_ONCE.acquire().await.unwrap();
        println!("{step} {fault}");
        case(step, fault).await;
    });
    futures::future::join_all(cases).await;
}

/// What is set for the step to be reached and to have `fault` befall it the first time.
fn failpoints(step: &str, fault: &str) -> String {
    // Only a pass that failed gives its lock back.
    let before = if step == "sweep.unlock" { "sweep.walk=1*return(error);" } else { "" };
    format!("{before}{step}=1*return({fault})")
}

async fn on_redis(step: &'static str, fault: &'static str) {
    let deployment = Deployment::on_redis(step == "flush.refuse").await;
    survive(&deployment, step, fault).await;
}

async fn survive(deployment: &Deployment, step: &'static str, fault: &'static str) {
    let mut struck = deployment.start(&failpoints(step, fault)).await;
    let living = Living::at(&struck.public);
    let said = format!("failpoint {step}");
    let survivor = async {
        match fault {
            "kill-before" | "kill-after" => {
                let (code, log) = struck.ended().await;
                assert!(code.is_none() && log.contains(&said), "{step} {fault}: {code:?}\n{log}");
                (deployment.start("").await, None)
            }
            "error" | "lost" => {
                struck.says(&said).await;
                (struck, None)
            }
            _ => {
                struck.says(&said).await;
                // Whoever is embedded has no other instance: it wakes at once.
                if deployment.is_embedded() {
                    struck.wakes().await;
                    (struck, None)
                } else {
                    (deployment.start("").await, Some(struck))
                }
            }
        }
    };
    let struck = Cell::new(false);
    let audience = async {
        deployment.plays_on(&living).await;
        // Viewers move with the beats after a sweep that changed their video's shards.
        while step == "beats.move" && !struck.get() {
            deployment.beat(&living).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let follow = async {
        let (survivor, asleep) = survivor.await;
        living.set(&survivor.public);
        struck.set(true);
        (survivor, asleep)
    };
    let ((), (survivor, asleep)) = tokio::join!(audience, follow);
    let since = deployment.now().await;
    deployment.becomes_exact(&survivor.public, since, step, fault).await;

    if let Some(asleep) = asleep {
        asleep.wakes().await;
        let since = deployment.now().await;
        // What it had begun goes on now, on what others have long brought to its end.
        deployment.becomes_exact(&asleep.public, since, step, fault).await;
        deployment.becomes_reported(&asleep.ops, step, fault).await;
        drained(asleep, step, fault).await;
        deployment.becomes_exact(&survivor.public, since, step, fault).await;
    }
    if !fault.starts_with("kill") {
        deployment.becomes_reported(&survivor.ops, step, fault).await;
    }
    drained(survivor, step, fault).await;
    deployment.is_exact(step, fault).await;
}

async fn drained(service: Service, step: &str, fault: &str) {
    service.signal("-TERM").await;
    let (code, log) = service.ended().await;
    assert_eq!(code, Some(0), "{step} {fault}:\n{log}");
    println!("{step} {fault}: ended\n{log}");
}

#[tokio::test]
async fn no_fault_at_any_step_of_taking_plays_and_beats_loses_or_doubles_any() {
    each(RECORD, FAULTS, on_redis).await;
}

#[tokio::test]
async fn no_fault_at_any_step_of_a_flush_loses_or_doubles_a_play() {
    each(FLUSH, FAULTS, on_redis).await;
}

#[tokio::test]
async fn no_fault_at_any_step_of_a_sweep_leaves_a_wrong_count() {
    each(SWEEP, FAULTS, on_redis).await;
}

#[tokio::test]
async fn no_fault_at_any_step_on_disk_loses_or_doubles_a_play() {
    each(EMBEDDED, FAULTS, async |step, fault| survive(&Deployment::embedded().await, step, fault).await)
        .await;
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn no_fault_at_any_step_of_counting_the_log_loses_or_doubles_a_play() {
    use self::counting::{Log, failpoints};

    // What befalls before a step is what befalls after the one ahead of it; the first has none.
    let faults = ["kill-before", "kill-after", "lost", "stall-after"];
    each(COUNTING, &faults, async |step, fault| {
        let mut log = Log::written(step).await;
        let mut struck = log.start(&failpoints(step, fault)).await;
        let said = format!("failpoint {step}");
        let (survivor, asleep) = match fault {
            "kill-before" | "kill-after" => {
                let (code, told) = struck.ended().await;
                assert!(code.is_none() && told.contains(&said), "{step} {fault}: {code:?}\n{told}");
                (log.start("").await, None)
            }
            "error" | "lost" => {
                struck.says(&said).await;
                (struck, None)
            }
            _ => {
                struck.says(&said).await;
                (log.start("").await, Some(struck))
            }
        };
        log.becomes_exact(step, fault).await;
        if let Some(asleep) = asleep {
            // It goes on where it stood, and its part of the log has long been another's.
            asleep.wakes().await;
            log.goes_on(step, fault).await;
            drained(asleep, step, fault).await;
        }
        drained(survivor, step, fault).await;
        log.becomes_exact(step, fault).await;
        log.close().await;
    })
    .await;
}

#[tokio::test]
async fn no_fault_in_a_drain_loses_or_doubles_a_play() {
    each(DRAIN, &["kill-before", "stall-before", "hang"], async |boundary, fault| {
        for deployment in [Deployment::on_redis(false).await, Deployment::embedded().await] {
            let mut stopping = deployment.start(&failpoints(boundary, fault)).await;
            deployment.plays_on(&Living::at(&stopping.public)).await;
            stopping.signal("-TERM").await;
            if fault == "stall-before" {
                stopping.says(&format!("failpoint {boundary}")).await;
                stopping.wakes().await;
            }
            let (code, log) = stopping.ended().await;
            let wanted = match fault {
                "kill-before" => None,
                // Cut short by server.drain, and says so.
                "hang" => Some(1),
                _ => Some(0),
            };
            assert_eq!(code, wanted, "{boundary} {fault}:\n{log}");
            let next = deployment.start("").await;
            deployment.becomes_exact(&next.public, 0, boundary, fault).await;
            drained(next, boundary, fault).await;
            deployment.is_exact(boundary, fault).await;
        }
    })
    .await;
}

#[test]
fn every_failpoint_of_the_sources_is_in_the_matrix() {
    fn names(folder: &std::path::Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                names(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for call in text.split("failpoint::step(").skip(1) {
                    found.insert(call.split('"').nth(1).unwrap().to_owned());
                }
                for boundary in text.split("\"drain.").skip(1) {
                    found.insert(format!("drain.{}", boundary.split('"').next().unwrap()));
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    names(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    let matrix = [RECORD, FLUSH, SWEEP, EMBEDDED, COUNTING, DRAIN].concat();
    let matrix: BTreeSet<String> = matrix.into_iter().map(str::to_owned).collect();
    assert_eq!(found, matrix);
}
