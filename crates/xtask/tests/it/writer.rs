//! Where SQL may stand and who may write a status.

use xtask::tidy::writer::{BEHIND, ON_PURPOSE, single_writer, sql_clock, sql_place};

use super::lines_found;

const WRITE: &str = "fn f() {\n    query(\"UPDATE t SET status = $1\");\n}\n";

#[test]
fn a_status_written_outside_the_writer_is_found() {
    for path in
        ["crates/store/src/claims.rs", "crates/control/tests/it/a.rs", "crates/testkit/src/lib.rs"]
    {
        assert_eq!(lines_found(single_writer, path, WRITE), [2], "{path}");
    }
    let migration = "-- Why.\nUPDATE t\n   SET status = 'x';\n";
    assert_eq!(lines_found(single_writer, "crates/store/migrations/0002_a.sql", migration), [3]);
}

#[test]
fn the_writer_and_the_excepted_places_may_write() {
    for path in [
        "crates/store/src/lifecycle.rs",
        "crates/store/src/lifecycle/born.rs",
        "crates/examples/src/sqlite.rs",
        "crates/bench/src/floor.rs",
        "docs/howto/read.md",
    ] {
        assert!(lines_found(single_writer, path, WRITE).is_empty(), "{path}");
    }
}

#[test]
fn a_write_in_a_comment_is_no_write() {
    let text = "// UPDATE t SET status = 1\n/// \"UPDATE t SET status = 1\"\nfn f() {}\n";
    assert!(lines_found(single_writer, "crates/store/src/claims.rs", text).is_empty());
}

#[test]
fn a_test_may_excuse_a_write_on_its_line_or_the_line_above() {
    let above = format!("// {ON_PURPOSE}\nquery(\"UPDATE t\n SET status = $1\");\n");
    let beside = format!("query(\"UPDATE t SET status = $1\"); // {ON_PURPOSE}\n");
    let far = format!("// {ON_PURPOSE}\n\nquery(\"UPDATE t SET status = $1\");\n");
    let path = "crates/store/tests/it/trigger.rs";
    assert!(lines_found(single_writer, path, &above).is_empty());
    assert!(lines_found(single_writer, path, &beside).is_empty());
    assert_eq!(lines_found(single_writer, path, &far), [3]);
}

#[test]
fn a_test_may_go_behind_the_stores_back_if_it_says_so_and_the_product_may_not() {
    let text = format!("// {BEHIND}\nquery(\"SELECT a FROM t\");\n");
    assert!(lines_found(sql_place, "crates/control/tests/it/a.rs", &text).is_empty());
    assert_eq!(lines_found(sql_place, "crates/control/src/a.rs", &text), [2]);
    let silent = "query(\"SELECT a FROM t\");\n";
    assert_eq!(lines_found(sql_place, "crates/control/tests/it/a.rs", silent), [1]);
}

#[test]
fn the_product_may_not_excuse_a_write() {
    let text = format!("// {ON_PURPOSE}\nquery(\"UPDATE t SET status = $1\");\n");
    assert_eq!(lines_found(single_writer, "crates/store/src/claims.rs", &text), [2]);
}

#[test]
fn a_function_that_sets_a_status_is_found_by_its_name() {
    let path = "crates/control/src/node.rs";
    let text = "fn set_status() {}\nfn set_node_status() {}\nfn update_status() {}\n";
    assert_eq!(lines_found(single_writer, path, text), [1, 2, 3]);
    let sql = "-- Why.\nCREATE FUNCTION set_status() RETURNS void;\n";
    assert_eq!(lines_found(single_writer, "crates/store/migrations/0001_a.sql", sql), [2]);
}

#[test]
fn functions_that_read_a_status_are_left_alone() {
    let text =
        "fn status() {}\nfn update_status_page() {}\nfn offset_status_of() {}\n// fn set_status\n";
    assert!(lines_found(single_writer, "crates/control/src/node.rs", text).is_empty());
}

#[test]
fn a_statement_outside_store_is_found() {
    let text = "\nconst Q: &str = r#\"\n  SELECT id\n    FROM t\"#;\n";
    assert_eq!(lines_found(sql_place, "crates/control/src/node.rs", text), [3]);
}

#[test]
fn statements_in_store_and_in_dev_crates_and_prose_anywhere_are_left_alone() {
    let text = "const Q: &str = \"SELECT id FROM t\";\n";
    for name in ["store", "testkit", "bench", "proofs", "examples", "xtask"] {
        assert!(
            lines_found(sql_place, &format!("crates/{name}/src/a.rs"), text).is_empty(),
            "{name}"
        );
    }
    let prose = "// SELECT id FROM t\nlet s = \"select one from the list\";\n";
    assert!(lines_found(sql_place, "crates/control/src/node.rs", prose).is_empty());
}

#[test]
fn the_clock_of_the_transaction_is_found_in_sql() {
    let migration = "-- now() is not meant here.\nCREATE TABLE t (at timestamptz DEFAULT now());\n";
    assert_eq!(lines_found(sql_clock, "crates/store/migrations/0001_a.sql", migration), [2]);
    let rust = "let q = \"SELECT id\n  FROM t\n WHERE at < now()\";\n";
    assert_eq!(lines_found(sql_clock, "crates/store/src/outbox.rs", rust), [3]);
}

#[test]
fn clocks_of_rust_and_the_clock_that_runs_are_left_alone() {
    let rust = "let a = Instant::now();\nlet b = clock.now();\nlet q = \"SELECT clock_timestamp()\";\n\
                let s = \"call now() again\";\n";
    assert!(lines_found(sql_clock, "crates/store/src/outbox.rs", rust).is_empty());
    let sqlite = "let q = \"INSERT INTO t (at) VALUES (CURRENT_TIMESTAMP)\";\n";
    assert!(lines_found(sql_clock, "crates/examples/src/sqlite.rs", sqlite).is_empty());
}
