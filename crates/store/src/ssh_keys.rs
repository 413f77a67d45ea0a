//! SSH keys: public halves, without their comments.

use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// A key to be.
#[derive(Clone, Copy, Debug)]
pub struct NewSshKey<'a> {
    /// Its identity.
    pub id: Uuid,
    /// Whose it is.
    pub user: Uuid,
    /// What it is called.
    pub name: &'a str,
    /// In OpenSSH's form, without a comment.
    pub public_key: &'a str,
    /// The sort of key.
    pub algorithm: &'a str,
    /// `SHA256:…`
    pub fingerprint: &'a str,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshKey {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// In OpenSSH's form, without a comment.
    pub public_key: String,
    /// The sort of key.
    pub algorithm: String,
    /// `SHA256:…`
    pub fingerprint: String,
    /// Since when it is there.
    pub created_at: Timestamp,
}

const COLUMNS: &str = "id, name, public_key, algorithm, fingerprint, created_at";

/// Adds a key; none when the user has it already.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, key: NewSshKey<'_>) -> Result<Option<SshKey>, Error> {
    let statement = format!(
        "INSERT INTO ssh_keys (id, user_id, name, public_key, algorithm, fingerprint)
         VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (user_id, fingerprint) DO NOTHING
         RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(key.id)
        .bind(key.user)
        .bind(key.name)
        .bind(key.public_key)
        .bind(key.algorithm)
        .bind(key.fingerprint)
        .fetch_optional(tx.connection())
        .await?;
    row.as_ref().map(read).transpose()
}

/// The keys of a user after the key `after`, in the order of their identities.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    user: Uuid,
    limit: i64,
    after: Option<Uuid>,
) -> Result<Vec<SshKey>, Error> {
    let statement = format!(
        "SELECT {COLUMNS}
           FROM ssh_keys
          WHERE user_id = $1 AND ($3::uuid IS NULL OR id > $3)
          ORDER BY id
          LIMIT $2"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(user)
        .bind(limit)
        .bind(after)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// Deletes a key of a user; says whether there was one. Allocations keep the copies they were made with.
///
/// # Errors
/// When the database fails.
pub async fn delete(tx: &mut Tx, user: Uuid, id: Uuid) -> Result<bool, Error> {
    let deleted = sqlx::query(
        "DELETE FROM ssh_keys
          WHERE id = $1 AND user_id = $2",
    )
    .bind(id)
    .bind(user)
    .execute(tx.connection())
    .await?;
    Ok(deleted.rows_affected() == 1)
}

fn read(row: &PgRow) -> Result<SshKey, Error> {
    Ok(SshKey {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        public_key: row.try_get(2)?,
        algorithm: row.try_get(3)?,
        fingerprint: row.try_get(4)?,
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(5)?.to_jiff(),
    })
}
