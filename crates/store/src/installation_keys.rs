//! The keys of this installation, made once. Whoever comes second finds the first one's: a name has one key for ever.

use sqlx::Row as _;

use crate::{Error, Store};

/// A key as it is kept. Deliberately without `Debug`: half of it is secret.
pub struct StoredKey {
    /// The private half: a PKCS#8 document.
    pub private: Vec<u8>,
    /// The public half, as text.
    pub public: String,
}

/// The key of that name, if it was made.
///
/// # Errors
/// When the database fails.
pub async fn find(store: &Store, name: &str) -> Result<Option<StoredKey>, Error> {
    let row = sqlx::query(
        "SELECT private, public
           FROM installation_keys
          WHERE name = $1",
    )
    .bind(name)
    .fetch_optional(store.pool())
    .await?;
    let read = |row: sqlx::postgres::PgRow| -> Result<StoredKey, Error> {
        Ok(StoredKey { private: row.try_get(0)?, public: row.try_get(1)? })
    };
    row.map(read).transpose()
}

/// Keeps a key under a name, unless one is there already: two processes that start together end with the same.
///
/// # Errors
/// When the database fails.
pub async fn keep(store: &Store, name: &str, key: &StoredKey) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO installation_keys (name, private, public)
         VALUES ($1, $2, $3)
         ON CONFLICT (name) DO NOTHING",
    )
    .bind(name)
    .bind(&key.private)
    .bind(&key.public)
    .execute(store.pool())
    .await?;
    Ok(())
}
