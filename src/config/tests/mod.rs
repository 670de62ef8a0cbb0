//! What the settings promise: three layers, no unknown name, no wrong value, no secret shown.

mod documentation;
mod kafka;

use std::{collections::HashMap, io::Write as _, time::Duration};

use super::{
    Ack, BackendKind, SecretUrl, Shards,
    invalid::Invalid,
    load::{Loaded, load},
    settings::allowed,
};

fn with(variables: &[(&str, &str)]) -> Result<Loaded, Invalid> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    load(None, Some(variables.collect()))
}

fn with_file(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, Invalid> {
    let mut file = tempfile::Builder::new().suffix(".conf").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    load(Some(file.path()), Some(variables.collect()))
}

/// The one complaint of a start that must fail.
fn complaint(result: Result<Loaded, Invalid>) -> String {
    let problems = result.map(|loaded| loaded.given).unwrap_err().problems;
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].text.clone()
}

#[test]
fn the_defaults_are_good_and_warn_of_nothing() {
    let loaded = load(None, Some(HashMap::new())).unwrap();
    assert_eq!(loaded.config.backend, BackendKind::Embedded);
    assert_eq!(loaded.config.presence.window, Duration::from_secs(600));
    assert!(loaded.warnings.is_empty() && loaded.given.is_empty(), "{loaded:?}");
}

#[test]
fn a_variable_wins_over_the_file_and_the_file_over_the_defaults() {
    let file = "[presence]\nwindow = \"20m\"\nheartbeat_every = \"1m\"\n[plays]\nmax_pending = 500\n";
    let loaded = with_file(file, &[("HEADCOUNT_PRESENCE__WINDOW", "30m")]).unwrap();
    assert_eq!(loaded.config.presence.window, Duration::from_secs(1_800));
    assert_eq!(loaded.config.presence.heartbeat_every, Duration::from_secs(60));
    assert_eq!(loaded.config.plays.max_pending, 500);
    assert_eq!(loaded.config.plays.ack, Ack::Stored);
    assert!(
        loaded.given.contains(&"presence.window = \"30m\" (HEADCOUNT_PRESENCE__WINDOW)".to_owned()),
        "{:?}",
        loaded.given
    );
}

#[test]
fn every_kind_of_value_can_be_a_variable() {
    let loaded = with(&[
        ("HEADCOUNT_BACKEND", "redis"),
        ("HEADCOUNT_SERVER__LISTEN", "[::1]:0"),
        ("HEADCOUNT_POSTGRES__MIGRATE", "false"),
        ("HEADCOUNT_PRESENCE__SHARDS", "64"),
        ("HEADCOUNT_PLAYS__TIMEZONE", "Asia/Shanghai"),
        ("HEADCOUNT_REDIS__PREFIX", "007"),
        ("HEADCOUNT_EMBEDDED__PATH", "1"),
        ("HEADCOUNT_JOBS__FLUSH_EVERY", "1s 500ms"),
    ])
    .unwrap()
    .config;
    assert_eq!(loaded.backend, BackendKind::Redis);
    assert_eq!(loaded.server.listen, "[::1]:0".parse().unwrap());
    assert!(!loaded.postgres.migrate);
    assert_eq!(loaded.presence.shards, Shards::Fixed(64));
    assert_eq!(loaded.plays.timezone, chrono_tz::Asia::Shanghai);
    assert_eq!(loaded.redis.prefix, "007", "what looks like a number stays the text it is");
    assert_eq!(loaded.embedded.path.to_str(), Some("1"));
    assert_eq!(loaded.jobs.flush_every, Duration::from_millis(1_500));
}

#[test]
fn shards_are_a_word_or_a_number_in_a_file_and_in_a_variable() {
    for (given, shards) in [("auto", Shards::Auto), ("16", Shards::Fixed(16))] {
        let variable = with(&[("HEADCOUNT_PRESENCE__SHARDS", given)]).unwrap();
        assert_eq!(variable.config.presence.shards, shards);
    }
    for (given, shards) in
        [("\"auto\"", Shards::Auto), ("16", Shards::Fixed(16)), ("\"8\"", Shards::Fixed(8))]
    {
        let file = with_file(&format!("[presence]\nshards = {given}\n"), &[]).unwrap();
        assert_eq!(file.config.presence.shards, shards);
    }
    assert_eq!(with(&[]).unwrap().config.presence.shards, Shards::Auto);
}

