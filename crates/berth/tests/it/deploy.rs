//! What `deploy/` says of the configuration is what the binary knows of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::berth::Home;
use crate::whole::json;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(deploy().join(path)).expect("it is there")
}

/// What the binary knows: its keys, and their variables.
fn known() -> (BTreeSet<String>, BTreeSet<String>) {
    let ran = Home::new().run(&["config", "keys", "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let all = json(&ran);
    let all = all.as_array().expect("a list");
    let of =
        |name: &str| all.iter().map(|key| key[name].as_str().expect("text").to_owned()).collect();
    (of("key"), of("variable"))
}

#[test]
fn every_key_of_the_example_is_one_that_the_binary_knows() {
    let (keys, _) = known();
    let example: toml::Table = read("config/berth.toml").parse().expect("it is TOML");
    for (section, values) in &example {
        for name in values.as_table().expect("everything is in a section").keys() {
            assert!(keys.contains(&format!("{section}.{name}")), "there is no {section}.{name}");
        }
    }
}

#[test]
fn every_variable_that_is_set_for_a_process_is_one_that_the_binary_knows() {
    let (_, mut variables) = known();
    variables.insert("BERTH_SERVER_CONFIG".to_owned());
    for path in [
        "config/api.env",
        "config/gateway.env",
        "config/worker.env",
        "systemd/berth@.service",
        "systemd/berth-migrate.service",
        "container/Containerfile",
    ] {
        let text = read(path);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let words = lines.flat_map(|line| line.split([' ', '=']));
        for variable in words.filter(|word| word.starts_with("BERTH_")) {
            assert!(variables.contains(variable), "{path}: nobody knows {variable}");
        }
    }
}
