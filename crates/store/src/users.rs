//! Users: who may have a token. Addresses are unique whatever their case.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// A user to be. It has no `Debug`, because of the hash.
pub struct NewUser<'a> {
    /// Its identity.
    pub id: Uuid,
    /// The address.
    pub email: &'a str,
    /// The name.
    pub name: &'a str,
    /// Whether they run the platform.
    pub operator: bool,
    /// argon2id in PHC form; none for somebody who comes through another door.
    pub password_hash: Option<&'a str>,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Their identity.
    pub id: Uuid,
    /// Their address.
    pub email: String,
    /// Their name.
    pub name: String,
    /// Whether they run the platform.
    pub operator: bool,
    /// Whether they may do anything at all.
    pub enabled: bool,
}

/// A user with what their password is checked against. It has no `Debug`, because of the hash.
pub struct Credentials {
    /// The user.
    pub user: User,
    /// argon2id in PHC form; none when there is no password.
    pub password_hash: Option<String>,
}

/// Adds a user; says whether the address was free.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, user: &NewUser<'_>) -> Result<bool, Error> {
    let inserted = sqlx::query(
        "INSERT INTO users (id, email, name, operator, password_hash)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (lower(email)) DO NOTHING",
    )
    .bind(user.id)
    .bind(user.email)
    .bind(user.name)
    .bind(user.operator)
    .bind(user.password_hash)
    .execute(tx.connection())
    .await?;
    Ok(inserted.rows_affected() == 1)
}

/// The user with that address, with the hash of their password.
///
/// # Errors
/// When the database fails.
pub async fn find_by_email(store: &Store, email: &str) -> Result<Option<Credentials>, Error> {
    let row = sqlx::query(
        "SELECT id, email, name, operator, disabled_at IS NULL, password_hash
           FROM users
          WHERE lower(email) = lower($1)",
    )
    .bind(email)
    .fetch_optional(store.pool())
    .await?;
    let credentials =
        |row: PgRow| Ok(Credentials { user: read(&row)?, password_hash: row.try_get(5)? });
    row.map(credentials).transpose()
}

/// The user of that identity.
///
/// # Errors
/// When there is none, or the database fails.
pub async fn load(store: &Store, id: Uuid) -> Result<User, Error> {
    let row = sqlx::query(
        "SELECT id, email, name, operator, disabled_at IS NULL
           FROM users
          WHERE id = $1",
    )
    .bind(id)
    .fetch_one(store.pool())
    .await?;
    read(&row)
}

/// Keeps a user from doing anything from now on: none of their tokens is found any more.
///
/// # Errors
/// When the database fails.
pub async fn disable(tx: &mut Tx, id: Uuid) -> Result<bool, Error> {
    let disabled = sqlx::query(
        "UPDATE users
            SET disabled_at = clock_timestamp()
          WHERE id = $1 AND disabled_at IS NULL",
    )
    .bind(id)
    .execute(tx.connection())
    .await?;
    Ok(disabled.rows_affected() == 1)
}

fn read(row: &PgRow) -> Result<User, Error> {
    Ok(User {
        id: row.try_get(0)?,
        email: row.try_get(1)?,
        name: row.try_get(2)?,
        operator: row.try_get(3)?,
        enabled: row.try_get(4)?,
    })
}
