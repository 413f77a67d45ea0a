//! Heartbeats, many at a time: one statement writes what all of them say. Of a node that two of them are from, hand in the
//! newer alone.

use std::sync::LazyLock;

use domain::ids::{NodeId, NodeTaskId};
use domain::machines::{Node, node};
use jiff::{SignedDuration, Timestamp};
use jiff_sqlx::ToSqlx as _;
use lifecycle::{Code as _, Machine as _};
use serde_json::value::RawValue;
use sqlx::Row as _;
use sqlx::types::Json;
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
    pub inventory: Box<RawValue>,
    /// The tasks the agent is at.
    pub running: Vec<NodeTaskId>,
}

/// A heartbeat that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// The heartbeat.
    pub beat: &'a Beat,
    /// When this inventory was written for this node, if it was: then it is not written once more. If another was written since, the
    /// heartbeat is not among the answers.
    pub known_at: Option<Timestamp>,
}

/// How heartbeats are written.
#[derive(Clone, Copy, Debug)]
pub struct Hearing {
    /// Until when the tasks that they name are believed to be worked on.
    pub lease_until: Timestamp,
    /// How old the moment may become after which a node was surely heard of.
    pub roughly: SignedDuration,
}

/// What a heartbeat found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The node.
    pub node: NodeId,
    /// Its status.
    pub status: node::Status,
    /// When its inventory was written, or was said to be the same.
    pub inventory_at: Timestamp,
    /// How many slots the record says it has; none is counted for a known inventory.
    pub slots: Option<i64>,
    /// Whether its images are not those it had before.
    pub images_changed: bool,
}

/// Writes down heartbeats, and that the tasks they name are still being worked on. A node that is gone is not among the answers. Nor,
/// when there are several, is one that somebody else holds: who places a group holds nodes and waits for others, in an order of its
/// own, so nobody may do the same here. Hand such a one in again, alone and with its inventory: it waits.
///
/// # Errors
/// When the database fails.
pub async fn hear(tx: &mut Tx, said: &[Said<'_>], hearing: Hearing) -> Result<Vec<Heard>, Error> {
    let beats = || said.iter().map(|said| said.beat);
    let leases = beats().flat_map(|beat| beat.running.iter().map(move |task| (task, beat)));
    let (tasks, agents): (Vec<Uuid>, Vec<Uuid>) =
        leases.map(|(task, beat)| (task.uuid(), beat.agent_id)).unzip();
    let whole = said.iter().map(|Said { beat, known_at }| match known_at {
        Some(_) => None,
        None => Some(Json(&*beat.inventory)),
    });
    let whole: Vec<Option<Json<&RawValue>>> = whole.collect();
    let rows = sqlx::query(if said.len() == 1 { ALONE.as_str() } else { TOGETHER.as_str() })
        .bind(beats().map(|beat| beat.node.uuid()).collect::<Vec<_>>())
        .bind(beats().map(|beat| beat.at.to_sqlx()).collect::<Vec<_>>())
        .bind(beats().map(|beat| beat.boot_id).collect::<Vec<_>>())
        .bind(beats().map(|beat| beat.agent_version.as_str()).collect::<Vec<_>>())
        .bind(whole)
        .bind(tasks)
        .bind(agents)
        .bind(hearing.lease_until.to_sqlx())
        .bind(said.iter().map(|said| said.known_at.map(|at| at.to_sqlx())).collect::<Vec<_>>())
        .bind(hearing.roughly.as_secs_f64())
        .fetch_all(tx.connection())
        .await?;
    rows.iter().map(read).collect()
}

static ALONE: LazyLock<String> = LazyLock::new(|| statement(""));
static TOGETHER: LazyLock<String> = LazyLock::new(|| statement("SKIP LOCKED"));

/// A task that somebody else has locked is moving on, and is never waited for: whoever ends a task holds it while he waits for
/// the node.
fn statement(others: &str) -> String {
    format!(
        "WITH beat AS MATERIALIZED (
            SELECT node_id, at, boot_id, agent_version, inventory, known_at
              FROM unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::text[], $5::jsonb[], $9::timestamptz[])
                AS beat (node_id, at, boot_id, agent_version, inventory, known_at)
         ), former AS MATERIALIZED (
            SELECT id, inventory -> 'images' AS images
              FROM nodes
             WHERE id = ANY ($1::uuid[])
             ORDER BY id
               FOR NO KEY UPDATE {others}
         ), heard AS (
            UPDATE nodes
               SET heartbeat_at = greatest(nodes.heartbeat_at, beat.at),
                   heard_after = CASE WHEN beat.at >= nodes.heard_after + make_interval(secs => $10) THEN beat.at
                                      ELSE nodes.heard_after END,
                   inventory_at = clock_timestamp(),
                   boot_id = beat.boot_id,
                   agent_version = beat.agent_version,
                   inventory = coalesce(beat.inventory, nodes.inventory)
              FROM beat
              JOIN former ON former.id = beat.node_id
             WHERE nodes.id = beat.node_id
               AND (beat.inventory IS NOT NULL OR nodes.inventory_at = beat.known_at)
            RETURNING nodes.id, nodes.status, nodes.inventory_at, beat.inventory IS NOT NULL AS told,
                   beat.inventory IS NOT NULL AND former.images IS DISTINCT FROM beat.inventory -> 'images' AS images_changed
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
         SELECT heard.id, heard.status, heard.inventory_at, heard.images_changed,
                CASE WHEN heard.told THEN (SELECT count(*) FROM slots WHERE slots.node_id = heard.id) END
           FROM heard"
    )
}

fn read(row: &sqlx::postgres::PgRow) -> Result<Heard, Error> {
    let (id, text): (Uuid, &str) = (row.try_get(0)?, row.try_get(1)?);
    let Some(status) = node::Status::parse(text) else {
        return Err(Error::UnknownStatus { machine: Node::NAME, id, status: text.to_owned() });
    };
    let inventory_at = row.try_get::<jiff_sqlx::Timestamp, _>(2)?.to_jiff();
    let (images_changed, slots) = (row.try_get(3)?, row.try_get(4)?);
    Ok(Heard { node: NodeId(id), status, inventory_at, slots, images_changed })
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
