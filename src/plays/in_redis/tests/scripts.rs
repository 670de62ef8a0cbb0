//! Each script does what its header says, refuses other arguments, and leaves nothing that never ends.

use std::collections::HashMap;

use redis::Value;

use super::{
    super::{SCRIPTS, flush, misses, record, sketches},
    World,
    world::command_of,
};
use crate::{
    error::StoreError,
    store::{redis::reply, script::LuaScript},
};

/// Keys without a life of their own; each goes when what it stands for is done.
const ENDLESS: [&str; 5] = [
    "video:views:delta:",
    "video:views:dirty:",
    "video:views:batch:",
    "video:views:settled:",
    "video:views:refused:",
];

impl World {
    async fn call(&self, script: &'static LuaScript, keys: &str, args: &[&str]) -> Result<Value, StoreError> {
        let prefix = &self.config.redis.prefix;
        let keys: Vec<String> =
            keys.split_whitespace().map(|key| format!("{prefix}video:views:{key}")).collect();
        self.connection().query(script.call(&keys, args)).await
    }

    /// Sets keys up: a name under `video:views:` and what is set.
    async fn given(&self, commands: &[&str]) {
        for command in commands {
            let (name, rest) = command.split_once(' ').unwrap();
            let key = format!("{name} {}video:views:{rest}", self.config.redis.prefix);
            self.connection().query::<Value>(command_of(&key)).await.unwrap();
        }
    }

    async fn get(&self, key: &str) -> Option<String> {
        self.ask(&format!("GET {}video:views:{key}", self.config.redis.prefix)).await
    }

    async fn assert_all_ends(&self) {
        for key in self.keys().await {
            if !ENDLESS.iter().any(|endless| key.starts_with(endless)) {
                let left: i64 = self.ask(&format!("TTL {}{key}", self.config.redis.prefix)).await;
                assert!(left > 0, "{key} has no end");
            }
        }
    }
}

fn texts(answer: Result<Value, StoreError>) -> Vec<Option<String>> {
    reply(answer.unwrap()).unwrap()
}

