//! Writes plays to Kafka's log, and answers each when the brokers have it.
//!
//! librdkafka forms the batches, tries again and sees to it that trying again writes nothing twice. Ours
//! are the bounds: how many plays it may hold, for how long each may wait, and how it ends. A play whose
//! outcome is unknown is a 503; sent again it counts once, because who counts looks for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use metrics::{counter, gauge};
use rdkafka::{
    ClientContext,
    config::{FromClientConfigAndContext as _, RDKafkaLogLevel},
    error::{KafkaError, RDKafkaErrorCode},
    producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;

use super::record;
use crate::{
    clock::millis,
    config::Config,
    error::{Part, StoreError},
    lifecycle::{Lifecycle, Phase},
    plays::Play,
    store::{
        kafka::{self, ClientConfig, Condition, Look, told},
        time::StoreClock,
    },
};

/// The queue of plays that librdkafka holds, as `headcount_queue_depth` names it.
const QUEUE: &str = "kafka-plays";

/// How often it is looked whether the brokers are there, while no play tells.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long such a look waits for an answer.
const LOOK_WAITS: Duration = Duration::from_secs(2);

/// How long a stop waits for plays under way. Nobody waits for their answers any more: requests have
/// ended by then.
const LAST_WAITS: Duration = Duration::from_secs(2);

/// How long a stop waits for librdkafka to let go of its connections.
const CLOSING_WAITS: Duration = Duration::from_secs(2);

type Native = ThreadedProducer<Reports>;

/// One play on its way to the log.
struct Waiting {
    answer: oneshot::Sender<Result<(), KafkaError>>,
    /// Given back when librdkafka has let go of the play, not when its caller has: memory is bounded by it.
    _place: OwnedSemaphorePermit,
}

/// What librdkafka tells, through one client.
struct Reports {
    /// Which client it is, and which one writes now: what is told of one that was replaced breaks no other.
    number: u64,
    current: Arc<AtomicU64>,
    condition: Condition,
    delivered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Reports {
    /// This client takes nothing any more.
    fn broke(&self, reason: &str) {
        if self.number == self.current.load(Ordering::Relaxed) {
            self.condition.broke(reason);
        }
    }
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        kafka::log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // After a fatal error it takes nothing any more.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.broke(reason);
        } else {
            self.condition.complained(reason);
        }
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Waiting>;

    fn delivery(&self, result: &DeliveryResult<'_>, waiting: Box<Waiting>) {
        let Waiting { answer, _place } = *waiting;
        let result = match result {
            Ok(_) => {
                self.delivered.fetch_add(1, Ordering::Relaxed);
                self.condition.written();
                Ok(())
            }
            Err((error, _)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
                    self.broke(&error.to_string());
                }
                self.condition.failed(&error.to_string());
                Err(error.clone())
            }
        };
        // Who gave up waiting is answered.
        let _ = answer.send(result);
    }
}

