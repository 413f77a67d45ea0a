//! Nodes and slots as operators read them: one statement a screen, whatever is on it.

use domain::ids::NodeId;
use domain::machines::{Node as Machine, node};
use lifecycle::{Code as _, Machine as _};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;
use wire::Coded;
use wire::http::admin::{Node, Slot, SlotClaim};

use crate::{Error, Store, Tx};

/// The columns of [`Node`], in the order in which [`read`] reads them. What an agent reports is compared, never believed.
const SELECT: &str = "SELECT node.id, node.name, node.region, node.sku, node.status, node.status_at,
        coalesce(node.reason, CASE
            WHEN jsonb_array_length(node.inventory -> 'gpus') <> (SELECT count(*) FROM slots WHERE slots.node_id = node.id)
            THEN format('the agent reports %s GPUs, the record has %s slots',
                jsonb_array_length(node.inventory -> 'gpus'),
                (SELECT count(*) FROM slots WHERE slots.node_id = node.id))
        END),
        node.heartbeat_at, node.agent_version,
        (SELECT max(certificate.not_after)
           FROM node_agents AS agent
           JOIN node_certificates AS certificate ON certificate.agent_id = agent.id
          WHERE agent.node_id = node.id AND agent.revoked_at IS NULL),
        node.free_slots,
        (SELECT coalesce(jsonb_agg(jsonb_build_object(
                    'id', slot.id, 'index', slot.slot_index, 'numa', slot.numa_node,
                    'claim', CASE WHEN claim.id IS NOT NULL THEN jsonb_build_object(
                        'id', claim.id, 'status', claim.status, 'allocation_id', claim.allocation_id,
                        'reason', claim.reason) END)
                ORDER BY slot.slot_index), '[]')
           FROM slots AS slot
           LEFT JOIN claims AS claim ON claim.slot_id = slot.id AND claim.status <> 'freed'
          WHERE slot.node_id = node.id),
        (SELECT jsonb_build_object('id', claim.id, 'status', claim.status, 'allocation_id', claim.allocation_id,
                    'reason', claim.reason)
           FROM claims AS claim
          WHERE claim.node_id = node.id AND claim.slot_id IS NULL AND claim.status <> 'freed')
   FROM nodes AS node";

/// The node, if there is one.
///
/// # Errors
/// When the database fails.
pub async fn find(store: &Store, id: NodeId) -> Result<Option<Node>, Error> {
    let statement = format!("{SELECT} WHERE node.id = $1");
    let row =
        sqlx::query(AssertSqlSafe(statement)).bind(id.uuid()).fetch_optional(store.pool()).await?;
    row.as_ref().map(read).transpose()
}

/// [`find`] within a transaction: with what it has changed.
///
/// # Errors
/// When the database fails.
pub async fn find_in(tx: &mut Tx, id: NodeId) -> Result<Option<Node>, Error> {
    let statement = format!("{SELECT} WHERE node.id = $1");
    let row = sqlx::query(AssertSqlSafe(statement))
        .bind(id.uuid())
        .fetch_optional(tx.connection())
        .await?;
    row.as_ref().map(read).transpose()
}

/// The nodes behind `after`, in the order in which they were added: at most `limit`.
///
/// # Errors
/// When the database fails.
pub async fn list(store: &Store, after: Option<NodeId>, limit: i64) -> Result<Vec<Node>, Error> {
    let statement = format!(
        "{SELECT}
         WHERE $1::uuid IS NULL OR node.id > $1
         ORDER BY node.id
         LIMIT $2"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(after.map(NodeId::uuid))
        .bind(limit)
        .fetch_all(store.pool())
        .await?;
    rows.iter().map(read).collect()
}

fn read(row: &PgRow) -> Result<Node, Error> {
    let (id, text): (Uuid, &str) = (row.try_get(0)?, row.try_get(4)?);
    let Some(status) = node::Status::parse(text) else {
        return Err(Error::UnknownStatus { machine: Machine::NAME, id, status: text.to_owned() });
    };
    let at = |position| -> Result<Option<jiff::Timestamp>, sqlx::Error> {
        let at: Option<jiff_sqlx::Timestamp> = row.try_get(position)?;
        Ok(at.map(jiff_sqlx::Timestamp::to_jiff))
    };
    let slots: Json<Vec<Slot>> = row.try_get(11)?;
    let claim: Option<Json<SlotClaim>> = row.try_get(12)?;
    Ok(Node {
        id,
        name: row.try_get(1)?,
        region: row.try_get(2)?,
        sku: row.try_get(3)?,
        status: Coded(status),
        status_at: row.try_get::<jiff_sqlx::Timestamp, _>(5)?.to_jiff(),
        reason: row.try_get(6)?,
        heartbeat_at: at(7)?,
        agent_version: row.try_get(8)?,
        certificate_expires_at: at(9)?,
        free_slots: row.try_get(10)?,
        slots: slots.0,
        claim: claim.map(|claim| claim.0),
    })
}
