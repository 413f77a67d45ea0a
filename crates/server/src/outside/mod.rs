//! The ports of `control`, implemented: whom the product speaks to outside of the house.

pub mod stripe;