/// Writes plays to the log.
pub(super) struct Producer {
    /// Gone once the service stops; another one after an error that librdkafka can't get over.
    native: ArcSwapOption<Native>,
    config: ClientConfig,
    topic: String,
    clock: Arc<StoreClock>,
    places: Arc<Semaphore>,
    most: usize,
    deadline: Duration,
    condition: Condition,
    /// The number of the client that writes now.
    current: Arc<AtomicU64>,
    delivered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Producer {
    /// Starts writing. The brokers need not be there yet.
    ///
    /// # Errors
    /// librdkafka doesn't take the settings.
    pub(super) fn start(
        config: &Config,
        clock: Arc<StoreClock>,
        lifecycle: &Lifecycle,
    ) -> Result<Arc<Self>, StoreError> {
        let most = config.plays.max_pending;
        let producer = Arc::new(Self {
            native: ArcSwapOption::empty(),
            config: native_config(config),
            topic: config.kafka.topic.clone(),
            clock,
            places: Arc::new(Semaphore::new(most)),
            most,
            deadline: config.kafka.deadline,
            condition: Condition::default(),
            current: Arc::default(),
            delivered: Arc::default(),
            failed: Arc::default(),
        });
        producer.native.store(Some(Arc::new(producer.open()?)));
        let (attending, stopping) = (producer.clone(), lifecycle.stopping(Phase::Writers));
        lifecycle.spawn(Phase::Writers, QUEUE, async move { attending.attend(stopping).await });
        Ok(producer)
    }

    fn open(&self) -> Result<Native, StoreError> {
        let reports = Reports {
            number: self.current.fetch_add(1, Ordering::Relaxed) + 1,
            current: self.current.clone(),
            condition: self.condition.clone(),
            delivered: self.delivered.clone(),
            failed: self.failed.clone(),
        };
        Native::from_config_and_context(&self.config, reports)
            .map_err(|error| StoreError::unexpected(Part::Kafka, told(&error)))
    }

    /// Writes a play, and answers when all brokers that have to have it do.
    ///
    /// # Errors
    /// As many as may wait do, nobody answered in time, or the brokers refused it. But for the first,
    /// whether it is in the log may be unknown.
    pub(super) async fn write(&self, play: &Play) -> Result<(), StoreError> {
        let stopping = || StoreError::unavailable(Part::Kafka, "stopping");
        let place = self
            .places
            .clone()
            .try_acquire_owned()
            .map_err(|_| StoreError::Full { part: Part::Kafka, queue: QUEUE })?;
        let (answer, answered) = oneshot::channel();
        {
            let value = record::value(play);
            let waiting = Box::new(Waiting { answer, _place: place });
            let record = BaseRecord::with_opaque_to(&self.topic, waiting)
                .key(play.video.as_str())
                .payload(&value)
                .timestamp(self.clock.now().millis());
            let native = self.native.load_full().ok_or_else(stopping)?;
            native.send(record).map_err(|(error, _)| refused(&native, &error))?;
        }
        match tokio::time::timeout(self.deadline, answered).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(failure(&error)),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => Err(StoreError::unavailable(Part::Kafka, "no answer within kafka.deadline")),
        }
    }

    /// Whether the brokers can be used.
    pub(super) fn condition(&self) -> &Condition {
        &self.condition
    }

    /// How many plays librdkafka holds.
    fn pending(&self) -> usize {
        self.most - self.places.available_permits()
    }

    /// How full the queue is, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share; queues are far below 2^52")]
    pub(super) fn fullness(&self) -> f64 {
        self.pending() as f64 / self.most as f64
    }

    /// Sees to the client until the service stops, then ends it.
    async fn attend(&self, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
            self.export();
            if self.condition.take_broken() {
                self.renew().await;
            }
            let look = if self.condition.take_written() {
                Look::Well
            } else {
                let Some(look) = stopping.run_until_cancelled(self.look()).await else { break };
                look
            };
            self.condition.saw(look);
        }
        self.close().await;
        self.export();
    }

    fn export(&self) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge; queues are far below 2^52")]
        gauge!("headcount_queue_depth", "queue" => QUEUE).set(self.pending() as f64);
        counter!("headcount_kafka_plays_total", "outcome" => "delivered")
            .absolute(self.delivered.load(Ordering::Relaxed));
        counter!("headcount_kafka_plays_total", "outcome" => "failed")
            .absolute(self.failed.load(Ordering::Relaxed));
    }

    /// Puts a new client in the place of one that can't go on.
    async fn renew(&self) {
        let old = match self.open() {
            Ok(native) => self.native.swap(Some(Arc::new(native))),
            Err(error) => {
                self.condition.broke(&error.to_string());
                return;
            }
        };
        tracing::warn!("the client of kafka can't go on; another one is made");
        drop_aside(old).await;
    }

    /// Asks the brokers for the topic. librdkafka blocks for that.
    async fn look(&self) -> Look {
        let Some(native) = self.native.load_full() else { return Look::Ill("stopping".to_owned()) };
        let topic = self.topic.clone();
        let looking = tokio::task::spawn_blocking(move || look(&native, &topic));
        looking.await.unwrap_or_else(|_| Look::Ill("the look at it failed".to_owned()))
    }

    /// Lets plays that are under way arrive, gives up what doesn't, and lets go of the brokers. With none
    /// there it is over as soon.
    async fn close(&self) {
        let native = self.native.swap(None);
        let all = u32::try_from(self.most).expect("the settings allow a million");
        if tokio::time::timeout(LAST_WAITS, self.places.acquire_many(all)).await.is_err() {
            let left = self.pending();
            tracing::warn!(
                "{left} plays that kafka didn't answer in time are given up; they were answered 503"
            );
        }
        if tokio::time::timeout(CLOSING_WAITS, drop_aside(native)).await.is_err() {
            tracing::warn!("kafka's client takes its time to end; it is left behind");
        }
    }
}

