//! Settings that are fine alone and wrong together, and those that are allowed and likely a mistake.

use std::{net::SocketAddr, path::Path, time::Duration};

use humantime::format_duration;

use super::{Ack, Config, SecretUrl, Topology, invalid::Problem};
use crate::config;

/// Hidden browser tabs beat about once a minute, whatever they are told.
const SLOWEST_BEAT: Duration = Duration::from_secs(60);

/// What a look at all settings together found.
pub(super) struct Check {
    /// Combinations that break a promise.
    pub(super) problems: Vec<Problem>,
    /// Combinations that break an expectation.
    pub(super) warnings: Vec<String>,
}

/// Looks at settings that are each in their range.
pub(super) fn check(config: &Config) -> Check {
    let presence = &config.presence;
    let server = &config.server;
    let mut problems = Vec::new();
    let mut wrong = |setting: &str, value: String, with: &[&'static str], must: String| {
        problems.push(Problem::together(setting, &value, with.to_vec(), &must));
    };
    let time = |duration: Duration| format_duration(duration).to_string();

    let least_window = presence.heartbeat_every * 3;
    if presence.window < least_window {
        wrong(
            "presence.window",
            time(presence.window),
            &["presence.heartbeat_every"],
            format!(
                "at least three times presence.heartbeat_every, here {}: a viewer may miss two beats",
                time(least_window)
            ),
        );
    }
    if config.jobs.sweep_every >= presence.window {
        wrong(
            "jobs.sweep_every",
            time(config.jobs.sweep_every),
            &["presence.window"],
            format!("shorter than presence.window, here {}", time(presence.window)),
        );
    }
    if server.request_timeout <= config.redis.deadline {
        wrong(
            "server.request_timeout",
            time(server.request_timeout),
            &["redis.deadline"],
            format!("longer than redis.deadline, here {}", time(config.redis.deadline)),
        );
    }
    if server.drain_delay >= server.drain {
        wrong(
            "server.drain_delay",
            time(server.drain_delay),
            &["server.drain"],
            format!("shorter than server.drain, here {}, which it is part of", time(server.drain)),
        );
    }
    if presence.batch > presence.max_merged {
        wrong(
            "presence.batch",
            presence.batch.to_string(),
            &["presence.max_merged"],
            format!("at most presence.max_merged, here {}", presence.max_merged),
        );
    }
    problems.extend(places_of_redis(&config.redis));
    let mut wrong = |setting: &str, value: String, with: &[&'static str], must: String| {
        problems.push(Problem::together(setting, &value, with.to_vec(), &must));
    };
    if config.plays.wait && config.redis.wait_replicas == 0 {
        wrong(
            "plays.wait",
            true.to_string(),
            &["redis.wait_replicas"],
            "false while redis.wait_replicas is 0: there is nothing to wait for".to_owned(),
        );
    }
    if config.plays.wait && config.plays.ack == Ack::Received {
        wrong(
            "plays.wait",
            true.to_string(),
            &["plays.ack"],
            "false with plays.ack = \"received\": what is answered at once can't have been waited for"
                .to_owned(),
        );
    }
    if config.kafka.is_used() {
        super::kafka::check(config, &mut wrong);
    }
    if collide(server.listen, config.ops.listen) {
        wrong(
            "ops.listen",
            format!("{:?}", config.ops.listen),
            &["server.listen"],
            format!("another address than server.listen, here {}", server.listen),
        );
    }

    problems.extend(certificates(&config.redis));

    let mut warnings = Vec::new();
    if presence.window < SLOWEST_BEAT * 3 {
        warnings.push(format!(
            "presence.window is {}, under 3m: hidden browser tabs beat about once a minute, so their \
             viewers may come and go in the counts",
            time(presence.window)
        ));
    }
    Check { problems, warnings }
}

/// Where Redis is, in the setting that `redis.topology` goes by and in no other.
fn places_of_redis(redis: &config::Redis) -> Option<Problem> {
    let wrong =
        |value: &str, must: &str| Some(Problem::together("redis.urls", value, vec!["redis.topology"], must));
    match redis.topology {
        Topology::Single if !redis.urls.is_empty() => {
            wrong("given", "empty with redis.topology = \"single\", which goes by redis.url")
        }
        Topology::Sentinel if redis.urls.is_empty() => {
            wrong("empty", "the addresses of the sentinels with redis.topology = \"sentinel\"")
        }
        Topology::Cluster if redis.urls.is_empty() => {
            wrong("empty", "the addresses of some nodes with redis.topology = \"cluster\"")
        }
        Topology::Cluster if redis.urls.iter().any(SecretUrl::has_database) => wrong(
            "an address with a database",
            "without one in a cluster, which has no other than 0; redis.prefix keeps deployments apart",
        ),
        Topology::Cluster if redis.urls.iter().any(|url| url.expose().starts_with("unix")) => wrong(
            "a unix socket",
            "redis:// or rediss:// addresses in a cluster: its nodes tell of each other by host and port",
        ),
        _ => None,
    }
}

/// Files that only mean something together, or by TLS.
fn certificates(redis: &config::Redis) -> Option<Problem> {
    let is_given = |path: &Path| !path.as_os_str().is_empty();
    let files = [
        ("redis.ca_file", &redis.ca_file),
        ("redis.client_cert_file", &redis.client_cert_file),
        ("redis.client_key_file", &redis.client_key_file),
    ];
    if let Some((setting, path)) = files.into_iter().find(|(_, path)| is_given(path) && !redis.is_tls()) {
        let must = "\"\" where no address is rediss://: nothing would be encrypted";
        return Some(Problem::together(setting, &path.display().to_string(), vec!["redis.url"], must));
    }
    let is_whole = is_given(&redis.client_cert_file) == is_given(&redis.client_key_file);
    (!is_whole).then(|| {
        let key = format!("\"{}\"", redis.client_key_file.display());
        let must = "given together with redis.client_cert_file, or not at all";
        Problem::together("redis.client_key_file", &key, vec!["redis.client_cert_file"], must)
    })
}

/// Whether one of the two listeners would find its address taken by the other.
fn collide(left: SocketAddr, right: SocketAddr) -> bool {
    let same_host = left.ip() == right.ip() || left.ip().is_unspecified() || right.ip().is_unspecified();
    left.port() != 0 && left.port() == right.port() && same_host
}