#[test]
fn an_unknown_name_is_an_error_that_names_the_one_meant() {
    for (variable, meant) in [
        ("HEADCOUNT_PRESENCE__WINDOWS", "presence.window"),
        ("HEADCOUNT_PRESENCE_WINDOW", "presence.window"),
        ("HEADCOUNT_WINDOW", "kafka.window or presence.window"),
        ("HEADCOUNT_REDIS_URL", "redis.url"),
        ("HEADCOUNT_BACKENDS", "backend"),
        ("HEADCOUNT_PRESENCE__IDENTTY", "presence.identity"),
    ] {
        let text = complaint(with(&[(variable, "1m")]));
        assert!(text.contains(variable) && text.contains(&format!("did you mean {meant}?")), "{text}");
    }
    let text = complaint(with(&[("HEADCOUNT_LISTEN", "127.0.0.1:1")]));
    assert!(text.contains("ops.listen or server.listen"), "{text}");

    let text = complaint(with_file("[presense]\nwindow = \"1m\"\n", &[]));
    assert!(text.contains("presense.window") && text.contains("presence.window?"), "{text}");
    let text = complaint(with_file("[colour]\nof_the_sky = \"blue\"\n", &[]));
    assert!(text.contains("colour.of_the_sky") && text.contains("config/default.toml"), "{text}");
    let text = complaint(with_file("server = \"127.0.0.1:80\"\n", &[]));
    assert!(text.contains("server is a section") || text.contains("it is a section"), "{text}");
    let text = complaint(with_file("[backend]\nkind = \"redis\"\n", &[]));
    assert!(text.contains("backend.kind"), "{text}");
    complaint(with_file("[nothing]\n", &[]));
    with_file("[server]\n", &[]).unwrap();
}

#[test]
fn what_kubernetes_sets_for_a_service_of_our_name_is_passed_over_with_one_warning() {
    let loaded = with(&[
        ("HEADCOUNT_PORT", "tcp://10.0.0.7:80"),
        ("HEADCOUNT_PORT_80_TCP", "tcp://10.0.0.7:80"),
        ("HEADCOUNT_PORT_80_TCP_ADDR", "10.0.0.7"),
        ("HEADCOUNT_SERVICE_HOST", "10.0.0.7"),
        ("HEADCOUNT_SERVICE_PORT_HTTP", "80"),
        ("HEADCOUNT_REDIS_SERVICE_HOST", "10.0.0.8"),
        ("HEADCOUNT_REDIS_SERVICE_PORT", "6379"),
        ("HEADCOUNT_REDIS_PORT", "tcp://10.0.0.8:6379"),
        ("HEADCOUNT_REDIS_PORT_6379_TCP_PROTO", "tcp"),
    ])
    .unwrap();
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings[0].contains("HEADCOUNT_SERVICE_HOST"), "{:?}", loaded.warnings);

    // A port that is no address is likely meant for us.
    complaint(with(&[("HEADCOUNT_SERVER_PORT", "8080")]));
}

