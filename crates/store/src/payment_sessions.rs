//! Payment sessions: checkouts on their way to the ledger.

use domain::ids::{AccountId, PaymentSessionId};
use domain::machines::PaymentSession;

use crate::lifecycle::{Birth, born};
use crate::{Error, Tx};

/// A checkout to be.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Its identity.
    pub id: PaymentSessionId,
    /// Whose balance it is for.
    pub account: AccountId,
    /// How much, in the currency's minor unit.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: String,
}

/// Adds a checkout, before the provider hears of it: its answer may come before ours.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, session: &NewSession, birth: &Birth) -> Result<(), Error> {
    sqlx::query("INSERT INTO payment_sessions (id, account_id, amount_minor, currency) VALUES ($1, $2, $3, $4)")
        .bind(session.id.uuid())
        .bind(session.account.uuid())
        .bind(session.amount_minor)
        .bind(&session.currency)
        .execute(tx.connection())
        .await?;
    born::<PaymentSession>(tx, session.id, birth).await?;
    Ok(())
}
