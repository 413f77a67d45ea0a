//! Guards: conditions on other rows, each a statement of its own that runs after the row's lock is held, so that it sees
//! what was committed while we waited. Whoever creates such a row locks ours first and looks at its status.

use lifecycle::Guard;
use sqlx::Row as _;
use uuid::Uuid;

use crate::{Error, Tx};

/// Every guard: machine, name, and a query of `$1`, the row's id, that answers whether it holds.
pub(crate) const GUARDS: &[(&str, Guard, &str)] = &[
    (
        "allocation",
        domain::machines::allocation::NO_LIVE_TASKS,
        "SELECT NOT EXISTS (
            SELECT 1 FROM node_tasks WHERE allocation_id = $1 AND status IN ('queued', 'dispatched'))",
    ),
    (
        "node",
        domain::machines::node::NO_LIVE_CLAIMS,
        "SELECT NOT EXISTS (SELECT 1 FROM claims WHERE node_id = $1 AND status <> 'freed')",
    ),
    (
        "claim",
        domain::machines::claim::ALLOCATION_LEAVING,
        "SELECT EXISTS (
            SELECT 1
              FROM claims AS claim
              JOIN allocations AS allocation ON allocation.id = claim.allocation_id
             WHERE claim.id = $1 AND allocation.status IN ('releasing', 'release_failed', 'released', 'failed')
         )",
    ),
    // Proven by the clean-up of this very operation, or nothing was ever handed to a node, nor can be any more.
    (
        "claim",
        domain::machines::claim::CLEANUP_PROVEN,
        "SELECT EXISTS (
            SELECT 1
              FROM claims AS claim
              JOIN node_tasks AS task
                ON task.allocation_id = claim.allocation_id AND task.operation_id = claim.operation_id
             WHERE claim.id = $1 AND task.status = 'succeeded' AND task.cleanup_complete
         ) OR NOT EXISTS (
            SELECT 1
              FROM claims AS claim
              JOIN node_tasks AS task ON task.allocation_id = claim.allocation_id
             WHERE claim.id = $1 AND (task.dispatch > 0 OR task.status IN ('queued', 'dispatched'))
         )",
    ),
];

pub(crate) async fn holds(
    tx: &mut Tx,
    machine: &str,
    guard: Guard,
    id: Uuid,
) -> Result<bool, Error> {
    let known = GUARDS.iter().find(|(of, name, _)| *of == machine && *name == guard);
    // A guard that nobody wrote down holds for nobody; a test finds it before anybody else does.
    let Some((_, _, query)) = known else {
        return Ok(false);
    };
    Ok(sqlx::query(*query).bind(id).fetch_one(tx.connection()).await?.try_get(0)?)
}

#[cfg(test)]
mod tests {
    use super::GUARDS;

    #[test]
    fn every_guard_of_every_machine_has_its_query() {
        for table in domain::machines::tables() {
            for guard in table.events.iter().flat_map(|event| &event.guards) {
                let answered =
                    GUARDS.iter().any(|(of, name, _)| *of == table.name && name == guard);
                assert!(answered, "{}: nobody answers {}", table.name, guard.0);
            }
        }
    }
}
