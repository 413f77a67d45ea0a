//! The flow of facts is complete: what is heard is published, what is published is in the catalogue.

use std::path::Path;

use control::documents::{self, fact_schema, published_by};
use control::doors::{self, subscriptions, timers, workflows};
use lifecycle::Code as _;
use testkit::House;
use wire::bus::{Fact, Subject};

#[test]
fn every_subject_that_a_rule_publishes_is_in_the_catalogue_and_the_other_way_round() {
    for table in domain::machines::tables() {
        let published = table.events.iter().flat_map(|event| &event.publishes);
        for topic in published.chain(table.born) {
            assert!(
                Subject::parse(topic).is_some(),
                "{}: {topic} is not in the catalogue",
                table.name
            );
        }
    }
    for subject in Subject::ALL {
        assert!(!published_by(*subject).is_empty(), "nobody publishes {subject}");
    }
}

#[test]
fn the_documents_of_the_flow_are_fresh() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated");
    for (name, text) in [("flow.md", documents::flow()), ("asyncapi.json", documents::asyncapi())] {
        let place = folder.join(name);
        if std::env::var_os("BERTH_WRITE_DOCUMENTS").is_some() {
            std::fs::write(&place, &text).expect("it can be written");
        }
        let committed = std::fs::read_to_string(&place).unwrap_or_default();
        assert!(committed == text, "docs/generated/{name} is stale: run `cargo xtask gen`");
    }
}

#[test]
fn a_consumer_has_one_name_and_hears_each_subject_once() {
    let names: Vec<&str> = subscriptions::TABLE.iter().map(|entry| entry.consumer).collect();
    let mut distinct = names.clone();
    distinct.dedup();
    assert_eq!(names, distinct);
    assert!(!names.contains(&"relay"), "the relay keeps its dead letters under this name");
    for entry in subscriptions::TABLE {
        let mut subjects = entry.subjects.to_vec();
        subjects.sort_unstable();
        subjects.dedup();
        assert_eq!(subjects.len(), entry.subjects.len(), "{}", entry.consumer);
    }
}

#[tokio::test]
async fn workflows_and_timers_have_names_of_their_own() {
    let house = House::open().await;
    let mut names: Vec<&str> = workflows::table(&house.ctx).iter().map(|row| row.name).collect();
    names.extend(timers::table(&house.ctx).iter().map(|row| row.name));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    house.close().await;
}

/// A message as the store writes it is what the catalogue says it is.
#[tokio::test]
async fn a_message_in_the_outbox_is_a_fact() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0; 2]).await;
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    let payload = house.messages(id).await.remove(0);
    let fact: Fact = serde_json::from_value(payload).expect("a fact");
    assert_eq!((fact.id, fact.seq, fact.to.as_str()), (id, 1, "requested"));
    let schema = fact_schema();
    let described: Vec<&String> = schema["properties"].as_object().expect("it is").keys().collect();
    let written = serde_json::to_value(&fact).expect("it can be");
    let mut keys: Vec<&String> = written.as_object().expect("it is").keys().collect();
    keys.sort();
    let mut described = described;
    described.sort();
    assert_eq!(keys, described);
    house.close().await;
}

#[tokio::test]
async fn what_a_role_of_its_own_runs_is_there() {
    let house = House::open().await;
    for name in doors::BILLING.iter().chain(doors::NOTIFIER) {
        let consumes = subscriptions::consumers().any(|consumer| consumer == *name);
        let runs = house.spine.timers.iter().any(|timer| timer.name == *name);
        assert!(consumes || runs, "there is no {name}");
    }
    house.close().await;
}
