//! What is true in Berth. Everything here is pure: no clock, no I/O, no async, nothing that travels.
//!
//! - [`machines`]: every lifecycle as a table, one file each, and the one list of them all.
//! - [`derived`]: statuses that are computed from other facts and never chosen.
//! - [`ids`]: typed identifiers.
//! - [`ledger`]: what happens to money, and in whose books.
//! - [`money`]: amounts, prices, and what a minute costs.
//! - [`placement`]: which slots of a node a request gets.
//! - [`policy`]: who may do what.

pub mod derived;
pub mod ids;
pub mod ledger;
pub mod machines;
pub mod money;
pub mod placement;
pub mod policy;
