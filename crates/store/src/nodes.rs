//! Nodes, their slots, and what was last heard of them. Status: through [`lifecycle`](crate::lifecycle).
//! Claims are the truth of what is free; nothing that an agent reports changes it.

mod heartbeats;
mod listening;

use domain::ids::{NodeId, SlotId};
use domain::machines::Node;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use uuid::Uuid;

use crate::lifecycle::{Birth, born};
use crate::{Error, Store, Tx};

pub use heartbeats::{Beat, Heard, Hearing, Said, hear, keep_images};
pub use listening::{Listening, UNHEARD, find_listening, listen};

/// A node to be.
#[derive(Clone, Debug)]
pub struct NewNode {
    /// Its identity.
    pub id: NodeId,
    /// Its name, unique in the fleet.
    pub name: String,
    /// Where it stands.
    pub region: String,
    /// What it is sold as.
    pub sku: String,
    /// The NUMA node of each of its slots, in order.
    pub slots: Vec<i16>,
    /// Whether it is only given away as a whole.
    pub whole: bool,
}

/// Adds a node with its slots, which are numbered from 0; none when the name is taken.
///
/// # Errors
/// When the database fails.
pub async fn insert(
    tx: &mut Tx,
    node: &NewNode,
    birth: &Birth,
) -> Result<Option<Vec<SlotId>>, Error> {
    let inserted = sqlx::query(
        "INSERT INTO nodes (id, name, region, sku, whole)
         VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (name) DO NOTHING",
    )
    .bind(node.id.uuid())
    .bind(&node.name)
    .bind(&node.region)
    .bind(&node.sku)
    .bind(node.whole)
    .execute(tx.connection())
    .await?
    .rows_affected();
    if inserted == 0 {
        return Ok(None);
    }
    let slots: Vec<Uuid> = node.slots.iter().map(|_| tx.new_id()).collect();
    // What is free is counted by the database, as the slots come.
    sqlx::query(
        "INSERT INTO slots (id, node_id, slot_index, numa_node)
         SELECT id, $1, position - 1, numa
           FROM unnest($2::uuid[], $3::smallint[]) WITH ORDINALITY AS slot (id, numa, position)",
    )
    .bind(node.id.uuid())
    .bind(&slots)
    .bind(&node.slots)
    .execute(tx.connection())
    .await?;
    born::<Node>(tx, node.id, birth).await?;
    Ok(Some(slots.into_iter().map(SlotId).collect()))
}

/// The node was heard of at that moment, unless it was heard of later already.
///
/// # Errors
/// When the database fails.
pub async fn heard_at(tx: &mut Tx, node: NodeId, at: Timestamp) -> Result<(), Error> {
    sqlx::query(
        "UPDATE nodes
            SET heartbeat_at = greatest(heartbeat_at, $2)
          WHERE id = $1",
    )
    .bind(node.uuid())
    .bind(at.to_sqlx())
    .execute(tx.connection())
    .await?;
    Ok(())
}

/// Whether there is such a node, retired or not. It is locked, so that what is decided about its identity comes one after
/// the other.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx, node: NodeId) -> Result<bool, Error> {
    let row = sqlx::query("SELECT 1 FROM nodes WHERE id = $1 FOR NO KEY UPDATE")
        .bind(node.uuid())
        .fetch_optional(tx.connection())
        .await?;
    Ok(row.is_some())
}

/// How a node stands with its life: the status as it is spelt.
///
/// # Errors
/// When the database fails.
pub async fn find_status(tx: &mut Tx, node: NodeId) -> Result<Option<String>, Error> {
    let row = sqlx::query("SELECT status FROM nodes WHERE id = $1")
        .bind(node.uuid())
        .fetch_optional(tx.connection())
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// A node that has fallen silent, and since which heartbeat, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// The node.
    pub node: NodeId,
    /// Its last heartbeat.
    pub heartbeat_at: Timestamp,
    /// It was heard of after this: by it silent nodes are in order.
    pub heard_after: Timestamp,
}

/// Nodes that take placements and were last heard of before `before`, roughly the longest silent first: at most `limit`, and only
/// those behind `after` in this order.
///
/// # Errors
/// When the database fails.
pub async fn list_silent(
    store: &Store,
    before: Timestamp,
    after: Option<Silent>,
    limit: i64,
) -> Result<Vec<Silent>, Error> {
    let rows = sqlx::query(
        "SELECT id, heartbeat_at, heard_after
           FROM nodes
          WHERE status = 'ready'
            AND heard_after < $1
            AND heartbeat_at < $1
            AND ($2::timestamptz IS NULL OR (heard_after, id) > ($2, $3))
          ORDER BY heard_after, id
          LIMIT $4",
    )
    .bind(before.to_sqlx())
    .bind(after.map(|after| after.heard_after.to_sqlx()))
    .bind(after.map(|after| after.node.uuid()))
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Silent {
                node: NodeId(row.try_get(0)?),
                heartbeat_at: row.try_get::<jiff_sqlx::Timestamp, _>(1)?.to_jiff(),
                heard_after: row.try_get::<jiff_sqlx::Timestamp, _>(2)?.to_jiff(),
            })
        })
        .collect()
}

/// What is claimed on a node and not free: the allocation and how its claim stands, one line a claim.
///
/// # Errors
/// When the database fails.
pub async fn live_claims(tx: &mut Tx, node: NodeId) -> Result<Vec<(Uuid, String)>, Error> {
    let rows = sqlx::query(
        "SELECT allocation_id, status
           FROM claims
          WHERE node_id = $1 AND status <> 'freed'
          ORDER BY id",
    )
    .bind(node.uuid())
    .fetch_all(tx.connection())
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Nodes that are being drained and have nothing left on them.
///
/// # Errors
/// When the database fails.
pub async fn list_drained(store: &Store) -> Result<Vec<NodeId>, Error> {
    let rows = sqlx::query(
        "SELECT id
           FROM nodes
          WHERE status = 'draining'
            AND NOT EXISTS (SELECT 1 FROM claims WHERE claims.node_id = nodes.id AND claims.status <> 'freed')
          ORDER BY id
          LIMIT 200",
    )
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(|row| Ok(NodeId(row.try_get(0)?))).collect()
}
