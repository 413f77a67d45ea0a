//! Read models, one a screen. They join what they need and change nothing.

pub mod allocation_groups;
pub mod allocations;
pub mod fleet;
pub mod timeline;
