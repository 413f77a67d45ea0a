//! Who did what to what. An entry is written in the transaction of the deed; a moment later it is linked into a chain of
//! hashes, in which nothing can be changed, left out or put in between unnoticed.

pub mod chain;
pub mod list;

use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::company::Question;
use crate::idempotency::OwnKey;
use crate::{Error, Ring, Tx};

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
#[derive(Clone, Debug)]
pub struct Answering {
    /// The key that this transaction has taken.
    pub key: OwnKey,
    /// The HTTP status.
    pub status: u16,
    /// The body; none when it carries a secret.
    pub body: Option<Value>,
}

impl Answering {
    fn http_status(&self) -> i16 {
        i16::try_from(self.status).unwrap_or(i16::MAX)
    }
}

/// Writes an entry; it is true if the transaction is.
///
/// # Errors
/// When the database fails.
pub async fn append(tx: &mut Tx, entry: &NewEntry) -> Result<Uuid, Error> {
    let id = tx.new_id();
    tx.ask(Append { id, entry: entry.clone(), answering: None }).await?;
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
    entry: NewEntry,
    answering: Answering,
) -> Result<bool, Error> {
    let id = tx.new_id();
    let answered = tx.ask(Append { id, entry, answering: Some(answering) }).await?;
    tx.rings(Ring::AuditLog);
    Ok(answered)
}

/// Writes an entry, that it has no link yet, and an answer if there is one.
struct Append {
    id: Uuid,
    entry: NewEntry,
    answering: Option<Answering>,
}

impl Question for Append {
    /// Whether there was a key to be answered.
    type Answer = bool;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        entries: Vec<Append>,
    ) -> Result<Vec<bool>, Error> {
        let mut query = sqlx::query(
            "WITH entry AS (
                INSERT INTO audit_entries (id, user_id, token_id, role, action, target_kind, target, project_id, outcome,
                        reason, detail, request_id, source)
                SELECT *
                  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[],
                        $9::text[], $10::text[], $11::jsonb[], $12::uuid[], $13::text[])
                RETURNING id
             ), unlinked AS (
                INSERT INTO audit_unlinked (entry_id)
                SELECT id
                  FROM entry
             )
             UPDATE idempotency_keys AS known
                SET http_status = answer.http_status, body = answer.body
               FROM unnest($1::uuid[], $14::uuid[], $15::text[], $16::text[], $17::smallint[], $18::jsonb[])
                 AS answer (entry_id, principal, route, key, http_status, body)
              WHERE known.principal = answer.principal AND known.route = answer.route AND known.key = answer.key
                AND known.http_status IS NULL
             RETURNING answer.entry_id",
        );
        macro_rules! each {
            ($($value:expr),+ $(,)?) => {
                $(query = query.bind(entries.iter().map($value).collect::<Vec<_>>());)+
            };
        }
        each!(
            |one| one.id,
            |one| one.entry.user_id,
            |one| one.entry.token_id,
            |one| one.entry.role,
            |one| one.entry.action,
            |one| one.entry.target_kind,
            |one| one.entry.target.as_str(),
            |one| one.entry.project_id,
            |one| one.entry.outcome,
            |one| one.entry.reason.as_deref(),
            |one| &one.entry.detail,
            |one| one.entry.request_id,
            |one| one.entry.source.as_deref(),
        );
        each!(
            |one| one.answering.as_ref().map(|answer| answer.key.principal),
            |one| one.answering.as_ref().map(|answer| answer.key.route),
            |one| one.answering.as_ref().map(|answer| answer.key.key.as_str()),
            |one| one.answering.as_ref().map(Answering::http_status),
            |one| one.answering.as_ref().and_then(|answer| answer.body.as_ref()),
        );
        let rows = query.fetch_all(connection).await?;
        let answered: Vec<Uuid> =
            rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(entries.iter().map(|one| answered.contains(&one.id)).collect())
    }
}
