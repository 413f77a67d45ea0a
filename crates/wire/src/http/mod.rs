//! The bodies of the HTTP API, one file a group of paths. Requests refuse unknown fields by name.

pub mod account;
pub mod admin;
pub mod allocation_groups;
pub mod allocations;
pub mod app_instances;
pub mod audit;
pub mod catalogue;
pub mod claims;
pub mod explain;
pub mod findings;
pub mod money;
pub mod notifications;
pub mod payments;
pub mod policies;
pub mod stuck;
pub mod timeline;
pub mod webhooks;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next one begins; none when this is the last.
    pub next_cursor: Option<String>,
}

/// The largest number of items on a page.
pub const PAGE_MAX: u16 = 200;
/// The number of items on a page when nobody says.
pub const PAGE_DEFAULT: u16 = 50;

/// Whether the process lives, or can take requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or what is missing.
    pub status: String,
}
