//! Node tasks: work for a node's agent, from the queue to its result.

mod in_hand;
mod phases;
mod queue;

use std::collections::HashMap;

use domain::ids::{AllocationId, NodeId, NodeTaskId, OperationId};
use domain::machines::node_task::{Event, Status};
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Code as _;
use serde_json::Value;
use serde_json::value::RawValue;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;
use wire::node::{Phase, PhaseStatus, TaskKind};

use crate::company::Question;
use crate::lifecycle::{Kept, Report};
use crate::prune::{Prune, pruning};
use crate::{Error, Ring, Store, Tx};
pub use in_hand::{InHand, lock, lock_queued, report, report_all};
pub use phases::{PhaseRow, add_phases};
pub use queue::{NewTask, insert};

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
    /// With which parameters, as they are kept: here they are only handed on.
    pub params: Box<RawValue>,
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
        params: row.try_get::<Json<Box<RawValue>>, _>(6)?.0,
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
    tx.ask(Find(id)).await
}

/// See [`find`].
struct Find(NodeTaskId);

impl Question for Find {
    type Answer = Option<Task>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Find>,
    ) -> Result<Vec<Option<Task>>, Error> {
        let ids: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let query = concat_columns("SELECT ", " FROM node_tasks WHERE id = ANY ($1)");
        let rows = sqlx::query(AssertSqlSafe(query)).bind(&ids).fetch_all(connection).await?;
        let found: Vec<Task> = rows.iter().map(task).collect::<Result<_, _>>()?;
        let of = |id: &Uuid| found.iter().find(|task| task.id.uuid() == *id).cloned();
        Ok(ids.iter().map(of).collect())
    }
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
    tx.ask(LiveOf(allocation)).await
}

/// See [`live_of`].
struct LiveOf(AllocationId);

impl Question for LiveOf {
    type Answer = Vec<Task>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<LiveOf>,
    ) -> Result<Vec<Vec<Task>>, Error> {
        let allocations: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let query = concat_columns(
            "SELECT ",
            // By the key: an index of what waits looks as good as long as hardly anything does.
            " FROM (SELECT * FROM node_tasks WHERE allocation_id = ANY ($1) OFFSET 0) AS task \
             WHERE status IN ('queued', 'dispatched') ORDER BY id",
        );
        let query = sqlx::query(AssertSqlSafe(query)).bind(&allocations);
        let mut of: HashMap<Uuid, Vec<Task>> = HashMap::with_capacity(allocations.len());
        for row in &query.fetch_all(connection).await? {
            let task = task(row)?;
            of.entry(task.allocation.uuid()).or_default().push(task);
        }
        Ok(allocations.iter().map(|id| of.get(id).cloned().unwrap_or_default()).collect())
    }
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
    tx.ask(Touched(allocation)).await
}

/// See [`touched_a_node`].
struct Touched(AllocationId);

impl Question for Touched {
    type Answer = bool;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Touched>,
    ) -> Result<Vec<bool>, Error> {
        let allocations: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let rows = sqlx::query(
            "SELECT EXISTS (
                SELECT 1
                  FROM (SELECT * FROM node_tasks WHERE allocation_id = wish.id OFFSET 0) AS task
                 WHERE dispatch > 0 OR status IN ('queued', 'dispatched'))
               FROM unnest($1::uuid[]) WITH ORDINALITY AS wish (id, place)
              ORDER BY place",
        )
        .bind(allocations)
        .fetch_all(connection)
        .await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
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
