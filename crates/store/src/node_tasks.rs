//! Node tasks: work for a node's agent, from the queue to its result.

use domain::ids::{AllocationId, NodeId, NodeTaskId, OperationId};
use domain::machines::NodeTask;
use domain::machines::node_task::{Event, Status};
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::{Code as _, Outcome};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;
use wire::node::{Phase, PhaseStatus, TaskKind};

use crate::lifecycle::stored::{self, Locked};
use crate::lifecycle::{Birth, Kept, Report, births_in, write_locked};
use crate::prune::{Prune, pruning};
use crate::{Error, Ring, Store, Tx};

/// A task to be.
#[derive(Clone, Debug)]
pub struct NewTask {
    /// Its identity.
    pub id: NodeTaskId,
    /// For which node.
    pub node: NodeId,
    /// For which allocation.
    pub allocation: AllocationId,
    /// For which of its operations.
    pub operation: OperationId,
    /// What to do.
    pub kind: &'static str,
    /// With which parameters.
    pub params: Value,
    /// The workflow that waits for it.
    pub run: Option<String>,
    /// After this nobody need do it any more.
    pub deadline: Option<Timestamp>,
}

/// Queues a task, if the allocation is still busy with that operation and still holds something. Allocation and claims
/// are locked against moving on meanwhile: a workflow that wakes up late can't start work for an operation that is over,
/// nor on a slot that is somebody else's by now. A task that is there already is not queued twice.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, task: &NewTask, birth: Birth) -> Result<bool, Error> {
    let row = sqlx::query(AssertSqlSafe(insertion()))
        .bind(task.id.uuid())
        .bind(task.node.uuid())
        .bind(task.allocation.uuid())
        .bind(task.operation.uuid())
        .bind(task.kind)
        .bind(&task.params)
        .bind(&task.run)
        .bind(task.deadline.map(|at| at.to_sqlx()))
        .bind(trace::current())
        .bind(birth.event_id.uuid())
        .bind(birth.actor.source.code())
        .bind(&birth.actor.name)
        .bind(&birth.cause)
        .fetch_one(tx.connection())
        .await?;
    let inserted: bool = row.try_get(0)?;
    if inserted {
        tx.rings(Ring::Allocation(task.allocation.uuid()));
        tx.rings(Ring::Node(task.node.uuid()));
    }
    Ok(inserted)
}

/// The row of a task and the record of its birth. `$1` to `$9` are the task, `$10` to `$13` how it came to be.
fn insertion() -> String {
    let born = births_in::<NodeTask>("newborn", "clock_timestamp()", None);
    // Counting makes sure that every claim is locked, and not just the first.
    format!(
        "WITH holder AS MATERIALIZED (
            SELECT id, operation_id, seq, sku, image
              FROM allocations
             WHERE id = $3 AND operation_id = $4 AND status <> 'released'
               FOR SHARE
         ), held AS MATERIALIZED (
            SELECT claims.id
              FROM claims
             WHERE allocation_id = (SELECT id FROM holder) AND status <> 'freed'
             ORDER BY claims.id
               FOR SHARE
         ), made AS (
         INSERT INTO node_tasks (id, node_id, allocation_id, operation_id, kind, fence, params, run_id, deadline_at, boot_id, sku, image, traceparent)
         SELECT $1, $2, id, operation_id, $5, seq, $6, $7, $8, (SELECT boot_id FROM nodes WHERE nodes.id = $2), sku, image, $9
           FROM holder
          WHERE (SELECT count(*) FROM held) > 0
             ON CONFLICT (id) DO NOTHING
         RETURNING id, operation_id
         ), newborn AS MATERIALIZED (
            SELECT id, operation_id, $10::uuid AS event_id, $11::text AS source, $12::text AS actor, $13::text AS cause
              FROM made
         ), {born}
         SELECT EXISTS (SELECT 1 FROM made)"
    )
}

/// A task, as stories read it.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its identity.
    pub id: NodeTaskId,
    /// Where it stands.
    pub status: Status,
    /// For which node.
    pub node: NodeId,
    /// For which allocation.
    pub allocation: AllocationId,
    /// For which of its operations.
    pub operation: OperationId,
    /// What to do.
    pub kind: String,
    /// With which parameters.
    pub params: Value,
    /// The number of the allocation's step at which it was queued.
    pub fence: i64,
    /// How often it has been handed out.
    pub dispatch: i64,
    /// The workflow that waits for it.
    pub run: Option<String>,
    /// Why it failed.
    pub reason: Option<String>,
    /// Whether its result proves that nothing was left behind.
    pub cleanup_complete: Option<bool>,
    /// How it ended, as the agent told it.
    pub result: Option<Value>,
    /// The boot that the node was in when it was queued, if the node had told.
    pub boot_id: Option<Uuid>,
    /// After this nobody need do it any more.
    pub deadline: Option<Timestamp>,
    /// Where what queued it stood in its trace.
    pub traceparent: Option<String>,
    /// How long ago it was queued first.
    pub age_seconds: f64,
    /// How long ago it was handed out last, if it was.
    pub dispatched_seconds: Option<f64>,
}

