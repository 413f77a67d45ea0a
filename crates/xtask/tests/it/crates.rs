//! The line of crates.

use xtask::tidy::File;
use xtask::tidy::crates::{
    Dependency, LINE, Manifest, PICTURE, Purpose, check, line_is_drawn, manifests,
};

fn manifest(name: &str, dependencies: &[(&str, Purpose)]) -> Manifest {
    let dependency = |(name, purpose): &(&str, Purpose)| Dependency {
        name: (*name).to_owned(),
        purpose: *purpose,
        line: 1,
    };
    Manifest {
        path: format!("crates/{name}/Cargo.toml"),
        name: name.to_owned(),
        dependencies: dependencies.iter().map(dependency).collect(),
    }
}

fn refused(from: &str, to: &str, purpose: Purpose) -> bool {
    !check(&[manifest(from, &[(to, purpose)])]).is_empty()
}

#[test]
fn the_picture_and_the_list_are_the_same_line() {
    assert_eq!(PICTURE.lines().next(), Some(LINE.join(" → ").as_str()));
}

#[test]
fn a_crate_may_use_what_is_left_of_it() {
    for (from, to) in [
        ("domain", "lifecycle"),
        ("store", "domain"),
        ("server", "lifecycle"),
        ("agent", "wire"),
        ("berth", "agent"),
        ("berth", "server"),
        ("testkit", "server"),
        ("proofs", "testkit"),
        ("xtask", "examples"),
        ("examples", "lifecycle"),
    ] {
        assert!(!refused(from, to, Purpose::Use), "{from} uses {to}");
    }
}

#[test]
fn a_crate_may_not_use_what_is_right_of_it_or_beside_it() {
    for (from, to) in [
        ("domain", "wire"),
        ("store", "control"),
        ("agent", "store"),
        ("agent", "berth"),
        ("server", "agent"),
        ("store", "xtask"),
        ("store", "proofs"),
        ("examples", "domain"),
        ("examples", "testkit"),
    ] {
        assert!(refused(from, to, Purpose::Use), "{from} uses {to}");
        assert!(refused(from, to, Purpose::Test), "the tests of {from} use {to}");
    }
}

#[test]
fn only_tests_and_dev_crates_use_the_testkit() {
    assert!(refused("control", "testkit", Purpose::Use));
    assert!(refused("agent", "testkit", Purpose::Build));
    assert!(!refused("control", "testkit", Purpose::Test));
    assert!(!refused("agent", "testkit", Purpose::Test));
    assert!(!refused("bench", "testkit", Purpose::Use));
}

#[test]
fn a_crate_without_a_place_or_in_another_folder_is_found() {
    assert_eq!(check(&[manifest("billing", &[])]).len(), 1);
    let mut moved = manifest("store", &[]);
    moved.path = "crates/database/Cargo.toml".to_owned();
    assert_eq!(check(&[moved]).len(), 1);
    assert!(check(&[manifest("store", &[]), manifest("bench", &[])]).is_empty());
}

#[test]
fn pure_crates_know_no_library() {
    assert!(refused("lifecycle", "serde", Purpose::Use));
    assert!(refused("lifecycle", "proptest", Purpose::Test));
    assert!(refused("domain", "tokio", Purpose::Use));
    assert!(!refused("domain", "uuid", Purpose::Use));
    assert!(!refused("domain", "proptest", Purpose::Test));
}

#[test]
fn only_the_store_and_its_measuring_crates_know_the_database() {
    for from in ["control", "spine", "server", "examples", "berth"] {
        assert!(refused(from, "sqlx", Purpose::Use), "{from}");
        assert!(refused(from, "sqlx", Purpose::Test), "the tests of {from}");
    }
    for from in ["store", "testkit", "bench", "proofs", "xtask"] {
        assert!(!refused(from, "sqlx", Purpose::Use), "{from}");
    }
}

#[test]
fn libraries_have_errors_of_their_own() {
    for from in ["wire", "store", "spine", "control", "server", "agent"] {
        assert!(refused(from, "anyhow", Purpose::Use), "{from}");
        assert!(!refused(from, "anyhow", Purpose::Test), "the tests of {from}");
    }
    assert!(!refused("berth", "anyhow", Purpose::Use));
    assert!(!refused("xtask", "anyhow", Purpose::Use));
}

#[test]
fn manifests_are_read_from_the_metadata_of_cargo() {
    let json = r#"{"workspace_root": "/r", "packages": [{
        "name": "store", "manifest_path": "/r/crates/store/Cargo.toml",
        "dependencies": [{"name": "uuid", "kind": null}, {"name": "testkit", "kind": "dev"}]}]}"#;
    let text = "[dependencies]\nuuid.workspace = true\n\n[dev-dependencies]\ntestkit = {}\n";
    let read = manifests(json, &[File::new("crates/store/Cargo.toml", text)]).unwrap();
    let mut expected = manifest("store", &[("uuid", Purpose::Use), ("testkit", Purpose::Test)]);
    expected.dependencies[0].line = 2;
    expected.dependencies[1].line = 5;
    assert_eq!(read, [expected]);
    assert!(manifests("{}", &[]).is_err());
}

fn drawn(text: &str) -> Vec<usize> {
    let found = line_is_drawn(&[File::new("ARCHITECTURE.md", text)]);
    found.iter().map(|finding| finding.line).collect()
}

#[test]
fn the_drawn_line_is_compared_without_its_white_space() {
    let wide = PICTURE.replace(" → ", "  →  ").replace("─", "──");
    assert!(drawn(&format!("# A\n\n```sh\nmake\n```\n\n```text\n{wide}```\n")).is_empty());
}

#[test]
fn a_line_that_is_missing_or_drawn_otherwise_is_found() {
    assert_eq!(line_is_drawn(&[]).len(), 1);
    assert_eq!(drawn("# A\n\nlifecycle → domain\n"), [1]);
    let short = PICTURE.replace(" → spine", "");
    assert_eq!(drawn(&format!("# A\n\n```\n{short}```\n")), [4]);
}
