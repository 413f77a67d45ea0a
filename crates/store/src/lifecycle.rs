//! The single writer: [`born`] and [`apply`]. Nothing else in the product writes a status, and the database refuses
//! whoever tries (see [`enforce`]). Doors: every story, through the modules of the nouns.

pub mod enforce;
pub(crate) mod guards;
mod record;
mod report;
mod statement;
pub mod stored;

use lifecycle::{
    Code, Outcome, Reason, Refusal, Said, Standing, Verdict, decide, grounds_of, stamps_of,
};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::{Error, Ring, Tx};

pub(crate) use report::Kept;
pub use report::{Actor, Birth, Heard, Report};
use stored::Locked;
pub use stored::{Alone, Stored};

/// Records the birth of a row that the caller has inserted in this transaction: its first log record and the messages
/// its machine publishes. A second call for the same row changes nothing.
///
/// # Errors
/// [`Error::Unborn`] when there is no such newborn row.
pub async fn born<M: Stored>(
    tx: &mut Tx,
    id: M::Id,
    birth: &Birth,
) -> Result<Standing<M::Status>, Error> {
    let id: Uuid = id.into();
    let statement = statement::birth(M::table(), M::TABLE, M::WATCHED);
    let mut query = sqlx::query(AssertSqlSafe(statement)).bind(id).bind(birth.event_id.uuid());
    query = query.bind(birth.actor.source.code()).bind(&birth.actor.name).bind(&birth.cause);
    query = query.bind(birth.operation.map(|operation| operation.uuid()));
    if !M::BORN.is_empty() {
        query = query.bind(trace::current());
    }
    for _ in M::BORN {
        query = query.bind(tx.new_id());
    }
    let answer = query.fetch_one(tx.connection()).await?;
    let newborn: bool = answer.try_get(0)?;
    if !newborn {
        return Err(Error::Unborn { machine: M::NAME, id });
    }
    ring_watchers(tx, answer.try_get(1)?);
    if !M::BORN.is_empty() {
        tx.rings(Ring::Outbox);
    }
    Ok(Standing { status: M::INITIAL, seq: 1 })
}

/// Who watches an allocation is told when this is committed.
fn ring_watchers(tx: &mut Tx, watched: Option<Uuid>) {
    if let Some(allocation) = watched {
        tx.rings(Ring::Allocation(allocation));
    }
}

/// [`born`] for several rows of one machine that came into being by one fact and publish nothing.
///
/// # Errors
/// [`Error::Unborn`] when one of them is not there, or not newborn.
pub(crate) async fn born_all<M: Stored>(
    tx: &mut Tx,
    ids: &[Uuid],
    birth: &Birth,
) -> Result<(), Error> {
    let statement = statement::births(M::table(), M::TABLE);
    let query = sqlx::query(AssertSqlSafe(statement)).bind(ids).bind(birth.event_id.uuid());
    let query = query.bind(birth.actor.source.code()).bind(&birth.actor.name).bind(&birth.cause);
    let query = query.bind(birth.operation.map(|operation| operation.uuid()));
    let recorded = query.execute(tx.connection()).await?.rows_affected();
    let first = ids.first().copied().unwrap_or_default();
    if recorded != ids.len() as u64 {
        return Err(Error::Unborn { machine: M::NAME, id: first });
    }
    Ok(())
}

/// [`born`] for rows of several facts, as parts of the statement that inserts them: see [`statement::births_in`].
pub(crate) fn births_in<M: Stored>(part: &str, at: &str, heard: Option<Heard>) -> String {
    statement::births_in(M::table(), part, at, heard)
}

/// Reports an event to the row `id` of a machine that stands alone.
///
/// When it moves the row, the caller's transaction holds the row, its log record and the messages its rule publishes;
/// when it does not, the transaction holds a record of the refusal, so commit either way.
///
/// # Errors
/// Only what is broken. Lost races are [`Reason::Conflict`]; the transaction can then only be run again.
pub async fn apply<M: Alone>(
    tx: &mut Tx,
    id: M::Id,
    report: &Report<M::Event>,
) -> Result<Outcome<M::Status>, Error> {
    write::<M>(tx, id.into(), report).await
}

/// [`apply`] for every machine. Private to the store, because allocations and their groups are locked in order.
pub(crate) async fn write<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
) -> Result<Outcome<M::Status>, Error> {
    match stored::lock::<M>(tx, id).await {
        Ok(row) => write_locked::<M>(tx, id, report, row).await,
        Err(Error::Conflict) => Ok(lost_race::<M>(tx, id, report)),
        Err(fault) => Err(fault),
    }
}

/// [`write()`] for a caller that has read the row under its lock already, and found it or not.
pub(crate) async fn write_locked<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
    row: Option<Locked<M::Status>>,
) -> Result<Outcome<M::Status>, Error> {
    match attempt::<M>(tx, id, report, row).await {
        Ok(outcome) => {
            record::observe::<M>(id, report, &outcome);
            Ok(outcome)
        }
        Err(Error::Conflict) => Ok(lost_race::<M>(tx, id, report)),
        Err(fault) => Err(fault),
    }
}

