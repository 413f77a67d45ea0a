//! API tokens. What is kept of a secret is its SHA-256: whoever reads the table can't use what is in it.

use domain::policy::Scope;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Code as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::prune::{Prune, pruning};
use crate::users::User;
use crate::{Error, Store, Tx};

/// A token to be.
#[derive(Clone, Debug)]
pub struct NewToken<'a> {
    /// Its identity.
    pub id: Uuid,
    /// Whose it is.
    pub user: Uuid,
    /// What it is called.
    pub name: &'a str,
    /// The SHA-256 of the secret.
    pub secret_hash: [u8; 32],
    /// What it may be used for.
    pub scopes: &'a [Scope],
    /// Since when.
    pub created_at: Timestamp,
    /// Until when.
    pub expires_at: Timestamp,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its identity.
    pub id: Uuid,
    /// What it is called.
    pub name: String,
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// Since when.
    pub created_at: Timestamp,
    /// Until when.
    pub expires_at: Timestamp,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// A token that is neither revoked nor somebody's who was shut out, and whose it is. Whether it has expired is for the
/// clock of the caller to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// The token.
    pub id: Uuid,
    /// Whose it is.
    pub user: User,
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// Until when.
    pub expires_at: Timestamp,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
}

/// Adds a token.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, token: &NewToken<'_>) -> Result<(), Error> {
    let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.code()).collect();
    sqlx::query(
        "INSERT INTO api_tokens (id, user_id, name, secret_hash, scopes, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(token.id)
    .bind(token.user)
    .bind(token.name)
    .bind(&token.secret_hash[..])
    .bind(scopes)
    .bind(token.created_at.to_sqlx())
    .bind(token.expires_at.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// The live tokens with these hashes, and whose they are: the one statement that every request pays, or several together.
///
/// # Errors
/// When the database fails.
pub async fn find_live_by_hash(
    store: &Store,
    hashes: &[[u8; 32]],
) -> Result<Vec<Option<Live>>, Error> {
    let hashes: Vec<&[u8]> = hashes.iter().map(<[u8; 32]>::as_slice).collect();
    let rows = sqlx::query(
        "SELECT token.id, token.scopes, token.expires_at, token.last_used_at,
                users.id, users.email, users.name, users.operator, asked.place
           FROM unnest($1::bytea[]) WITH ORDINALITY AS asked (secret_hash, place)
          CROSS JOIN LATERAL (
                SELECT * FROM api_tokens WHERE secret_hash = asked.secret_hash AND revoked_at IS NULL LIMIT 1) AS token
          CROSS JOIN LATERAL (SELECT * FROM users WHERE id = token.user_id AND disabled_at IS NULL LIMIT 1) AS users",
    )
    .bind(&hashes)
    .fetch_all(store.pool())
    .await?;
    let mut found = vec![None; hashes.len()];
    for row in &rows {
        let place: i64 = row.try_get(8)?;
        let here = usize::try_from(place - 1).ok().and_then(|place| found.get_mut(place));
        if let Some(here) = here {
            *here = Some(live(row)?);
        }
    }
    Ok(found)
}

fn live(row: &PgRow) -> Result<Live, Error> {
    let user = User {
        id: row.try_get(4)?,
        email: row.try_get(5)?,
        name: row.try_get(6)?,
        operator: row.try_get(7)?,
        enabled: true,
    };
    Ok(Live {
        id: row.try_get(0)?,
        user,
        scopes: scopes(row, 1)?,
        expires_at: at(row, 2)?,
        last_used_at: maybe_at(row, 3)?,
    })
}

/// Writes down when tokens were last used. Never an earlier moment than is known.
///
/// # Errors
/// When the database fails.
pub async fn touch(store: &Store, uses: &[(Uuid, Timestamp)]) -> Result<u64, Error> {
    let ids: Vec<Uuid> = uses.iter().map(|(id, _)| *id).collect();
    let moments: Vec<jiff_sqlx::Timestamp> = uses.iter().map(|(_, at)| at.to_sqlx()).collect();
    let touched = sqlx::query(
        "UPDATE api_tokens
            SET last_used_at = used.at
           FROM unnest($1::uuid[], $2::timestamptz[]) AS used (id, at)
          WHERE api_tokens.id = used.id
            AND (api_tokens.last_used_at IS NULL OR api_tokens.last_used_at < used.at)",
    )
    .bind(ids)
    .bind(moments)
    .execute(store.pool())
    .await?;
    Ok(touched.rows_affected())
}

/// The tokens of a user that are older than `before`, newest first.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    user: Uuid,
    limit: i64,
    before: Option<Uuid>,
) -> Result<Vec<Token>, Error> {
    let rows = sqlx::query(
        "SELECT id, name, scopes, created_at, expires_at, last_used_at, revoked_at
           FROM api_tokens
          WHERE user_id = $1 AND ($3::uuid IS NULL OR id < $3)
          ORDER BY id DESC
          LIMIT $2",
    )
    .bind(user)
    .bind(limit)
    .bind(before)
    .fetch_all(store.pool())
    .await?;
    let token = |row: &PgRow| {
        Ok(Token {
            id: row.try_get(0)?,
            name: row.try_get(1)?,
            scopes: scopes(row, 2)?,
            created_at: at(row, 3)?,
            expires_at: at(row, 4)?,
            last_used_at: maybe_at(row, 5)?,
            revoked_at: maybe_at(row, 6)?,
        })
    };
    rows.iter().map(token).collect()
}

/// Revokes a token of a user; says whether there is such a token. A second time changes nothing.
///
/// # Errors
/// When the database fails.
pub async fn revoke(tx: &mut Tx, user: Uuid, id: Uuid, now: Timestamp) -> Result<bool, Error> {
    let revoked = sqlx::query(
        "UPDATE api_tokens
            SET revoked_at = coalesce(revoked_at, $3)
          WHERE id = $1 AND user_id = $2",
    )
    .bind(id)
    .bind(user)
    .bind(now.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(revoked.rows_affected() == 1)
}

/// A word that this binary does not know gives no right.
fn scopes(row: &PgRow, column: usize) -> Result<Vec<Scope>, Error> {
    let words: Vec<String> = row.try_get(column)?;
    Ok(words.iter().filter_map(|word| Scope::parse(word)).collect())
}

fn at(row: &PgRow, column: usize) -> Result<Timestamp, Error> {
    Ok(row.try_get::<jiff_sqlx::Timestamp, _>(column)?.to_jiff())
}

fn maybe_at(row: &PgRow, column: usize) -> Result<Option<Timestamp>, Error> {
    Ok(row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column)?.map(jiff_sqlx::Timestamp::to_jiff))
}

/// Tokens that expired or were revoked long ago. What was done with them is in the audit log, by their identity.
pub const PRUNE: Prune =
    Prune::new("api_tokens", pruning!("api_tokens", "least(expires_at, revoked_at)", "", "true"));
