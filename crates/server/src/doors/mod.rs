//! Which door leads to which story. [`routes`] is the table; router, documents and the tests of strangers are all made
//! from it, so that no door can be opened without a permission being named.

mod account;
mod admin;
mod allocation_groups;
mod allocations;
mod app_instances;
mod audit;
mod catalogue;
mod drain;
mod events;
mod explain;
mod findings;
mod guard;
pub(crate) mod health;
mod money;
mod notifications;
mod payments;
mod policies;
mod recovery;
pub mod routes;
mod stuck;
mod webhooks;

use domain::policy::Permission;

/// A door, as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// How it is knocked at.
    pub method: &'static str,
    /// Where it is, with `{…}` for what changes.
    pub path: String,
    /// What it needs.
    pub permission: Permission,
    /// What may stand behind the question mark.
    pub query: Vec<String>,
}
