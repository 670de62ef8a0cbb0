//! Packets to a store are dropped while players go on, against the binary itself: every request is
//! answered in time, memory stays flat, nothing is left behind, and what was acknowledged is counted
//! once.
//!
//! `TEST_SECONDS` says for how long (10 by default; 60 is what is promised).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use headcount_support::{OwnRedis, Proxy, Way};
use sqlx::Connection as _;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    process::Service,
    world::{eventually, new_database},
};

/// Requests a second that are attempted in the dark, and before and after it, where each of them is work.
const RATE: u32 = 5_000;
const CALM: u32 = 250;
const CLIENTS: u32 = 500;

const DEADLINE: Duration = Duration::from_millis(500);

/// Machines that test are slow at times, and this load alone may fill them.
const SLACK: u32 = 10;

/// What memory may grow by after the first third: an allocator's whims, not a leak.
const FLAT_KIB: u64 = 16 * 1024;

/// The promise is a second, which `network` measures without the load.
const WELL_WITHIN: Duration = Duration::from_secs(10);

/// Connections that pools may have made meanwhile, to keep.
const POOLED: usize = 12;

/// One such load at a time fills a machine.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[expect(clippy::disallowed_methods, reason = "for how long to test isn't a setting of the service")]
fn seconds_in_the_dark() -> u64 {
    std::env::var("TEST_SECONDS").map_or(10, |text| text.parse().expect("a number of seconds"))
}

/// What the clients of one phase saw.
#[derive(Default)]
struct Seen {
    /// How often each status came.
    statuses: BTreeMap<u16, u32>,
    took: Vec<Duration>,
    /// Plays that were answered 200, each by a viewer of its own.
    acknowledged: u64,
}

impl Seen {
    fn add(&mut self, other: Self) {
        for (status, times) in other.statuses {
            *self.statuses.entry(status).or_default() += times;
        }
        self.took.extend(other.took);
        self.acknowledged += other.acknowledged;
    }

    /// Within how long so many of a hundred were answered, of times that are sorted.
    fn took(&self, percent: usize) -> Duration {
        self.took[(self.took.len() - 1) * percent / 100]
    }
}

/// A connection of one player.
struct Client {
    stream: BufReader<TcpStream>,
    seen: Seen,
}

impl Client {
    async fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), seen: Seen::default() }
    }

    /// One request and its status; a refusal must say that it may be sent again.
    async fn ask(&mut self, method: &str, path: &str) -> u16 {
        let began = Instant::now();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).await.unwrap();
        let (mut status, mut length, mut retry_after) = (0, 0, false);
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).await.unwrap() > 0, "hung up on instead of answered");
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            retry_after |= line.starts_with("retry-after: ");
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        if status != 200 {
            let body = String::from_utf8_lossy(&body);
            assert!(status == 503 && retry_after && body.contains("\"retryable\":true"), "{status} {body}");
        }
        self.seen.took.push(began.elapsed());
        *self.seen.statuses.entry(status).or_default() += 1;
        status
    }

    /// Plays, beats and reads at its share of the rate until told to stop, by a rate of 0. A play that
    /// is refused is sent again, the last one until it is taken.
    async fn run(mut self, number: u32, rate: Arc<AtomicU32>) -> Seen {
        let (mut turn, mut viewer) = (number, 0_u32);
        let mut next = tokio::time::Instant::now();
        loop {
            tokio::time::sleep_until(next).await;
            let now = rate.load(Ordering::Relaxed);
            let stopping = now == 0;
            next = tokio::time::Instant::now() + Duration::from_secs(1) * CLIENTS / now.max(CALM);
            turn += 1;
            match turn % 10 {
                0 if !stopping => drop(self.ask("GET", "/api/video/film/online-count").await),
                1 if !stopping => drop(self.ask("GET", "/api/video/film/play-count").await),
                2..=4 if !stopping => {
                    let path = format!("/api/video/film/heartbeat?userId={number}");
                    self.ask("POST", &path).await;
                }
                _ => {
                    let path = format!("/api/video/film/play?userId={number}-{viewer}");
                    if self.ask("POST", &path).await == 200 {
                        self.seen.acknowledged += 1;
                        viewer += 1;
                        if stopping {
                            return self.seen;
                        }
                    }
                }
            }
        }
    }
}

/// What the kernel says of a process.
#[derive(Debug)]
struct Size {
    memory_kib: u64,
    threads: u64,
    files: usize,
}

impl Size {
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        Self { memory_kib: number("VmRSS:"), threads: number("Threads:"), files }
    }
}

/// The store that gets dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Redis,
    Postgres,
}

