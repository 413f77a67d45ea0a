//! Allocations: create, provision, restart, release, what operators do when that did not end well, and how they are
//! shown.

pub mod abandon;
pub(crate) mod admit;
pub mod capacity;
pub mod clean;
pub mod cleanup;
pub mod create;
pub mod explain;
pub(crate) mod in_hand;
pub(crate) mod judge;
pub mod provision;
pub mod reason;
pub mod receipt;
pub mod release;
pub mod restart;
pub mod stream;
pub mod timeline;
pub mod view;
