//! What is shipped beside the binary keeps in step with it: the settings of the image, of compose and of the
//! example for Kubernetes, the alerts, the dashboard.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use headcount::{
    config::{BackendKind, Config, load::load},
    telemetry::metrics::{Kind, METRICS},
};

const DOCKERFILE: &str = include_str!("../../Dockerfile");
const COMPOSE: &str = include_str!("../../docker-compose.yml");
const KUBERNETES: &str = include_str!("../../deploy/kubernetes/headcount.env");
const KUBERNETES_DEPLOYMENT: &str = include_str!("../../deploy/kubernetes/deployment.yaml");
const ALERTS: &str = include_str!("../../deploy/prometheus/headcount.rules.yml");
const ALERT_TESTS: &str = include_str!("../../deploy/prometheus/headcount.test.yml");
const DASHBOARD: &str = include_str!("../../deploy/grafana/headcount.json");

/// The settings a file gives, its comments left out. Compose's `${NAME:-default}` is the default.
fn settings(text: &str, separator: &str) -> HashMap<String, String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let given = lines.filter_map(|line| {
        let (_, setting) = line.split_once("HEADCOUNT_")?;
        let (name, value) = setting.split_once(separator)?;
        let mut value = value.trim_end_matches('\\').trim().to_owned();
        while let Some((before, rest)) = value.clone().split_once("${") {
            let (variable, after) = rest.split_once('}').unwrap();
            let (_, default) = variable.split_once(":-").unwrap();
            value = format!("{before}{default}{after}");
        }
        Some((format!("HEADCOUNT_{name}"), value))
    });
    given.collect()
}

/// What stands under a name in compose's file, at the beginning of a line or two columns in.
fn part(name: &str) -> String {
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut lines = COMPOSE
        .lines()
        .skip_while(|line| depth(line) > 2 || line.trim_start().split(':').next() != Some(name));
    let heading = depth(lines.next().unwrap());
    let under = lines.take_while(|line| line.is_empty() || depth(line) > heading);
    under.collect::<Vec<_>>().join("\n")
}

/// The settings of one of compose's services, with those that all of them have.
fn in_compose(service: &str) -> HashMap<String, String> {
    settings(&[part("x-settings"), part(service)].join("\n"), ": ")
}

fn check(given: HashMap<String, String>) -> Config {
    assert!(given.len() >= 3, "the search finds too little: {given:?}");
    load(None, Some(given)).unwrap().config
}

#[test]
fn the_image_compose_and_kubernetes_run_on_redis_and_listen_on_all_addresses() {
    for given in [settings(DOCKERFILE, "="), in_compose("headcount"), settings(KUBERNETES, "=")] {
        let config = check(given);
        assert_eq!(config.backend, BackendKind::Redis);
        assert_eq!(config.server.listen.to_string(), "0.0.0.0:8080");
        assert_eq!(config.ops.listen.to_string(), "0.0.0.0:9180");
    }
}

#[test]
fn compose_and_kubernetes_wait_longer_for_a_drain_than_the_drain_may_take() {
    let services = part("x-headcount");
    let (_, grace) = services.split_once("stop_grace_period: ").unwrap();
    let grace = humantime::parse_duration(grace.lines().next().unwrap()).unwrap();
    assert!(grace > check(in_compose("headcount")).server.drain);

    let (_, grace) = KUBERNETES_DEPLOYMENT.split_once("terminationGracePeriodSeconds: ").unwrap();
    let grace = Duration::from_secs(grace.lines().next().unwrap().parse().unwrap());
    assert!(grace > check(settings(KUBERNETES, "=")).server.drain);
}

#[test]
fn only_the_public_listener_is_published_beyond_this_machine() {
    let services =
        [("headcount", "", 80), ("headcount-cluster", "CLUSTER_", 81), ("headcount-kafka", "KAFKA_", 82)];
    for (service, prefix, number) in services {
        let part = part(service);
        let (_, ports) = part.split_once("ports:\n").unwrap();
        let ports: Vec<&str> =
            ports.lines().map_while(|line| line.trim().strip_prefix("- \"")?.strip_suffix('"')).collect();
        let public = format!("${{{prefix}PUBLIC_PORT:-80{number}}}:8080");
        let ops = format!("127.0.0.1:${{{prefix}OPS_PORT:-91{number}}}:9180");
        assert_eq!(ports, [public, ops]);
    }
    assert_eq!(COMPOSE.matches("ports:\n").count(), services.len(), "nothing else is published");
}

/// The metrics a file names. A histogram's three series are one metric.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let names = words.filter(|word| word.starts_with("headcount_")).map(|word| {
        let series = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        series.filter(|name| kind_of(name) == Some(Kind::Histogram)).unwrap_or(word)
    });
    names.collect()
}

fn kind_of(name: &str) -> Option<Kind> {
    METRICS.iter().find(|metric| metric.name == name).map(|metric| metric.kind)
}

#[test]
fn alerts_and_the_dashboard_use_only_metrics_that_there_are() {
    for (file, text) in [("alerts", ALERTS), ("their tests", ALERT_TESTS), ("the dashboard", DASHBOARD)] {
        let used = metrics_in(text);
        assert!(used.len() > 10, "the search finds too little in {file}: {used:?}");
        for name in used {
            assert!(kind_of(name).is_some(), "{file}: {name} is not in METRICS");
        }
    }
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let shown = metrics_in(DASHBOARD);
    for metric in METRICS {
        assert!(shown.contains(metric.name), "{} is not on the dashboard", metric.name);
    }
}

#[test]
fn every_alert_says_what_it_means_and_what_to_do_and_has_a_test() {
    for alert in ALERTS.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        for part in ["summary: ", "meaning: ", "action: ", "severity: "] {
            assert!(alert.contains(part), "{name} has no {part}");
        }
        let firing = ALERT_TESTS.contains(&format!("alertname=\"{name}\",alertstate=\"firing\""));
        assert!(firing || ALERT_TESTS.contains(&format!("alertname: {name}\n")), "{name} has no test");
    }
}
