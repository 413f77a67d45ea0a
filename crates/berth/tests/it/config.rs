//! `berth config check` from outside: all of what is wrong, at once, and nothing secret.

use serde_json::Value;
use testkit::{Database, NatsServer, TemporalServer};

use crate::berth::{Home, ran};
use crate::process::free;
use crate::whole::json;

fn check(home: &Home, file: &str, variables: &[(&str, &str)]) -> crate::berth::Ran {
    let path = home.path().join("berth.toml");
    std::fs::write(&path, file).expect("it is written");
    let path = path.display().to_string();
    let mut command = home.command(&["config", "check", "--json", "--config", &path]);
    for (name, value) in variables {
        command.env(name, value);
    }
    ran(command.output().expect("the binary runs"))
}

fn tried<'a>(checked: &'a Value, what: &str) -> &'a Value {
    let tried = checked["tried"].as_array().expect("a list");
    tried.iter().find(|each| each["what"] == what).expect("it was tried")
}

#[tokio::test]
async fn a_configuration_that_works_is_shown_with_where_it_is_from_and_without_secrets() {
    let (database, nats, temporal) =
        (Database::new().await, NatsServer::start().await, TemporalServer::start().await);
    let home = Home::new();
    let file = format!(
        "roles = [\"api\", \"gateway\", \"worker\"]\n[listen]\napi = \"{}\"\ngateway = \"{}\"\n\
         [bus]\nengine = \"nats\"\nservers = [\"{}\"]\n[workflows]\nengine = \"temporal\"\naddress = \"{}\"\n",
        free(),
        free(),
        nats.url(),
        temporal.url(),
    );
    let secret = home.path().join("secret");
    std::fs::write(&secret, database.url().replace("berth@", "berth:hunter2@"))
        .expect("it is written");
    let secret = secret.display().to_string();
    let checked =
        check(&home, &file, &[("BERTH_DATABASE_URL_FILE", &secret), ("BERTH_LOG_FORMAT", "text")]);
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    assert!(!format!("{}{}", checked.out, checked.err).contains("hunter2"));
    let checked = json(&checked);
    assert_eq!(checked["ok"], true);
    assert_eq!(tried(&checked, "bus")["says"], "NATS answers, and has JetStream");
    let value = |key: &str| {
        let values = checked["values"].as_array().expect("a list");
        let found = values.iter().find(|each| each["key"] == key).expect("it is there");
        (found["value"].clone(), found["from"].clone())
    };
    assert_eq!(value("log.format"), ("text".into(), "BERTH_LOG_FORMAT".into()));
    assert_eq!(value("bus.engine"), ("nats".into(), "file".into()));
    assert_eq!(value("bus.replicas"), ("1".into(), "default".into()));
    database.remove().await;
}

#[test]
fn every_obstacle_is_found_at_once() {
    let home = Home::new();
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = held.local_addr().expect("it has one");
    let nobody = free();
    let file = format!(
        "[database]\nurl = \"postgres://berth:hunter2@{nobody}/berth\"\n[listen]\napi = \"{taken}\"\ngateway = \"{}\"\n\
         [bus]\nengine = \"nats\"\nservers = \"nats://berth:hunter2@{nobody}\"\n\
         [workflows]\nengine = \"temporal\"\naddress = \"http://{nobody}\"\n",
        free(),
    );
    let checked = check(&home, &file, &[]);
    assert_eq!(checked.code, 1, "{}{}", checked.out, checked.err);
    assert!(!format!("{}{}", checked.out, checked.err).contains("hunter2"), "{}", checked.out);
    let told = json(&checked);
    for what in ["database", "bus", "workflows", "addresses"] {
        assert_eq!(tried(&told, what)["ok"], false, "{what}: {told}");
        assert!(checked.err.contains(what), "{}", checked.err);
    }
    // What can't be meant is said before anything is tried.
    let checked = check(&home, "[bsu]\nengine = \"nats\"", &[]);
    assert_eq!(checked.code, 2);
    assert!(checked.err.contains("the nearest is bus.engine"), "{}", checked.err);
    assert!(checked.err.contains("BERTH_DATABASE_URL"), "{}", checked.err);
}
