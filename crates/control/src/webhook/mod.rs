//! Webhooks: where people want to be told as well. [`manage`] is what their owners do with them, [`deliver`] brings what is due,
//! signed by [`signature`], through whoever carries it: a [`courier`].

pub mod courier;
pub mod deliver;
pub mod manage;
pub mod signature;
