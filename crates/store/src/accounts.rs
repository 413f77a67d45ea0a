//! Accounts: a balance and the line at which it is low. Its status follows from the two.

use domain::derived::{balance, crossing};
use domain::ids::{AccountId, EventId};
use domain::machines::Balance;
use lifecycle::{Machine, Outcome, Source};
use sqlx::Row as _;

use crate::lifecycle::{Actor, Birth, Report, born, stored, write};
use crate::{Error, Tx};

/// Adds an account with this balance; its status follows at once.
///
/// # Errors
/// When the database fails.
pub async fn insert(
    tx: &mut Tx,
    id: AccountId,
    balance_minor: i64,
    birth: &Birth,
) -> Result<(), Error> {
    sqlx::query("INSERT INTO accounts (id, balance_minor) VALUES ($1, $2)")
        .bind(id.uuid())
        .bind(balance_minor)
        .execute(tx.connection())
        .await?;
    born::<Balance>(tx, id, birth).await?;
    let _crossed = refold(tx, id, "opening balance").await?;
    Ok(())
}

/// Compares the balance with its lines and, where it has crossed one, says so: once a crossing, however often it is
/// asked. Answers `None` when it has not.
///
/// # Errors
/// When the database fails.
pub async fn refold(
    tx: &mut Tx,
    id: AccountId,
    cause: &str,
) -> Result<Option<Outcome<<Balance as Machine>::Status>>, Error> {
    let Some(account) = stored::lock::<Balance>(tx, id.uuid()).await? else {
        return Ok(None);
    };
    let row = sqlx::query(
        "SELECT balance_minor, low_balance_threshold_minor FROM accounts WHERE id = $1",
    )
    .bind(id.uuid())
    .fetch_one(tx.connection())
    .await?;
    let derived = balance::derive(row.try_get(0)?, row.try_get(1)?);
    let Some(event) = crossing::<Balance>(account.status, derived) else {
        return Ok(None);
    };
    let actor = Actor::new(Source::Derived, "ledger");
    let report = Report::new(event, EventId(tx.new_id()), actor).because(cause);
    Ok(Some(write::<Balance>(tx, id.uuid(), &report).await?))
}
