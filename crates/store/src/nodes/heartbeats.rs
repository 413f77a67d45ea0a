//! Heartbeats, many at a time: one statement writes what all of them say. Of a node that two of them are from, hand in the
//! newer alone.

use domain::ids::{NodeId, NodeTaskId};
use domain::machines::{Node, node};
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::{Code as _, Machine as _};
use sqlx::Row as _;
use uuid::Uuid;

use crate::{Error, Tx};

/// One heartbeat.
#[derive(Clone, Debug)]
pub struct Beat {
    /// Whose.
    pub node: NodeId,
    /// Which agent speaks for the node.
    pub agent_id: Uuid,
    /// When it came.
    pub at: Timestamp,
    /// The boot of the machine.
    pub boot_id: Uuid,
    /// The agent's version.
    pub agent_version: String,
    /// What the node has and runs; the names of the images stand under `images`.
    pub inventory: serde_json::Value,
    /// The tasks the agent is at.
    pub running: Vec<NodeTaskId>,
}

/// What a heartbeat found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The node.
    pub node: NodeId,
    /// Its status.
    pub status: node::Status,
    /// How many slots the record says it has.
    pub slots: i64,
    /// Whether its images are not those it had before.
    pub images_changed: bool,
}

/// Writes down heartbeats, and that the tasks they name are still being worked on until `lease_until`. A node that is
/// gone is not among the answers. Nor, when there are several, is one that somebody else holds: who places a group holds nodes
/// and waits for others, in an order of its own, so nobody may do the same here. Hand such a one in again, alone: it waits.
///
/// # Errors
/// When the database fails.
pub async fn hear(
    tx: &mut Tx,
    beats: &[&Beat],
    lease_until: Timestamp,
) -> Result<Vec<Heard>, Error> {
    let leases = beats.iter().flat_map(|beat| beat.running.iter().map(move |task| (task, beat)));
    let (tasks, agents): (Vec<Uuid>, Vec<Uuid>) =
        leases.map(|(task, beat)| (task.uuid(), beat.agent_id)).unzip();
    let statement = statement(beats.len() == 1);
    let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
        .bind(beats.iter().map(|beat| beat.node.uuid()).collect::<Vec<_>>())
        .bind(beats.iter().map(|beat| beat.at.to_sqlx()).collect::<Vec<_>>())
        .bind(beats.iter().map(|beat| beat.boot_id).collect::<Vec<_>>())
        .bind(beats.iter().map(|beat| beat.agent_version.as_str()).collect::<Vec<_>>())
        .bind(beats.iter().map(|beat| &beat.inventory).collect::<Vec<_>>())
        .bind(tasks)
        .bind(agents)
        .bind(lease_until.to_sqlx())
        .fetch_all(tx.connection())
        .await?;
    rows.iter().map(read).collect()
}

/// A task that somebody else has locked is moving on, and is never waited for: whoever ends a task holds it while he waits for
/// the node.
fn statement(alone: bool) -> String {
    let others = if alone { "" } else { "SKIP LOCKED" };
    format!(
        "WITH beat AS MATERIALIZED (
            SELECT node_id, at, boot_id, agent_version, inventory
              FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::text[], $5::jsonb[])
                AS beat (node_id, at, boot_id, agent_version, inventory)
         ), former AS MATERIALIZED (
            SELECT id, inventory -> 'images' AS images
              FROM nodes
             WHERE id = ANY ($1::uuid[])
             ORDER BY id
               FOR NO KEY UPDATE {others}
         ), heard AS (
            UPDATE nodes
               SET heartbeat_at = greatest(nodes.heartbeat_at, beat.at),
                   inventory_at = clock_timestamp(),
                   boot_id = beat.boot_id,
                   agent_version = beat.agent_version,
                   inventory = CASE WHEN nodes.inventory = beat.inventory THEN nodes.inventory ELSE beat.inventory END
              FROM beat
              JOIN former ON former.id = beat.node_id
             WHERE nodes.id = beat.node_id
            RETURNING nodes.id, nodes.status, former.images IS DISTINCT FROM beat.inventory -> 'images' AS images_changed
         ), held AS MATERIALIZED (
            SELECT node_tasks.id
              FROM unnest($6::uuid[], $7::uuid[]) AS lease (task_id, agent_id)
              JOIN node_tasks ON node_tasks.id = lease.task_id AND node_tasks.agent_id = lease.agent_id
             WHERE node_tasks.status IS NOT DISTINCT FROM 'dispatched'
               FOR NO KEY UPDATE OF node_tasks SKIP LOCKED
         ), leased AS (
            UPDATE node_tasks
               SET lease_until = greatest(lease_until, $8)
              FROM held
             WHERE node_tasks.id = held.id
         )
         SELECT heard.id, heard.status, heard.images_changed,
                (SELECT count(*) FROM slots WHERE slots.node_id = heard.id)
           FROM heard"
    )
}

fn read(row: &sqlx::postgres::PgRow) -> Result<Heard, Error> {
    let (id, text): (Uuid, &str) = (row.try_get(0)?, row.try_get(1)?);
    let Some(status) = node::Status::parse(text) else {
        return Err(Error::UnknownStatus { machine: Node::NAME, id, status: text.to_owned() });
    };
    let (images_changed, slots) = (row.try_get(2)?, row.try_get(3)?);
    Ok(Heard { node: NodeId(id), status, slots, images_changed })
}

/// Makes these the images of these nodes: `images` are pairs, and a node without any has none left.
///
/// # Errors
/// When the database fails.
pub async fn keep_images(
    tx: &mut Tx,
    nodes: &[NodeId],
    images: &[(NodeId, &str)],
) -> Result<(), Error> {
    sqlx::query(
        "WITH told AS MATERIALIZED (
            SELECT DISTINCT node_id, image
              FROM unnest($2::uuid[], $3::text[]) AS told (node_id, image)
         ), gone AS (
            DELETE FROM node_images
             WHERE node_id = ANY ($1::uuid[])
               AND (node_id, image) NOT IN (SELECT node_id, image FROM told)
         )
         INSERT INTO node_images (node_id, image)
         SELECT node_id, image
           FROM told
         ON CONFLICT (node_id, image) DO NOTHING",
    )
    .bind(nodes.iter().map(|node| node.uuid()).collect::<Vec<_>>())
    .bind(images.iter().map(|(node, _)| node.uuid()).collect::<Vec<_>>())
    .bind(images.iter().map(|(_, image)| *image).collect::<Vec<_>>())
    .execute(tx.connection())
    .await?;
    Ok(())
}
