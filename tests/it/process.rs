//! The binary itself: exit codes, signals, and what it prints.

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStderr, Command},
};

const LONG: Duration = Duration::from_secs(60);

fn headcount(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headcount"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true).envs(variables.iter().copied());
    command
}

pub async fn ran(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let output = headcount(arguments, variables).output();
    tokio::time::timeout(LONG, output).await.expect("it ends").unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A running service and its log.
pub struct Service {
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
    pub public: String,
    pub ops: String,
}

impl Service {
    pub async fn start(folder: &Path, variables: &[(&str, &str)]) -> Self {
        Self::start_as(&[], folder, variables).await
    }

    /// Starts what a command runs until it is told to end.
    pub async fn start_as(command: &[&str], folder: &Path, variables: &[(&str, &str)]) -> Self {
        let mut all = vec![
            ("HEADCOUNT_SERVER__LISTEN", "127.0.0.1:0"),
            ("HEADCOUNT_OPS__LISTEN", "127.0.0.1:0"),
            // A busy machine is no overload of the service.
            ("HEADCOUNT_SERVER__MAX_DELAY", "10s"),
            ("HEADCOUNT_EMBEDDED__PATH", folder.to_str().unwrap()),
            ("HEADCOUNT_LOG__FORMAT", "json"),
        ];
        all.extend_from_slice(variables);
        let mut process = headcount(command, &all).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let (public, ops) = loop {
            let line = tokio::time::timeout(LONG, log.next_line()).await.expect("a line").unwrap();
            let line: serde_json::Value = serde_json::from_str(&line.expect("it starts")).unwrap();
            if let Some(ops) = line["ops.listen"].as_str() {
                // Not all of them serve players.
                let public = line["server.listen"].as_str().unwrap_or_default();
                break (format!("http://{public}"), format!("http://{ops}"));
            }
        };
        Self { process, log, public, ops }
    }

    pub fn pid(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    /// Reads its log up to a line with `text` in it.
    #[cfg(feature = "failpoints")]
    pub async fn says(&mut self, text: &str) {
        loop {
            let line = tokio::time::timeout(LONG, self.log.next_line()).await.expect("a line").unwrap();
            if line.unwrap_or_else(|| panic!("it ended and didn't say {text:?}")).contains(text) {
                return;
            }
        }
    }

    pub async fn signal(&self, name: &str) {
        let pid = self.process.id().expect("it runs").to_string();
        assert!(Command::new("kill").args([name, &pid]).status().await.unwrap().success());
    }

    /// Continues it, once it has been stopped.
    #[cfg(feature = "failpoints")]
    pub async fn wakes(&self) {
        let pid = self.process.id().expect("it runs");
        crate::world::eventually("it stands still", async || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
        })
        .await;
        self.signal("-CONT").await;
    }

    /// The exit code (none where a signal killed it), and the rest of the log.
    pub async fn ended(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        while let Some(line) =
            tokio::time::timeout(LONG, self.log.next_line()).await.expect("it ends").unwrap()
        {
            rest.push_str(&line);
            rest.push('\n');
        }
        (self.process.wait().await.unwrap().code(), rest)
    }
}

async fn status(url: &str) -> u16 {
    reqwest_client().get(url).send().await.unwrap().status().as_u16()
}

fn reqwest_client() -> reqwest::Client {
    headcount::tls::choose_provider();
    reqwest::Client::new()
}

#[tokio::test]
async fn it_starts_with_no_settings_serves_and_ends_with_zero_after_a_drain() {
    for signal in ["-TERM", "-INT"] {
        let folder = tempfile::tempdir().unwrap();
        let service = Service::start(folder.path(), &[]).await;
        assert_eq!(status(&format!("{}/readyz", service.public)).await, 200);
        assert_eq!(status(&format!("{}/metrics", service.ops)).await, 200);
        assert_eq!(status(&format!("{}/metrics", service.public)).await, 404);
        let checked = ran(&["healthcheck", "--url", &service.ops], &[]).await;
        assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
        service.signal(signal).await;
        let (code, log) = service.ended().await;
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("drained and stopped"), "{log}");
    }
}

#[tokio::test]
async fn during_the_drain_probes_say_no_while_requests_are_still_served() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("HEADCOUNT_SERVER__DRAIN_DELAY", "3s")];
    let service = Service::start(folder.path(), &variables).await;
    service.signal("-TERM").await;
    let probe = format!("{}/readyz", service.public);
    crate::world::eventually("readiness is gone", async || status(&probe).await == 503).await;
    let counted = format!("{}/api/video/42/online-count", service.public);
    assert_eq!(status(&counted).await, 200);
    assert_eq!(status(&format!("{}/livez", service.ops)).await, 200);
    let checked = ran(&["healthcheck", "--url", &service.ops], &[]).await;
    assert_eq!(checked.status.code(), Some(1));
    assert_eq!(service.ended().await.0, Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once_and_not_with_zero() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("HEADCOUNT_SERVER__DRAIN_DELAY", "4m"), ("HEADCOUNT_SERVER__DRAIN", "5m")];
    let service = Service::start(folder.path(), &variables).await;
    service.signal("-TERM").await;
    let probe = format!("{}/readyz", service.public);
    crate::world::eventually("readiness is gone", async || status(&probe).await == 503).await;
    service.signal("-INT").await;
    let (code, log) = service.ended().await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("a second time"), "{log}");
}