/// The database has ended the transaction in favour of another: nothing more can be written in it, the refusal neither.
pub(crate) fn lost_race<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
) -> Outcome<M::Status> {
    tx.abort();
    let outcome = Outcome::Refused(refusal::<M>(report, None, Reason::Conflict));
    record::observe::<M>(id, report, &outcome);
    outcome
}

async fn attempt<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
    row: Option<Locked<M::Status>>,
) -> Result<Outcome<M::Status>, Error> {
    let Some(row) = row else {
        return refuse::<M>(tx, id, report, None, Reason::NotFound).await;
    };
    let standing = Standing { status: row.status, seq: row.seq };
    let table = M::table();
    let said =
        Said { event: report.event.index(), source: report.actor.source, payload: &report.payload };
    let to = match decide(table, row.status.index(), &row.facts, &said) {
        Verdict::Move(to) => M::Status::ALL[to],
        Verdict::Duplicate => return Ok(Outcome::Duplicate(standing)),
        Verdict::Refuse(reason) => {
            return unless_known::<M>(tx, id, report, standing, reason).await;
        }
    };
    for guard in &table.events[said.event].guards {
        if !guards::holds(tx, table.name, *guard, id).await? {
            return unless_known::<M>(tx, id, report, standing, Reason::Guard(guard.0)).await;
        }
    }

    match move_row::<M>(tx, id, report, &row, to).await? {
        Written::Moved => Ok(Outcome::Applied { from: row.status, to, seq: row.seq + 1 }),
        Written::Known => Ok(Outcome::Duplicate(standing)),
        // We hold the row's lock, so only a writer that bypassed us can have changed it.
        Written::Nothing => refuse::<M>(tx, id, report, Some(row.status), Reason::Conflict).await,
    }
}

/// What a writing statement found.
enum Written {
    Moved,
    Known,
    Nothing,
}

/// The move itself, in one statement: event-id look-up, compare-and-set, log record, outbox rows.
async fn move_row<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
    row: &Locked<M::Status>,
    to: M::Status,
) -> Result<Written, Error> {
    let (machine, event, payload) = (M::table(), report.event.index(), &report.payload);
    let said = Said { event, source: report.actor.source, payload };
    let stamps = stamps_of(machine, (row.status.index(), to.index()), &row.facts, &said);
    let grounds = grounds_of(machine, (row.status.index(), to.index()), &row.facts, &said);
    let change = statement::Change {
        table: M::TABLE,
        watched: M::WATCHED,
        machine,
        event,
        stamps: &stamps,
        grounds: &grounds,
        heard: report.heard,
        keeps: &report.keeps,
    };
    let statement = change.statement(row.status.code(), to.code());
    let mut query = sqlx::query(AssertSqlSafe(statement)).bind(id).bind(row.seq);
    query = query.bind(report.event_id.uuid()).bind(report.actor.source.code());
    query = query.bind(&report.actor.name).bind(&report.cause);
    query = query.bind(report.operation().or(row.operation)).bind(report.reason());
    for value in change.values(payload) {
        query = statement::bind(query, value);
    }
    for (_, kept) in &report.keeps {
        query = statement::bind_kept(query, kept);
    }
    if !machine.events[event].publishes.is_empty() {
        query = query.bind(trace::current());
    }
    for _ in &machine.events[event].publishes {
        query = query.bind(tx.new_id());
    }
    let answer = query.fetch_one(tx.connection()).await?;
    let relayed = !report.heard.is_some_and(|heard| heard.alone);
    if relayed && !machine.events[event].publishes.is_empty() {
        tx.rings(Ring::Outbox);
    }
    ring_watchers(tx, answer.try_get(2)?);
    Ok(match (answer.try_get(0)?, answer.try_get(1)?) {
        (true, _) => Written::Moved,
        (false, true) => Written::Known,
        (false, false) => Written::Nothing,
    })
}

/// A refusal, unless this very report was applied before: then it is a duplicate, wherever the row has got to since.
/// A report that moves the row asks the same question inside the statement that writes, under the same lock.
async fn unless_known<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
    standing: Standing<M::Status>,
    reason: Reason,
) -> Result<Outcome<M::Status>, Error> {
    if record::knows(tx, M::NAME, id, report.event_id).await? {
        return Ok(Outcome::Duplicate(standing));
    }
    refuse::<M>(tx, id, report, Some(standing.status), reason).await
}

async fn refuse<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    report: &Report<M::Event>,
    status: Option<M::Status>,
    reason: Reason,
) -> Result<Outcome<M::Status>, Error> {
    let refusal = refusal::<M>(report, status, reason);
    record::refused::<M>(tx, id, report, &refusal).await?;
    Ok(Outcome::Refused(refusal))
}

fn refusal<M: Stored>(
    report: &Report<M::Event>,
    status: Option<M::Status>,
    reason: Reason,
) -> Refusal<M::Status> {
    Refusal::new::<M>(report.event, report.actor.source, status, reason)
}
