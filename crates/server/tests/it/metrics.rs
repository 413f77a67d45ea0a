//! What is measured: the table, the documents, the dashboard and the alarms say the same, and what waits is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use server::measures::{Kind, MEASURES, Measure, table};

use crate::api::{Api, told};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words in a text that look like metrics of ours. What Prometheus makes of a histogram is that histogram.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    let whole = |word: &str| {
        let known = |name: &str| MEASURES.iter().any(|measure| measure.name == name);
        let parts = ["_bucket", "_sum", "_count"].into_iter();
        let mut of = parts.filter_map(|part| word.strip_suffix(part)).filter(|name| known(name));
        of.next().unwrap_or(word).to_owned()
    };
    words.filter(|word| word.starts_with("berth_")).map(whole).collect()
}

fn in_table() -> BTreeSet<String> {
    MEASURES.iter().map(|measure| measure.name.to_owned()).collect()
}

#[test]
fn the_documents_have_the_table_that_the_code_has() {
    let documents = read("docs/metrics.md");
    assert!(documents.contains(&table()), "docs/metrics.md must have this table:\n{}", table());
    assert_eq!(named(&documents), in_table());
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("it is there").map(|entry| entry.expect("it is"))
    {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(std::fs::read_to_string(path).expect("it is text"));
        }
    }
}

/// The first words of every use of a macro that measures something.
fn measured_in(source: &str) -> impl Iterator<Item = &str> {
    ["counter", "gauge", "histogram"].into_iter().flat_map(|kind| {
        let uses = format!("metrics::{kind}!(");
        source
            .match_indices(&uses)
            .map(|(at, found)| &source[at + found.len()..])
            .collect::<Vec<_>>()
    })
}

#[test]
fn every_metric_that_a_crate_measures_is_in_the_table_and_the_other_way_round() {
    let mut measured = BTreeSet::new();
    for name in ["store", "spine", "control", "server", "engines", "agent", "berth", "wire"] {
        let mut texts = Vec::new();
        sources(&root().join("crates").join(name).join("src"), &mut texts);
        for used in texts.iter().flat_map(|text| measured_in(text)) {
            let name = used.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
            measured.insert(name.expect("a metric is named where it is measured").to_owned());
        }
    }
    assert_eq!(measured, in_table());
}

/// The lines of `/metrics`: of each, its name, its labels and its value.
fn lines(text: &str) -> Vec<(String, BTreeMap<String, String>, f64)> {
    let told = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    told.map(|line| {
        let (left, value) = line.rsplit_once(' ').expect("a value is behind a space");
        let (name, labels) = left.split_once('{').unwrap_or((left, "}"));
        let labels = labels.trim_end_matches('}').split("\",").filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (key, value) = pair.split_once("=\"").expect("a label has a value");
            (key.to_owned(), value.trim_end_matches('"').to_owned())
        };
        (name.to_owned(), labels.map(pair).collect(), value.parse().expect("a number"))
    })
    .collect()
}

fn is_as_in_the_table(text: &str) {
    for (name, labels, _) in lines(text) {
        let known = named(&name).into_iter().next().unwrap_or_default();
        let measure = MEASURES.iter().find(|measure| measure.name == known);
        let Measure { kind, labels: allowed, .. } =
            measure.unwrap_or_else(|| panic!("{name} is not in the table"));
        let said = format!("# TYPE {known} {}", kind.word());
        assert!(text.contains(&said), "{said}");
        let mut names: BTreeSet<&str> = labels.keys().map(String::as_str).collect();
        if *kind == Kind::Histogram {
            names.remove("le");
        }
        assert_eq!(names, allowed.iter().copied().collect(), "{name}");
    }
}

