//! What the two worked examples prove, on the store in memory and on SQLite.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

mod aba_attempt;
mod batch;
mod diagrams;
mod evaluate;
mod explore;
mod guard_claim;
mod inflight;
mod interleave;
mod lints;
mod mutants;
mod outcome;
mod service_races;
mod sqlite;
mod table_parity;
mod writer;
