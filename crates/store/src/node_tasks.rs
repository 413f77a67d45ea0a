//! Node tasks: work for a node's agent.

use domain::ids::{AllocationId, NodeId, NodeTaskId, OperationId};
use domain::machines::NodeTask;

use crate::lifecycle::{Birth, born};
use crate::{Error, Tx};

/// A task to be.
#[derive(Clone, Copy, Debug)]
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
}

/// Queues a task, if the allocation is still busy with that operation and still holds something. Allocation and claims
/// are locked against moving on meanwhile: a workflow that wakes up late can't start work for an operation that is over,
/// nor on a slot that is somebody else's by now.
///
/// # Errors
/// When the database fails.
pub async fn insert(tx: &mut Tx, task: &NewTask, birth: Birth) -> Result<bool, Error> {
    let inserted = sqlx::query(
        // Counting makes sure that every claim is locked, and not just the first.
        "WITH holder AS MATERIALIZED (
            SELECT id, operation_id, seq
              FROM allocations
             WHERE id = $3 AND operation_id = $4 AND status <> 'released'
               FOR SHARE
         ), held AS MATERIALIZED (
            SELECT claims.id
              FROM claims
             WHERE allocation_id = (SELECT id FROM holder) AND status <> 'freed'
             ORDER BY claims.id
               FOR SHARE
         )
         INSERT INTO node_tasks (id, node_id, allocation_id, operation_id, kind, fence)
         SELECT $1, $2, id, operation_id, $5, seq
           FROM holder
          WHERE (SELECT count(*) FROM held) > 0",
    )
    .bind(task.id.uuid())
    .bind(task.node.uuid())
    .bind(task.allocation.uuid())
    .bind(task.operation.uuid())
    .bind(task.kind)
    .execute(tx.connection())
    .await?
    .rows_affected();
    if inserted == 1 {
        born::<NodeTask>(tx, task.id, &birth.beginning(task.operation)).await?;
    }
    Ok(inserted == 1)
}
