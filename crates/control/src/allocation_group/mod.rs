//! Allocation groups: several allocations that are had all together or not at all, and given back together.

pub mod create;
pub mod explain;
mod place;
pub mod release;
pub mod view;
