//! What makes Kafka's topics fit to hold plays, judged from the brokers' own answers.

use std::{collections::BTreeMap, time::Duration};

use humantime::format_duration;

use super::{Answer, Finding};
use crate::config::kafka::Kafka;

/// What was asked.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// How the topic of plays lies on the brokers; `None` where it isn't there.
    pub(super) topic: Answer<Option<Shape>>,
    /// Whether there is one for records that can't be read.
    pub(super) dead_letters: Answer<bool>,
    /// The topic's settings.
    pub(super) settings: Answer<BTreeMap<String, String>>,
}

/// How a topic lies on the brokers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) partitions: usize,
    /// On how many brokers the partition is that is on the fewest.
    pub(super) replication: usize,
    /// Partitions that nobody leads.
    pub(super) headless: usize,
    /// Partitions of which a broker lacks something.
    pub(super) behind: usize,
}

/// A consumer that is away for longer than plays are kept loses them: a week is a long weekend and some
/// days to notice.
const KEPT_LONG_ENOUGH: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Who is dated ahead counts nothing until then, so it is to be a day at most.
const AHEAD_AT_MOST: Duration = Duration::from_secs(24 * 3_600);

/// Shorter is lost before anybody is back from the weekend.
const KEPT_TOO_SHORT: Duration = Duration::from_secs(24 * 3_600);

pub(super) fn judge(facts: &Facts, settings: &Kafka) -> Vec<Finding> {
    let mut findings = vec![topic(facts, settings)];
    if let Ok(Some(shape)) = &facts.topic {
        findings.extend([durability(facts, *shape), retention(facts), timestamps(facts)]);
    }
    findings.push(dead_letters(facts, settings));
    findings
}

fn topic(facts: &Facts, settings: &Kafka) -> Finding {
    const CHECK: &str = "kafka topic";
    let name = &settings.topic;
    match &facts.topic {
        Ok(None) => Finding::problem(
            CHECK,
            format!("the topic {name} isn't there: plays are answered 503"),
            "run `headcount migrate`, or make it as `kafka.*` in config/default.toml says",
        ),
        Ok(Some(shape)) if shape.headless > 0 => Finding::problem(
            CHECK,
            format!("{} of {} partitions have no leader", shape.headless, shape.partitions),
            "start the brokers that have them",
        ),
        Ok(Some(shape)) if shape.behind > 0 => Finding::warning(
            CHECK,
            format!("{} of {} partitions lack a broker that is in step", shape.behind, shape.partitions),
            "start the broker that is missing, before another one fails",
        ),
        Ok(Some(shape)) => Finding::ok(
            CHECK,
            format!("{} partitions, each on {} broker(s)", shape.partitions, shape.replication),
        ),
        Err(reason) => Finding::unknown(CHECK, reason.clone(), "see that it is there, with all its brokers"),
    }
}

fn durability(facts: &Facts, shape: Shape) -> Finding {
    const CHECK: &str = "kafka durability";
    const ADVICE: &str = "see that each partition is on three brokers, with min.insync.replicas = 2 and \
                          unclean.leader.election.enable = false";
    if shape.replication < 2 {
        return Finding::warning(
            CHECK,
            "each play is on one broker alone: its disk lost, they are",
            "for more than a trial, three brokers and a topic with replication 3",
        );
    }
    let settings = match &facts.settings {
        Ok(settings) => settings,
        Err(reason) => return Finding::unknown(CHECK, reason.clone(), ADVICE),
    };
    if settings.get("unclean.leader.election.enable").is_some_and(|value| value == "true") {
        let found = "a broker that lacks plays may lead, and what it lacks is gone";
        return Finding::problem(CHECK, found, "set unclean.leader.election.enable = false for the topic");
    }
    let replication = shape.replication;
    match settings.get("min.insync.replicas").and_then(|text| text.parse::<usize>().ok()) {
        Some(least) if least < 2 => Finding::problem(
            CHECK,
            "min.insync.replicas is 1: a play may be answered with one broker alone having it",
            "set min.insync.replicas = 2 for the topic",
        ),
        Some(least) if least >= replication => Finding::warning(
            CHECK,
            format!("min.insync.replicas is {least} of {replication}: one broker away, no play is taken"),
            "a replication of 3 with min.insync.replicas = 2 does without one of them",
        ),
        Some(least) => Finding::ok(CHECK, format!("answered when {least} of {replication} brokers have it")),
        None => Finding::unknown(CHECK, "the topic has no min.insync.replicas", ADVICE),
    }
}

