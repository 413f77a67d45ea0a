//! Messages of every version of the node protocol that is understood, as they were when the version was made. A file here is
//! never changed: whoever wants to say something else makes another version, and keeps the one before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lifecycle::Code as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use wire::node::{
    Acknowledged, Certificate, Enrolment, Envelope, Heartbeat, HeartbeatAnswer, PROTOCOL,
    PROTOCOL_OLDEST, PhaseBatch, Renewal, SignedTask, TaskKind, TaskResult, Work, is_understood,
};

/// Reads a message as what it is, and says it again.
type Again = fn(&str) -> serde_json::Result<Value>;

fn again<T: DeserializeOwned + Serialize>(text: &str) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_str::<T>(text)?)
}

/// An envelope is one only with parameters that its kind takes.
fn order(text: &str) -> serde_json::Result<Value> {
    let envelope: Envelope = serde_json::from_str(text)?;
    let kind = TaskKind::parse(&envelope.kind).expect("a kind");
    let params = Work::read(kind, envelope.params.clone())?.params()?;
    serde_json::to_value(Envelope { params, ..envelope })
}

const MESSAGES: [(&str, Again); 18] = [
    ("acknowledged", again::<Acknowledged>),
    ("certificate", again::<Certificate>),
    ("enrolment", again::<Enrolment>),
    ("envelope_node_reboot", order),
    ("envelope_slice_provision", order),
    ("envelope_slice_release", order),
    ("envelope_slice_restart", order),
    ("envelope_user_deprovision", order),
    ("envelope_user_provision", order),
    ("heartbeat", again::<Heartbeat>),
    ("heartbeat_answer", again::<HeartbeatAnswer>),
    ("phases", again::<PhaseBatch>),
    ("renewal", again::<Renewal>),
    ("result_cleaned", again::<TaskResult>),
    ("result_failed", again::<TaskResult>),
    ("result_provisioned", again::<TaskResult>),
    ("result_restarted", again::<TaskResult>),
    ("task", again::<SignedTask>),
];

fn place(version: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/protocol-{version}"))
}

#[test]
fn every_message_of_every_version_that_is_understood_is_read_and_nothing_of_it_is_lost() {
    for version in PROTOCOL_OLDEST..=PROTOCOL {
        for (name, say_again) in MESSAGES {
            let path = place(version).join(format!("{name}.json"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{name} is kept"));
            let kept: Value = serde_json::from_str(&text).expect("it is JSON");
            let said =
                say_again(&text).unwrap_or_else(|error| panic!("{version}, {name}: {error}"));
            assert_eq!(said, kept, "{version}, {name}");
        }
    }
}

#[test]
fn a_version_has_every_message_and_one_that_is_not_understood_is_not_kept() {
    let names: BTreeSet<String> = MESSAGES.iter().map(|(name, _)| format!("{name}.json")).collect();
    for version in PROTOCOL_OLDEST..=PROTOCOL {
        let files = std::fs::read_dir(place(version)).expect("a version is kept").flatten();
        let kept = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        assert_eq!(names, kept, "{version}");
        assert!(is_understood(version));
    }
    for version in [PROTOCOL_OLDEST - 1, PROTOCOL + 1] {
        assert!(!is_understood(version) && !place(version).exists(), "{version}");
    }
    assert_eq!(PROTOCOL - PROTOCOL_OLDEST, 1, "one version back is promised");
}

#[test]
fn the_kinds_of_work_each_have_a_golden_order() {
    let kinds: BTreeSet<&str> = TaskKind::ALL.iter().map(|kind| kind.code()).collect();
    let ordered = MESSAGES.iter().filter(|(name, _)| name.starts_with("envelope_"));
    let ordered: BTreeSet<String> = ordered
        .map(|(name, _)| {
            let text = std::fs::read_to_string(place(PROTOCOL).join(format!("{name}.json")));
            let envelope: Envelope = serde_json::from_str(&text.expect("it is kept")).expect("one");
            envelope.kind
        })
        .collect();
    assert_eq!(ordered.iter().map(String::as_str).collect::<BTreeSet<_>>(), kinds);
}
