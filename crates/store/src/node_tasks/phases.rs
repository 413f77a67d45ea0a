//! What agents tell of a task while they are at it.

use domain::ids::NodeTaskId;
use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use uuid::Uuid;

use crate::company::{Question, in_order, rounds};
use crate::{Error, Ring, Tx};

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
    let phases = phases.to_vec();
    let (added, allocation) =
        tx.ask(AddPhases { id, dispatch, agent, phases, lease_until }).await?;
    if let Some(allocation) = allocation.filter(|_| added > 0) {
        tx.rings(Ring::Allocation(allocation));
    }
    Ok(added)
}

/// See [`add_phases`].
struct AddPhases {
    id: NodeTaskId,
    dispatch: i64,
    agent: Uuid,
    phases: Vec<PhaseRow>,
    lease_until: Timestamp,
}

impl Question for AddPhases {
    /// How many are new, and the allocation they are about.
    type Answer = (u64, Option<Uuid>);
    const WRITES: bool = true;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<AddPhases>,
    ) -> Result<Vec<Self::Answer>, Error> {
        let mut answers = Vec::with_capacity(questions.len());
        for (places, told) in rounds(questions, |one| one.id) {
            answers.extend(places.into_iter().zip(add_told(connection, told).await?));
        }
        Ok(in_order(answers))
    }
}

/// Adds phases of different tasks.
async fn add_told(
    connection: &mut PgConnection,
    told: Vec<AddPhases>,
) -> Result<Vec<(u64, Option<Uuid>)>, Error> {
    let phases = || told.iter().flat_map(|one| one.phases.iter().map(move |phase| (one, phase)));
    let mut query = sqlx::query(
        "WITH wish AS MATERIALIZED (
            SELECT *
              FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::bigint[], $5::timestamptz[])
                   WITH ORDINALITY AS wish (id, dispatch, agent_id, count, lease_until, place)
         ), held AS (
            UPDATE node_tasks AS task
               SET lease_until = greatest(task.lease_until, wish.lease_until),
                   phases_told = task.phases_told + wish.count
              FROM wish
             WHERE task.id = wish.id AND task.dispatch = wish.dispatch AND task.agent_id = wish.agent_id
            RETURNING task.id, task.allocation_id, task.dispatch, task.phases_told - wish.count AS before
         ), added AS (
            INSERT INTO node_task_events (task_id, dispatch, seq, phase, stands, at, position)
            SELECT held.id, held.dispatch, told.seq, told.phase, told.status,
                   'epoch'::timestamptz + told.at * interval '1 microsecond', held.before + told.place
              FROM held
              JOIN unnest($6::uuid[], $7::int[], $8::text[], $9::text[], $10::bigint[], $11::bigint[])
                   AS told (id, seq, phase, status, at, place) ON told.id = held.id
                ON CONFLICT (task_id, dispatch, seq) DO NOTHING
            RETURNING task_id
         )
         SELECT (SELECT count(*) FROM added WHERE added.task_id = wish.id), held.allocation_id
           FROM wish
           LEFT JOIN held ON held.id = wish.id
          ORDER BY wish.place",
    );
    macro_rules! each {
        ($of:expr => $($value:expr),+ $(,)?) => {
            $(query = query.bind($of.map($value).collect::<Vec<_>>());)+
        };
    }
    each!(told.iter() =>
        |one| one.id.uuid(),
        |one| one.dispatch,
        |one| one.agent,
        |one| i64::try_from(one.phases.len()).unwrap_or(i64::MAX),
        |one| one.lease_until.to_sqlx(),
    );
    each!(phases() =>
        |(one, _)| one.id.uuid(),
        |(_, phase)| phase.seq,
        |(_, phase)| phase.phase,
        |(_, phase)| phase.status,
        |(_, phase)| phase.at.as_microsecond(),
    );
    let places = told.iter().flat_map(|one| 1..=i64::try_from(one.phases.len()).unwrap_or(0));
    let rows = query.bind(places.collect::<Vec<_>>()).fetch_all(connection).await?;
    let answer = |row: &PgRow| Ok((row.try_get::<i64, _>(0)?.unsigned_abs(), row.try_get(1)?));
    rows.iter().map(answer).collect()
}
