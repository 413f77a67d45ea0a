//! Tidy on the repository itself.

use std::path::Path;

use xtask::tidy::{File, check_files, run};

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let findings: Vec<String> = run(&root).iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn a_folder_without_a_repository_is_a_finding_and_not_a_pass() {
    let findings = run(Path::new("/proc"));
    assert_eq!(findings.len(), 1);
    assert!(findings[0].advice.contains("git ls-files"), "{}", findings[0]);
}

#[test]
fn a_finding_reads_as_path_line_rule_and_advice() {
    let files = [File::new("crates/store/src/a.rs", "//! A.\n// TODO: b\n")];
    let findings: Vec<String> = check_files(&files).iter().map(ToString::to_string).collect();
    let expected = "crates/store/src/a.rs:2: open-ends: do it, or write `TODO(#n)` with the number of its issue.";
    assert!(findings.iter().any(|finding| finding == expected), "{findings:?}");
}

#[test]
fn every_check_on_files_is_run() {
    let source = "struct Info;\t\nfn set_status() {}\n#[ignore]\n#[test]\nfn test_a() {}\n// TODO\n// /home/ann/a\n\
                  const A: &str = \"SELECT now() FROM t\";\n// registry=http://mirror.example/\n";
    let files = [
        File::new("crates/control/src/a.rs", source.to_owned() + &"\n".repeat(500)),
        File::new("crates/store/migrations/0002_a.sql", "SELECT 1;\n"),
        File::new("docs/decisions/0002-a.md", ""),
    ];
    let mut rules: Vec<&str> = check_files(&files).iter().map(|finding| finding.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    let expected = [
        "crates",
        "decisions",
        "ignored-test",
        "machine-path",
        "migrations",
        "names",
        "open-ends",
        "opening",
        "registry",
        "single-writer",
        "size",
        "sql-clock",
        "sql-place",
        "test-name",
        "white-space",
    ];
    assert_eq!(rules, expected);
}
