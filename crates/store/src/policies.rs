//! Policies that operators have turned away from their defaults.

use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Ring, Store, Tx};

/// Who holds this in a transaction is the only one who turns policies: what makes sense is judged of all of them together.
const TURNING: i64 = 0x6265_7274_6800_0002;

/// A policy that was turned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turned {
    /// Its key.
    pub key: String,
    /// What it stands at.
    pub value: i64,
    /// Since when.
    pub changed_at: Timestamp,
    /// Who turned it.
    pub changed_by: Option<Uuid>,
}

/// All that were turned.
///
/// # Errors
/// When the database fails.
pub async fn list(store: &Store) -> Result<Vec<Turned>, Error> {
    let rows = sqlx::query("SELECT key, value, changed_at, changed_by FROM policies ORDER BY key")
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(turned).collect()
}

/// All that were turned; nobody else turns any until the transaction ends.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx) -> Result<Vec<Turned>, Error> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(TURNING).execute(tx.connection()).await?;
    let rows = sqlx::query("SELECT key, value, changed_at, changed_by FROM policies ORDER BY key")
        .fetch_all(tx.connection())
        .await?;
    rows.iter().map(turned).collect()
}

/// Turns one; every process hears of it.
///
/// # Errors
/// When the database fails.
pub async fn put(tx: &mut Tx, key: &str, value: i64, by: Uuid) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO policies (key, value, changed_by)
         VALUES ($1, $2, $3)
         ON CONFLICT (key) DO UPDATE
            SET value = EXCLUDED.value, changed_by = EXCLUDED.changed_by, changed_at = clock_timestamp()",
    )
    .bind(key)
    .bind(value)
    .bind(by)
    .execute(tx.connection())
    .await?;
    tx.rings(Ring::Policies);
    Ok(())
}

/// Turns one back to its default; every process hears of it.
///
/// # Errors
/// When the database fails.
pub async fn remove(tx: &mut Tx, key: &str) -> Result<(), Error> {
    sqlx::query("DELETE FROM policies WHERE key = $1").bind(key).execute(tx.connection()).await?;
    tx.rings(Ring::Policies);
    Ok(())
}

fn turned(row: &PgRow) -> Result<Turned, Error> {
    Ok(Turned {
        key: row.try_get(0)?,
        value: row.try_get(1)?,
        changed_at: row.try_get::<jiff_sqlx::Timestamp, _>(2)?.to_jiff(),
        changed_by: row.try_get(3)?,
    })
}
