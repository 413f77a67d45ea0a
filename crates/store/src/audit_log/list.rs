//! The audit log as it is read: newest first, by who, what, to what, where and when.

use jiff::Timestamp;
use jiff_sqlx::{Timestamp as SqlTimestamp, ToSqlx as _};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::{Error, Store};

/// Which entries.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this user.
    pub user_id: Option<Uuid>,
    /// Of this action.
    pub action: Option<String>,
    /// To this.
    pub target: Option<String>,
    /// In this project.
    pub project_id: Option<Uuid>,
    /// Not before.
    pub from: Option<Timestamp>,
    /// Before.
    pub to: Option<Timestamp>,
}

/// An entry, with its place in the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its identity.
    pub id: Uuid,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub user_id: Option<Uuid>,
    /// Their address, as it is now.
    pub email: Option<String>,
    /// With which token.
    pub token_id: Option<Uuid>,
    /// As what.
    pub role: String,
    /// What was done.
    pub action: String,
    /// To what kind of thing.
    pub target_kind: String,
    /// To which.
    pub target: String,
    /// In which project.
    pub project_id: Option<Uuid>,
    /// How it ended.
    pub outcome: String,
    /// Why, as they said it.
    pub reason: Option<String>,
    /// What changed.
    pub detail: Value,
    /// The request.
    pub request_id: Option<Uuid>,
    /// Where it came from.
    pub source: Option<String>,
    /// Its place in the chain; none as long as it has no link.
    pub position: Option<i64>,
}

/// Entries of the filter, newest first, behind the place of the last one that was seen.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    filter: &Filter,
    behind: Option<(Timestamp, Uuid)>,
    limit: i64,
) -> Result<Vec<Row>, Error> {
    let (behind_at, behind_id) = behind.unzip();
    let rows = sqlx::query(
        "SELECT e.id, e.at, e.user_id, u.email, e.token_id, e.role, e.action, e.target_kind, e.target, e.project_id,
                e.outcome, e.reason, e.detail, e.request_id, e.source, l.position
           FROM audit_entries AS e
           LEFT JOIN users AS u ON u.id = e.user_id
           LEFT JOIN audit_links AS l ON l.entry_id = e.id
          WHERE ($1::uuid IS NULL OR e.user_id = $1)
            AND ($2::text IS NULL OR e.action = $2)
            AND ($3::text IS NULL OR e.target = $3)
            AND ($4::uuid IS NULL OR e.project_id = $4)
            AND ($5::timestamptz IS NULL OR e.at >= $5)
            AND ($6::timestamptz IS NULL OR e.at < $6)
            AND ($7::timestamptz IS NULL OR (e.at, e.id) < ($7, $8))
          ORDER BY e.at DESC, e.id DESC
          LIMIT $9",
    )
    // Planned for what is asked: which index is best depends on which filters there are.
    .persistent(false)
    .bind(filter.user_id)
    .bind(&filter.action)
    .bind(&filter.target)
    .bind(filter.project_id)
    .bind(filter.from.map(|at| at.to_sqlx()))
    .bind(filter.to.map(|at| at.to_sqlx()))
    .bind(behind_at.map(|at| at.to_sqlx()))
    .bind(behind_id)
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(entry).collect()
}

fn entry(row: &PgRow) -> Result<Row, Error> {
    let at: SqlTimestamp = row.try_get(1)?;
    Ok(Row {
        id: row.try_get(0)?,
        at: at.to_jiff(),
        user_id: row.try_get(2)?,
        email: row.try_get(3)?,
        token_id: row.try_get(4)?,
        role: row.try_get(5)?,
        action: row.try_get(6)?,
        target_kind: row.try_get(7)?,
        target: row.try_get(8)?,
        project_id: row.try_get(9)?,
        outcome: row.try_get(10)?,
        reason: row.try_get(11)?,
        detail: row.try_get(12)?,
        request_id: row.try_get(13)?,
        source: row.try_get(14)?,
        position: row.try_get(15)?,
    })
}
