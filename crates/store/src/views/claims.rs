//! Claims as operators read them: what is stuck or set aside, with where it is and whose it was.

use domain::ids::{AllocationId, ClaimId};
use domain::machines::{Allocation, Claim, allocation, claim};
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::{Code as _, Machine as _};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::{Error, Store, Tx};

/// A claim with what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its identity.
    pub id: Uuid,
    /// Where it stands.
    pub status: claim::Status,
    /// Since when.
    pub status_at: Timestamp,
    /// Why, as it was reported.
    pub reason: Option<String>,
    /// Whose it is.
    pub allocation_id: Uuid,
    /// Where that stands.
    pub allocation_status: allocation::Status,
    /// The node.
    pub node_id: Uuid,
    /// The node, by name.
    pub node: String,
    /// The number of the slot; none for the whole node.
    pub slot: Option<i16>,
}

const SELECT: &str =
    "SELECT claim.id, claim.status, claim.status_at, claim.reason, claim.allocation_id, allocation.status,
        claim.node_id, node.name, slot.slot_index
   FROM claims AS claim
   JOIN allocations AS allocation ON allocation.id = claim.allocation_id
   JOIN nodes AS node ON node.id = claim.node_id
   LEFT JOIN slots AS slot ON slot.id = claim.slot_id";

/// In these a claim waits for an operator.
const WAITING: [claim::Status; 2] = [claim::Status::Stuck, claim::Status::Quarantined];

/// The claim as this transaction sees it.
///
/// # Errors
/// When the database fails.
pub async fn find_in(tx: &mut Tx, id: ClaimId) -> Result<Option<Row>, Error> {
    let statement = format!("{SELECT} WHERE claim.id = $1");
    let query = sqlx::query(AssertSqlSafe(statement)).bind(id.uuid());
    query.fetch_optional(tx.connection()).await?.as_ref().map(read).transpose()
}

/// The claims that wait for an operator, or those of them in one status, the longest waiting first.
///
/// # Errors
/// When the database fails.
pub async fn list_waiting(
    store: &Store,
    status: Option<claim::Status>,
    after: Option<(Timestamp, Uuid)>,
    limit: i64,
) -> Result<Vec<Row>, Error> {
    let statement = format!(
        "{SELECT}
          WHERE claim.status NOT IN ('held', 'freed')
            AND claim.status = ANY ($1::text[])
            AND ($2::timestamptz IS NULL OR (claim.status_at, claim.id) > ($2, $3))
          ORDER BY claim.status_at, claim.id
          LIMIT $4"
    );
    let asked: Vec<&str> = match status {
        Some(status) => vec![status.code()],
        None => WAITING.iter().map(|status| status.code()).collect(),
    };
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(asked)
        .bind(after.map(|(at, _)| at.to_sqlx()))
        .bind(after.map(|(_, id)| id))
        .bind(limit)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

/// What an allocation holds that waits for an operator.
///
/// # Errors
/// When the database fails.
pub async fn waiting_of(store: &Store, id: AllocationId) -> Result<Vec<Row>, Error> {
    let statement = format!(
        "{SELECT}
          WHERE claim.allocation_id = $1 AND claim.status = ANY ($2::text[])
          ORDER BY claim.id"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(id.uuid())
        .bind(WAITING.map(|status| status.code()))
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

fn read(row: &PgRow) -> Result<Row, Error> {
    let (id, allocation_id): (Uuid, Uuid) = (row.try_get(0)?, row.try_get(4)?);
    let (text, of_allocation): (&str, &str) = (row.try_get(1)?, row.try_get(5)?);
    let unknown =
        |machine, id, status: &str| Error::UnknownStatus { machine, id, status: status.to_owned() };
    Ok(Row {
        id,
        status: claim::Status::parse(text).ok_or_else(|| unknown(Claim::NAME, id, text))?,
        status_at: row.try_get::<jiff_sqlx::Timestamp, _>(2)?.to_jiff(),
        reason: row.try_get(3)?,
        allocation_id,
        allocation_status: allocation::Status::parse(of_allocation)
            .ok_or_else(|| unknown(Allocation::NAME, allocation_id, of_allocation))?,
        node_id: row.try_get(6)?,
        node: row.try_get(7)?,
        slot: row.try_get(8)?,
    })
}
