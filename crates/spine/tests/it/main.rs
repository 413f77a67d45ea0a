//! The spine on real Postgres. The engines are held to suites that any other engine can be held to.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod assembly;
mod bed;
mod bus_conformance;
mod bus_failures;
mod timers;
mod wakes;
mod workflow_conformance;
mod workflow_faults;
