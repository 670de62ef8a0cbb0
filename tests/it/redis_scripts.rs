//! Each Lua script of presence and of the locks: the example in its header, and what it refuses.

use headcount::{
    presence::in_redis,
    store::{lock, probe, script::LuaScript},
};
use redis::Value;
use uuid::Uuid;

use crate::world::service;

struct Case {
    script: &'static str,
    /// Commands that make what the example begins with; `#` stands for the test's own prefix.
    before: &'static [&'static str],
    keys: &'static [&'static str],
    args: &'static [&'static str],
    answer: Value,
    /// A command and what it must say afterwards.
    after: (&'static str, Value),
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    vec![
        Case {
            script: "since",
            before: &[],
            keys: &["#video:since:{0}"],
            args: &["r1", "new", "5000", ""],
            answer: text("5 r1 new"),
            after: ("GET #video:since:{0}", text("5 r1 new")),
        },
        Case {
            script: "since",
            before: &["SET #video:since:{0} 5_r1_new"],
            keys: &["#video:since:{0}"],
            args: &["r1", "again", "9000", ""],
            answer: text("5 r1 new"),
            after: ("GET #video:since:{0}", text("5 r1 new")),
        },
        Case {
            script: "since",
            before: &["SET #video:since:{0} 5_r1_new"],
            keys: &["#video:since:{0}"],
            args: &["r2", "new", "9000", ""],
            answer: text("9 r2 again"),
            after: ("GET #video:since:{0}", text("9 r2 again")),
        },
        Case {
            script: "since",
            before: &["SET #video:since:{0} 5_r1_new"],
            keys: &["#video:since:{0}"],
            args: &["r1", "reset", "9000", ""],
            answer: text("9 r1 again"),
            after: ("GET #video:since:{0}", text("9 r1 again")),
        },
        Case {
            script: "beat_newer",
            before: &["HSET #video:online:42:0 a 100"],
            keys: &["#video:online:42:0"],
            args: &["a", "90", "b", "95"],
            answer: Value::Int(1),
            after: ("HGET #video:online:42:0 a", text("100")),
        },
        Case {
            script: "hdel_older",
            before: &["HSET #video:online:42:0 a 100 b 100"],
            keys: &["#video:online:42:0"],
            args: &["a", "100", "b", "99"],
            answer: Value::Int(1),
            after: ("HGET #video:online:42:0 b", text("100")),
        },
        Case {
            script: "reshard",
            before: &[],
            keys: &["#video:{shards}:map", "#video:{shards}:version"],
            args: &["42", "", "64", "1", "620", "5000", ""],
            answer: Value::Int(1),
            after: ("HGET #video:{shards}:map 42", text("64 1:625")),
        },
        Case {
            script: "reshard",
            before: &["HSET #video:{shards}:map 42 64_1:625_2:9_16:700", "SET #video:{shards}:version 7"],
            keys: &["#video:{shards}:map", "#video:{shards}:version"],
            args: &["42", "64 1:625 2:9 16:700", "16", "1", "620", "60000", ""],
            answer: Value::Int(1),
            after: ("HGET #video:{shards}:map 42", text("16 64:680 1:625")),
        },
        Case {
            script: "reshard",
            before: &["HSET #video:{shards}:map 42 64_1:625", "SET #video:{shards}:version 7"],
            keys: &["#video:{shards}:map", "#video:{shards}:version"],
            args: &["42", "32", "16", "1", "620", "60000", ""],
            answer: Value::Int(0),
            after: ("GET #video:{shards}:version", text("7")),
        },
        Case {
            script: "reshard",
            before: &["HSET #video:{shards}:map 42 1", "SET #video:{shards}:version 7"],
            keys: &["#video:{shards}:map", "#video:{shards}:version"],
            args: &["42", "1", "", "1", "620", "60000", ""],
            answer: Value::Int(1),
            after: ("HEXISTS #video:{shards}:map 42", Value::Int(0)),
        },
        Case {
            script: "reshard",
            before: &[],
            keys: &["#video:{shards}:map", "#video:{shards}:version"],
            args: &["*", "", "auto", "auto", "620", "60000", ""],
            answer: Value::Int(1),
            after: ("GET #video:{shards}:version", text("60001")),
        },
        Case {
            script: "reshard",
            before: &["HSET #video:{shards}:map 42 8 * 16_auto:625", "SET #video:{shards}:version 7"],
            keys: &["#video:{shards}:map", "#video:{shards}:version"],
            args: &["42", "8", "", "1", "620", "60000", "16"],
            answer: Value::Int(0),
            after: ("HGET #video:{shards}:map 42", text("8")),
        },
        Case {
            script: "prune",
            before: &["HSET #video:online:42:0 a 100 b 900"],
            keys: &["#video:online:42:0"],
            args: &["0", "400", "1000", "500", "750", "0", "1000"],
            answer: Value::Array(vec![text("0"), Value::Int(1), Value::Int(0), Value::Int(1)]),
            after: ("TTL #video:online:42:0", Value::Int(750)),
        },
        Case {
            script: "prune",
            before: &["HSET #video:online:42:0 a x b 5000", "EXPIRE #video:online:42:0 70"],
            keys: &["#video:online:42:0"],
            args: &["0", "400", "1000", "500", "750", "0", "1000"],
            answer: Value::Array(vec![text("0"), Value::Int(0), Value::Int(1), Value::Int(1)]),
            after: ("HGET #video:online:42:0 b", text("1000")),
        },
        // A hash each costs 10 here and 20 are enough: what Redis refuses costs nothing.
        Case {
            script: "prune",
            before: &[
                "HSET #video:online:42:0 a 100 b 900",
                "SET #video:online:42:1 text",
                "HSET #video:online:42:2 c 900 d 901",
                "HSET #video:online:42:3 e 100",
            ],
            keys: &["#video:online:42:0", "#video:online:42:1", "#video:online:42:2", "#video:online:42:3"],
            args: &["0", "400", "1000", "500", "750", "0", "20"],
            answer: Value::Array(vec![
                text("0"),
                Value::Int(1),
                Value::Int(0),
                Value::Int(1),
                text("WRONGTYPE Operation against a key holding the wrong kind of value"),
                Value::Int(0),
                Value::Int(0),
                Value::Int(0),
                text("0"),
                Value::Int(0),
                Value::Int(0),
                Value::Int(2),
            ]),
            after: ("HLEN #video:online:42:3", Value::Int(1)),
        },
        Case {
            script: "count_store",
            before: &[],
            keys: &["#video:online-count:42"],
            args: &["7", "5", "600", "6"],
            answer: Value::Int(1),
            after: ("GET #video:online-count:42", text("7 5")),
        },
        Case {
            script: "count_store",
            before: &["SET #video:online-count:42 7_5"],
            keys: &["#video:online-count:42"],
            args: &["0", "4", "600", "6"],
            answer: Value::Int(0),
            after: ("GET #video:online-count:42", text("7 5")),
        },
        Case {
            script: "count_store",
            before: &["SET #video:online-count:42 7_5"],
            keys: &["#video:online-count:42"],
            args: &["0", "6", "600", "6"],
            answer: Value::Int(1),
            after: ("EXISTS #video:online-count:42", Value::Int(0)),
        },
        Case {
            script: "count_store",
            before: &["SET #video:online-count:42 7_5000"],
            keys: &["#video:online-count:42"],
            args: &["3", "6", "600", "6"],
            answer: Value::Int(1),
            after: ("GET #video:online-count:42", text("3 6")),
        },
        Case {
            script: "since",
            before: &["SET #video:since:{0} 5000_r1_new"],
            keys: &["#video:since:{0}"],
            args: &["r1", "new", "9000", ""],
            answer: text("9 r1 again"),
            after: ("GET #video:since:{0}", text("9 r1 again")),
        },
        Case {
            script: "since",
            before: &["SET #video:since:{0} 5_r1_new"],
            keys: &["#video:since:{0}"],
            args: &["r1", "again", "9000", "4"],
            answer: text("9 r1 again"),
            after: ("GET #video:since:{0}", text("9 r1 again")),
        },
        Case {
            script: "registry_leave",
            before: &["ZADD #video:active:{0} 100 a 900 b"],
            keys: &["#video:active:{0}"],
            args: &["400", "a", "b"],
            answer: Value::Int(1),
            after: ("ZCARD #video:active:{0}", Value::Int(1)),
        },
        Case {
            script: "finish",
            before: &["SET #task:lock:sweep:{0} t", "ZADD #video:rank:{0} 1 old"],
            keys: &["#task:lock:sweep:{0}", "#video:swept:{0}", "#video:rank:{0}"],
            args: &["t", "5", "54000", "7", "42"],
            answer: Value::Int(1),
            after: ("ZRANGE #video:rank:{0} 0 -1", Value::Array(vec![text("42")])),
        },
        Case {
            script: "finish",
            before: &["SET #task:lock:sweep:{0} another"],
            keys: &["#task:lock:sweep:{0}", "#video:swept:{0}", "#video:rank:{0}"],
            args: &["t", "5", "54000", "7", "42"],
            answer: Value::Int(0),
            after: ("EXISTS #video:swept:{0}", Value::Int(0)),
        },
        Case {
            script: "lock_renew",
            before: &["SET #task:lock:sweep:{0} a PX 100000"],
            keys: &["#task:lock:sweep:{0}"],
            args: &["a", "54000"],
            answer: Value::Int(1),
            after: ("TTL #task:lock:sweep:{0}", Value::Int(54)),
        },
        Case {
            script: "lock_renew",
            before: &["SET #task:lock:sweep:{0} b"],
            keys: &["#task:lock:sweep:{0}"],
            args: &["a", "54000"],
            answer: Value::Int(0),
            after: ("TTL #task:lock:sweep:{0}", Value::Int(-1)),
        },
        Case {
            script: "lock_release",
            before: &["SET #task:lock:sweep:{0} a"],
            keys: &["#task:lock:sweep:{0}"],
            args: &["a"],
            answer: Value::Int(1),
            after: ("EXISTS #task:lock:sweep:{0}", Value::Int(0)),
        },
        Case {
            script: "lock_release",
            before: &["SET #task:lock:sweep:{0} b"],
            keys: &["#task:lock:sweep:{0}"],
            args: &["a"],
            answer: Value::Int(0),
            after: ("EXISTS #task:lock:sweep:{0}", Value::Int(1)),
        },
        Case {
            script: "probe",
            before: &[],
            keys: &["#task:probe:{0}"],
            args: &["x", "60"],
            answer: text("x"),
            after: ("TTL #task:probe:{0}", Value::Int(60)),
        },
    ]
}