const COLUMNS: &str = "id, status, node_id, allocation_id, operation_id, kind, params, fence, dispatch, run_id, reason, cleanup_complete, result, boot_id, deadline_at, traceparent, extract(epoch FROM clock_timestamp() - created_at)::float8, extract(epoch FROM clock_timestamp() - dispatched_at)::float8";

/// How many they are.
const COLUMNS_COUNT: usize = 18;

fn task(row: &PgRow) -> Result<Task, Error> {
    let id: Uuid = row.try_get(0)?;
    let text: &str = row.try_get(1)?;
    let status = Status::parse(text).ok_or_else(|| Error::UnknownStatus {
        machine: "node_task",
        id,
        status: text.to_owned(),
    })?;
    Ok(Task {
        id: NodeTaskId(id),
        status,
        node: NodeId(row.try_get(2)?),
        allocation: AllocationId(row.try_get(3)?),
        operation: OperationId(row.try_get(4)?),
        kind: row.try_get(5)?,
        params: row.try_get(6)?,
        fence: row.try_get(7)?,
        dispatch: row.try_get(8)?,
        run: row.try_get(9)?,
        reason: row.try_get(10)?,
        cleanup_complete: row.try_get(11)?,
        result: row.try_get(12)?,
        boot_id: row.try_get(13)?,
        deadline: row.try_get::<Option<jiff_sqlx::Timestamp>, _>(14)?.map(|at| at.to_jiff()),
        traceparent: row.try_get(15)?,
        age_seconds: row.try_get(16)?,
        dispatched_seconds: row.try_get(17)?,
    })
}

/// The task of that identity.
///
/// # Errors
/// When the database fails.
pub async fn find(tx: &mut Tx, id: NodeTaskId) -> Result<Option<Task>, Error> {
    let query = concat_columns("SELECT ", " FROM node_tasks WHERE id = $1");
    let row =
        sqlx::query(AssertSqlSafe(query)).bind(id.uuid()).fetch_optional(tx.connection()).await?;
    row.as_ref().map(task).transpose()
}

/// A task that is locked, and where it stands.
#[derive(Clone, Debug)]
pub struct InHand {
    /// The task.
    pub task: Task,
    row: Locked<Status>,
}

/// Locks the tasks of a node that have waited longest and are still wanted, at most `most` of them. What somebody else is handing out
/// is passed by.
///
/// # Errors
/// When the database fails.
pub async fn lock_queued(
    tx: &mut Tx,
    node: NodeId,
    now: Timestamp,
    most: u16,
) -> Result<Vec<InHand>, Error> {
    let statement = locking(
        "node_id = $1 AND status = 'queued' AND (deadline_at IS NULL OR deadline_at > $2)
          ORDER BY created_at, id
          LIMIT $3
            FOR UPDATE SKIP LOCKED",
    );
    let query = sqlx::query(AssertSqlSafe(statement)).bind(node.uuid()).bind(now.to_sqlx());
    let rows = query.bind(i64::from(most)).fetch_all(tx.connection()).await?;
    rows.iter().map(in_hand).collect()
}

/// Locks a task.
///
/// # Errors
/// When the database fails.
pub async fn lock(tx: &mut Tx, id: NodeTaskId) -> Result<Option<InHand>, Error> {
    let query = sqlx::query(AssertSqlSafe(locking("id = $1 FOR UPDATE"))).bind(id.uuid());
    query.fetch_optional(tx.connection()).await?.as_ref().map(in_hand).transpose()
}

fn locking(which: &str) -> String {
    format!("SELECT {COLUMNS}, {} FROM node_tasks WHERE {which}", stored::columns::<NodeTask>(""))
}

fn in_hand(row: &PgRow) -> Result<InHand, Error> {
    let task = task(row)?;
    let first = COLUMNS_COUNT;
    Ok(InHand { row: stored::locked::<NodeTask>(row, task.id.uuid(), first)?, task })
}

/// Reports an event to a task that is locked.
///
/// # Errors
/// Only what is broken; see [`apply`](crate::lifecycle::apply).
pub async fn report(
    tx: &mut Tx,
    InHand { task, row }: InHand,
    report: &Report<Event>,
) -> Result<Outcome<Status>, Error> {
    write_locked::<NodeTask>(tx, task.id.uuid(), report, Some(row)).await
}