#[test]
fn a_value_out_of_its_range_is_told_with_the_setting_the_value_and_the_range() {
    let text =
        complaint(with(&[("HEADCOUNT_PRESENCE__WINDOW", "4s"), ("HEADCOUNT_JOBS__SWEEP_EVERY", "1s")]));
    for part in ["presence.window", "HEADCOUNT_PRESENCE__WINDOW", "\"4s\"", "from 5s to 1h"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    for (name, bad) in [
        ("backend", "Redis"),
        ("server.listen", "localhost:8080"),
        ("server.listen", "8080"),
        ("server.drain", "0s"),
        ("server.drain", "20"),
        ("server.drain", ""),
        ("log.filter", "verbose"),
        ("log.filter", "info,warning"),
        ("log.filter", "info,a=b=c"),
        ("embedded.path", ""),
        ("embedded.max_viewers", "-1"),
        ("embedded.max_viewers", "1e6"),
        ("redis.prefix", "a{b}"),
        ("redis.wait_replicas", "17"),
        ("plays.wait", "1"),
        ("postgres.migrate", "yes"),
        ("presence.shards", "12"),
        ("presence.shards", "Auto"),
        ("presence.viewers_per_shard", "500"),
        ("presence.shards", "0"),
        ("presence.shards", "2048"),
        ("plays.timezone", "Peking"),
        ("plays.dedupe_window", "8d"),
    ] {
        let variable = format!("HEADCOUNT_{}", name.replace('.', "__").to_uppercase());
        let text = complaint(with(&[(variable.as_str(), bad)]));
        let rule = allowed(name).unwrap().to_string();
        assert!(text.contains(name) && text.contains(&rule) && text.contains(&format!("{bad:?}")), "{text}");
    }
}

#[test]
fn both_ends_of_a_range_are_allowed() {
    for (name, good) in [
        ("plays.dedupe_window", "7d"),
        ("plays.dedupe_window", "1s"),
        ("redis.batch_min_age", "0s"),
        ("presence.shards", "1"),
        ("presence.shards", "1024"),
        ("presence.shards", "auto"),
        ("postgres.max_connections", "2"),
        ("postgres.max_connections", "1000"),
        ("log.filter", "WARN,headcount::presence=debug"),
    ] {
        assert!(allowed(name).unwrap().takes(good), "{name} = {good}");
    }
}

#[test]
fn settings_that_are_wrong_together_are_refused() {
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("presence.window", &[("HEADCOUNT_PRESENCE__WINDOW", "80s")]),
        ("jobs.sweep_every", &[("HEADCOUNT_JOBS__SWEEP_EVERY", "10m")]),
        ("server.request_timeout", &[("HEADCOUNT_SERVER__REQUEST_TIMEOUT", "500ms")]),
        ("server.drain_delay", &[("HEADCOUNT_SERVER__DRAIN_DELAY", "20s")]),
        ("ops.listen", &[("HEADCOUNT_OPS__LISTEN", "127.0.0.1:8080")]),
        ("ops.listen", &[("HEADCOUNT_OPS__LISTEN", "0.0.0.0:8080")]),
        ("presence.batch", &[("HEADCOUNT_PRESENCE__MAX_MERGED", "1000")]),
        ("plays.wait", &[("HEADCOUNT_PLAYS__WAIT", "true")]),
        ("redis.ca_file", &[("HEADCOUNT_REDIS__CA_FILE", "/ca.pem")]),
        (
            "redis.client_key_file",
            &[
                ("HEADCOUNT_REDIS__URL", "rediss://redis"),
                ("HEADCOUNT_REDIS__CLIENT_CERT_FILE", "/client.pem"),
            ],
        ),
        (
            "plays.wait",
            &[
                ("HEADCOUNT_PLAYS__WAIT", "true"),
                ("HEADCOUNT_REDIS__WAIT_REPLICAS", "1"),
                ("HEADCOUNT_PLAYS__ACK", "received"),
            ],
        ),
    ];
    for (setting, variables) in cases {
        let problems = with(variables).map(|loaded| loaded.given).unwrap_err().problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].setting, *setting);
    }
    with(&[("HEADCOUNT_OPS__LISTEN", "127.0.0.1:0"), ("HEADCOUNT_SERVER__LISTEN", "127.0.0.1:0")]).unwrap();
    with(&[("HEADCOUNT_PLAYS__WAIT", "true"), ("HEADCOUNT_REDIS__WAIT_REPLICAS", "1")]).unwrap();
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let problems = with(&[
        ("HEADCOUNT_NONSENSE", "1"),
        ("HEADCOUNT_PRESENCE__WINDOW", "soon"),
        ("HEADCOUNT_REDIS__DEADLINE", "1h"),
        ("HEADCOUNT_SERVER__DRAIN_DELAY", "1m"),
    ])
    .map(|loaded| loaded.given)
    .unwrap_err()
    .problems;
    let settings: Vec<&str> = problems.iter().map(|problem| problem.setting.as_str()).collect();
    assert_eq!(settings, ["nonsense", "presence.window", "redis.deadline", "server.drain_delay"]);
}

