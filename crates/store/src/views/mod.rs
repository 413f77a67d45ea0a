//! Read models, one a screen. They join what they need and change nothing.

pub mod allocations;
pub mod fleet;
pub mod timeline;
