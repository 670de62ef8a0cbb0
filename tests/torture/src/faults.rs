//! What can be done to the world, how often and for how long; drawn by a seed, so that a schedule can
//! be had again.

use std::{ops::RangeInclusive, time::Duration};

use headcount_support::Way;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use crate::world::{INSTANCES, Kind};

/// Something that happens to a running service.
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    weight: u32,
    /// How long it lasts, in milliseconds; short ones are drawn as often as long ones.
    lasts: RangeInclusive<u32>,
    pub(crate) deed: Deed,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// kill -9 and, after a while, another start.
    KillInstance,
    /// A stop as asked for, whatever else goes on.
    DrainInstance,
    /// The same while nothing else goes on: it must end with 0.
    DrainInstanceAlone,
    /// SIGSTOP and, after a while, SIGCONT.
    StopInstance,
    KillRedis,
    RestartRedis,
    StopRedis,
    /// Redis is at its limit of memory and refuses to write.
    FillRedis,
    /// Redis is made a replica and refuses to write.
    DemoteRedis,
    /// kill -9 of a node of the cluster; its replica takes over, and it comes back as one.
    KillPrimary,
    /// A node of the cluster stands still, for longer or shorter than it takes to be taken for dead.
    StopPrimary,
    /// A replica takes over although its primary is well.
    FailOver,
    /// Slots go from one primary to another, and back.
    MoveSlots,
    /// A node comes, gets slots, gives them back, and goes.
    AddNode,
    /// kill -9 of one of Kafka's brokers and, after a while, another start.
    KillBroker,
    /// One of Kafka's brokers stands still, for longer or shorter than it takes to be taken for dead.
    StopBroker,
    /// Redis forgets everything. Only where plays are elsewhere.
    FlushRedis,
    LoseScripts,
    EndRedisClients,
    RewriteRedisFile,
    /// What Redis keeps of the database's totals runs out, again and again.
    ExpireTotals,
    /// Locks run out under those who hold them, again and again: flushers and sweepers meet.
    ExpireLocks,
    KillPostgres,
    RestartPostgres,
    StopPostgres,
    EndPostgresSessions,
    /// Somebody else holds what a flush wants to write.
    LockRows,
    /// The way from one instance to Redis breaks in that manner.
    BreakWayToRedis(Way),
    /// The same to Postgres.
    BreakWayToPostgres(Way),
}

const fn fault(name: &'static str, weight: u32, lasts: RangeInclusive<u32>, deed: Deed) -> Fault {
    Fault { name, weight, lasts, deed }
}

/// By how much each piece of what is asked or answered is late: the service waits for it, or not always.
const SLOW: Duration = Duration::from_millis(40);
const TOO_SLOW: Duration = Duration::from_millis(400);

impl Deed {
    /// Whether there is what it is done to.
    fn is_for(self, kind: Kind) -> bool {
        match self {
            Self::KillRedis
            | Self::RestartRedis
            | Self::StopRedis
            | Self::FillRedis
            | Self::DemoteRedis
            | Self::RewriteRedisFile
            | Self::BreakWayToRedis(_) => kind != Kind::Cluster,
            Self::KillPrimary | Self::StopPrimary | Self::FailOver | Self::MoveSlots | Self::AddNode => {
                kind == Kind::Cluster
            }
            Self::KillBroker | Self::StopBroker | Self::FlushRedis => kind == Kind::Kafka,
            _ => true,
        }
    }
}

