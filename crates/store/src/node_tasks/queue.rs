//! How work is queued for a node.

use domain::ids::{AllocationId, NodeId, NodeTaskId, OperationId};
use domain::machines::NodeTask;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use lifecycle::Code as _;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::company::Question;
use crate::lifecycle::{Birth, births_in};
use crate::{Error, Ring, Tx};

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
    let queued = Queue { task: task.clone(), birth, trace: trace::current() };
    let inserted = tx.ask(queued).await?;
    if inserted {
        tx.rings(Ring::Allocation(task.allocation.uuid()));
        tx.rings(Ring::Node(task.node.uuid()));
    }
    Ok(inserted)
}

/// See [`insert`].
struct Queue {
    task: NewTask,
    birth: Birth,
    trace: Option<String>,
}

impl Question for Queue {
    /// Whether it is new.
    type Answer = bool;
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Queue>,
    ) -> Result<Vec<bool>, Error> {
        let mut query = sqlx::query(AssertSqlSafe(insertion()));
        macro_rules! each {
            ($($value:expr),+ $(,)?) => {
                $(query = query.bind(questions.iter().map($value).collect::<Vec<_>>());)+
            };
        }
        each!(
            |one| one.task.id.uuid(),
            |one| one.task.node.uuid(),
            |one| one.task.allocation.uuid(),
            |one| one.task.operation.uuid(),
            |one| one.task.kind,
            |one| &one.task.params,
            |one| one.task.run.as_deref(),
            |one| one.task.deadline.map(|at| at.to_sqlx()),
            |one| one.trace.as_deref(),
            |one| one.birth.event_id.uuid(),
            |one| one.birth.actor.source.code(),
            |one| one.birth.actor.name.as_str(),
            |one| one.birth.cause.as_deref(),
        );
        let rows = query.fetch_all(connection).await?;
        let made: Vec<Uuid> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok(questions.iter().map(|one| made.contains(&one.task.id.uuid())).collect())
    }
}

/// The rows of tasks and the records of their births. `$1` to `$9` are the tasks, `$10` to `$13` how they came to be. Answers which of
/// them are new.
fn insertion() -> String {
    let born = births_in::<NodeTask>("newborn", "clock_timestamp()", None);
    // Counting makes sure that every claim is locked, and not just the first.
    format!(
        "WITH wish AS MATERIALIZED (
            SELECT *
              FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::jsonb[], $7::text[], $8::timestamptz[],
                    $9::text[], $10::uuid[], $11::text[], $12::text[], $13::text[])
                AS wish (id, node_id, allocation_id, operation_id, kind, params, run_id, deadline_at, traceparent, event_id, source,
                    actor, cause)
         ), holder AS MATERIALIZED (
            SELECT allocation.id, allocation.operation_id, allocation.seq, allocation.sku, allocation.image
              FROM allocations AS allocation
              JOIN wish ON wish.allocation_id = allocation.id AND wish.operation_id = allocation.operation_id
             WHERE allocation.status <> 'released'
             ORDER BY allocation.id
               FOR SHARE OF allocation
         ), held AS MATERIALIZED (
            SELECT claims.allocation_id
              FROM claims
             WHERE allocation_id = ANY (ARRAY(SELECT id FROM holder)) AND status <> 'freed'
             ORDER BY claims.id
               FOR SHARE
         ), holding AS MATERIALIZED (
            SELECT allocation_id, count(*)
              FROM held
             GROUP BY allocation_id
         ), made AS (
         INSERT INTO node_tasks (id, node_id, allocation_id, operation_id, kind, fence, params, run_id, deadline_at, boot_id, sku, image, traceparent)
         SELECT wish.id, wish.node_id, holder.id, holder.operation_id, wish.kind, holder.seq, wish.params, wish.run_id, wish.deadline_at,
                (SELECT boot_id FROM nodes WHERE nodes.id = wish.node_id), holder.sku, holder.image, wish.traceparent
           FROM wish
           JOIN holder ON holder.id = wish.allocation_id
           JOIN holding ON holding.allocation_id = wish.allocation_id
             ON CONFLICT (id) DO NOTHING
         RETURNING id, operation_id
         ), newborn AS MATERIALIZED (
            SELECT made.id, made.operation_id, wish.event_id, wish.source, wish.actor, wish.cause
              FROM made
              JOIN wish ON wish.id = made.id
         ), {born}
         SELECT id FROM made"
    )
}
