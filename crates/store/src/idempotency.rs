//! Keys of requests and their answers. A key is taken in the transaction of the effect, so that it is answered exactly
//! when the effect is there.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::Value;
use sqlx::Row as _;
use uuid::Uuid;

use crate::prune::{Prune, pruning};
use crate::{Error, Tx};

/// A key of one caller on one route.
#[derive(Clone, Copy, Debug)]
pub struct KeyRef<'a> {
    /// Whose.
    pub principal: Uuid,
    /// On which route.
    pub route: &'a str,
    /// What they call it.
    pub key: &'a str,
}

/// The same, owned: what waits with others to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnKey {
    /// Whose.
    pub principal: Uuid,
    /// On which route.
    pub route: &'static str,
    /// What they call it.
    pub key: String,
}

impl OwnKey {
    /// The key, borrowed.
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { principal: self.principal, route: self.route, key: &self.key }
    }
}

/// An answer as it was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAnswer {
    /// What the request was.
    pub fingerprint: Vec<u8>,
    /// The HTTP status it was answered with.
    pub status: u16,
    /// The body; none when it carried a secret.
    pub body: Option<Value>,
}

/// What became of the attempt to take a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Taken {
    /// It is the transaction's now.
    Free,
    /// It was answered before.
    Answered(StoredAnswer),
}

/// Takes a key, waiting for another transaction that holds it. A key from before `expired_before` counts as free, and so
/// does one without an answer: whoever took it committed a refusal.
///
/// # Errors
/// [`Error::Conflict`] when the key went away while we looked; run the transaction again.
pub async fn take(
    tx: &mut Tx,
    key: KeyRef<'_>,
    fingerprint: &[u8],
    now: Timestamp,
    expired_before: Timestamp,
) -> Result<Taken, Error> {
    let taken = sqlx::query(
        "INSERT INTO idempotency_keys AS known (principal, route, key, fingerprint, created_at)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (principal, route, key) DO UPDATE
            SET fingerprint = EXCLUDED.fingerprint, created_at = EXCLUDED.created_at, http_status = NULL, body = NULL
          WHERE known.created_at < $6 OR known.http_status IS NULL
         RETURNING 1",
    )
    .bind(key.principal)
    .bind(key.route)
    .bind(key.key)
    .bind(fingerprint)
    .bind(now.to_sqlx())
    .bind(expired_before.to_sqlx())
    .fetch_optional(tx.connection())
    .await?;
    if taken.is_some() {
        return Ok(Taken::Free);
    }
    let row = sqlx::query(
        "SELECT fingerprint, http_status, body
           FROM idempotency_keys
          WHERE principal = $1 AND route = $2 AND key = $3 AND http_status IS NOT NULL",
    )
    .bind(key.principal)
    .bind(key.route)
    .bind(key.key)
    .fetch_optional(tx.connection())
    .await?;
    let Some(row) = row else {
        return Err(Error::Conflict);
    };
    let status: i16 = row.try_get(1)?;
    Ok(Taken::Answered(StoredAnswer {
        fingerprint: row.try_get(0)?,
        status: u16::try_from(status).unwrap_or_default(),
        body: row.try_get(2)?,
    }))
}

/// Keys that have expired. One that somebody has in hand is passed by.
pub const PRUNE: Prune =
    Prune::new("idempotency_keys", pruning!("idempotency_keys", "created_at", "", "true"));
