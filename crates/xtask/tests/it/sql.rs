//! What counts as a write of a status, as a frozen clock and as a statement.

use xtask::tidy::sql::{frozen_clocks, functions, statement, status_writes, tokens};

fn writes(text: &str) -> Vec<usize> {
    status_writes(&tokens(1, text))
}

fn is_statement(text: &str) -> bool {
    statement(&tokens(1, text)).is_some()
}

#[test]
fn every_way_to_write_a_status_is_seen() {
    for text in [
        "UPDATE t SET status = $1 WHERE id = $2",
        "update t set status='released'",
        "UPDATE {} SET seq = seq + 1, status = $1",
        "UPDATE t SET \"status\" = $1",
        "UPDATE t SET note = coalesce(a, b), status = $1",
        "UPDATE t SET (seq, status) = ($1, $2)",
        "SET status = ",
        "INSERT INTO t (id, status) VALUES ($1, $2)",
        "insert into {table} as x (id, seq, status) select 1, 2, 3",
        "INSERT INTO t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET status = excluded.status",
        "WHEN NOT MATCHED THEN INSERT (id, status) VALUES (1, 2)",
        "BEGIN NEW.status := 'x'; END",
    ] {
        assert_eq!(writes(text), [1], "{text}");
    }
}

#[test]
fn a_write_is_seen_across_line_breaks_and_comments() {
    assert_eq!(writes("UPDATE t\n   SET -- the rest\n       seq = 1,\n       status\n = $1"), [2]);
    assert_eq!(writes("INSERT INTO t\n  (id,\n   status)\nVALUES ($1, $2)"), [1]);
}

#[test]
fn reading_a_status_or_declaring_one_is_no_write() {
    for text in [
        "UPDATE t SET seq = 1 WHERE status = 'active'",
        "UPDATE t SET seq = 1, n = n + 1 FROM u WHERE t.id = u.id AND status = 'active'",
        "UPDATE t SET note = (SELECT status FROM u WHERE status = 'a') WHERE id = 1",
        "UPDATE t SET old_status = status, status_since = $1",
        "SELECT status FROM t WHERE status = $1",
        "INSERT INTO log (id, from_status) SELECT id, status FROM t",
        "INSERT INTO t VALUES ('status')",
        "CREATE TABLE t (u uuid REFERENCES u ON DELETE SET NULL, status text CHECK (status = 'a'))",
        "ALTER TABLE t ALTER COLUMN status SET DEFAULT 'requested'",
        "BEFORE UPDATE OF status ON t",
        "IF NEW.status = OLD.status THEN RETURN NEW",
        "-- UPDATE t SET status = 'x'\nSELECT 1",
        "/* SET status = 1 */",
        "if a == set { status == b }",
    ] {
        assert!(writes(text).is_empty(), "{text}");
    }
}

#[test]
fn the_clock_of_the_transaction_is_seen() {
    for text in
        ["SELECT now()", "DEFAULT NOW ( )", "VALUES (CURRENT_TIMESTAMP)", "pg_catalog.now()"]
    {
        assert_eq!(frozen_clocks(&tokens(1, text)), [1], "{text}");
    }
}

#[test]
fn other_clocks_are_left_alone() {
    for text in [
        "clock_timestamp()",
        "Instant::now()",
        "known()",
        "SELECT now FROM t",
        "clock.now()",
        "-- now()",
    ] {
        assert!(frozen_clocks(&tokens(1, text)).is_empty(), "{text}");
    }
}

#[test]
fn statements_are_recognised_in_capitals_and_in_small_letters() {
    for text in [
        "SELECT id\n  FROM t",
        "SELECT 1 FROM ",
        "INSERT INTO t",
        "UPDATE t SET x = 1",
        "DELETE FROM t",
        "select id, name from t where id = $1",
        "select count(*) from t",
        "insert into t (id) values (1)",
        "update t set x = 1",
        "delete from t where id = 1",
        "WITH a AS (SELECT 1 FROM b) SELECT 2",
    ] {
        assert!(is_statement(text), "{text}");
    }
}

#[test]
fn prose_is_no_statement() {
    for text in [
        "select a node from the list of nodes",
        "Select a node, then take the rest from its neighbour.",
        "update the docs and set the version",
        "a row that you insert into the outbox is published once",
        "delete from here what you don't need",
        "updated: set",
        "From SELECT to UPDATE",
    ] {
        assert!(!is_statement(text), "{text}");
    }
}

#[test]
fn created_functions_are_named() {
    let found = functions(&tokens(1, "CREATE OR REPLACE\nFUNCTION refuse_write() RETURNS trigger"));
    assert_eq!(found, [(2, "refuse_write".to_owned())]);
}
