//! Where SQL may stand, who may write a status, and which clock SQL may read.

use super::rust::Literal;
use super::sql::{self, Token};
use super::{File, Finding};

/// The comment that excuses a test which proves that the database refuses a write.
pub const ON_PURPOSE: &str = "tidy: a forbidden write, on purpose";

/// The comment that excuses all statements of a test which goes behind the store's back: to tamper, or to look.
pub const BEHIND: &str = "tidy: statements behind the store's back, on purpose";

/// The crates that may hold SQL.
const SQL_CRATES: [&str; 7] =
    ["store", "testkit", "bench", "proofs", "simulation", "examples", "xtask"];

/// Places outside the writer that may write a status, and why.
const OTHER_WRITERS: [(&str, &str); 4] = [
    ("crates/examples/", "brings its own store, with a writer of its own"),
    ("crates/bench/", "measures the bare statement below the writer"),
    ("crates/testkit/src/money.rs", "makes crowds of tenants, and what somebody did by hand"),
    ("crates/simulation/src/ledger.rs", "makes the records that are to be charged"),
];

/// All checks of this file.
pub fn check(file: &File) -> Vec<Finding> {
    [single_writer, sql_place, sql_clock].iter().flat_map(|check| check(file)).collect()
}

/// A piece of SQL: a whole file, or one string literal.
struct Piece {
    first: usize,
    tokens: Vec<Token>,
}

fn pieces(file: &File) -> Vec<Piece> {
    if let Some(rust) = &file.rust {
        let piece = |literal: &Literal| Piece {
            first: literal.line,
            tokens: sql::tokens(literal.line, &literal.text),
        };
        return rust.strings.iter().map(piece).collect();
    }
    if file.path.ends_with(".sql") {
        return vec![Piece { first: usize::MAX, tokens: sql::tokens(1, &file.text) }];
    }
    Vec::new()
}

/// Only the writer writes a status, whether by a statement or by a function that says so in its name.
pub fn single_writer(file: &File) -> Vec<Finding> {
    const RULE: &str = "single-writer";
    let is_writer = file.path == "crates/store/src/lifecycle.rs"
        || file.path.starts_with("crates/store/src/lifecycle/")
        || OTHER_WRITERS.iter().any(|(place, _)| file.path.starts_with(place));
    if file.crate_name().is_none() || is_writer || file.quotes_the_forbidden() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for piece in pieces(file) {
        for line in sql::status_writes(&piece.tokens) {
            if !on_purpose(file, piece.first.min(line), line) {
                let advice = "add an event to the machine and report it through `store::lifecycle::apply`: nothing else writes a status.";
                findings.push(Finding::new(RULE, &file.path, line, advice));
            }
        }
    }
    for (line, name) in functions(file) {
        if name == "update_status" || (name.starts_with("set_") && name.ends_with("status")) {
            let advice =
                format!("remove `{name}`: report an event, and let the rules choose the status.");
            findings.push(Finding::new(RULE, &file.path, line, advice));
        }
    }
    findings
}

/// Whether a test excuses the write, on the line above the literal or anywhere down to the statement.
fn on_purpose(file: &File, first: usize, last: usize) -> bool {
    let may_excuse = file.is_test() || file.crate_name() == Some("proofs");
    let (skip, take) = (first.saturating_sub(2), last + 2 - first.max(2));
    may_excuse && file.text.lines().skip(skip).take(take).any(|line| line.contains(ON_PURPOSE))
}

/// The functions that a file declares, in Rust or in SQL.
fn functions(file: &File) -> Vec<(usize, String)> {
    if let Some(rust) = &file.rust {
        let words = rust.words();
        let declared = words.windows(2).filter(|pair| pair[0].1 == "fn");
        return declared.map(|pair| (pair[1].0, pair[1].1.to_owned())).collect();
    }
    pieces(file).iter().flat_map(|piece| sql::functions(&piece.tokens)).collect()
}

/// Statements stand in `store`, and in the crates that only developers run.
pub fn sql_place(file: &File) -> Vec<Finding> {
    let Some(name) = file.crate_name() else {
        return Vec::new();
    };
    let behind = || file.text.lines().any(|line| line.trim() == format!("// {BEHIND}"));
    if SQL_CRATES.contains(&name) || (file.is_test() && behind()) {
        return Vec::new();
    }
    let statement = |piece: Piece| {
        let line = sql::statement(&piece.tokens)?;
        let advice = "move the statement to the module of its noun in `store` and call that.";
        Some(Finding::new("sql-place", &file.path, line, advice))
    };
    pieces(file).into_iter().filter_map(statement).collect()
}

/// `now()` is the time at which the transaction began; what happened in it happened later.
pub fn sql_clock(file: &File) -> Vec<Finding> {
    // SQLite, which the examples use, has no `clock_timestamp()`.
    if file.crate_name() == Some("examples") || file.quotes_the_forbidden() {
        return Vec::new();
    }
    let is_sql = |piece: &Piece| file.rust.is_none() || sql::looks_like_sql(&piece.tokens);
    let finding = |line| {
        let advice = "use `clock_timestamp()`: this one stands still while the transaction lasts.";
        Finding::new("sql-clock", &file.path, line, advice)
    };
    let pieces = pieces(file);
    let lines = pieces
        .iter()
        .filter(|piece| is_sql(piece))
        .flat_map(|piece| sql::frozen_clocks(&piece.tokens));
    lines.map(finding).collect()
}
