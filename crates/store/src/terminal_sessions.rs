//! Terminal sessions: at most one live one an allocation, which an index of the database sees to.

use domain::ids::{AllocationId, OperationId, TerminalSessionId};
use domain::machines::TerminalSession;

use crate::lifecycle::{Birth, born};
use crate::{Error, Tx};

/// Adds a session that `opening` opens.
///
/// # Errors
/// When the database fails: also when the allocation has a live session.
pub async fn insert(
    tx: &mut Tx,
    id: TerminalSessionId,
    allocation: AllocationId,
    opening: OperationId,
    birth: Birth,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO terminal_sessions (id, allocation_id, operation_id) VALUES ($1, $2, $3)",
    )
    .bind(id.uuid())
    .bind(allocation.uuid())
    .bind(opening.uuid())
    .execute(tx.connection())
    .await?;
    born::<TerminalSession>(tx, id, &birth.beginning(opening)).await?;
    Ok(())
}
