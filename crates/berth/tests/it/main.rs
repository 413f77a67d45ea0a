//! The binary from outside: what it prints where, how it ends, and the whole product in one process.

#![expect(clippy::expect_used, reason = "a test that can't be set up has failed, and says why")]

mod berth;
mod collector;
mod config;
mod deploy;
mod drain;
mod exit_codes;
mod falls;
mod output;
mod payments;
mod process;
mod recovery;
mod replicas;
mod restarts;
mod roles;
mod scaled;
mod stub;
mod told;
mod traces;
mod whole;
