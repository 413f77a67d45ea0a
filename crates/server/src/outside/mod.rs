//! The ports of `control`, implemented: whom the product speaks to outside of the house. Some places are named by others, who may name
//! anything: where such a name leads is judged here, by its addresses, and what is connected to is what was judged.
//!
//! - [`addresses`] judges one address; it is pure. [`destination`] judges a URL, and looks its name up.
//! - [`webhooks`] carries deliveries. [`stripe`] takes payments.

pub mod addresses;
pub mod destination;
pub mod stripe;
pub mod webhooks;