fn retention(facts: &Facts) -> Finding {
    const CHECK: &str = "kafka retention";
    const ADVICE: &str = "see that cleanup.policy is delete, and that plays are kept for a week or for ever";
    let settings = match &facts.settings {
        Ok(settings) => settings,
        Err(reason) => return Finding::unknown(CHECK, reason.clone(), ADVICE),
    };
    if settings.get("cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
        let found = "the topic is compacted: of each video the last play is kept";
        return Finding::problem(CHECK, found, "set cleanup.policy = delete for the topic");
    }
    let number = |name| settings.get(name).and_then(|text| text.parse::<i64>().ok());
    let (Some(millis), Some(bytes)) = (number("retention.ms"), number("retention.bytes")) else {
        return Finding::unknown(CHECK, "the topic has no retention", ADVICE);
    };
    if bytes >= 0 {
        return Finding::warning(
            CHECK,
            format!("over {bytes} bytes a partition, the oldest plays go, counted or not (retention.bytes)"),
            "set retention.bytes = -1, and bound by time",
        );
    }
    let Ok(kept) = u64::try_from(millis).map(Duration::from_millis) else {
        return Finding::ok(CHECK, "plays are kept for ever");
    };
    let found = format!("plays are kept for {}", format_duration(kept));
    let lost = "plays that aren't counted by then are lost: set retention.ms = 604800000 (a week) or more";
    match kept {
        _ if kept < KEPT_TOO_SHORT => Finding::problem(CHECK, found, lost),
        _ if kept < KEPT_LONG_ENOUGH => Finding::warning(CHECK, found, lost),
        _ => Finding::ok(CHECK, format!("{found}; totals can't be made anew from older ones")),
    }
}

fn timestamps(facts: &Facts) -> Finding {
    const CHECK: &str = "kafka timestamps";
    const ADVICE: &str = "set message.timestamp.type = CreateTime for the topic";
    let settings = match &facts.settings {
        Ok(settings) => settings,
        Err(reason) => return Finding::unknown(CHECK, reason.clone(), ADVICE),
    };
    if settings.get("message.timestamp.type").is_some_and(|kind| kind == "LogAppendTime") {
        let found = "plays are dated by the broker, not when they were received";
        return Finding::warning(CHECK, found, ADVICE);
    }
    let ahead = settings.get("message.timestamp.after.max.ms").and_then(|text| text.parse::<u64>().ok());
    match ahead.map(Duration::from_millis) {
        Some(ahead) if ahead <= AHEAD_AT_MOST => {
            Finding::ok(CHECK, "plays are dated when they were received")
        }
        _ => Finding::warning(
            CHECK,
            "plays may be dated far ahead: by a wrong clock their viewers count nothing until then",
            "set message.timestamp.after.max.ms = 3600000 (an hour) for the topic",
        ),
    }
}

