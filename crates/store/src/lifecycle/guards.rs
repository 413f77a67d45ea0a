//! Guards: conditions on other rows, each a statement of its own that runs after the row's lock is held, so that it sees
//! what was committed while we waited. Whoever creates such a row locks ours first and looks at its status.

use lifecycle::{Code as _, Guard, Reason, Standing};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::{Judged, Stored, ToRow};
use crate::company::Question;
use crate::{Error, Tx};

/// Every guard: machine, name, and an expression of `wish.id`, the row's id, that says whether it holds. `OFFSET 0` keeps the look by key
/// apart from what is asked of what it finds: see [`super::statement`].
pub(crate) const GUARDS: &[(&str, Guard, &str)] = &[
    (
        "allocation",
        domain::machines::allocation::NO_LIVE_TASKS,
        "NOT EXISTS (
            SELECT 1
              FROM (SELECT status FROM node_tasks WHERE allocation_id = wish.id OFFSET 0) AS task
             WHERE status IN ('queued', 'dispatched'))",
    ),
    (
        "node",
        domain::machines::node::NO_LIVE_CLAIMS,
        "NOT EXISTS (SELECT 1 FROM (SELECT 1 FROM claims WHERE node_id = wish.id AND status <> 'freed' OFFSET 0) AS claim)",
    ),
    (
        "claim",
        domain::machines::claim::ALLOCATION_LEAVING,
        "EXISTS (
            SELECT 1
              FROM (SELECT * FROM claims WHERE id = wish.id OFFSET 0) AS claim,
                   LATERAL (SELECT status FROM allocations WHERE id = claim.allocation_id OFFSET 0) AS allocation
             WHERE allocation.status IN ('releasing', 'release_failed', 'released', 'failed')
         )",
    ),
    // Proven by the clean-up of this very operation, or nothing was ever handed to a node, nor can be any more.
    (
        "claim",
        domain::machines::claim::CLEANUP_PROVEN,
        "EXISTS (
            SELECT 1
              FROM (SELECT * FROM claims WHERE id = wish.id OFFSET 0) AS claim,
                   LATERAL (SELECT * FROM node_tasks WHERE allocation_id = claim.allocation_id OFFSET 0) AS task
             WHERE task.operation_id = claim.operation_id AND task.status = 'succeeded' AND task.cleanup_complete
         ) OR NOT EXISTS (
            SELECT 1
              FROM (SELECT * FROM claims WHERE id = wish.id OFFSET 0) AS claim,
                   LATERAL (SELECT * FROM node_tasks WHERE allocation_id = claim.allocation_id OFFSET 0) AS task
             WHERE task.dispatch > 0 OR task.status IN ('queued', 'dispatched')
         )",
    ),
];

/// Asks the guards of those who would move. Who has one against them is refused for the first of them.
pub(super) async fn ask<M: Stored>(
    tx: &mut Tx,
    reports: &[ToRow<'_, M>],
    judged: &mut [Judged<M::Status>],
) -> Result<(), Error> {
    let table = M::table();
    let (mut asked, mut questions) = (Vec::new(), Vec::new());
    for (place, one) in reports.iter().enumerate() {
        if !matches!(judged[place], Judged::Moves(_)) {
            continue;
        }
        for guard in &table.events[one.report.event.index()].guards {
            let known = GUARDS.iter().find(|(of, name, _)| *of == table.name && name == guard);
            // A guard that nobody wrote down holds for nobody; a test finds it before anybody else does.
            let condition = known.map_or("false", |(_, _, condition)| *condition);
            asked.push((place, *guard));
            questions.push(Holds { condition, id: one.id });
        }
    }
    let holds = tx.ask_all(questions).await?;
    for ((place, guard), holds) in asked.into_iter().zip(holds) {
        if let (false, Judged::Moves(_), Some(row)) = (holds, &judged[place], &reports[place].row) {
            let standing = Standing { status: row.status, seq: row.seq };
            judged[place] = Judged::Refused(Some(standing), Reason::Guard(guard.0));
        }
    }
    Ok(())
}

/// Whether a guard holds for a row.
struct Holds {
    condition: &'static str,
    id: Uuid,
}

impl Question for Holds {
    type Answer = bool;
    const WRITES: bool = false;

    fn statement(&self) -> &str {
        self.condition
    }

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Holds>,
    ) -> Result<Vec<bool>, Error> {
        let condition = questions.first().map_or("false", |first| first.condition);
        let ids: Vec<Uuid> = questions.iter().map(|question| question.id).collect();
        let statement = format!(
            "SELECT {condition} FROM unnest($1::uuid[]) WITH ORDINALITY AS wish (id, place) ORDER BY place"
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).bind(ids).fetch_all(connection).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
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