/// The nodes for which something is queued, and has been for so many seconds.
///
/// # Errors
/// When the database fails.
pub async fn nodes_with_queued(store: &Store, for_seconds: f64) -> Result<Vec<NodeId>, Error> {
    let rows = sqlx::query(
        "SELECT DISTINCT node_id
           FROM node_tasks
          WHERE status = 'queued' AND created_at < clock_timestamp() - make_interval(secs => $1)",
    )
    .bind(for_seconds)
    .fetch_all(store.pool())
    .await?;
    rows.iter().map(|row| Ok(NodeId(row.try_get(0)?))).collect()
}

/// The tasks of an allocation that are queued or handed out.
///
/// # Errors
/// When the database fails.
pub async fn live_of(tx: &mut Tx, allocation: AllocationId) -> Result<Vec<Task>, Error> {
    let query = concat_columns(
        "SELECT ",
        " FROM node_tasks WHERE allocation_id = $1 AND status IN ('queued', 'dispatched') ORDER BY id",
    );
    let rows = sqlx::query(AssertSqlSafe(query))
        .bind(allocation.uuid())
        .fetch_all(tx.connection())
        .await?;
    rows.iter().map(task).collect()
}

/// Both pieces are constants of ours.
fn concat_columns(before: &'static str, after: &'static str) -> String {
    format!("{before}{COLUMNS}{after}")
}

/// Whether anything was ever handed to a node for an allocation, or can still be.
///
/// # Errors
/// When the database fails.
pub async fn touched_a_node(tx: &mut Tx, allocation: AllocationId) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT EXISTS (
            SELECT 1
              FROM node_tasks
             WHERE allocation_id = $1 AND (dispatch > 0 OR status IN ('queued', 'dispatched')))",
    )
    .bind(allocation.uuid())
    .fetch_one(tx.connection())
    .await?;
    Ok(row.try_get(0)?)
}

/// Whether what a task restarts is known to have come up again, in working order or not: the agent has told so, or a machine
/// that reboots was heard of in another boot.
///
/// # Errors
/// When the database fails.
pub async fn came_up(tx: &mut Tx, id: NodeTaskId) -> Result<bool, Error> {
    let row = sqlx::query(
        "SELECT EXISTS (
                SELECT 1
                  FROM node_task_events
                 WHERE task_id = $1 AND phase = ANY ($2::text[]) AND stands = $3)
             OR EXISTS (
                SELECT 1
                  FROM node_tasks AS task
                  JOIN nodes ON nodes.id = task.node_id
                 WHERE task.id = $1 AND task.kind = $4 AND nodes.boot_id <> task.boot_id)",
    )
    .bind(id.uuid())
    .bind([Phase::VmStarted.code(), Phase::Rebooted.code()])
    .bind(PhaseStatus::Succeeded.code())
    .bind(TaskKind::NodeReboot.code())
    .fetch_one(tx.connection())
    .await?;
    Ok(row.try_get(0)?)
}

/// What was handed out: signed, and believed to be worked on until `lease_until`.
#[derive(Clone, Debug)]
pub struct Sealed<'a> {
    /// The text that was signed.
    pub envelope: &'a str,
    /// The signature.
    pub signature: &'a str,
    /// Until when.
    pub lease_until: Timestamp,
}

impl Sealed<'_> {
    /// The dispatch that keeps what was handed out.
    #[must_use]
    pub fn with(&self, dispatching: Report<Event>) -> Report<Event> {
        dispatching
            .keeping("envelope", Kept::Text(self.envelope.to_owned()))
            .keeping("signature", Kept::Text(self.signature.to_owned()))
            .keeping("lease_until", Kept::Time(self.lease_until))
    }
}

/// The end of a task that keeps its result.
#[must_use]
pub fn keeping_result(ending: Report<Event>, result: Value) -> Report<Event> {
    ending.keeping("result", Kept::Json(result))
}

/// One phase, as the agent told it.
#[derive(Clone, Copy, Debug)]
pub struct PhaseRow {
    /// Counts the reports of one dispatch.
    pub seq: i32,
    /// Which phase.
    pub phase: &'static str,
    /// How it stands.
    pub status: &'static str,
    /// When, by the node's clock.
    pub at: Timestamp,
}

