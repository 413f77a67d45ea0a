//! What leaves for places that others have named. They may name anything, so where a name leads is judged here, by its addresses,
//! and what is connected to is what was judged.
//!
//! - [`addresses`] judges one address; it is pure. [`destination`] judges a URL, and looks its name up.
//! - [`webhooks`] carries deliveries.

pub mod addresses;
pub mod destination;
pub mod webhooks;
