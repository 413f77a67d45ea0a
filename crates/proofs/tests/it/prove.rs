//! The program behind `make prove`, at the size of a test run.

use std::process::Command;

#[test]
fn the_program_proves_what_it_is_asked_for_and_says_so_line_by_line() {
    // The model has a test of its own, and takes longer than all of these.
    let proofs = ["walk", "mutation", "edges", "explore"];
    let mut program = Command::new(env!("CARGO_BIN_EXE_proofs"));
    let output = program.args(proofs).env("PROVE_SIZE", "small").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    for line in &lines {
        assert_eq!(line["ok"], true, "{line}");
    }
    for proof in proofs {
        assert!(lines.iter().any(|line| line["proof"] == proof), "no {proof}");
    }
}

#[test]
fn a_proof_that_nobody_knows_is_not_passed_over_in_silence() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_proofs"));
    assert!(!program.arg("wlak").output().unwrap().status.success());
}
