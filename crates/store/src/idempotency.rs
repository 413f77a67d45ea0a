//! Keys of requests and their answers. A key is taken in the transaction of the effect, so that it is answered exactly
//! when the effect is there.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::company::Question;
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
    fn is(&self, (principal, route, key): &Name) -> bool {
        self.principal == *principal && self.route == route && self.key == *key
    }

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
    key: OwnKey,
    fingerprint: &[u8],
    now: Timestamp,
    expired_before: Timestamp,
) -> Result<Taken, Error> {
    let fingerprint = fingerprint.to_vec();
    tx.ask(Take { key, fingerprint, now, expired_before }).await?.ok_or(Error::Conflict)
}

/// See [`take`].
struct Take {
    key: OwnKey,
    fingerprint: Vec<u8>,
    now: Timestamp,
    expired_before: Timestamp,
}

impl Question for Take {
    /// None when the key went away.
    type Answer = Option<Taken>;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        keys: Vec<Take>,
    ) -> Result<Vec<Option<Taken>>, Error> {
        // They are taken in one order, so that no two transactions wait for each other. Two of one name in a statement are refused by it.
        let expired = keys.iter().map(|one| one.expired_before).min().unwrap_or_default();
        let rows = sqlx::query(
            "INSERT INTO idempotency_keys AS known (principal, route, key, fingerprint, created_at)
             SELECT principal, route, key, fingerprint, created_at
               FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::timestamptz[])
                 AS wish (principal, route, key, fingerprint, created_at)
              ORDER BY principal, route, key
             ON CONFLICT (principal, route, key) DO UPDATE
                SET fingerprint = EXCLUDED.fingerprint, created_at = EXCLUDED.created_at, http_status = NULL, body = NULL
              WHERE known.created_at < $6 OR known.http_status IS NULL
             RETURNING principal, route, key",
        )
        .bind(keys.iter().map(|one| one.key.principal).collect::<Vec<_>>())
        .bind(keys.iter().map(|one| one.key.route).collect::<Vec<_>>())
        .bind(keys.iter().map(|one| one.key.key.as_str()).collect::<Vec<_>>())
        .bind(keys.iter().map(|one| one.fingerprint.as_slice()).collect::<Vec<_>>())
        .bind(keys.iter().map(|one| one.now.to_sqlx()).collect::<Vec<_>>())
        .bind(expired.to_sqlx())
        .fetch_all(&mut *connection)
        .await?;
        let free: Vec<Name> = rows.iter().map(name).collect::<Result<_, _>>()?;
        let is_free = |one: &&Take| free.iter().any(|name| one.key.is(name));
        let known: Vec<&OwnKey> =
            keys.iter().filter(|one| !is_free(one)).map(|one| &one.key).collect();
        let answered =
            if known.is_empty() { Vec::new() } else { answers(connection, &known).await? };
        let taken = |one: &Take| {
            if is_free(&one) {
                return Some(Taken::Free);
            }
            let answer = answered.iter().find(|(name, _)| one.key.is(name));
            answer.map(|(_, answer)| Taken::Answered(answer.clone()))
        };
        Ok(keys.iter().map(taken).collect())
    }
}

/// What names a key: whose, where, which.
type Name = (Uuid, String, String);

fn name(row: &PgRow) -> Result<Name, Error> {
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
}

/// What these keys were answered with, if they were.
async fn answers(
    connection: &mut PgConnection,
    known: &[&OwnKey],
) -> Result<Vec<(Name, StoredAnswer)>, Error> {
    let rows = sqlx::query(
        "SELECT known.principal, known.route, known.key, known.fingerprint, known.http_status, known.body
           FROM unnest($1::uuid[], $2::text[], $3::text[]) AS wish (principal, route, key)
          CROSS JOIN LATERAL (
                SELECT *
                  FROM idempotency_keys AS known
                 WHERE known.principal = wish.principal AND known.route = wish.route AND known.key = wish.key
                   AND known.http_status IS NOT NULL
                 LIMIT 1) AS known",
    )
    .bind(known.iter().map(|key| key.principal).collect::<Vec<_>>())
    .bind(known.iter().map(|key| key.route).collect::<Vec<_>>())
    .bind(known.iter().map(|key| key.key.as_str()).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    let answer = |row: &PgRow| {
        let status: i16 = row.try_get(4)?;
        let status = u16::try_from(status).unwrap_or_default();
        let (fingerprint, body) = (row.try_get(3)?, row.try_get(5)?);
        Ok((name(row)?, StoredAnswer { fingerprint, status, body }))
    };
    rows.iter().map(answer).collect()
}

/// Keys that have expired. One that somebody has in hand is passed by.
pub const PRUNE: Prune =
    Prune::new("idempotency_keys", pruning!("idempotency_keys", "created_at", "", "true"));
