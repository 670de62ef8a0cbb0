//! Which parts of the topic are this instance's, and the way of their records to the lanes.
//!
//! The group's old protocol is used, in which everybody gives up all parts before they are shared out
//! anew: nobody has to know which parts stay. It makes no total wrong where two think that a part is
//! theirs: the position in the database is the fence.
//!
//! Everything here happens in one task. librdkafka says what is shared out while it is asked for records.
//! It is told at once that this is taken up, with no part to fetch: or the group would wait for this
//! instance for as long as the database is away. A part is fetched when the database has said from where.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use rdkafka::{
    ClientContext, Message as _, Offset, TopicPartitionList,
    config::{FromClientConfigAndContext as _, RDKafkaLogLevel},
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, StreamConsumer},
    error::{KafkaError, RDKafkaErrorCode},
    message::BorrowedMessage,
    statistics::Statistics,
    topic_partition_list::TopicPartitionListElem,
    types::RDKafkaRespErr,
};
use tokio::{
    sync::{OnceCell, mpsc},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    Counting, Taken,
    dead_letters::Letter,
    lag::Lag,
    lane::{Ended, Lane},
    opening::{Brokers, Opened, another_topic, open},
};
use crate::{
    error::{Part, StoreError},
    plays::{in_kafka::record, postgres::positions::Place},
    store::kafka::{self, ClientConfig, told},
};

/// Records that wait for a lane while it counts: beyond, its part is paused.
const WAITING: usize = 2_000;

/// How often it is looked whether a paused part goes on.
const RESUME_EVERY: Duration = Duration::from_millis(20);

/// How often it is told how far counting is behind.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// How long a stop waits for the windows that are under way.
const LAST_WINDOWS: Duration = Duration::from_secs(4);

/// How long it waits for librdkafka to say goodbye to the group.
const CLOSING_WAITS: Duration = Duration::from_secs(4);

pub(super) type Native = StreamConsumer<Context>;

/// What librdkafka tells.
pub(super) struct Context {
    topic: String,
    lag: Lag,
    shared_out: mpsc::UnboundedSender<Vec<i32>>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        kafka::log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", "{error}: {reason}");
    }

    fn stats(&self, statistics: Statistics) {
        self.lag.saw(&self.topic, &statistics);
    }
}

impl ConsumerContext for Context {
    /// Parts that are assigned are only noted, and taken up without any: [`Follow`] fetches them when it knows
    /// from where.
    fn rebalance(&self, consumer: &BaseConsumer<Self>, what: RDKafkaRespErr, parts: &mut TopicPartitionList) {
        let (parts, taken) = if what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            let parts = parts.elements().iter().map(TopicPartitionListElem::partition).collect();
            (parts, consumer.assign(&TopicPartitionList::new()))
        } else {
            (Vec::new(), consumer.unassign())
        };
        if let Err(error) = taken {
            tracing::debug!(error = %error, "what is shared out can't be taken up");
        }
        // Nobody listens any more where the client is just being dropped.
        let _ = self.shared_out.send(parts);
    }
}

/// One part that this instance has.
struct Route {
    records: mpsc::Sender<Taken>,
    /// What the lane had no room for.
    held: VecDeque<Taken>,
    paused: bool,
    /// The offset behind the last record that came: from there it is fetched when other parts come along.
    next: i64,
    /// The offset at which it ends, where it does.
    until: Option<i64>,
}

/// One client of Kafka's and what it reads.
pub(super) struct Follow {
    counting: Arc<Counting>,
    lag: Lag,
    routes: HashMap<i32, Route>,
    lanes: JoinSet<Ended>,
    given_up: CancellationToken,
    /// Parts that are just looked up, and those that are to be fetched with the next tick.
    openings: JoinSet<Opened>,
    opened: Vec<Opened>,
    /// The offsets at which a rebuild ends, by part.
    ends: Option<HashMap<i32, i64>>,
}

