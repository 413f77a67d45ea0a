//! The store on real Postgres: the writer, what the database enforces, and the races.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod admission;
mod agents;
mod audit;
mod cluster;
mod company;
mod derived;
mod enforce;
mod freeing;
mod ledger;
mod listening;
mod metering;
mod observed;
mod packing;
mod people;
mod placement;
mod plans;
mod pool;
mod pruning;
mod races;
mod sessions;
mod spare;
mod spine;
mod usage_days;
mod views;
mod walks;
mod writer;

use lifecycle::Source;
use store::lifecycle::{Actor, Report};
use testkit::new_id;

/// A report by somebody who may.
fn report<E>(event: E, source: Source) -> Report<E> {
    Report::new(event, domain::ids::EventId(new_id()), Actor::new(source, "somebody"))
}
