//! Who did what to what. An entry is written in the transaction of the deed; a moment later it is linked into a chain of
//! hashes, in which nothing can be changed, left out or put in between unnoticed.

use serde_json::Value;
use uuid::Uuid;

use crate::{Error, Tx};

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

/// Writes an entry; it is true if the transaction is.
///
/// # Errors
/// When the database fails.
pub async fn append(tx: &mut Tx, entry: &NewEntry) -> Result<Uuid, Error> {
    let id = tx.new_id();
    sqlx::query(
        "WITH entry AS (
            INSERT INTO audit_entries (id, user_id, token_id, role, action, target_kind, target, project_id, outcome,
                    reason, detail, request_id, source)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
             RETURNING id
         )
         INSERT INTO audit_unlinked (entry_id) SELECT id FROM entry",
    )
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
    .execute(tx.connection())
    .await?;
    Ok(id)
}
