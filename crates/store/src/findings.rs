//! The three-way audit: claims, what agents last reported, and open usage, compared in one statement. What does not agree is
//! written down and closed when it is seen no more; nothing is changed but this list.

mod compared;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::prune::{Prune, pruning};
use crate::{Error, Store, Tx};

/// One disagreement, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What sort: a stable word.
    pub kind: String,
    /// What it is about, so that the same disagreement is one finding as long as it lasts.
    pub subject: String,
    /// The node.
    pub node_id: Option<Uuid>,
    /// The allocation.
    pub allocation_id: Option<Uuid>,
    /// What does not agree, in a sentence.
    pub detail: String,
}

/// One finding, as it was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its identity.
    pub id: Uuid,
    /// What was seen.
    pub seen: Seen,
    /// The node, by name.
    pub node: Option<String>,
    /// When it was first seen.
    pub first_seen_at: Timestamp,
    /// When it was last seen.
    pub last_seen_at: Timestamp,
    /// When it was seen no more.
    pub closed_at: Option<Timestamp>,
}

/// What is taken for granted when things are compared.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// What time it is.
    pub now: Timestamp,
    /// What changed less than this before the node was last heard of is not looked at: a report and a step may pass each
    /// other.
    pub grace_seconds: f64,
}

/// What does not agree now. Nothing is written down.
///
/// # Errors
/// When the database fails.
pub async fn look(store: &Store, terms: Terms) -> Result<Vec<Seen>, Error> {
    let statement = format!(
        "{} SELECT kind, subject, node_id, allocation_id, detail FROM seen ORDER BY kind, subject",
        compared::seen()
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(terms.grace_seconds)
        .bind(terms.now.to_sqlx())
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(|row| seen(row, 0)).collect()
}

/// Looks, writes down what is new, and closes what is seen no more. Answers how many are open, kind by kind. One at a time:
/// who comes second waits.
///
/// # Errors
/// When the database fails.
pub async fn observe(tx: &mut Tx, terms: Terms) -> Result<Vec<(String, i64)>, Error> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('berth findings'))")
        .execute(tx.connection())
        .await?;
    let statement = format!(
        "{}, closed AS (
            UPDATE findings
               SET closed_at = clock_timestamp()
             WHERE closed_at IS NULL
               AND (kind, subject) NOT IN (SELECT kind, subject FROM seen)
         ), written AS (
            INSERT INTO findings (id, kind, subject, node_id, allocation_id, detail)
            SELECT gen_random_uuid(), kind, subject, node_id, allocation_id, detail
              FROM seen
                ON CONFLICT (kind, subject) WHERE closed_at IS NULL
                DO UPDATE SET last_seen_at = clock_timestamp(), detail = EXCLUDED.detail
         )
         SELECT kind, count(*) FROM seen GROUP BY kind ORDER BY kind",
        compared::seen()
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(terms.grace_seconds)
        .bind(terms.now.to_sqlx())
        .fetch_all(tx.connection())
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The place of a finding in the list: whether it is closed, since when it is known, which.
pub type Place = (bool, Timestamp, Uuid);

/// Findings, the open ones first, each of them the oldest first; the closed ones only when asked for.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    closed_too: bool,
    after: Option<Place>,
    limit: i64,
) -> Result<Vec<Row>, Error> {
    let rows = sqlx::query(
        "SELECT finding.kind, finding.subject, finding.node_id, finding.allocation_id, finding.detail,
                finding.id, node.name, finding.first_seen_at, finding.last_seen_at, finding.closed_at
           FROM findings AS finding
           LEFT JOIN nodes AS node ON node.id = finding.node_id
          WHERE ($1 OR finding.closed_at IS NULL)
            AND ($2::boolean IS NULL
                 OR (finding.closed_at IS NOT NULL, finding.first_seen_at, finding.id) > ($2, $3, $4))
          ORDER BY finding.closed_at IS NOT NULL, finding.first_seen_at, finding.id
          LIMIT $5",
    )
    .bind(closed_too)
    .bind(after.map(|(closed, _, _)| closed))
    .bind(after.map(|(_, at, _)| at.to_sqlx()))
    .bind(after.map(|(_, _, id)| id))
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(row).collect()
}

fn seen(row: &PgRow, from: usize) -> Result<Seen, Error> {
    Ok(Seen {
        kind: row.try_get(from)?,
        subject: row.try_get(from + 1)?,
        node_id: row.try_get(from + 2)?,
        allocation_id: row.try_get(from + 3)?,
        detail: row.try_get(from + 4)?,
    })
}

fn row(row: &PgRow) -> Result<Row, Error> {
    let at = |position: usize| -> Result<Timestamp, Error> {
        Ok(row.try_get::<jiff_sqlx::Timestamp, _>(position)?.to_jiff())
    };
    let closed: Option<jiff_sqlx::Timestamp> = row.try_get(9)?;
    Ok(Row {
        seen: seen(row, 0)?,
        id: row.try_get(5)?,
        node: row.try_get(6)?,
        first_seen_at: at(7)?,
        last_seen_at: at(8)?,
        closed_at: closed.map(jiff_sqlx::Timestamp::to_jiff),
    })
}

/// Findings that were closed long ago.
pub const PRUNE: Prune = Prune::new("findings", pruning!("findings", "closed_at", "", "true"));