fn all(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[tokio::test]
async fn record_answers_what_its_header_says() {
    let world = World::new().await;
    let play = "seen:{0}:42:u:ann seen:{0}:42:p:x1";
    let keys = format!("dirty:{{0}} delta:{{0}}:42 uv:{{0}}:42 {play} {play}");
    let args = ["1800", "2592000", "77", "42", "2", "ann", "1", "ann", "1"];
    let answer = world.call(&record::RECORD, &keys, &args).await;
    assert_eq!(answer.unwrap(), Value::Array(vec![Value::Int(1), Value::Int(0)]));
    assert_eq!(world.get("delta:{0}:42").await.as_deref(), Some("1"));
    for seen in ["u:ann", "p:x1"] {
        assert_eq!(world.get(&format!("seen:{{0}}:42:{seen}")).await.as_deref(), Some("77"));
    }
    world.assert_all_ends().await;
}

#[tokio::test]
async fn record_takes_videos_of_any_partitions_and_fails_none_for_another() {
    let world = World::new().await;
    world.given(&["RPUSH delta:{1}:bad 1", "RPUSH uv:{3}:odd 1"]).await;
    let keys = "dirty:{0} delta:{0}:42 uv:{0}:42 seen:{0}:42:u:ann seen:{0}:42:u:ben seen:{0}:42:u:ann \
                dirty:{1} delta:{1}:bad uv:{1}:bad seen:{1}:bad:u:ann seen:{1}:bad:p:x1 seen:{1}:bad:u:ann \
                dirty:{3} delta:{3}:odd uv:{3}:odd seen:{3}:odd:u:ann seen:{3}:odd:p:x1";
    let args = [
        ["1800", "2592000", "77"].as_slice(),
        &["42", "3", "ann", "0", "ben", "0", "ann", "0"],
        &["bad", "2", "ann", "1", "ann", "0"],
        &["odd", "2", "ann", "0", "", "1"],
    ]
    .concat();
    let answer = world.call(&record::RECORD, keys, &args).await.unwrap();
    let Value::Array(results) = answer else { panic!("{answer:?}") };
    assert_eq!(results[..3], [Value::Int(1), Value::Int(1), Value::Int(0)]);
    for refused in &results[3..5] {
        let text: String = reply(refused.clone()).unwrap();
        assert!(text.contains("WRONGTYPE"), "{text}");
    }
    assert_eq!(results[5..7], [Value::Int(2), Value::Int(2)], "counted, and the sketch isn't");
    assert_eq!(world.get("delta:{0}:42").await.as_deref(), Some("2"));
    assert_eq!(world.get("delta:{3}:odd").await.as_deref(), Some("2"));
    let prefix = &world.config.redis.prefix;
    assert_eq!(world.ask::<i64>(&format!("PFCOUNT {prefix}video:views:uv:{{0}}:42")).await, 2);
    assert!(!world.keys().await.iter().any(|key| key.contains("seen:{1}")), "it may be sent again");
}

#[tokio::test]
async fn claim_answers_what_its_header_says() {
    let world = World::new().await;
    world.given(&["SET delta:{0}:42 3", "SADD dirty:{0} 42"]).await;
    let keys = "batch:{0} dirty:{0} refused:{0} delta:{0}:42";
    let answer = world.call(&flush::CLAIM, keys, &["b1", "5000", "42"]).await;
    assert_eq!(texts(answer), all(&["b1", "5000", "1", "5000", "1", "42", "3"]));
    // It is there now: the next one is answered the same batch, whatever it brings.
    world.given(&["SET delta:{0}:42 9"]).await;
    let answer = world.call(&flush::CLAIM, "batch:{0} dirty:{0} refused:{0}", &["b2", "6000"]).await;
    assert_eq!(texts(answer), all(&["b1", "5000", "2", "6000", "0", "42", "3"]));
    world.assert_all_ends().await;
}

#[tokio::test]
async fn claim_asks_the_server_for_the_time_where_it_is_given_none() {
    let world = World::new().await;
    world.given(&["SET delta:{0}:42 3", "SADD dirty:{0} 42"]).await;
    let keys = "batch:{0} dirty:{0} refused:{0} delta:{0}:42";
    let answer = texts(world.call(&flush::CLAIM, keys, &["b1", "", "42"]).await);
    let (at, now) = (answer[1].clone().unwrap(), answer[3].clone().unwrap());
    assert_eq!(at, now);
    let off = at.parse::<i64>().unwrap() - world.now().millis();
    assert!(off.abs() < 60_000, "{off}");
}

#[tokio::test]
async fn claim_cleans_up_what_holds_no_plays() {
    let world = World::new().await;
    world
        .given(&[
            "SADD dirty:{0} gone zero text list 42",
            "SET delta:{0}:zero 0",
            "SET delta:{0}:text abc",
            "RPUSH delta:{0}:list 1",
            "SET delta:{0}:42 9007199254740993",
        ])
        .await;
    let keys = "batch:{0} dirty:{0} refused:{0} delta:{0}:gone delta:{0}:zero delta:{0}:text delta:{0}:list delta:{0}:42";
    let args = ["b1", "5000", "gone", "zero", "text", "list", "42"];
    let answer = texts(world.call(&flush::CLAIM, keys, &args).await);
    assert_eq!(answer[5..], all(&["42", "9007199254740993"]), "an exact number, not a float");
    let prefix = &world.config.redis.prefix;
    let dirty: Vec<String> = world.ask(&format!("SMEMBERS {prefix}video:views:dirty:{{0}}")).await;
    assert_eq!(dirty, ["42"]);
    let mut refused: Vec<String> = world.ask(&format!("SMEMBERS {prefix}video:views:refused:{{0}}")).await;
    refused.sort();
    assert_eq!(refused, ["list", "text"], "an operator has to look at these");
    assert!(!world.keys().await.contains(&"video:views:delta:{0}:zero".to_owned()));
}

#[tokio::test]
async fn settle_answers_what_its_header_says() {
    let world = World::new().await;
    world.given(&["HSET batch:{0} #id b1 #at 5000 42 3", "SET delta:{0}:42 5", "SADD dirty:{0} 42"]).await;
    let keys = "batch:{0} dirty:{0} refused:{0} settled:{0} delta:{0}:42 total:{0}:42";
    let answer = world.call(&flush::SETTLE, keys, &["b1", "3600", "42", "103"]).await;
    assert_eq!(answer.unwrap(), Value::Array(vec![Value::Int(1), Value::Int(0), Value::Int(1)]));
    assert_eq!(world.get("delta:{0}:42").await.as_deref(), Some("2"));
    assert_eq!(world.get("total:{0}:42").await.as_deref(), Some("103"));
    assert_eq!(world.get("settled:{0}").await.as_deref(), Some("b1"));
    // Again, or by one who woke late: nothing more is taken off.
    let answer = world.call(&flush::SETTLE, keys, &["b1", "3600", "42", "103"]).await;
    assert_eq!(answer.unwrap(), Value::Array(vec![Value::Int(0), Value::Int(0), Value::Int(1)]));
    assert_eq!(world.get("delta:{0}:42").await.as_deref(), Some("2"));
    world.assert_all_ends().await;
}

#[tokio::test]
async fn settle_runs_to_its_end_whatever_it_meets_and_leaves_no_negative_number() {
    let world = World::new().await;
    world
        .given(&[
            "HSET batch:{0} #id b1 #at 5000 list 1 less 7 no 2 yes 4",
            "RPUSH delta:{0}:list 1",
            "SET delta:{0}:less 3",
            "SET delta:{0}:no 2",
            "SET delta:{0}:yes 4",
            "SADD dirty:{0} list less no yes",
        ])
        .await;
    let mut keys = "batch:{0} dirty:{0} refused:{0} settled:{0}".to_owned();
    for video in ["list", "less", "no", "yes"] {
        keys = format!("{keys} delta:{{0}}:{video} total:{{0}}:{video}");
    }
    let args = ["b1", "3600", "list", "1", "less", "7", "no", "", "yes", "4"];
    let answer = world.call(&flush::SETTLE, &keys, &args).await;
    assert_eq!(answer.unwrap(), Value::Array(vec![Value::Int(1), Value::Int(2), Value::Int(0)]));
    assert_eq!(world.get("delta:{0}:less").await, None);
    assert_eq!(world.get("delta:{0}:no").await.as_deref(), Some("2"), "refused plays stay");
    assert_eq!(world.get("delta:{0}:yes").await, None);
    assert_eq!(world.get("total:{0}:no").await, None);
    assert!(!world.keys().await.contains(&"video:views:batch:{0}".to_owned()));
}

#[tokio::test]
async fn the_looks_at_totals_answer_what_their_headers_say() {
    let world = World::new().await;
    world.given(&["HSET batch:{0} #id b1 42 3", "SET delta:{0}:42 5"]).await;
    let keys = "batch:{0} settled:{0} total:{0}:42 delta:{0}:42";
    let looked = [Some("b1"), Some(""), None, Some("5"), Some("3")].map(|text| text.map(str::to_owned));
    assert_eq!(texts(world.call(&misses::LOOK, keys, &["42"]).await), looked);
    // The batch is another by now, or one came and went: what was read says nothing.
    for moved in [["b0", ""], ["b1", "b0"]] {
        let args = [moved[0], moved[1], "3600", "42", "100"];
        assert_eq!(texts(world.call(&misses::FILL, keys, &args).await), looked);
        assert_eq!(world.get("total:{0}:42").await, None);
    }
    let args = ["b1", "", "3600", "42", "100"];
    let filled = all(&["b1", "", "100", "5", "3"]);
    assert_eq!(texts(world.call(&misses::FILL, keys, &args).await), filled);
    assert_eq!(world.get("total:{0}:42").await.as_deref(), Some("100"));
    // One that is there by now is answered, not written over.
    assert_eq!(texts(world.call(&misses::FILL, keys, &["b9", "", "3600", "42", "7"]).await), filled);
    world.assert_all_ends().await;
}

#[tokio::test]
async fn a_total_of_zero_is_not_kept() {
    let world = World::new().await;
    let keys = "batch:{0} settled:{0} total:{0}:42 delta:{0}:42";
    let answer = texts(world.call(&misses::FILL, keys, &["", "", "3600", "42", "0"]).await);
    assert_eq!(answer[2].as_deref(), Some("0"));
    assert_eq!(world.keys().await, [""; 0]);
}

#[tokio::test]
async fn uv_merge_answers_what_its_header_says() {
    let world = World::new().await;
    world.given(&["PFADD sketch:{0}:42 ann ben", "PFADD uv:{0}:42 ben cem"]).await;
    let prefix = &world.config.redis.prefix;
    let sketch: Vec<u8> = world.ask(&format!("GET {prefix}video:views:sketch:{{0}}:42")).await;
    let keys = ["uv:{0}:42", "sketch:{0}:42"].map(|key| format!("{prefix}video:views:{key}"));
    let merge = |sketch: &[u8]| sketches::MERGE.call(&keys, &[sketch, b"2592000"]);
    assert_eq!(world.connection().query::<String>(merge(&sketch)).await.unwrap(), "");
    assert_eq!(world.ask::<i64>(&format!("PFCOUNT {}", keys[0])).await, 3);
    let corrupt: String = world.connection().query(merge(b"no sketch")).await.unwrap();
    assert!(corrupt.contains("WRONGTYPE"), "{corrupt}");
    assert_eq!(world.ask::<i64>(&format!("PFCOUNT {}", keys[0])).await, 3);
    world.assert_all_ends().await;
}

#[tokio::test]
async fn a_wrong_number_of_arguments_is_refused_before_anything_is_done() {
    let world = World::new().await;
    let wrong: HashMap<&str, Vec<(&str, Vec<&str>)>> = HashMap::from([
        (
            "record",
            vec![
                ("dirty:{0}", vec!["1800", "60"]),
                ("dirty:{0} delta:{0}:1 uv:{0}:1", vec!["1800", "60", "7"]),
                ("dirty:{0} delta:{0}:1 uv:{0}:1", vec!["1800", "60", "7", "1", "1", "ann", "0"]),
                ("dirty:{0} delta:{0}:1 uv:{0}:1 seen:{0}:1:u:ann", vec!["1800", "60", "7", "1", "1", "ann"]),
                ("dirty:{0} delta:{0}:1 uv:{0}:1", vec!["1800", "60", "7", "1", "0"]),
                ("dirty:{0} delta:{0}:1 uv:{0}:1", vec!["1800", "60", "7", "1", "ann", "0"]),
                ("dirty:{0} delta:{0}:1 uv:{0}:1", vec!["1800", "60", "7", "1", "-1"]),
            ],
        ),
        ("claim", vec![("batch:{0} dirty:{0}", vec!["b1"]), ("batch:{0} dirty:{0} refused:{0}", vec!["b1"])]),
        (
            "settle",
            vec![
                ("batch:{0} dirty:{0} refused:{0}", vec!["b1"]),
                (
                    "batch:{0} dirty:{0} refused:{0} settled:{0} delta:{0}:1 total:{0}:1",
                    vec!["b1", "60", "1"],
                ),
            ],
        ),
        ("view_look", vec![("batch:{0} settled:{0}", vec![]), ("batch:{0} settled:{0} a b", vec!["1", "2"])]),
        ("view_fill", vec![("batch:{0} settled:{0} a b", vec!["", "", "60", "1"])]),
        (
            "raise",
            vec![("batch:{0} settled:{0}", vec!["m", "60"]), ("batch:{0} settled:{0} dirty:{0}", vec!["m"])],
        ),
        ("uv_merge", vec![("uv:{0}:1", vec!["x", "60"]), ("uv:{0}:1 sketch:{0}:1", vec!["x"])]),
    ]);
    for script in SCRIPTS {
        for (keys, args) in wrong.get(script.name()).into_iter().flatten() {
            let error = world.call(script, keys, args).await.unwrap_err().to_string();
            assert!(error.contains("want"), "{}: {error}", script.name());
        }
        assert!(wrong.contains_key(script.name()) || script.name().starts_with("lock_"), "{}", script.name());
    }
    assert_eq!(world.keys().await, [""; 0]);
}

#[cfg(feature = "kafka")]
#[tokio::test]
async fn raise_answers_what_its_header_says_and_never_lowers() {
    use crate::plays::in_kafka::raise::RAISE;

    const KEYS: &str = "batch:{0} settled:{0} dirty:{0} total:{0}:42 uv:{0}:42 sketch:{0}:42";
    let world = World::new().await;
    world.given(&["SET total:{0}:42 100 EX 3600", "SET settled:{0} b1"]).await;
    assert_eq!(world.call(&RAISE, KEYS, &["m1", "3600", "103", ""]).await.unwrap(), Value::Int(1));
    assert_eq!(world.get("total:{0}:42").await.as_deref(), Some("103"));
    assert_eq!(world.get("settled:{0}").await.as_deref(), Some("b1 m1"), "a fill that began before is over");
    for lower in ["103", "99", "9"] {
        assert_eq!(world.call(&RAISE, KEYS, &["m2", "3600", lower, ""]).await.unwrap(), Value::Int(0));
        assert_eq!(world.get("total:{0}:42").await.as_deref(), Some("103"));
    }
    // More than a number of Lua's can tell apart.
    for more in ["9007199254740993", "9007199254740994", "9223372036854775807"] {
        assert_eq!(world.call(&RAISE, KEYS, &["m3", "3600", more, ""]).await.unwrap(), Value::Int(1));
        assert_eq!(world.get("total:{0}:42").await.as_deref(), Some(more));
    }
    // One that nobody has asked for stays unasked for.
    let other = KEYS.replace(":42", ":43");
    assert_eq!(world.call(&RAISE, &other, &["m4", "3600", "7", "HYLL"]).await.unwrap(), Value::Int(0));
    assert_eq!((world.get("total:{0}:43").await, world.get("uv:{0}:43").await), (None, None));
    world.assert_all_ends().await;
}

/// Else a video that is asked for while many are raised would never be known.
#[cfg(feature = "kafka")]
#[tokio::test]
async fn what_was_read_while_totals_were_raised_is_answered_and_not_kept() {
    use crate::plays::{in_kafka::raise::RAISE, in_redis::misses::FILL};

    const KEYS: &str = "batch:{0} settled:{0} total:{0}:42 delta:{0}:42";
    const RAISED: &str = "batch:{0} settled:{0} dirty:{0} total:{0}:42 uv:{0}:42 sketch:{0}:42";
    let world = World::new().await;
    world.given(&["SET settled:{0} b1", "SET delta:{0}:42 5"]).await;
    let fill = async |looked: &str| {
        let filled = world.call(&FILL, KEYS, &["", looked, "3600", "42", "100"]).await.unwrap();
        reply::<Vec<Option<String>>>(filled).unwrap()[2].clone()
    };
    assert_eq!(world.call(&RAISE, RAISED, &["m1", "3600", "103", ""]).await.unwrap(), Value::Int(0));
    let hundred = Some("100".to_owned());
    assert_eq!((fill("b1").await, world.get("total:{0}:42").await), (hundred.clone(), None));
    assert_eq!(fill("b0").await, None, "a batch came and went");
    assert_eq!((fill("b1 m1").await, world.get("total:{0}:42").await), (hundred.clone(), hundred));
}

/// Plays that were recorded before Kafka was may be in what the database holds, or not.
#[cfg(feature = "kafka")]
#[tokio::test]
async fn a_total_goes_where_a_batch_is_on_its_way_and_its_settling_writes_none() {
    use crate::plays::in_kafka::raise::RAISE;

    const KEYS: &str = "batch:{0} settled:{0} dirty:{0} total:{0}:42 uv:{0}:42 sketch:{0}:42";
    let world = World::new().await;
    world
        .given(&[
            "SET total:{0}:42 100 EX 3600",
            "SET delta:{0}:42 3",
            "SADD dirty:{0} 42",
            "HSET batch:{0} #id b2 #at 1 #tries 1 42 3",
            "PFADD uv:{0}:42 ann",
            "PFADD sketch:{0}:42 bob",
        ])
        .await;
    let prefix = &world.config.redis.prefix;
    let mut sketch = command_of(&format!("GET {prefix}video:views:sketch:{{0}}:42"));
    let sketch: Vec<u8> = world.connection().query(std::mem::take(&mut sketch)).await.unwrap();
    let keys: Vec<String> = KEYS.split(' ').map(|key| format!("{prefix}video:views:{key}")).collect();
    let args: [&[u8]; 4] = [b"m1", b"3600", b"108", &sketch];
    let raised: i64 = world.connection().query(RAISE.call(&keys, &args)).await.unwrap();
    assert_eq!(raised, 0);
    assert_eq!(world.get("total:{0}:42").await, None);
    assert_eq!(world.ask::<i64>(&format!("PFCOUNT {prefix}video:views:uv:{{0}}:42")).await, 2);
    // The database held 103 right after the batch, and 108 by now.
    let settle = "batch:{0} dirty:{0} refused:{0} settled:{0} delta:{0}:42 total:{0}:42";
    let settled = world.call(&flush::SETTLE, settle, &["b2", "3600", "42", "103"]).await.unwrap();
    assert_eq!(reply::<Vec<i64>>(settled).unwrap(), [1, 0, 0]);
    assert_eq!((world.get("total:{0}:42").await, world.get("delta:{0}:42").await), (None, None));
    world.assert_all_ends().await;
}
