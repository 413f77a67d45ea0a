//! The simulation: from a seed, the real control code on a real Postgres, with random requests, faults, lost and repeated
//! messages, processes that die or hang between two statements, and time that is moved. One thread, one seed, one trace.
//!
//! [`actions::TABLE`] is what can happen; [`sim`] lets it happen; [`rest`](sim::Sim::come_to_rest) checks what is left.

pub mod actions;
pub mod bed;
pub mod books;
pub mod coverage;
pub mod dice;
pub mod figures;
mod hearing;
pub mod ledger;
pub mod node;
mod rest;
pub mod sim;
pub mod story;