/// Ends a client: it waits for its threads.
async fn drop_aside(native: Option<Arc<Native>>) {
    let _ = tokio::task::spawn_blocking(move || drop(native)).await;
}

/// What brokers say of the topic, in the time a look has.
fn look(native: &Native, topic: &str) -> Look {
    let metadata = match native.client().fetch_metadata(Some(topic), LOOK_WAITS) {
        Ok(metadata) => metadata,
        Err(error) => return Look::Ill(told(&error)),
    };
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Look::Ill(format!("it says nothing of the topic {topic}"));
    };
    if let Some(error) = found.error() {
        let error = RDKafkaErrorCode::from(error);
        return Look::Ill(match error {
            RDKafkaErrorCode::UnknownTopicOrPartition => {
                format!("the topic {topic} isn't there: `headcount migrate` makes it")
            }
            _ => format!("the topic {topic}: {error}"),
        });
    }
    let partitions = found.partitions();
    let headless = partitions.iter().filter(|partition| partition.leader() < 0).count();
    if headless > 0 {
        let all = partitions.len();
        return Look::Ill(format!("{headless} of {all} partitions of the topic {topic} have no leader"));
    }
    Look::Well
}

/// How librdkafka writes plays.
fn native_config(config: &Config) -> ClientConfig {
    let mut native = kafka::client(&config.kafka);
    native
        // All brokers that are in step have it, and trying again writes it once and in its place.
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // Given up, waiting or under way, when its caller is.
        .set("message.timeout.ms", millis(config.kafka.deadline).to_string())
        .set("linger.ms", LINGER_MILLIS)
        // As other clients do, so that all who write a video's plays write them to one partition.
        .set("partitioner", "murmur2_random")
        // Ours is the bound; librdkafka counts a moment longer.
        .set("queue.buffering.max.messages", (2 * config.plays.max_pending).to_string());
    native
}

/// How long librdkafka waits for more plays before it sends a batch. Measured with 64 plays at a time and a
/// broker beside: with 0 the service pays 38 µs of processor a play and the broker 19, with 1 ms 25 and 15 at
/// the same rate; 5 ms, librdkafka's own value, saves little more and makes each answer 6 ms late.
const LINGER_MILLIS: &str = "1";

/// What librdkafka didn't even queue.
fn refused(native: &Native, error: &KafkaError) -> StoreError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::QueueFull) => StoreError::Full { part: Part::Kafka, queue: QUEUE },
        Some(RDKafkaErrorCode::Fatal) => {
            native.context().broke(&error.to_string());
            failure(error)
        }
        _ => failure(error),
    }
}

/// What became of a play that isn't known to be in the log.
fn failure(error: &KafkaError) -> StoreError {
    match error.rdkafka_error_code() {
        // It won't fit next time either.
        Some(
            RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::InvalidMessageSize
            | RDKafkaErrorCode::InvalidTimestamp
            | RDKafkaErrorCode::InvalidRecord,
        ) => StoreError::unexpected(Part::Kafka, error),
        _ => StoreError::unavailable(Part::Kafka, error),
    }
}