fn scripts() -> Vec<&'static LuaScript> {
    in_redis::SCRIPTS.iter().copied().chain([&lock::RENEW, &lock::RELEASE, &probe::PROBE]).collect()
}

async fn connection() -> redis::aio::MultiplexedConnection {
    headcount_support::redis_connection(&service("TEST_REDIS_URL")).await.unwrap()
}

/// A command in words; `_` inside a word stands for a space.
fn command(words: &str, prefix: &str) -> redis::Cmd {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word.replace('#', prefix).replace('_', " "));
    }
    command
}

fn call(script: &'static LuaScript, keys: &[String], args: &[&str]) -> redis::Cmd {
    let mut eval = redis::cmd("EVAL");
    eval.arg(script.source()).arg(keys.len()).arg(keys).arg(args);
    eval
}

#[tokio::test]
async fn the_examples_in_the_headers_are_true() {
    let mut connection = connection().await;
    for case in cases() {
        let script = scripts().into_iter().find(|script| script.name() == case.script).unwrap();
        let prefix = format!("{}:", Uuid::now_v7().simple());
        for before in case.before {
            command(before, &prefix).query_async::<Value>(&mut connection).await.unwrap();
        }
        let keys: Vec<String> = case.keys.iter().map(|key| key.replace('#', &prefix)).collect();
        let answer: Value = call(script, &keys, case.args).query_async(&mut connection).await.unwrap();
        assert_eq!(answer, case.answer, "{} {:?}", case.script, case.args);
        let (look, expected) = case.after;
        let found: Value = command(look, &prefix).query_async(&mut connection).await.unwrap();
        assert_eq!(found, expected, "{look} after {} {:?}", case.script, case.args);
    }
}

