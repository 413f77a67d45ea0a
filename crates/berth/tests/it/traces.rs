//! One trace through the whole product: a collector, the real binary, one allocation and what is told of it.

use std::collections::BTreeSet;

use serde_json::Value;
use testkit::Database;

use crate::collector::{CREATING, Calling, Collector, RELEASING, Span};
use crate::whole::{Installation, create, json};

/// Of a trace, the spans that hang neither on another of it nor on the caller.
pub(crate) fn orphans<'s>(spans: &'s [Span], calling: &Calling) -> Vec<&'s Span> {
    let known: BTreeSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
    let hangs = |parent: &str| parent == calling.span || known.contains(parent);
    spans.iter().filter(|span| !hangs(&span.parent)).collect()
}

fn hangs_together(spans: &[Span], calling: &Calling) {
    let orphans = orphans(spans, calling);
    assert!(orphans.is_empty(), "orphans: {orphans:?}");
}

pub(crate) fn has(spans: &[Span], names: &[&str]) {
    let there: BTreeSet<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    for name in names {
        assert!(there.contains(name), "{name} is not in {there:#?}");
    }
}

fn note<'s>(spans: &'s [Span], name: &str, key: &str) -> &'s str {
    let span = spans.iter().find(|span| span.name == name).expect("it is there");
    span.attributes.get(key).map_or("", String::as_str)
}

#[tokio::test]
async fn one_trace_leads_from_the_request_to_the_node_and_back() {
    let database = Database::new().await;
    let collector = Collector::start();
    let whole = Installation::new(database.url());
    let up = whole.up_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)]);
    assert_eq!(up.code, 0, "{}{}", up.out, up.err);
    let made = json(&CREATING.ok(&whole, &create("first")));
    let id = made["id"].as_str().expect("it has one");
    RELEASING.ok(&whole, &["alloc", "release", "first", "--yes", "--wait"]);
    assert_eq!(whole.down().code, 0, "whoever ends tells what is left to tell");

    let created = collector.of_trace(CREATING.trace);
    has(
        &created,
        &[
            "POST /api/v1/allocations",
            "provision: started",
            "dispatch: slice.vm_provision",
            "agent: slice.vm_provision",
            "phase: image_prepared",
            "phase: seed_generated",
            "phase: domain_defined",
            "phase: vm_started",
            "phase: ssh_reachable",
            "phase: driver_probe",
            "POST /agent/v1/tasks/{id}/result",
            "result: slice.vm_provision",
            "provision: task_finished",
            "relay: provisioning.active",
            "notifier: provisioning.active",
        ],
    );
    hangs_together(&created, &CREATING);
    for name in ["POST /api/v1/allocations", "provision: started", "agent: slice.vm_provision"] {
        assert_eq!(note(&created, name, "allocation_id"), id, "{name}");
    }
    assert!(note(&created, "provision: started", "run").starts_with("provisioning-"));
    let task = note(&created, "agent: slice.vm_provision", "task_id");
    for name in ["dispatch: slice.vm_provision", "phase: vm_started", "provision: started"] {
        assert_eq!(note(&created, name, "task_id"), task, "{name}");
    }

    let released = collector.of_trace(RELEASING.trace);
    has(
        &released,
        &[
            "relay: provisioning.releasing.requested",
            "release: started",
            "dispatch: slice.vm_release",
            "agent: slice.vm_release",
            "phase: wiped",
            "result: slice.vm_release",
            "release: task_finished",
        ],
    );
    hangs_together(&released, &RELEASING);
    tells_no_secret(&collector.all(), &whole);
    logs_the_same_ids(&whole, &created);
    database.remove().await;
}

/// Asks again and again until it is so.
fn until(whole: &Installation, words: &[&str], is_so: impl Fn(&Value) -> bool) {
    let said = (0..400).map(|_| json(&whole.ok(words))).find(|said| is_so(said));
    assert!(said.is_some(), "it never was so: {words:?}");
}

#[tokio::test]
async fn a_trace_goes_on_in_the_process_that_comes_after_a_death() {
    let database = Database::new().await;
    let collector = Collector::start();
    let whole = Installation::new(database.url());
    let folder = whole.folder();
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str())];
    assert_eq!(whole.up_with(&variables).code, 0);
    whole.ok(&["sim", "fault", "--fault", "hang", "--phase", "vm_started", "--data", &folder]);
    let create = create("first");
    let not_waiting: Vec<&str> = create.into_iter().filter(|word| *word != "--wait").collect();
    CREATING.ok(&whole, &not_waiting);
    until(&whole, &["alloc", "timeline", "first", "--json"], |timeline| {
        timeline.to_string().contains("vm_started")
    });
    let first = whole.process();
    let killed = std::process::Command::new("kill").args(["-9", &first]).status();
    assert!(killed.expect("kill runs").success());
    assert_eq!(whole.down().code, 0, "this waits until it is gone");
    whole.ok(&["sim", "clear", "--data", &folder]);
    assert_eq!(whole.up_with(&variables).code, 0);
    until(&whole, &["alloc", "show", "first", "--json"], |shown| shown["status"] == "active");
    assert_eq!(whole.down().code, 0);

    let spans = collector.of_trace(CREATING.trace);
    let after: Vec<Span> = spans.into_iter().filter(|span| span.process != first).collect();
    has(&after, &["result: slice.vm_provision", "provision: task_finished"]);
    database.remove().await;
}

/// Spans have ids and words of ours, and nothing that anybody brought.
fn tells_no_secret(spans: &[Span], whole: &Installation) {
    let config = std::fs::read_to_string(whole.home.config()).expect("there is one");
    let secrets: Vec<&str> = config.split('"').filter(|word| word.starts_with("berth_")).collect();
    assert!(!secrets.is_empty(), "there are tokens to look for");
    for span in spans {
        for (key, value) in &span.attributes {
            assert!(!secrets.iter().any(|secret| value.contains(secret)), "{}: {key}", span.name);
            assert!(!value.contains("ssh-ed") && !value.contains("BEGIN"), "{}: {key}", span.name);
            assert!(value.len() <= 128, "{}: {key} is {value}", span.name);
        }
    }
}

/// A line that was written in a span names it.
fn logs_the_same_ids(whole: &Installation, spans: &[Span]) {
    let path = std::path::Path::new(&whole.folder()).join("berth.log");
    let log = std::fs::read_to_string(path).expect("there is one");
    // What is meant for people when it ends is there, too.
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> =
        lines.map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    let of_trace: Vec<&Value> =
        lines.iter().filter(|line| line["trace_id"] == spans[0].trace.as_str()).collect();
    assert!(of_trace.len() > 3, "{of_trace:#?}");
    for line in of_trace {
        assert!(spans.iter().any(|span| line["span_id"] == span.id.as_str()), "{line}");
    }
}
