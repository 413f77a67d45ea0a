//! The stories, on a real Postgres.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod account;
mod allocation_cancel;
mod allocation_create;
mod allocation_groups;
mod allocation_provision;
mod allocation_release;
mod allocation_restart;
mod app_instances;
mod audit_log;
mod crossing;
mod doors;
mod enrol;
mod explain;
mod long_wait;
mod policies;
mod r08_redelivery;
mod r09_reordering;
mod r10_every_step;
mod stream;
mod stuck;
mod timeline;
