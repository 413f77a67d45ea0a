//! Claims that did not come free by themselves: how operators see them, set them aside and clear them.

pub mod aside;
pub mod view;
