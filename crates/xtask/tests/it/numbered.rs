//! Series of numbered files.

use xtask::tidy::numbered::{decisions, migrations};
use xtask::tidy::{File, Finding};

fn paths_found(check: fn(&[File]) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<File> = files.iter().map(|(path, text)| File::new(*path, *text)).collect();
    check(&files).into_iter().map(|finding| finding.path).collect()
}

#[test]
fn migrations_in_order_are_clean() {
    let files = [
        ("crates/store/migrations/0002_outbox.sql", "-- Why.\n"),
        ("crates/store/migrations/0001_first_tables.sql", "-- Why.\nSELECT 1;\n"),
        ("crates/store/src/outbox.rs", ""),
    ];
    assert!(paths_found(migrations, &files).is_empty());
}

#[test]
fn a_gap_a_repeat_a_bad_name_and_a_silent_migration_are_found() {
    let files = [
        ("crates/store/migrations/0001_a.sql", "SELECT 1;\n"),
        ("crates/store/migrations/0003_c.sql", "-- Why.\n"),
        ("crates/store/migrations/0003_d.sql", "-- Why.\n"),
        ("crates/store/migrations/4_e.sql", "-- Why.\n"),
        ("crates/store/migrations/0005_E.sql", "-- Why.\n"),
    ];
    let mut found = paths_found(migrations, &files);
    found.sort();
    let mut expected = files.map(|(path, _)| path);
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn decisions_in_order_are_clean() {
    let files =
        [("docs/decisions/0001-line-of-crates.md", ""), ("docs/decisions/0002-one-writer.md", "")];
    assert!(paths_found(decisions, &files).is_empty());
}

#[test]
fn decisions_out_of_order_are_found() {
    let files = [
        ("docs/decisions/0002-b.md", ""),
        ("docs/decisions/0002-c.md", ""),
        ("docs/decisions/0003_d.md", ""),
    ];
    assert_eq!(
        paths_found(decisions, &files),
        ["docs/decisions/0003_d.md", "docs/decisions/0002-b.md", "docs/decisions/0002-c.md"]
    );
}
