//! Who did what to what. An entry is written in the transaction of the deed; a moment later it is linked into a chain of
//! hashes, in which nothing can be changed, left out or put in between unnoticed.

pub mod chain;
pub mod list;

use serde_json::Value;
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use uuid::Uuid;

use crate::idempotency::KeyRef;
use crate::{Error, Ring, Tx};

/// Writes the entry, and that it has no link yet. What it is written with goes on behind it.
macro_rules! with_entry {
    ($rest:literal) => {
        concat!(
            "WITH entry AS (
                INSERT INTO audit_entries (id, user_id, token_id, role, action, target_kind, target, project_id, outcome,
                        reason, detail, request_id, source)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
                RETURNING id
             ), unlinked AS (
                INSERT INTO audit_unlinked (entry_id)
                SELECT id
                  FROM entry
             )
             ",
            $rest
        )
    };
}

/// One deed.
#[derive(Clone, Debug, Default)]
pub struct NewEntry {
    /// Who; none when nobody could be told.
    pub user_id: Option<Uuid>,
    /// With which token.
    pub token_id: Option<Uuid>,
    /// As what: `user`, `operator`, `agent`, `system`.
    pub role: &'static str,
    /// What was done: a stable word.
    pub action: &'static str,
    /// To what kind of thing.
    pub target_kind: &'static str,
    /// To which.
    pub target: String,
    /// In which project.
    pub project_id: Option<Uuid>,
    /// `done`, `refused` or `denied`.
    pub outcome: &'static str,
    /// Why, as they said it.
    pub reason: Option<String>,
    /// What changed, as words of ours.
    pub detail: Value,
    /// The request.
    pub request_id: Option<Uuid>,
    /// Where it came from.
    pub source: Option<String>,
}

/// An answer that is stored together with its entry.
#[derive(Clone, Copy, Debug)]
pub struct Answering<'a> {
    /// The key that this transaction has taken.
    pub key: KeyRef<'a>,
    /// The HTTP status.
    pub status: u16,
    /// The body; none when it carries a secret.
    pub body: Option<&'a Value>,
}

/// Writes an entry; it is true if the transaction is.
///
/// # Errors
/// When the database fails.
pub async fn append(tx: &mut Tx, entry: &NewEntry) -> Result<Uuid, Error> {
    let id = tx.new_id();
    let statement = sqlx::query(with_entry!("SELECT id FROM entry"));
    bound(statement, id, entry).execute(tx.connection()).await?;
    tx.rings(Ring::AuditLog);
    Ok(id)
}

/// Writes an entry and the answer to the request that it is about, in one statement: a mutation pays no round trip for
/// its entry. Says whether the transaction had taken the key.
///
/// # Errors
/// When the database fails.
pub async fn append_answering(
    tx: &mut Tx,
    entry: &NewEntry,
    answer: &Answering<'_>,
) -> Result<bool, Error> {
    let id = tx.new_id();
    let statement = sqlx::query(with_entry!(
        "UPDATE idempotency_keys
            SET http_status = $14, body = $15
          WHERE principal = $16 AND route = $17 AND key = $18 AND http_status IS NULL"
    ));
    let answered = bound(statement, id, entry)
        .bind(i16::try_from(answer.status).unwrap_or(i16::MAX))
        .bind(answer.body)
        .bind(answer.key.principal)
        .bind(answer.key.route)
        .bind(answer.key.key)
        .execute(tx.connection())
        .await?;
    tx.rings(Ring::AuditLog);
    Ok(answered.rows_affected() == 1)
}

type Statement<'q> = Query<'q, Postgres, PgArguments>;

fn bound<'q>(statement: Statement<'q>, id: Uuid, entry: &'q NewEntry) -> Statement<'q> {
    statement
        .bind(id)
        .bind(entry.user_id)
        .bind(entry.token_id)
        .bind(entry.role)
        .bind(entry.action)
        .bind(entry.target_kind)
        .bind(&entry.target)
        .bind(entry.project_id)
        .bind(entry.outcome)
        .bind(&entry.reason)
        .bind(&entry.detail)
        .bind(entry.request_id)
        .bind(&entry.source)
}