#[tokio::test]
async fn every_script_has_its_example_tried_here() {
    for script in scripts() {
        assert!(cases().iter().any(|case| case.script == script.name()), "{}", script.name());
        assert!(script.source().contains("Example"), "{}", script.name());
        assert!(script.source().starts_with("-- "), "{}", script.name());
    }
}

#[tokio::test]
async fn every_script_refuses_a_wrong_number_of_keys_or_arguments() {
    let mut connection = connection().await;
    for script in scripts() {
        let keys = vec!["a".to_owned(); 7];
        for (keys, args) in [(&keys[..], &["x"; 6][..]), (&keys[..1], &[][..]), (&keys[..0], &["x"][..])] {
            let refused = call(script, keys, args).query_async::<Value>(&mut connection).await;
            let error = refused.expect_err(script.name()).to_string();
            assert!(error.contains(&format!("{}: want", script.name())), "{error}");
        }
    }
}

#[tokio::test]
async fn a_hash_that_was_long_once_becomes_a_listpack_again_and_keeps_its_life() {
    let mut connection = connection().await;
    let key = format!("{}:video:online:42:0", Uuid::now_v7().simple());
    let mut long = redis::cmd("HSET");
    long.arg(&key);
    for viewer in 0..1_000 {
        long.arg(format!("viewer-{viewer}")).arg(if viewer < 100 { 900 } else { 100 });
    }
    let _: Value = long.query_async(&mut connection).await.unwrap();
    let _: Value = redis::cmd("EXPIRE").arg(&key).arg(70).query_async(&mut connection).await.unwrap();
    let script = scripts().into_iter().find(|script| script.name() == "prune").unwrap();
    let mut cursor = "0".to_owned();
    loop {
        let args = [cursor.as_str(), "400", "1000", "500", "750", "300", "1000"];
        let step = call(script, std::slice::from_ref(&key), &args);
        let (next, _, _, left): (String, i64, i64, i64) = step.query_async(&mut connection).await.unwrap();
        cursor = next;
        if cursor == "0" {
            assert_eq!(left, 100);
            break;
        }
    }
    let encoding: String =
        redis::cmd("OBJECT").arg("ENCODING").arg(&key).query_async(&mut connection).await.unwrap();
    assert_eq!(encoding, "listpack");
    let life: i64 = redis::cmd("TTL").arg(&key).query_async(&mut connection).await.unwrap();
    assert!((60..=70).contains(&life), "{life}");
}
