//! The single writer: [`born`] and [`apply`]. Nothing else in the product writes a status, and the database refuses
//! whoever tries (see [`enforce`]). Doors: every story, through the modules of the nouns.

pub mod enforce;
pub(crate) mod guards;
mod moving;
mod record;
mod report;
mod statement;
pub mod stored;

use lifecycle::{Code, Outcome, Reason, Refusal, Said, Standing, Verdict, decide};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::{Error, Ring, Tx};

use moving::{Move, Moved, Written};
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
    let outcomes = write_all::<M>(tx, vec![ToRow { id, report, row }]).await?;
    outcomes.into_iter().next().ok_or(Error::Conflict)
}

/// What is reported to a row that is locked.
pub(crate) struct ToRow<'r, M: Stored> {
    pub(crate) id: Uuid,
    pub(crate) report: &'r Report<M::Event>,
    /// As it was read under its lock; none when there is no such row.
    pub(crate) row: Option<Locked<M::Status>>,
}

/// [`write_locked`] for several rows of one machine, each with a report of its own: moves of the same kind share a statement. An
/// outcome each, in their order.
pub(crate) async fn write_all<M: Stored>(
    tx: &mut Tx,
    reports: Vec<ToRow<'_, M>>,
) -> Result<Vec<Outcome<M::Status>>, Error> {
    let outcomes = match attempt::<M>(tx, &reports).await {
        Ok(outcomes) => outcomes,
        Err(Error::Conflict) => {
            let lost = |one: &ToRow<'_, M>| lost_race::<M>(tx, one.id, one.report);
            return Ok(reports.iter().map(lost).collect());
        }
        Err(fault) => return Err(fault),
    };
    for (one, outcome) in reports.iter().zip(&outcomes) {
        record::observe::<M>(one.id, one.report, outcome);
    }
    Ok(outcomes)
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

/// What a table says to a report.
enum Judged<S> {
    /// It moves the row, unless a guard is against it.
    Moves(S),
    /// The row stands where the report would bring it.
    Stands(Standing<S>),
    /// No; and where the row stands, if there is one.
    Refused(Option<Standing<S>>, Reason),
}

fn judged<M: Stored>(one: &ToRow<'_, M>) -> Judged<M::Status> {
    let Some(row) = &one.row else {
        return Judged::Refused(None, Reason::NotFound);
    };
    let standing = Standing { status: row.status, seq: row.seq };
    let (event, payload) = (one.report.event.index(), &one.report.payload);
    let said = Said { event, source: one.report.actor.source, payload };
    match decide(M::table(), row.status.index(), &row.facts, &said) {
        Verdict::Move(to) => Judged::Moves(M::Status::ALL[to]),
        Verdict::Duplicate => Judged::Stands(standing),
        Verdict::Refuse(reason) => Judged::Refused(Some(standing), reason),
    }
}

async fn attempt<M: Stored>(
    tx: &mut Tx,
    reports: &[ToRow<'_, M>],
) -> Result<Vec<Outcome<M::Status>>, Error> {
    let mut all: Vec<Judged<M::Status>> = reports.iter().map(judged::<M>).collect();
    guards::ask::<M>(tx, reports, &mut all).await?;
    let mut moves = Vec::new();
    for (one, judged) in reports.iter().zip(&all) {
        if let (Judged::Moves(to), Some(row)) = (judged, &one.row) {
            moves.push(Move::of::<M>(tx, (one.id, one.report), row, *to));
        }
    }
    let mut moved = tx.ask_all(moves).await?.into_iter();
    let mut outcomes = Vec::with_capacity(reports.len());
    for (one, judged) in reports.iter().zip(all) {
        outcomes.push(match judged {
            Judged::Stands(standing) => Outcome::Duplicate(standing),
            Judged::Refused(None, reason) => {
                refuse::<M>(tx, one.id, one.report, None, reason).await?
            }
            Judged::Refused(Some(standing), reason) => {
                unless_known::<M>(tx, one.id, one.report, standing, reason).await?
            }
            Judged::Moves(to) => {
                let written = moved.next().ok_or(Error::Conflict)?;
                settle::<M>(tx, one, to, written).await?
            }
        });
    }
    Ok(outcomes)
}

/// What came of a move that was written, or was not.
async fn settle<M: Stored>(
    tx: &mut Tx,
    one: &ToRow<'_, M>,
    to: M::Status,
    Moved { written, watched }: Moved,
) -> Result<Outcome<M::Status>, Error> {
    let Some(row) = &one.row else {
        return refuse::<M>(tx, one.id, one.report, None, Reason::NotFound).await;
    };
    match written {
        Written::Moved => {
            let publishes = !M::table().events[one.report.event.index()].publishes.is_empty();
            if publishes && !one.report.heard.is_some_and(|heard| heard.alone) {
                tx.rings(Ring::Outbox);
            }
            ring_watchers(tx, watched);
            Ok(Outcome::Applied { from: row.status, to, seq: row.seq + 1 })
        }
        Written::Known => Ok(Outcome::Duplicate(Standing { status: row.status, seq: row.seq })),
        // We hold the row's lock, so only a writer that bypassed us can have changed it.
        Written::Nothing => {
            refuse::<M>(tx, one.id, one.report, Some(row.status), Reason::Conflict).await
        }
    }
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