#[tokio::test]
async fn what_waits_is_measured_by_a_timer_and_told_as_the_table_says() {
    let api = Api::open().await;
    let measure = async || {
        let timers = &api.house.spine.timers;
        let timer = timers.iter().find(|timer| timer.name == "gauges").expect("a timer");
        timer.step().await.expect("it is measured");
        told(api.request("GET", "/metrics", None)).await.text
    };
    let value = |text: &str, name: &str, label: Option<(&str, &str)>| {
        let is = |labels: &BTreeMap<String, String>| {
            label.is_none_or(|(key, value)| labels.get(key).is_some_and(|told| told == value))
        };
        let found = lines(text).into_iter().find(|(told, labels, _)| told == name && is(labels));
        found.unwrap_or_else(|| panic!("no {name} {label:?} in {text}")).2
    };
    let made = api.send("POST", "/api/v1/allocations", &api.tenant, &api.wish(1)).await;
    assert_eq!(made.status.as_u16(), 201, "{made:?}");
    assert_eq!(api.get("/api/v1/allocations/nothing", &api.tenant).await.status.as_u16(), 400);
    let text = measure().await;
    assert_eq!(value(&text, "berth_workflow_runs", Some(("state", "open"))), 1.0, "begun with it");
    api.house.settle().await;
    // What a restart asks for comes over the bus.
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    let restart = format!("/api/v1/allocations/{id}/restart");
    let asked = api.send("POST", &restart, &api.tenant, &json!({})).await;
    assert_eq!(asked.status.as_u16(), 202, "{asked:?}");
    let text = measure().await;
    assert!(value(&text, "berth_outbox_waiting", None) >= 1.0);
    assert!(value(&text, "berth_outbox_lag_seconds", None) > 0.0);
    assert!(value(&text, "berth_http_refusals_total", Some(("code", "bad_request"))) >= 1.0);
    assert!(value(&text, "berth_pool_connections", Some(("state", "idle"))) >= 1.0);

    spine::relay::step(&api.house.ctx.store, &api.house.spine.subscriptions)
        .await
        .expect("it moves");
    let text = measure().await;
    assert_eq!(value(&text, "berth_outbox_waiting", None), 0.0);
    assert_eq!(value(&text, "berth_outbox_lag_seconds", None), 0.0);
    let provisioner = Some(("consumer", "provisioner"));
    assert_eq!(value(&text, "berth_queue_depth", provisioner), 1.0);
    assert!(value(&text, "berth_queue_age_seconds", provisioner) > 0.0);
    assert_eq!(value(&text, "berth_dead_letters", provisioner), 0.0);
    assert_eq!(value(&text, "berth_workflow_runs", Some(("state", "open"))), 0.0);

    api.house.settle().await;
    let text = measure().await;
    assert_eq!(value(&text, "berth_queue_depth", provisioner), 0.0);
    assert_eq!(value(&text, "berth_queue_age_seconds", provisioner), 0.0);
    assert_eq!(value(&text, "berth_workflow_lag_seconds", None), 0.0);
    for stage in ["queued", "running"] {
        let count = value(&text, "berth_node_task_seconds_count", Some(("stage", stage)));
        assert!(count >= 1.0, "{stage}");
    }
    is_as_in_the_table(&text);
    api.close().await;
}

/// Everything in a document that is text.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| texts(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[test]
fn the_dashboard_shows_what_is_exported_and_nothing_else() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/berth.json")).expect("JSON");
    let mut found = Vec::new();
    texts(&dashboard["panels"], &mut found);
    let shown = named(&found.join("\n"));
    let strange: Vec<String> = shown.difference(&in_table()).cloned().collect();
    assert!(strange.is_empty(), "nobody exports {strange:?}");
    assert!(shown.len() > 20, "{shown:?}");
    let panels = dashboard["panels"].as_array().expect("there are some");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("it has a number")), "{panel}");
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        let targets = panel["targets"].as_array();
        assert!(panel["type"] == "row" || targets.is_some_and(|all| !all.is_empty()), "{panel}");
    }
}

#[test]
fn every_alarm_goes_by_what_is_exported_and_has_its_place_in_the_guide() {
    let (rules, guide) = (read("deploy/prometheus/alerts.yml"), read("docs/howto/run-for-real.md"));
    let strange: Vec<String> = named(&rules).difference(&in_table()).cloned().collect();
    assert!(strange.is_empty(), "nobody exports {strange:?}");
    let alarms: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alarms.len() >= 10, "{alarms:?}");
    for alarm in alarms {
        assert!(
            guide.contains(&format!("**{alarm}**")),
            "the guide does not say what to do on {alarm}"
        );
    }
}
