//! The doors, over real connections.

#![expect(
    clippy::expect_used,
    reason = "a step that can't be taken fails the test, and says which"
)]

mod allocation_groups;
mod allocation_restart;
mod answers;
mod api;
mod audit_log;
mod bad_input;
mod canaries;
mod events;
mod explain;
mod falls;
mod findings;
mod gate;
mod gateway;
mod idempotency;
mod many_streams;
mod metrics;
mod money;
mod notifications;
mod openapi;
mod overload;
mod payments;
mod protocol;
mod shop;
mod slow_clients;
mod strangers;
mod stuck;
mod webhooks;
