//! Kafka brokers of a test's own, to be stopped, killed and started again.

use std::{path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::Instant,
};

/// Java takes its time on a machine that has much else to do.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Brokers that belong together. Ended when dropped.
pub struct OwnKafka {
    brokers: Vec<Broker>,
    voters: String,
    settings: Vec<String>,
    folder: tempfile::TempDir,
}

struct Broker {
    process: Option<Child>,
    port: u16,
}

impl OwnKafka {
    /// Starts so many brokers, 1 or 3, with these settings of Kafka's over those of `scripts/kafka`, and
    /// waits until each of them answers.
    pub async fn start(brokers: usize, settings: &[&str]) -> Self {
        let ports = free_ports(2 * brokers);
        let (ports, votes) = ports.split_at(brokers);
        let voters: Vec<String> =
            votes.iter().enumerate().map(|(index, port)| format!("{}@127.0.0.1:{port}", index + 1)).collect();
        let mut own = Self {
            brokers: ports.iter().map(|port| Broker { process: None, port: *port }).collect(),
            voters: voters.join(","),
            settings: settings.iter().map(|setting| (*setting).to_owned()).collect(),
            folder: tempfile::tempdir().unwrap(),
        };
        for broker in 0..brokers {
            own.begin(broker);
        }
        for broker in 0..brokers {
            own.answers(broker).await;
        }
        own
    }

    /// Where all of them are, as `kafka.brokers` wants it.
    #[must_use]
    pub fn addresses(&self) -> String {
        let all: Vec<String> =
            self.brokers.iter().map(|broker| format!("127.0.0.1:{}", broker.port)).collect();
        all.join(",")
    }

    /// The position of the broker that listens at this port.
    #[must_use]
    pub fn at_port(&self, port: u16) -> usize {
        self.brokers.iter().position(|broker| broker.port == port).expect("a broker of these")
    }

    /// kill -9 of one of them, by its position.
    pub async fn kill(&mut self, broker: usize) {
        if let Some(mut process) = self.brokers[broker].process.take() {
            process.kill().await.unwrap();
        }
    }

    /// Makes one of them take connections and answer nothing, or go on.
    pub async fn signal(&self, broker: usize, signal: &str) {
        let process = self.brokers[broker].process.as_ref().expect("it runs");
        let pid = process.id().expect("it runs").to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
    }

    /// Starts one of them again over what it left on disk, and waits until it answers.
    pub async fn start_again(&mut self, broker: usize) {
        self.begin(broker);
        self.answers(broker).await;
    }

    fn log(&self, broker: usize) -> PathBuf {
        self.folder.path().join(format!("broker-{}.log", broker + 1))
    }

    fn begin(&mut self, broker: usize) {
        let node = (broker + 1).to_string();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log(broker)).unwrap();
        let process = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/kafka"))
            .arg("run")
            .arg(self.folder.path().join(&node))
            .args([&node, &self.brokers[broker].port.to_string(), &self.voters])
            .args(&self.settings)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.brokers[broker].process = Some(process);
    }

    /// A broker listens when it has caught up with the others and may be used.
    async fn answers(&mut self, broker: usize) {
        let until = Instant::now() + START_LIMIT;
        let address = ("127.0.0.1", self.brokers[broker].port);
        while TcpStream::connect(address).await.is_err() {
            let process = self.brokers[broker].process.as_mut().expect("it was started");
            let ended = process.try_wait().unwrap();
            if ended.is_some() || Instant::now() >= until {
                let log = std::fs::read_to_string(self.log(broker)).unwrap_or_default();
                panic!("broker {} does not answer ({ended:?}); its log:\n{log}", broker + 1);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Ports on which nobody listens now, held until all are found so that none is found twice. They are of
/// the range that outgoing connections get as well: what is taken meanwhile ends a broker with a clear log.
fn free_ports(count: usize) -> Vec<u16> {
    let held: Vec<_> = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}
