//! What each command does, one file a noun.

pub(crate) mod account;
pub(crate) mod admin;
pub(crate) mod alloc;
pub(crate) mod app;
pub(crate) mod audit;
pub(crate) mod config;
pub(crate) mod explain;
pub(crate) mod group;
pub(crate) mod login;
pub(crate) mod machine;
pub(crate) mod money;
pub(crate) mod notifications;
pub(crate) mod payments;
pub(crate) mod sim;
pub(crate) mod sku;
pub(crate) mod webhooks;
