//! Paying in: a checkout is asked for, paid somewhere else, and heard of. What is heard late, twice, in another order or not as
//! it was asked for comes to the same end: at most one credit, and a person where the sums differ (decision 23).
//!
//! - [`checkout`]: somebody asks, and gets the address of a page to pay at.
//! - [`webhook`]: the provider tells; [`inbox`] works that off; `settle` says what follows from it.
//! - [`expire`]: nobody paid in time. [`resolve`]: an operator decides. [`view`]: who sees what.

pub mod checkout;
pub mod expire;
pub mod inbox;
pub mod provider;
pub mod resolve;
mod settle;
pub mod view;
pub mod webhook;

use uuid::Uuid;

/// As whom the ledger and the log know the provider.
const PROVIDER: &str = "stripe";

/// What names the credit of a session in the ledger.
fn credit_key(session: Uuid) -> String {
    format!("payment/{session}")
}

/// What names what was given back of a session, once it is so much in all.
fn refund_key(session: Uuid, total_minor: i64) -> String {
    format!("refund/{session}/{total_minor}")
}