#[tokio::test]
async fn bad_settings_end_every_command_with_two_and_are_told_once() {
    for command in ["serve", "check-config", "doctor", "migrate"] {
        let output = ran(&[command], &[("HEADCOUNT_PRESENCE__WINDOW", "1s")]).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert_eq!(said.matches("from 5s to 1h").count(), 1, "{command}: {said}");
    }
    // Docker takes 2 for something else.
    let output = ran(&["healthcheck"], &[("HEADCOUNT_PRESENCE__WINDOW", "1s")]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
}

#[tokio::test]
async fn bad_arguments_end_with_two_but_a_healthcheck_with_one_and_are_named() {
    for (arguments, code, named) in [
        (&["doctor", "--bogus"][..], 2, "--bogus"),
        (&["healthcheck", "--bogus"], 1, "--bogus"),
        (&["healthcheck", "--url", "nonsense"], 1, "--url"),
        (&["healthcheck", "--url", "https://127.0.0.1"], 1, "--url"),
        (&["healthcheck", "--config", "/nowhere/headcount.toml"], 1, "/nowhere/headcount.toml"),
        (&["check-config", "--config", "/nowhere/headcount.toml"], 2, "/nowhere/headcount.toml"),
    ] {
        let output = ran(arguments, &[]).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(named), "{arguments:?}: {said}");
    }
    let output = ran(&["healthcheck", "--help"], &[]).await;
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test]
async fn an_address_that_is_taken_is_told_with_its_setting() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let output = ran(
        &["serve"],
        &[
            ("HEADCOUNT_SERVER__LISTEN", "127.0.0.1:0"),
            ("HEADCOUNT_OPS__LISTEN", &address),
            ("HEADCOUNT_EMBEDDED__PATH", folder.path().to_str().unwrap()),
        ],
    )
    .await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ops.listen") && said.contains(&address), "{said}");
}

#[tokio::test]
async fn commands_print_what_they_are_for() {
    let output = ran(&["openapi"], &[]).await;
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["paths"]["/api/video/{videoId}/heartbeat"].is_object());

    let output = ran(&["--version"], &[]).await;
    assert_eq!(text(&output.stdout).trim(), concat!("headcount ", env!("CARGO_PKG_VERSION")));

    let output = ran(&["check-config"], &[("HEADCOUNT_REDIS__URL", "redis://u:secret@h")]).await;
    let said = text(&output.stdout);
    assert!(said.contains("redis.url") && !said.contains("secret"), "{said}");
}

#[tokio::test]
async fn migrate_says_what_it_applied_and_the_doctor_sees_it() {
    let database = crate::world::new_database().await;
    let redis = crate::world::service("TEST_REDIS_URL");
    let folder = tempfile::tempdir().unwrap();
    let on_redis = [
        ("HEADCOUNT_BACKEND", "redis"),
        ("HEADCOUNT_REDIS__URL", redis.as_str()),
        ("HEADCOUNT_POSTGRES__URL", database.as_str()),
        ("HEADCOUNT_POSTGRES__MIGRATE", "false"),
    ];
    let embedded = [("HEADCOUNT_EMBEDDED__PATH", folder.path().to_str().unwrap())];

    let before = ran(&["doctor", "--json"], &on_redis).await;
    assert_eq!(before.status.code(), Some(1));
    assert!(text(&before.stdout).contains("run `headcount migrate`"), "{}", text(&before.stdout));
    for variables in [&on_redis[..], &embedded[..]] {
        let first = ran(&["migrate"], variables).await;
        assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
        assert!(text(&first.stdout).contains("applied step 1"), "{}", text(&first.stdout));
        let second = ran(&["migrate"], variables).await;
        assert_eq!(second.status.code(), Some(0), "{}", text(&second.stderr));
        assert!(text(&second.stdout).contains("nothing to apply"), "{}", text(&second.stdout));
    }
    let after = ran(&["doctor"], &on_redis).await;
    assert!(text(&after.stdout).contains("complete at step"), "{}", text(&after.stdout));
    let after = ran(&["doctor"], &embedded).await;
    assert_eq!(after.status.code(), Some(0), "{}", text(&after.stdout));
}

#[tokio::test]
async fn a_database_that_is_away_ends_migrate_with_one_and_a_reason() {
    let variables = [
        ("HEADCOUNT_BACKEND", "redis"),
        ("HEADCOUNT_POSTGRES__URL", "postgres://user:secret@127.0.0.1:1/headcount"),
    ];
    let output = ran(&["migrate"], &variables).await;
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("postgres://127.0.0.1:1/headcount") && !said.contains("secret"), "{said}");
}