fn dead_letters(facts: &Facts, settings: &Kafka) -> Finding {
    const CHECK: &str = "kafka dead letters";
    let name = &settings.dead_letter_topic;
    match &facts.dead_letters {
        Ok(true) => Finding::ok(CHECK, format!("{name} is there for what can't be read")),
        Ok(false) => Finding::problem(
            CHECK,
            format!("the topic {name} isn't there: a record that can't be read has nowhere to go"),
            "run `headcount migrate`",
        ),
        Err(reason) => Finding::unknown(CHECK, reason.clone(), format!("see that the topic {name} is there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::load::load, doctor::Verdict};

    fn good() -> Facts {
        let settings = [
            ("min.insync.replicas", "2"),
            ("unclean.leader.election.enable", "false"),
            ("cleanup.policy", "delete"),
            ("retention.ms", "-1"),
            ("retention.bytes", "-1"),
            ("message.timestamp.type", "CreateTime"),
            ("message.timestamp.after.max.ms", "3600000"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Facts {
            topic: Ok(Some(Shape { partitions: 16, replication: 3, headless: 0, behind: 0 })),
            dead_letters: Ok(true),
            settings: Ok(settings.into()),
        }
    }

    fn verdicts(change: impl FnOnce(&mut Facts)) -> Vec<(&'static str, Verdict)> {
        let mut facts = good();
        change(&mut facts);
        let settings = load(None, Some(std::collections::HashMap::new())).unwrap().config.kafka;
        judge(&facts, &settings).into_iter().map(|finding| (finding.check, finding.verdict)).collect()
    }

    /// The one check that came out otherwise than well.
    fn only(change: impl FnOnce(&mut Facts)) -> (&'static str, Verdict) {
        let mut bad: Vec<_> =
            verdicts(change).into_iter().filter(|(_, verdict)| *verdict != Verdict::Ok).collect();
        assert_eq!(bad.len(), 1, "{bad:?}");
        bad.remove(0)
    }

    fn set(name: &'static str, value: &'static str) -> impl FnOnce(&mut Facts) {
        move |facts| {
            facts.settings.as_mut().unwrap().insert(name.to_owned(), value.to_owned());
        }
    }

    fn shape(change: impl FnOnce(&mut Shape)) -> impl FnOnce(&mut Facts) {
        move |facts| change(facts.topic.as_mut().unwrap().as_mut().unwrap())
    }

    #[test]
    fn topics_as_they_are_made_are_fine() {
        let all = verdicts(|_| {});
        assert!(all.len() == 5 && all.iter().all(|(_, verdict)| *verdict == Verdict::Ok), "{all:?}");
    }

    #[test]
    fn what_breaks_a_promise_is_a_problem_and_what_may_a_warning() {
        use Verdict::{Problem, Warning};
        assert_eq!(only(|facts| facts.topic = Ok(None)), ("kafka topic", Problem));
        assert_eq!(only(|facts| facts.dead_letters = Ok(false)), ("kafka dead letters", Problem));
        assert_eq!(only(shape(|shape| shape.headless = 1)), ("kafka topic", Problem));
        assert_eq!(only(shape(|shape| shape.behind = 1)), ("kafka topic", Warning));
        assert_eq!(only(shape(|shape| shape.replication = 1)), ("kafka durability", Warning));
        assert_eq!(only(shape(|shape| shape.replication = 2)), ("kafka durability", Warning));
        for (name, value, found) in [
            ("min.insync.replicas", "1", ("kafka durability", Problem)),
            ("unclean.leader.election.enable", "true", ("kafka durability", Problem)),
            ("cleanup.policy", "compact,delete", ("kafka retention", Problem)),
            ("retention.ms", "3600000", ("kafka retention", Problem)),
            ("retention.ms", "172800000", ("kafka retention", Warning)),
            ("retention.bytes", "1073741824", ("kafka retention", Warning)),
            ("message.timestamp.type", "LogAppendTime", ("kafka timestamps", Warning)),
            ("message.timestamp.after.max.ms", "9223372036854775807", ("kafka timestamps", Warning)),
        ] {
            assert_eq!(only(set(name, value)), found, "{name} = {value}");
        }
        assert!(verdicts(set("retention.ms", "604800000")).iter().all(|(_, found)| *found == Verdict::Ok));
    }

    #[test]
    fn what_may_not_be_asked_is_unknown() {
        let forbidden = verdicts(|facts| facts.settings = Err("not authorized".to_owned()));
        let unknown = forbidden.iter().filter(|(_, verdict)| *verdict == Verdict::Unknown).count();
        assert_eq!(unknown, 3, "{forbidden:?}");
        let nothing = verdicts(|facts| {
            facts.topic = Err("not authorized".to_owned());
            facts.dead_letters = Err("not authorized".to_owned());
        });
        assert!(nothing.iter().all(|(_, verdict)| *verdict == Verdict::Unknown), "{nothing:?}");
    }
}