type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Follow {
    pub(super) fn new(counting: Arc<Counting>) -> Self {
        Self {
            counting,
            lag: Lag::default(),
            routes: HashMap::new(),
            lanes: JoinSet::new(),
            given_up: CancellationToken::new(),
            openings: JoinSet::new(),
            opened: Vec::new(),
            ends: None,
        }
    }

    /// Reads parts from their beginning up to these offsets, and then ends. No group is joined.
    pub(super) fn up_to(counting: Arc<Counting>, ends: HashMap<i32, i64>) -> Self {
        Self { ends: Some(ends), ..Self::new(counting) }
    }

    /// Counts until the service stops, or until all is read.
    ///
    /// # Errors
    /// This client can't go on; another one may.
    pub(super) async fn run(mut self, stopping: &CancellationToken) -> Result<(), StoreError> {
        let (shared_out, parts) = mpsc::unbounded_channel();
        let topic = self.counting.settings.topic.clone();
        let context = Context { topic: topic.clone(), lag: self.lag.clone(), shared_out: shared_out.clone() };
        let consumer: Native = Native::from_config_and_context(&self.native_config(), context)
            .map_err(|error| StoreError::unexpected(Part::Kafka, told(&error)))?;
        let consumer = Arc::new(consumer);
        let brokers = Brokers::new(&self.counting.settings)
            .map_err(|error| StoreError::unexpected(Part::Kafka, told(&error)))?;
        let brokers = Arc::new(brokers);
        match &self.ends {
            Some(ends) => drop(shared_out.send(ends.keys().copied().collect())),
            None => consumer
                .subscribe(&[&topic])
                .map_err(|error| StoreError::unavailable(Part::Kafka, told(&error)))?,
        }
        let followed = self.follow(&consumer, &brokers, parts, stopping).await;
        self.end(followed.is_ok()).await;
        // It waits for its threads, and tells the group. Nobody else holds it: lanes do for a moment at most.
        let closing = tokio::task::spawn_blocking(move || {
            // Without giving up its parts before: it would join the group once more for that, and leave it then.
            drop(consumer);
            drop(brokers);
        });
        if tokio::time::timeout(CLOSING_WAITS, closing).await.is_err() {
            tracing::warn!("kafka's client takes its time to leave the group; it is left behind");
        }
        followed
    }

    fn native_config(&self) -> ClientConfig {
        let settings = &self.counting.settings;
        let mut config = kafka::client(settings);
        // A minute is long where an instance was killed and its parts wait; an operator may set another.
        if config.get("session.timeout.ms").is_none() {
            config.set("session.timeout.ms", "10000");
        }
        config
            .set("group.id", &settings.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // The database says where to begin; where that isn't in the log somebody has to know.
            .set("auto.offset.reset", "error")
            .set("partition.assignment.strategy", "range")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", self.ends.is_some().to_string())
            .set("statistics.interval.ms", TELL_EVERY.as_millis().to_string())
            // What it holds beyond what the lanes do.
            .set("queued.min.messages", "10000")
            .set("queued.max.messages.kbytes", "16384");
        config
    }

    async fn follow(
        &mut self,
        consumer: &Arc<Native>,
        brokers: &Arc<Brokers>,
        mut parts: mpsc::UnboundedReceiver<Vec<i32>>,
        stopping: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut records = consumer.stream();
        let mut changed: Changed = Box::pin(pending());
        let mut resuming = interval(RESUME_EVERY);
        let mut telling = interval(TELL_EVERY);
        resuming.set_missed_tick_behavior(MissedTickBehavior::Delay);
        telling.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled() => return Ok(()),
                Some(parts) = parts.recv() => {
                    self.give_up();
                    let topic_id = Arc::new(OnceCell::new());
                    for partition in parts {
                        let (counting, given_up) = (self.counting.clone(), self.given_up.clone());
                        let opening = open(counting, brokers.clone(), topic_id.clone(), partition, given_up);
                        self.openings.spawn(opening);
                    }
                }
                Some(opened) = self.openings.join_next() => match opened {
                    Ok(opened) => {
                        if self.ends.is_none() {
                            changed = Box::pin(another_topic(brokers.clone(), opened.place.topic_id));
                        }
                        self.opened.push(opened);
                    }
                    Err(died) => std::panic::resume_unwind(died.into_panic()),
                },
                () = &mut changed => {
                    let topic = &self.counting.settings.topic;
                    return Err(StoreError::unavailable(Part::Kafka, format!("the topic {topic} was made anew")));
                }
                Some(ended) = self.lanes.join_next() => match ended {
                    Ok(Ended::Done) if self.ends.is_some() && self.is_all_read() => return Ok(()),
                    Ok(Ended::Done) => {}
                    Ok(Ended::Rewound) => {
                        let reason = "the database came back older than it was; what it lacks is counted again";
                        return Err(StoreError::unavailable(Part::Postgres, reason));
                    }
                    Err(died) => std::panic::resume_unwind(died.into_panic()),
                },
                _ = telling.tick() => self.lag.export(self.counting.clock.now()),
                _ = resuming.tick() => {
                    self.take_up(consumer)?;
                    self.resume(consumer)?;
                }
                record = records.next() => match record {
                    Some(Ok(record)) => {
                        self.route(consumer, &record)?;
                        // A backlog never lets this task wait.
                        tokio::task::consume_budget().await;
                    }
                    Some(Err(error)) => self.failed(&error)?,
                    None => return Err(StoreError::unexpected(Part::Kafka, "the client has ended")),
                },
            }
        }
    }

    /// Lets go of all parts: what isn't counted yet will be by who gets them.
    fn give_up(&mut self) {
        self.given_up.cancel();
        self.given_up = CancellationToken::new();
        self.openings = JoinSet::new();
        self.opened.clear();
        self.routes.clear();
        self.lag.leave_all();
        self.counting.trouble.forget();
    }

    /// Whether a rebuild is done.
    fn is_all_read(&self) -> bool {
        self.lanes.is_empty() && self.openings.is_empty() && self.opened.is_empty()
    }

    /// Reads the parts that were opened from where the database says, and the others from where they are.
    fn take_up(&mut self, consumer: &Arc<Native>) -> Result<(), StoreError> {
        if self.opened.is_empty() {
            return Ok(());
        }
        let opened = std::mem::take(&mut self.opened);
        let topic = &self.counting.settings.topic;
        let mut list = TopicPartitionList::new();
        let fresh = opened.iter().map(|opened| (opened.place.partition, opened.from));
        for (partition, from) in fresh.chain(self.routes.iter().map(|(part, route)| (*part, route.next))) {
            list.add_partition_offset(topic, partition, Offset::Offset(from)).map_err(odd)?;
        }
        consumer.assign(&list).map_err(odd)?;
        for (partition, _) in self.routes.iter().filter(|(_, route)| route.paused) {
            consumer.pause(&self.list(*partition)?).map_err(odd)?;
        }
        let mut told: Vec<i32> = opened.iter().map(|opened| opened.place.partition).collect();
        told.sort_unstable();
        tracing::info!(kafka.partitions = ?told, "counts {} partitions of the log", told.len());
        for Opened { place, position, from } in opened {
            let (sender, records) = mpsc::channel(WAITING);
            let until = self.ends.as_ref().and_then(|ends| ends.get(&place.partition)).copied();
            if until.is_none_or(|until| from < until) {
                let route =
                    Route { records: sender, held: VecDeque::new(), paused: false, next: from, until };
                self.routes.insert(place.partition, route);
            }
            // Weak, so that the client ends when this task lets go of it.
            let kafka = Arc::downgrade(consumer);
            let is_rebuild = self.ends.is_some();
            let tell = move |place: &Place, next: i64| match kafka.upgrade() {
                Some(kafka) if !is_rebuild => {
                    let mut list = TopicPartitionList::new();
                    list.add_partition_offset(&place.topic, place.partition, Offset::Offset(next))
                        .map_err(odd)?;
                    kafka.commit(&list, CommitMode::Async).map_err(odd)
                }
                _ => Ok(()),
            };
            self.lag.take(place.partition, position.next_offset);
            let lane = Lane {
                counting: self.counting.clone(),
                place,
                position,
                from,
                records,
                given_up: self.given_up.clone(),
                lag: self.lag.clone(),
                tell: Box::new(tell),
            };
            self.lanes.spawn(lane.run());
        }
        Ok(())
    }

    /// Hands a record to its lane, or holds it back and pauses its part.
    fn route(&mut self, consumer: &Native, record: &BorrowedMessage<'_>) -> Result<(), StoreError> {
        let partition = record.partition();
        let Some(route) = self.routes.get_mut(&partition) else { return Ok(()) };
        // Fetched before other parts came along, and again after.
        if record.offset() < route.next {
            return Ok(());
        }
        route.next = record.offset() + 1;
        if route.until.is_some_and(|until| record.offset() >= until) {
            self.finish(partition);
            return Ok(());
        }
        route.held.push_back(read(record));
        if !route.pass_on() && !route.paused {
            route.paused = true;
            consumer.pause(&self.list(partition)?).map_err(odd)?;
        }
        Ok(())
    }

    /// Lets parts go on whose lane has room again.
    fn resume(&mut self, consumer: &Native) -> Result<(), StoreError> {
        let mut free = Vec::new();
        for (partition, route) in self.routes.iter_mut().filter(|(_, route)| route.paused) {
            if route.pass_on() && route.records.capacity() >= WAITING / 2 {
                route.paused = false;
                free.push(*partition);
            }
        }
        for partition in free {
            consumer.resume(&self.list(partition)?).map_err(odd)?;
        }
        Ok(())
    }

    /// A part is read to its end: its lane counts what it has and ends.
    fn finish(&mut self, partition: i32) {
        // What is held back still has to get there: it goes with the rest once there is room.
        if let Some(route) = self.routes.remove(&partition) {
            let Route { records, held, .. } = route;
            self.lanes.spawn(async move {
                for taken in held {
                    // The lane gave up.
                    if records.send(taken).await.is_err() {
                        break;
                    }
                }
                Ended::Done
            });
        }
    }

    fn failed(&mut self, error: &KafkaError) -> Result<(), StoreError> {
        if let KafkaError::PartitionEOF(partition) = error {
            self.finish(*partition);
            return Ok(());
        }
        let unavailable = StoreError::unavailable(Part::Kafka, told(error));
        let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        match error.rdkafka_error_code() {
            // The log doesn't reach back to where counting is, or it is another log.
            Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => Err(unavailable),
            _ if is_fatal => Err(unavailable),
            _ => {
                self.counting.trouble.failed(None, &unavailable);
                Ok(())
            }
        }
    }

    fn list(&self, partition: i32) -> Result<TopicPartitionList, StoreError> {
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.counting.settings.topic, partition);
        if list.count() == 1 { Ok(list) } else { Err(StoreError::unexpected(Part::Kafka, "no list")) }
    }

    /// Has the lanes count what they have, where that is still theirs, and waits for them.
    async fn end(&mut self, in_order: bool) {
        if !in_order {
            self.given_up.cancel();
        }
        self.openings = JoinSet::new();
        self.routes.clear();
        let ended = async { while self.lanes.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_WINDOWS, ended).await.is_err() {
            tracing::warn!("the last windows take too long: they are counted by who comes next");
            self.given_up.cancel();
            self.lanes.shutdown().await;
        }
        self.lag.leave_all();
    }
}

impl Route {
    /// Hands on what is held back; says whether all of it went.
    fn pass_on(&mut self) -> bool {
        while let Some(taken) = self.held.pop_front() {
            match self.records.try_send(taken) {
                Err(mpsc::error::TrySendError::Full(taken)) => {
                    self.held.push_front(taken);
                    return false;
                }
                // Or the lane has ended, which its own end tells.
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => {}
            }
        }
        true
    }
}

fn read(record: &BorrowedMessage<'_>) -> Taken {
    let (key, value, millis) = (record.key(), record.payload(), record.timestamp().to_millis());
    let content =
        record::read(key, value, millis).map_err(|reason| Box::new(Letter::new(reason, key, value, millis)));
    Taken { offset: record.offset(), content }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn odd(error: KafkaError) -> StoreError {
    StoreError::unexpected(Part::Kafka, told(&error))
}