/// Adds phases of a dispatch that this agent holds or held; those that are there already are left as they are. Also a sign
/// that the agent is at it. Answers how many are new.
///
/// Each gets a position that only grows, whatever order the agent tells them in: it is counted on the task's row, which
/// stays locked until the commit, so that nobody who sees a position can later see a smaller one come.
///
/// # Errors
/// When the database fails.
pub async fn add_phases(
    tx: &mut Tx,
    (id, dispatch): (NodeTaskId, i64),
    agent: Uuid,
    phases: &[PhaseRow],
    lease_until: Timestamp,
) -> Result<u64, Error> {
    let seqs: Vec<i32> = phases.iter().map(|phase| phase.seq).collect();
    let names: Vec<&str> = phases.iter().map(|phase| phase.phase).collect();
    let statuses: Vec<&str> = phases.iter().map(|phase| phase.status).collect();
    let times: Vec<i64> = phases.iter().map(|phase| phase.at.as_microsecond()).collect();
    let answer = sqlx::query(
        "WITH held AS (
            UPDATE node_tasks
               SET lease_until = greatest(lease_until, $8),
                   phases_told = phases_told + cardinality($4::int[])
             WHERE id = $1 AND dispatch = $2 AND agent_id = $3
            RETURNING id, allocation_id, phases_told - cardinality($4::int[]) AS before
         ), added AS (
            INSERT INTO node_task_events (task_id, dispatch, seq, phase, stands, at, position)
            SELECT held.id, $2, told.seq, told.phase, told.status,
                   'epoch'::timestamptz + told.at * interval '1 microsecond', held.before + told.place
              FROM held,
                   unnest($4::int[], $5::text[], $6::text[], $7::bigint[])
                   WITH ORDINALITY AS told (seq, phase, status, at, place)
                ON CONFLICT (task_id, dispatch, seq) DO NOTHING
            RETURNING 1
         )
         SELECT (SELECT count(*) FROM added), (SELECT allocation_id FROM held)",
    )
    .bind(id.uuid())
    .bind(dispatch)
    .bind(agent)
    .bind(&seqs)
    .bind(&names)
    .bind(&statuses)
    .bind(&times)
    .bind(lease_until.to_sqlx())
    .fetch_one(tx.connection())
    .await?;
    let (added, allocation): (i64, Option<Uuid>) = (answer.try_get(0)?, answer.try_get(1)?);
    if let Some(allocation) = allocation.filter(|_| added > 0) {
        tx.rings(Ring::Allocation(allocation));
    }
    Ok(added.unsigned_abs())
}

/// Tasks whose agent has not been heard of: their number of dispatch, and whether they may be handed out again.
///
/// # Errors
/// When the database fails.
pub async fn lost_leases(
    tx: &mut Tx,
    at: Timestamp,
) -> Result<Vec<(NodeTaskId, i64, bool)>, Error> {
    let rows = sqlx::query(
        "SELECT id, dispatch, dispatch < dispatches_max
           FROM node_tasks
          WHERE status = 'dispatched' AND lease_until <= $1
          ORDER BY lease_until
          LIMIT 200",
    )
    .bind(at.to_sqlx())
    .fetch_all(tx.connection())
    .await?;
    let lost = |row: &PgRow| Ok((NodeTaskId(row.try_get(0)?), row.try_get(1)?, row.try_get(2)?));
    rows.iter().map(lost).collect()
}

/// Tasks that nobody need do any more.
///
/// # Errors
/// When the database fails.
pub async fn overdue(tx: &mut Tx, at: Timestamp) -> Result<Vec<NodeTaskId>, Error> {
    let rows = sqlx::query(
        "SELECT id
           FROM node_tasks
          WHERE status IN ('queued', 'dispatched') AND deadline_at <= $1
          ORDER BY deadline_at
          LIMIT 200",
    )
    .bind(at.to_sqlx())
    .fetch_all(tx.connection())
    .await?;
    rows.iter().map(|row| Ok(NodeTaskId(row.try_get(0)?))).collect()
}

/// A task is queued again: its node's agent is told when this is committed.
pub fn ring_node(tx: &mut Tx, node: NodeId) {
    tx.rings(Ring::Node(node.uuid()));
}

/// The tasks of a node that are queued or handed out.
///
/// # Errors
/// When the database fails.
pub async fn live_on(tx: &mut Tx, node: NodeId) -> Result<Vec<Task>, Error> {
    let query = concat_columns(
        "SELECT ",
        " FROM node_tasks WHERE node_id = $1 AND status IN ('queued', 'dispatched') ORDER BY id",
    );
    let rows =
        sqlx::query(AssertSqlSafe(query)).bind(node.uuid()).fetch_all(tx.connection()).await?;
    rows.iter().map(task).collect()
}

/// The phases of tasks that have ended, told long ago. The task stays, with how it ended.
pub const PRUNE_PHASES: Prune = Prune::new(
    "node_task_events",
    pruning!(
        "node_task_events",
        "received_at",
        ", task_id",
        "(SELECT ended_at FROM node_tasks AS task WHERE task.id = page.task_id) IS NOT NULL"
    ),
);
