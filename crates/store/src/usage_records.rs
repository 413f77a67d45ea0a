//! Usage records: stretches of billable time, at most one open an allocation. They are opened and closed by the allocation's own
//! transitions, in the same transaction and at the same moment, so that there is nothing for a message to bring too late.

use std::collections::HashMap;

use domain::ids::{AllocationId, EventId, UsageRecordId};
use domain::machines::allocation::{Event as Moving, Status};
use domain::machines::usage_record::Event;
use domain::machines::{ENDED_AT, UsageRecord};
use lifecycle::{Code as _, Outcome, Source, Value};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::company::Question;
use crate::lifecycle::{Actor, Report, births_in, write};
use crate::{Error, Tx};

/// Who opens and closes.
const METER: &str = "meter";

/// The open record of an allocation, locked. Whoever is about to end a stretch takes it before the moment of the end is
/// taken: then nothing is being charged behind that moment, nor can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running(UsageRecordId);

/// The open records of allocations, locked.
macro_rules! open_of {
    () => {
        "SELECT id, allocation_id FROM usage_records WHERE allocation_id = ANY ($1) AND status = 'open' ORDER BY id FOR UPDATE"
    };
}

/// Locks the open record of an allocation, if this event may end it.
pub(crate) async fn hold(
    tx: &mut Tx,
    allocation: AllocationId,
    status: Status,
    event: Moving,
) -> Result<Option<Running>, Error> {
    let ends = matches!(event, Moving::ReleaseRequested | Moving::RestartFailedToReturn);
    if !ends || !matches!(status, Status::Active | Status::Restarting) {
        return Ok(None);
    }
    tx.ask(Hold(allocation)).await
}

/// See [`hold`].
struct Hold(AllocationId);

impl Question for Hold {
    type Answer = Option<Running>;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Hold>,
    ) -> Result<Vec<Option<Running>>, Error> {
        // Whoever charges locks records in an order of their own. Who locks several here does not wait for one of them: each then goes
        // alone, and waits for theirs with no other in hand.
        let statement =
            if questions.len() > 1 { concat!(open_of!(), " NOWAIT") } else { open_of!() };
        let ids: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let rows = sqlx::query(statement).bind(&ids).fetch_all(connection).await?;
        let mut running = HashMap::with_capacity(rows.len());
        for row in &rows {
            running.insert(row.try_get::<Uuid, _>(1)?, Running(UsageRecordId(row.try_get(0)?)));
        }
        Ok(ids.iter().map(|id| running.remove(id)).collect())
    }
}

/// Lets the meter follow a step of an allocation: a stretch begins when it becomes active, and ends when it is no more the
/// tenant's or no more in working order. A restart goes on in the same stretch; one that failed ends it.
pub(crate) async fn follow(
    tx: &mut Tx,
    allocation: AllocationId,
    running: Option<Running>,
    outcome: &Outcome<Status>,
) -> Result<(), Error> {
    let Outcome::Applied { to, .. } = outcome else {
        return Ok(());
    };
    match (to, running) {
        (Status::Active, _) => open(tx, allocation).await,
        (Status::RestartFailed | Status::Releasing, Some(running)) => {
            close(tx, allocation, running).await
        }
        _ => Ok(()),
    }
}

/// Opens a record at the moment at which the allocation became active, unless one is open.
async fn open(tx: &mut Tx, allocation: AllocationId) -> Result<(), Error> {
    let (record, event) = (tx.new_id(), tx.new_id());
    tx.ask(Open { record, event, allocation: allocation.uuid() }).await
}

/// See [`open`].
struct Open {
    record: Uuid,
    event: Uuid,
    allocation: Uuid,
}

impl Question for Open {
    type Answer = ();
    const WRITES: bool = true;

