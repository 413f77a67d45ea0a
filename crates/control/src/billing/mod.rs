//! Money: who pays, what they have, what is charged, and what follows when it is used up. The meter itself is in the store, in
//! the transaction of the allocation's steps; here is what is done about it.

pub mod account;
pub mod adjust;
pub mod charge;
pub mod view;

use domain::money::Currency;

/// An amount as people write it, in a currency that may be none we know.
pub(crate) fn shown(currency: &str, minor: i64) -> String {
    Currency::parse(currency)
        .map_or_else(|| format!("{minor} {currency}"), |known| known.shown(minor))
}
