//! What is promised of metrics: all named in one place, described, without ids.

use std::{collections::BTreeSet, path::Path};

use super::*;

#[test]
fn installing_twice_gives_the_same_metrics() {
    let first = Metrics::install().unwrap();
    let second = Metrics::install().unwrap();
    counter!("headcount_lock_lost_total").increment(1);
    histogram!("headcount_http_request_duration_seconds", "route" => "/test").record(0.004);
    histogram!("headcount_batch_size", "batch" => "test").record(3.0);
    for metrics in [first, second] {
        let text = metrics.render();
        for part in [
            "# HELP headcount_lock_lost_total Passes",
            "# TYPE headcount_http_request_duration_seconds histogram",
            "headcount_http_request_duration_seconds_bucket{route=\"/test\",le=\"0.005\"} 1",
            "headcount_batch_size_bucket{batch=\"test\",le=\"4\"} 1",
            "headcount_sweep_removed_total 0",
            "headcount_flush_duration_seconds_count 0",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("headcount_plays_pending 0"), "a gauge nobody set isn't there");
    }
}

#[test]
fn without_a_recorder_there_is_nothing_to_show() {
    assert_eq!(Metrics::none().render(), "");
}

#[test]
fn every_metric_in_the_code_is_in_the_table() {
    let known: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(known.len(), METRICS.len(), "a name stands twice");
    let mut written = BTreeSet::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut written);
    for name in &written {
        assert!(known.contains(name.as_str()), "{name} is written and not in METRICS");
    }
    for found in ["headcount_queue_depth", "headcount_plays_total"] {
        assert!(written.contains(found), "the search doesn't find {found}: {written:?}");
    }
}

/// Every text that begins like a name of ours, and the first argument of every `counter!`, `gauge!`
/// and `histogram!` that is a text.
fn collect(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let ours = text.split("\"headcount_").skip(1).map(|rest| format!("headcount_{rest}"));
            let calls = ["counter!(", "gauge!(", "histogram!("].into_iter().flat_map(|call| {
                text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'))
            });
            let is_name = |name: &&str| {
                !name.ends_with('_') && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            };
            for rest in ours.chain(calls.map(str::to_owned)) {
                names.extend(rest.split('"').next().filter(is_name).map(str::to_owned));
            }
        }
    }
}

#[test]
fn a_name_says_its_unit_and_every_metric_says_what_it_tells() {
    for metric in METRICS {
        assert!(metric.name.starts_with("headcount_") && !metric.help.is_empty(), "{}", metric.name);
        assert_eq!(metric.name.ends_with("_total"), metric.kind == Counter, "{}", metric.name);
        assert!(!metric.labels.iter().any(|label| label.contains("id")), "{}", metric.name);
    }
}
