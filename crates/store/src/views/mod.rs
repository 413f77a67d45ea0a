//! Read models, one a screen. They join what they need and change nothing.

pub mod allocation_groups;
pub mod allocations;
pub mod claims;
pub mod events;
pub mod explain;
pub mod fleet;
pub mod gauges;
pub mod learnt;
pub mod money;
pub mod stuck;
pub mod timeline;
