//! The spine on real Postgres. The engines are held to suites that any other engine can be held to.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod assembly;
mod engines;
mod timers;
mod wakes;
