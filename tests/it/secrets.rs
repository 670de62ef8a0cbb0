//! Passwords are shown nowhere, whatever goes wrong and however much is logged.

use std::{path::Path, process::Stdio, time::Duration};

use headcount_support::{Authority, OwnPostgres, OwnRedis, eventually};

use crate::process::ran;

/// With characters that an address has to encode: neither way to write it may be seen.
const SECRETS: [&str; 4] = ["r3dis/s%c", "r3dis%2Fs%25c", "p0stgres/s%c", "p0stgres%2Fs%25c"];

fn look_through(place: &str, text: &str) {
    assert!(!text.is_empty(), "{place} says nothing");
    for secret in SECRETS {
        assert!(!text.contains(secret), "{place} shows a password:\n{text}");
    }
}

/// A service with these variables, whose log goes to a file; and the addresses of its listeners.
async fn start(log: &Path, variables: &[(&str, &str)]) -> (tokio::process::Child, String, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_headcount"));
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(std::fs::File::create(log).unwrap()).kill_on_drop(true);
    let process = command.spawn().unwrap();
    let mut addresses = None;
    eventually("it listens", async || {
        let text = std::fs::read_to_string(log).unwrap();
        addresses = text.lines().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            Some((line["server.listen"].as_str()?.to_owned(), line["ops.listen"].as_str()?.to_owned()))
        });
        addresses.is_some()
    })
    .await;
    let (public, ops) = addresses.unwrap();
    (process, format!("http://{public}"), format!("http://{ops}"))
}

#[tokio::test]
async fn passwords_are_in_no_log_error_answer_metric_or_report_even_when_they_are_wrong() {
    let authority = Authority::new("ours");
    let redis = OwnRedis::start_with_tls(&authority.issue("localhost"), None, &[]).await;
    redis.require("right").await;
    let postgres = OwnPostgres::start_with_passwords(None).await;
    let redis_url = format!("rediss://headcount:{}@localhost:{}", SECRETS[1], redis.port());
    let postgres_url = format!("postgres://postgres:{}@localhost:{}/postgres", SECRETS[3], postgres.port());
    let (file, folder) = (authority.file(), tempfile::tempdir().unwrap());
    let variables = [
        ("HEADCOUNT_BACKEND", "redis"),
        ("HEADCOUNT_REDIS__URL", redis_url.as_str()),
        ("HEADCOUNT_REDIS__CA_FILE", file.to_str().unwrap()),
        ("HEADCOUNT_POSTGRES__URL", postgres_url.as_str()),
        ("HEADCOUNT_SERVER__LISTEN", "127.0.0.1:0"),
        ("HEADCOUNT_OPS__LISTEN", "127.0.0.1:0"),
        ("HEADCOUNT_LOG__FORMAT", "json"),
        ("HEADCOUNT_LOG__FILTER", "trace"),
        ("HEADCOUNT_SERVER__DRAIN_DELAY", "0s"),
    ];
    let log = folder.path().join("log");
    let (mut process, public, ops) = start(&log, &variables).await;
    headcount::tls::choose_provider();
    let client = reqwest::Client::new();
    let ask = async |url: String| client.get(url).send().await.unwrap().text().await.unwrap();
    eventually("both are known to refuse", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.contains("Password authentication failed") && text.contains("password authentication failed for")
    })
    .await;
    for page in ["readyz", "livez", "api/video/film/counts"] {
        look_through(page, &ask(format!("{public}/{page}")).await);
    }
    for page in ["readyz", "livez", "metrics", "openapi.json"] {
        look_through(page, &ask(format!("{ops}/{page}")).await);
    }
    for command in [&["check-config"][..], &["doctor"], &["doctor", "--json"], &["migrate"], &["audit"]] {
        let output = tokio::time::timeout(Duration::from_secs(60), ran(command, &variables)).await.unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        look_through(&command.join(" "), &said);
    }
    // What is wrong with an address is told without it.
    let mangled = redis_url.replace("rediss://", "rediss:/");
    let output = ran(&["check-config"], &[("HEADCOUNT_REDIS__URL", mangled.as_str())]).await;
    assert_eq!(output.status.code(), Some(2));
    look_through("check-config", &String::from_utf8(output.stderr).unwrap());

    let pid = process.id().unwrap().to_string();
    assert!(tokio::process::Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    let ended = tokio::time::timeout(Duration::from_secs(60), process.wait()).await;
    ended.expect("it ends").unwrap();
    look_through("the log", &std::fs::read_to_string(&log).unwrap());
}