async fn a_dark_store_under_load(store: Store) {
    let _alone = ALONE.lock().await;
    // Its own: others would feel the load.
    let own = OwnRedis::start(&[]).await;
    let (redis, database) = (own.url(""), new_database().await);
    let target = if store == Store::Redis { &redis } else { &database };
    let proxy = Proxy::to(target).await;
    let by_proxy = proxy.by(target);
    let (to_redis, to_database) =
        if store == Store::Redis { (&by_proxy, &database) } else { (&redis, &by_proxy) };
    let folder = tempfile::tempdir().unwrap();
    let variables = [
        ("HEADCOUNT_BACKEND", "redis"),
        ("HEADCOUNT_REDIS__URL", to_redis.as_str()),
        ("HEADCOUNT_REDIS__BATCH_MIN_AGE", "0s"),
        ("HEADCOUNT_POSTGRES__URL", to_database.as_str()),
        // Of the store that stays there, on a machine full of work.
        ("HEADCOUNT_REDIS__DEADLINE", if store == Store::Redis { "500ms" } else { "9s" }),
        ("HEADCOUNT_POSTGRES__DEADLINE", if store == Store::Postgres { "500ms" } else { "20s" }),
        // What was just counted is remembered for half of this, which grows with each play that is taken.
        // One that isn't is sent again for as long as it is dark.
        ("HEADCOUNT_PLAYS__DEDUPE_WINDOW", if store == Store::Redis { "1h" } else { "4s" }),
        // Nobody reads the log meanwhile.
        ("HEADCOUNT_LOG__FILTER", "off,headcount::app=info"),
    ];
    let service = Service::start(folder.path(), &variables).await;
    let address = service.public.trim_start_matches("http://").to_owned();
    let ready = format!("{}/readyz", service.ops);
    let is_well = async || {
        let answer = reqwest::get(&ready).await.unwrap();
        answer.status() == 200 && !answer.text().await.unwrap().contains("degraded")
    };
    headcount::tls::choose_provider();
    eventually("it is ready", is_well).await;

    let idle = Size::of(service.pid());
    let rate = Arc::new(AtomicU32::new(CALM));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(Client::connect(&address).await.run(number, rate.clone()));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = Size::of(service.pid());

    proxy.set(Way::Dark);
    rate.store(RATE, Ordering::Relaxed);
    let dark = Duration::from_secs(seconds_in_the_dark());
    tokio::time::sleep(dark / 3).await;
    let early = Size::of(service.pid());
    tokio::time::sleep(dark * 2 / 3).await;
    let late = Size::of(service.pid());
    rate.store(CALM, Ordering::Relaxed);
    proxy.set(Way::Open);
    let opened = Instant::now();
    let mut probe = Client::connect(&address).await;
    let mut probed = 0;
    while match store {
        Store::Redis => probe.ask("POST", &format!("/api/video/probe/play?userId={probed}")).await != 200,
        Store::Postgres => !is_well().await,
    } {
        probed += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let well_after = opened.elapsed();

    rate.store(0, Ordering::Relaxed);
    let mut seen = Seen::default();
    while let Some(client) = clients.join_next().await {
        seen.add(client.unwrap());
    }
    seen.took.sort_unstable();
    let asked: u32 = seen.statuses.values().sum();
    eprintln!(
        "{store:?} in the dark for {dark:?}, {asked} requests: {:?}; half of the answers within {:?}, \
         99 % within {:?}, all within {:?}; well again after {well_after:?}; {before:?}, {early:?}, {late:?}",
        seen.statuses,
        seen.took(50),
        seen.took(99),
        seen.took(100),
    );
    assert!(seen.took(100) <= DEADLINE * SLACK);
    let refused = seen.statuses.get(&503).copied().unwrap_or(0);
    match store {
        Store::Redis => assert!(refused > 0),
        // A machine with other things to do is an overload now and then; that Postgres is gone is none.
        Store::Postgres => assert!(refused * 10 < asked, "players don't need Postgres: {refused} of {asked}"),
    }
    assert!(
        late.memory_kib <= early.memory_kib.max(before.memory_kib) + FLAT_KIB,
        "{before:?}, {early:?}, {late:?}"
    );
    assert!(well_after <= WELL_WITHIN, "{well_after:?}");
    eventually("nothing is left of it", async || {
        let after = Size::of(service.pid());
        after.files <= idle.files + POOLED && after.threads <= before.threads + 8
    })
    .await;

    service.signal("-TERM").await;
    let (code, log) = service.ended().await;
    assert_eq!(code, Some(0), "{log}");
    let mut connection = sqlx::PgConnection::connect(&database).await.unwrap();
    let views = "select coalesce(sum(views), 0)::bigint from videos where video_id = 'film'";
    let views: i64 = sqlx::query_scalar(views).fetch_one(&mut connection).await.unwrap();
    assert_eq!(views.unsigned_abs(), seen.acknowledged, "each acknowledged play once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_redis_in_the_dark_under_load_every_answer_comes_in_time_and_nothing_is_left_behind() {
    a_dark_store_under_load(Store::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_postgres_in_the_dark_under_load_every_play_is_taken_and_nothing_is_left_behind() {
    a_dark_store_under_load(Store::Postgres).await;
}
