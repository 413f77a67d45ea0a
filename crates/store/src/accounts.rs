//! Accounts: who pays, what they have, and the line at which that is low. Its status follows from the two; its balance is
//! moved by [`ledger`](crate::ledger) and [`charging`](crate::charging), in the transaction of the entries.

use domain::derived::{balance, crossing};
use domain::ids::{AccountId, EventId};
use domain::machines::Balance;
use lifecycle::{Machine, Outcome, Source};
use sqlx::Row as _;
use uuid::Uuid;

use crate::lifecycle::{Actor, Birth, Report, born, stored, write};
use crate::{Error, Store, Tx};

/// How many accounts one sweep looks at.
const SWEEP_MAX: i64 = 500;

/// An account to be. It has nothing yet.
#[derive(Clone, Debug)]
pub struct NewAccount {
    /// Its identity.
    pub id: AccountId,
    /// Whose it is.
    pub owner: Option<Uuid>,
    /// In which currency it is kept.
    pub currency: String,
    /// The line at which its owner is warned.
    pub low_balance_threshold_minor: i64,
}

/// Opens an account; its status follows at once. Answers `false` when its owner has one.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, account: &NewAccount, birth: &Birth) -> Result<bool, Error> {
    let inserted = sqlx::query(
        "INSERT INTO accounts (id, owner_id, currency, low_balance_threshold_minor)
         VALUES ($1, $2, $3, $4)
         ON CONFLICT (owner_id) WHERE owner_id IS NOT NULL DO NOTHING",
    )
    .bind(account.id.uuid())
    .bind(account.owner)
    .bind(&account.currency)
    .bind(account.low_balance_threshold_minor)
    .execute(tx.connection())
    .await?
    .rows_affected();
    if inserted == 1 {
        born::<Balance>(tx, account.id, birth).await?;
        let _crossed = refold(tx, account.id, "opened with nothing in it").await?;
    }
    Ok(inserted == 1)
}

/// The account of a user.
///
/// # Errors
/// When the database fails.
pub async fn find_of(tx: &mut Tx, owner: Uuid) -> Result<Option<AccountId>, Error> {
    let row = sqlx::query("SELECT id FROM accounts WHERE owner_id = $1")
        .bind(owner)
        .fetch_optional(tx.connection())
        .await?;
    row.map(|row| Ok(AccountId(row.try_get(0)?))).transpose()
}

/// The currency that the account of a user is kept in.
///
/// # Errors
/// When the database fails.
pub async fn currency_of(tx: &mut Tx, owner: Uuid) -> Result<Option<String>, Error> {
    let row = sqlx::query("SELECT currency FROM accounts WHERE owner_id = $1")
        .bind(owner)
        .fetch_optional(tx.connection())
        .await?;
    row.map(|row| Ok(row.try_get(0)?)).transpose()
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

/// Some accounts whose status does not follow from their balance yet. Charging moves many balances in one statement and
/// leaves the crossings to this; when there are none it costs one look into an empty index.
///
/// # Errors
/// When the database fails.
pub async fn list_crossing(store: &Store) -> Result<Vec<AccountId>, Error> {
    // The condition is that of the index.
    let rows = sqlx::query(
        "SELECT id
           FROM accounts
          WHERE status <> CASE WHEN balance_minor <= 0 THEN 'depleted'
                               WHEN balance_minor <= low_balance_threshold_minor THEN 'low_balance'
                               ELSE 'healthy' END
          ORDER BY id
          LIMIT $1",
    )
    .bind(SWEEP_MAX)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(|row| Ok(AccountId(row.try_get(0)?))).collect()
}

/// Another line at which its owner is warned; its status follows. Answers `false` when there is no such account.
///
/// # Errors
/// When the database fails.
pub async fn set_threshold(tx: &mut Tx, id: AccountId, minor: i64) -> Result<bool, Error> {
    let set = sqlx::query("UPDATE accounts SET low_balance_threshold_minor = $2 WHERE id = $1")
        .bind(id.uuid())
        .bind(minor)
        .execute(tx.connection())
        .await?;
    let followed = refold(tx, id, "another line").await?;
    if followed.is_some_and(|followed| followed.is_retryable()) {
        return Err(Error::Conflict);
    }
    Ok(set.rows_affected() == 1)
}
