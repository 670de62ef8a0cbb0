//! Brokers that want TLS and a password: `kafka.properties` is all it takes, and no password is ever told.

use headcount::{
    clock::SystemClock,
    config::kafka::{Kafka, Properties},
    doctor::{Verdict, examine},
    plays::{Recorded, in_kafka::topics},
};
use headcount_support::{Authority, OwnKafka};

use super::{play_ids, through_kafka};
use crate::world::{World, a_play, eventually, secs};

const PASSWORD: &str = "hunter2";

/// A broker behind TLS whose users are `owner`, who may do anything, and `guest`, who may do nothing.
async fn guarded(authority: &Authority) -> (OwnKafka, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let issued = authority.issue("127.0.0.1");
    let keys = [issued.key(), issued.certificate()].map(|file| std::fs::read_to_string(file).unwrap());
    let keys_file = folder.path().join("keys.pem");
    std::fs::write(&keys_file, keys.concat()).unwrap();
    let users = format!(
        "listener.name.plaintext.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required username=\"owner\" \
         password=\"{PASSWORD}\" user_owner=\"{PASSWORD}\" user_guest=\"{PASSWORD}\";"
    );
    let kafka = OwnKafka::start(
        1,
        &[
            // The listener keeps its name; what is spoken there is another thing.
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_SSL",
            "inter.broker.listener.name=PLAINTEXT",
            "sasl.enabled.mechanisms=PLAIN",
            "sasl.mechanism.inter.broker.protocol=PLAIN",
            &users,
            "ssl.keystore.type=PEM",
            &format!("ssl.keystore.location={}", keys_file.display()),
            "ssl.truststore.type=PEM",
            &format!("ssl.truststore.location={}", authority.file().display()),
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            // Who votes speaks in the clear here, and has no name.
            "super.users=User:owner;User:ANONYMOUS",
        ],
    )
    .await;
    (kafka, folder)
}

/// What `[kafka.properties]` holds for a user.
fn properties(authority: &Authority, user: &str, password: &str) -> Properties {
    let mut properties = Properties::default();
    let ca = authority.file();
    for (name, value) in [
        ("security.protocol", "SASL_SSL"),
        ("ssl.ca.location", ca.to_str().unwrap()),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", user),
        ("sasl.password", password),
    ] {
        properties.set(name, value);
    }
    properties
}

/// What the doctor has to say of Kafka, as one text, and the worst of it.
async fn examined(world: &World, kafka: &Kafka) -> (String, Verdict) {
    let mut config = world.config.clone();
    config.kafka = kafka.clone();
    let findings = examine(&config, SystemClock::start().as_ref()).await.findings;
    let of_kafka = findings.into_iter().filter(|finding| finding.check.starts_with("kafka"));
    let (told, verdicts): (Vec<_>, Vec<_>) =
        of_kafka.map(|finding| (format!("{}: {}", finding.check, finding.found), finding.verdict)).unzip();
    (told.join("\n"), verdicts.into_iter().max().expect("it looks at kafka"))
}

#[tokio::test]
async fn behind_tls_and_a_password_plays_are_taken_and_who_is_not_let_in_is_told_why_without_secrets() {
    let authority = Authority::new("Kafka's authority");
    let (kafka, _files) = guarded(&authority).await;
    let mut settings = World::redis().await.config;
    through_kafka(&mut settings, &kafka.addresses(), 1);
    settings.kafka.properties = properties(&authority, "owner", PASSWORD);
    topics::make(&settings.kafka).await.unwrap();
    let world = World::redis_with(|config| config.kafka = settings.kafka.clone()).await;
    assert_eq!(world.play("film", None, Some("p-1")).await, Recorded::Accepted);
    assert_eq!(play_ids(&world.config).await.len(), 1);

    let stranger = Authority::new("somebody");
    for (properties, reason) in [
        (properties(&authority, "owner", "hunter3"), "uthentication"),
        (properties(&stranger, "owner", PASSWORD), "certificate"),
        (Properties::default(), "no broker answers"),
    ] {
        let refused = Kafka { properties, ..settings.kafka.clone() };
        let ((told, verdict), made) = tokio::join!(examined(&world, &refused), topics::make(&refused));
        assert!(verdict == Verdict::Problem && told.contains(reason) && !told.contains("hunter"), "{told}");
        let error = made.unwrap_err().to_string();
        assert!(error.contains(reason) && !error.contains("hunter"), "{error}");
    }

    // Let in, and allowed nothing: what can't be looked at is unknown, and plays are refused.
    let guest = Kafka { properties: properties(&authority, "guest", PASSWORD), ..settings.kafka.clone() };
    let (told, verdict) = examined(&world, &guest).await;
    assert!(verdict == Verdict::Unknown && told.contains("uthoriz"), "{told}");
    let mut config = world.config.clone();
    config.kafka = Kafka { deadline: secs(1), ..guest };
    let lifecycle = headcount::lifecycle::Lifecycle::new(secs(0), secs(20));
    let stores = headcount::backend::open(&config, &lifecycle, world.clock.clone()).await.unwrap();
    eventually("it is refused", async || {
        stores.plays.record(a_play("film", None, Some("p-2"))).await.is_err_and(|error| error.is_transient())
    })
    .await;
    lifecycle.stop();
    lifecycle.run().await;
    assert_eq!(play_ids(&world.config).await.len(), 1);
}
