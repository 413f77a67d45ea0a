//! Tidy on made-up input, one offending and one clean example a check, and on the repository itself.

mod crates;
mod documents;
mod names;
mod numbered;
mod rust;
mod sql;
mod text;
mod tree;
mod writer;

use xtask::tidy::{File, Finding};

/// The lines on which `check` finds something in a file of this path and text.
fn lines_found(check: fn(&File) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
    check(&File::new(path, text)).iter().map(|finding| finding.line).collect()
}
