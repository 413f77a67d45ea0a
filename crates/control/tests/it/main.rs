//! The stories, on a real Postgres.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod account;
mod admission;
mod allocation_cancel;
mod allocation_create;
mod allocation_groups;
mod allocation_provision;
mod allocation_release;
mod allocation_restart;
mod app_instances;
mod audit_log;
mod billing;
mod crossing;
mod cuts;
mod depletion;
mod doors;
mod enrol;
mod explain;
mod findings;
mod group_explain;
mod growth;
mod inventories;
mod long_wait;
mod node_drain;
mod node_silent;
mod node_tasks;
mod notifications;
mod payment_checkout;
mod payment_events;
mod payment_keys;
mod payment_order;
mod plans;
mod policies;
mod r08_redelivery;
mod r09_reordering;
mod r10_every_step;
mod r26_outage;
mod recovery;
mod release_together;
mod restart_rows;
mod stream;
mod stuck;
mod till;
mod timeline;
mod webhooks;