#[test]
fn a_window_under_three_minutes_is_warned_about() {
    let loaded = with(&[
        ("HEADCOUNT_PRESENCE__WINDOW", "30s"),
        ("HEADCOUNT_PRESENCE__HEARTBEAT_EVERY", "5s"),
        ("HEADCOUNT_JOBS__SWEEP_EVERY", "2s"),
    ])
    .unwrap();
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("presence.window is 30s"), "{:?}", loaded.warnings);
}

#[test]
fn a_file_that_is_not_there_or_is_no_toml_is_an_error_without_an_excerpt() {
    let missing = load(Some("/nowhere/headcount.toml".as_ref()), Some(HashMap::new()));
    assert!(complaint(missing).contains("/nowhere/headcount.toml"));
    let text = complaint(with_file("[redis]\nurl = redis://:hunter2@host\n", &[]));
    assert!(text.contains("line 2") && text.contains(".conf") && !text.contains("hunter2"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let text = complaint(load(Some(folder.path()), Some(HashMap::new())));
    assert!(text.contains(folder.path().to_str().unwrap()) && text.contains("directory"), "{text}");
    let file = folder.path().join("bytes.toml");
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    let text = complaint(load(Some(&file), Some(HashMap::new())));
    assert!(text.contains("bytes.toml") && text.contains("UTF-8"), "{text}");
}

#[test]
fn a_number_in_a_file_that_is_too_long_for_any_is_told_with_its_setting() {
    for text in [
        "[jobs]\nflush_every = \"1s\"\n[plays] # how often\nmax_pending = 99_999_999_999_999_999_999 # many\n",
        "plays.max_pending = 18446744073709551615\n",
        "[plays]\nmax_pending = -9223372036854775809\n",
    ] {
        let text = complaint(with_file(text, &[]));
        for part in ["plays.max_pending", ".conf", "from 100 to 1000000"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
    let text = complaint(with_file("[plays]\nmax_pendin = 99999999999999999999\n", &[]));
    assert!(text.contains("did you mean plays.max_pending?"), "{text}");
}

#[test]
fn addresses_of_stores_are_checked_and_their_secrets_never_shown() {
    for good in ["redis://h", "rediss://u:p@h:1/2", "unix:///run/redis.sock", "redis://:p%40@[::1]:6379/0"] {
        with(&[("HEADCOUNT_REDIS__URL", good)]).unwrap();
    }
    for good in ["postgres://u:p@h:5432/d?sslmode=verify-full", "postgresql:///d?host=/run/postgresql"] {
        with(&[("HEADCOUNT_POSTGRES__URL", good)]).unwrap();
    }
    for (name, bad) in [
        ("HEADCOUNT_REDIS__URL", "redis:hunter2@h"),
        ("HEADCOUNT_REDIS__URL", "http://u:hunter2@h"),
        ("HEADCOUNT_REDIS__URL", "redis://u:hunter2@h/first"),
        ("HEADCOUNT_REDIS__URL", "redis://u:1/hunter2@h"),
        ("HEADCOUNT_REDIS__URL", "rediss://u:hunter2@h/#insecure"),
        ("HEADCOUNT_POSTGRES__URL", "mysql://u:hunter2@h/d"),
        ("HEADCOUNT_POSTGRES__URL", "u:hunter2@h/d"),
        ("HEADCOUNT_POSTGRES__URL", "postgres://u@h/d?sslmode=hunter2"),
    ] {
        let text = complaint(with(&[(name, bad)]));
        assert!(!text.contains("hunter2"), "{text}");
    }
    let loaded = with(&[("HEADCOUNT_REDIS__URL", "redis://u:hunter2@h:7000/1?x=hunter2")]).unwrap();
    assert!(!format!("{loaded:?}").contains("hunter2"));
    assert_eq!(loaded.given, ["redis.url = \"redis://h:7000/1\" (HEADCOUNT_REDIS__URL)"]);
}

#[test]
fn an_address_whose_parts_are_unclear_is_not_shown() {
    for url in [
        "redis://u:1/hunter2@h",
        "redis:hunter2@h",
        "hunter2",
        "redis://u:1#hunter2@h",
        "redis://u:1?hunter2@h",
    ] {
        let shown = SecretUrl::new(url).redacted();
        assert!(!shown.contains("hunter2") && !shown.contains(":1"), "{shown}");
    }
}