/// What there is. Deadlines are 500 ms (Redis) and 2 s (Postgres and Kafka), the flush's lock lasts 10 s,
/// a broker is taken for dead after 3 s: some of everything is shorter and longer.
pub(crate) const FAULTS: &[Fault] = &[
    fault("instance killed", 10, 50..=3_000, Deed::KillInstance),
    fault("instance drained", 4, 50..=1_000, Deed::DrainInstance),
    fault("instance drained alone", 3, 50..=1_000, Deed::DrainInstanceAlone),
    fault("instance stopped", 7, 100..=5_000, Deed::StopInstance),
    fault("instance stopped past its locks", 1, 11_000..=13_000, Deed::StopInstance),
    fault("redis killed", 5, 50..=3_000, Deed::KillRedis),
    fault("redis restarted", 3, 50..=2_000, Deed::RestartRedis),
    fault("redis stopped", 5, 100..=5_000, Deed::StopRedis),
    fault("redis out of memory", 4, 100..=3_000, Deed::FillRedis),
    fault("redis demoted", 3, 100..=3_000, Deed::DemoteRedis),
    fault("primary killed", 8, 50..=3_000, Deed::KillPrimary),
    fault("primary stopped", 6, 100..=5_000, Deed::StopPrimary),
    fault("primary demoted", 6, 50..=50, Deed::FailOver),
    fault("slots moved", 8, 50..=50, Deed::MoveSlots),
    fault("node added and removed", 4, 50..=50, Deed::AddNode),
    fault("broker killed", 10, 50..=6_000, Deed::KillBroker),
    fault("broker stopped", 14, 100..=6_000, Deed::StopBroker),
    fault("redis flushed", 6, 50..=50, Deed::FlushRedis),
    fault("redis scripts lost", 4, 50..=50, Deed::LoseScripts),
    fault("redis clients ended", 4, 50..=50, Deed::EndRedisClients),
    fault("redis file rewritten", 2, 50..=50, Deed::RewriteRedisFile),
    fault("redis totals expired", 6, 500..=5_000, Deed::ExpireTotals),
    fault("redis locks expired", 6, 500..=5_000, Deed::ExpireLocks),
    fault("postgres killed", 5, 50..=3_000, Deed::KillPostgres),
    fault("postgres restarted", 3, 50..=2_000, Deed::RestartPostgres),
    fault("postgres stopped", 5, 100..=6_000, Deed::StopPostgres),
    fault("postgres sessions ended", 5, 50..=50, Deed::EndPostgresSessions),
    fault("postgres rows locked", 3, 200..=4_000, Deed::LockRows),
    fault("way to redis cut", 4, 50..=4_000, Deed::BreakWayToRedis(Way::Cut)),
    fault("way to redis stalled", 4, 100..=4_000, Deed::BreakWayToRedis(Way::Stalled)),
    fault("answers of redis lost", 7, 50..=2_000, Deed::BreakWayToRedis(Way::Deaf)),
    fault("way to redis slow", 3, 200..=5_000, Deed::BreakWayToRedis(Way::Late(SLOW))),
    fault("way to redis too slow", 3, 200..=5_000, Deed::BreakWayToRedis(Way::Late(TOO_SLOW))),
    fault("way to redis dark", 2, 200..=4_000, Deed::BreakWayToRedis(Way::Dark)),
    fault("way to postgres cut", 4, 50..=4_000, Deed::BreakWayToPostgres(Way::Cut)),
    fault("way to postgres stalled", 4, 100..=5_000, Deed::BreakWayToPostgres(Way::Stalled)),
    fault("answers of postgres lost", 7, 100..=4_000, Deed::BreakWayToPostgres(Way::Deaf)),
    fault("way to postgres slow", 3, 200..=5_000, Deed::BreakWayToPostgres(Way::Late(SLOW))),
    fault("way to postgres too slow", 3, 200..=5_000, Deed::BreakWayToPostgres(Way::Late(TOO_SLOW))),
    fault("way to postgres dark", 2, 200..=5_000, Deed::BreakWayToPostgres(Way::Dark)),
];

/// One fault as drawn.
pub(crate) struct Stroke {
    pub(crate) fault: &'static Fault,
    /// Whom it hits, where it hits one instance.
    pub(crate) instance: usize,
    pub(crate) lasts: Duration,
    /// How long after the one before.
    pub(crate) after: Duration,
}

/// An endless row of strokes, the same for the same seed.
pub(crate) struct Schedule {
    random: StdRng,
    faults: Vec<&'static Fault>,
}

impl Schedule {
    pub(crate) fn new(seed: u64, kind: Kind) -> Self {
        let faults = FAULTS.iter().filter(|fault| fault.deed.is_for(kind)).collect();
        Self { random: StdRng::seed_from_u64(seed), faults }
    }

    pub(crate) fn next(&mut self) -> Stroke {
        let Self { random, faults } = self;
        let mut left = random.random_range(0..faults.iter().map(|fault| fault.weight).sum());
        let drawn = faults.iter().find(|fault| {
            let found = left < fault.weight;
            left = left.saturating_sub(fault.weight);
            found
        });
        let fault = drawn.copied().unwrap_or(&FAULTS[0]);
        let (shortest, longest) = (f64::from(*fault.lasts.start()), f64::from(*fault.lasts.end()));
        let lasts = shortest * (longest / shortest).powf(random.random());
        // Mostly two things overlap; now and then everything has the time to recover.
        let after = if random.random_ratio(1, 15) { 5_000 } else { random.random_range(100..2_200) };
        Stroke {
            fault,
            instance: random.random_range(0..INSTANCES),
            lasts: Duration::from_secs_f64(lasts / 1_000.0),
            after: Duration::from_millis(after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, kind: Kind) -> Vec<(&'static str, usize, Duration, Duration)> {
        let mut schedule = Schedule::new(seed, kind);
        let mut next = || schedule.next();
        let row = std::iter::repeat_with(|| {
            let Stroke { fault, instance, lasts, after } = next();
            (fault.name, instance, lasts, after)
        });
        row.take(2_000).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule_and_another_another() {
        assert_eq!(drawn(7, Kind::Single), drawn(7, Kind::Single));
        assert_ne!(drawn(7, Kind::Single), drawn(8, Kind::Single));
    }

    #[test]
    fn every_fault_comes_up_and_lasts_as_long_as_it_may() {
        let drawn = [Kind::Single, Kind::Cluster, Kind::Kafka].map(|kind| drawn(1, kind)).concat();
        for fault in FAULTS {
            let lasts: Vec<_> =
                drawn.iter().filter(|(name, ..)| *name == fault.name).map(|(.., lasts, _)| lasts).collect();
            assert!(!lasts.is_empty(), "{}", fault.name);
            let allowed = fault.lasts.start() - 1..=fault.lasts.end() + 1;
            let within = |lasts: &&Duration| allowed.contains(&u32::try_from(lasts.as_millis()).unwrap());
            assert!(lasts.iter().all(within), "{}", fault.name);
        }
    }
}