    async fn answer(connection: &mut PgConnection, records: Vec<Open>) -> Result<Vec<()>, Error> {
        let born = births_in::<UsageRecord>("newborn", "clock_timestamp()", None);
        let statement = format!(
            "WITH wish AS MATERIALIZED (
                SELECT *
                  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS wish (id, allocation_id, event_id)
             ), made AS (
             INSERT INTO usage_records (id, allocation_id, started_at, charged_until, opened_seq, account_id, project_id, node_id, sku,
                    gpus, price_micros_per_gpu_second, micros_per_minor, repriced)
             SELECT wish.id, allocation.id, allocation.status_at, allocation.status_at, allocation.seq, project.account_id,
                    allocation.project_id,
                    (SELECT node_id FROM claims WHERE claims.allocation_id = allocation.id LIMIT 1),
                    allocation.sku, allocation.gpus, allocation.price_micros_per_gpu_second, minor_micros(allocation.currency),
                    EXISTS (SELECT 1 FROM allocation_prices AS changed WHERE changed.allocation_id = allocation.id)
               FROM wish
               JOIN allocations AS allocation ON allocation.id = wish.allocation_id
               LEFT JOIN projects AS project ON project.id = allocation.project_id
              -- An expression, and no join: one that is planned while hardly any are open would read all that are.
              WHERE (SELECT true
                       FROM usage_records AS other
                      WHERE other.allocation_id = wish.allocation_id AND other.status = 'open') IS NULL
             RETURNING id, allocation_id, opened_seq
             ), newborn AS MATERIALIZED (
                SELECT made.id, NULL::uuid AS operation_id, wish.event_id, $4::text AS source, $5::text AS actor,
                       'allocation ' || made.allocation_id || ', step ' || made.opened_seq AS cause
                  FROM made
                  JOIN wish ON wish.id = made.id
             ), {born}
             SELECT 1"
        );
        let of = |value: fn(&Open) -> Uuid| records.iter().map(value).collect::<Vec<_>>();
        sqlx::query(AssertSqlSafe(statement))
            .bind(of(|one| one.record))
            .bind(of(|one| one.allocation))
            .bind(of(|one| one.event))
            .bind(Source::Worker.code())
            .bind(METER)
            .execute(connection)
            .await?;
        Ok(records.iter().map(|_| ()).collect())
    }
}

/// Closes a record at the moment at which the allocation took its last step.
async fn close(tx: &mut Tx, allocation: AllocationId, running: Running) -> Result<(), Error> {
    let LastStep { at, seq } = tx.ask(LastStepOf(allocation)).await?;
    let report =
        Report::new(Event::Closing, EventId(tx.new_id()), Actor::new(Source::Worker, METER))
            .with(ENDED_AT, Value::Time(at))
            .because(format!("allocation {allocation}, step {seq}"));
    let closed = write::<UsageRecord>(tx, running.0.uuid(), &report).await?;
    if closed.is_retryable() { Err(Error::Conflict) } else { Ok(()) }
}

/// The last step of an allocation.
#[derive(Clone, Copy)]
struct LastStep {
    /// When it was, in microseconds.
    at: i64,
    seq: i64,
}

/// Which was the last step of an allocation.
struct LastStepOf(AllocationId);

impl Question for LastStepOf {
    type Answer = LastStep;
    const WRITES: bool = false;

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<LastStepOf>,
    ) -> Result<Vec<LastStep>, Error> {
        let ids: Vec<Uuid> = questions.iter().map(|question| question.0.uuid()).collect();
        let rows = sqlx::query(
            "SELECT id, (extract(epoch FROM status_at) * 1000000)::bigint, seq FROM allocations WHERE id = ANY ($1)",
        )
        .bind(&ids)
        .fetch_all(connection)
        .await?;
        let mut steps = HashMap::with_capacity(rows.len());
        for row in &rows {
            let step = LastStep { at: row.try_get(1)?, seq: row.try_get(2)? };
            steps.insert(row.try_get::<Uuid, _>(0)?, step);
        }
        let step = |id: &Uuid| steps.get(id).copied().ok_or(sqlx::Error::RowNotFound);
        Ok(ids.iter().map(step).collect::<Result<_, _>>()?)
    }
}

/// The open record of an allocation.
///
/// # Errors
/// When the database fails.
pub async fn find_open(
    tx: &mut Tx,
    allocation: AllocationId,
) -> Result<Option<UsageRecordId>, Error> {
    let row =
        sqlx::query("SELECT id FROM usage_records WHERE allocation_id = $1 AND status = 'open'")
            .bind(allocation.uuid())
            .fetch_optional(tx.connection())
            .await?;
    row.map(|row| Ok(UsageRecordId(row.try_get::<Uuid, _>(0)?))).transpose()
}
