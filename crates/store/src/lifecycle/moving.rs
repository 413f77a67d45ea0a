//! Moves, as the writer asks for them: those of the same kind by one statement, whoever asks.

use std::sync::Arc;

use lifecycle::{Code, Kind, Said, Value, grounds_of, stamps_of};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::statement::{self, Change};
use super::stored::{Locked, Stored};
use super::{Heard, Kept, Report};
use crate::company::{Question, in_order, rounds};
use crate::texts::Texts;
use crate::{Error, Tx};

/// All that the text of a move's statement follows from: with the machine's tables, which of a move's grounds held says which stamps it
/// sets.
#[derive(PartialEq, Eq, Hash)]
struct Form {
    machine: &'static str,
    event: usize,
    from: usize,
    to: usize,
    held: Vec<bool>,
    heard: Option<Heard>,
    keeps: Vec<&'static str>,
}

/// The statements of this process's moves.
static STATEMENTS: Texts<Form> = Texts::new();

/// One row's move.
pub(super) struct Move {
    statement: Arc<str>,
    id: Uuid,
    seq: i64,
    event_id: Uuid,
    source: &'static str,
    actor: String,
    cause: Option<String>,
    operation: Option<Uuid>,
    reason: Option<String>,
    /// What checks and stamps need.
    values: Vec<(Kind, Value)>,
    /// What is kept in the row.
    keeps: Vec<Kept>,
    trace: Option<String>,
    /// An identity for each message.
    messages: Vec<Uuid>,
}

/// What came of it.
pub(super) struct Moved {
    pub(super) written: Written,
    /// The allocation whose watchers are to be told.
    pub(super) watched: Option<Uuid>,
}

/// What a writing statement found.
pub(super) enum Written {
    /// The row moved.
    Moved,
    /// This very report was applied before.
    Known,
    /// Nothing to move.
    Nothing,
}

impl Move {
    /// The move of a row that is locked, by that report.
    pub(super) fn of<M: Stored>(
        tx: &Tx,
        (id, report): (Uuid, &Report<M::Event>),
        row: &Locked<M::Status>,
        to: M::Status,
    ) -> Move {
        let (machine, event, payload) = (M::table(), report.event.index(), &report.payload);
        let said = Said { event, source: report.actor.source, payload };
        let stamps = stamps_of(machine, (row.status.index(), to.index()), &row.facts, &said);
        let grounds = grounds_of(machine, (row.status.index(), to.index()), &row.facts, &said);
        let change = Change {
            table: M::TABLE,
            watched: M::WATCHED,
            machine,
            event,
            stamps: &stamps,
            grounds: &grounds,
            heard: report.heard,
            keeps: &report.keeps,
        };
        let published = machine.events[event].publishes.len();
        let form = Form {
            machine: M::NAME,
            event,
            from: row.status.index(),
            to: to.index(),
            held: grounds.iter().map(|(_, held)| *held).collect(),
            heard: report.heard,
            keeps: report.keeps.iter().map(|(column, _)| *column).collect(),
        };
        Move {
            statement: STATEMENTS.of(form, || change.statement(row.status.code(), to.code())),
            id,
            seq: row.seq,
            event_id: report.event_id.uuid(),
            source: report.actor.source.code(),
            actor: report.actor.name.clone(),
            cause: report.cause.clone(),
            operation: report.operation().or(row.operation),
            reason: report.reason().map(str::to_owned),
            values: change.values(payload),
            keeps: report.keeps.iter().map(|(_, kept)| kept.clone()).collect(),
            trace: trace::current().filter(|_| published > 0),
            messages: tx.new_ids(published),
        }
    }
}

impl Question for Move {
    type Answer = Moved;
    const WRITES: bool = true;

    fn statement(&self) -> &str {
        &self.statement
    }

    /// In one statement: event-id look-up, compare-and-set, log record, outbox rows.
    async fn answer(connection: &mut PgConnection, moves: Vec<Move>) -> Result<Vec<Moved>, Error> {
        let mut answers = Vec::with_capacity(moves.len());
        for (places, moves) in rounds(moves, |one| one.id) {
            answers.extend(places.into_iter().zip(write(connection, moves).await?));
        }
        Ok(in_order(answers))
    }
}

/// Writes moves of different rows.
async fn write(connection: &mut PgConnection, moves: Vec<Move>) -> Result<Vec<Moved>, Error> {
    let Some(first) = moves.first() else { return Ok(Vec::new()) };
    let mut query = sqlx::query(AssertSqlSafe(Arc::clone(&first.statement)));
    macro_rules! each {
        ($($value:expr),+ $(,)?) => {
            $(query = query.bind(moves.iter().map($value).collect::<Vec<_>>());)+
        };
    }
    each!(
        |one| one.id,
        |one| one.seq,
        |one| one.event_id,
        |one| one.source,
        |one| one.actor.as_str(),
        |one| one.cause.as_deref(),
        |one| one.operation,
        |one| one.reason.as_deref(),
    );
    for (number, (kind, _)) in first.values.iter().enumerate() {
        let values = moves.iter().map(|one| one.values[number].1.clone());
        query = statement::bind_all(query, *kind, values);
    }
    for number in 0..first.keeps.len() {
        let kept = moves.iter().map(|one| one.keeps[number].clone()).collect();
        query = statement::bind_kept(query, kept);
    }
    if !first.messages.is_empty() {
        each!(|one| one.trace.as_deref());
    }
    for number in 0..first.messages.len() {
        each!(|one| one.messages[number]);
    }
    let rows = query.fetch_all(connection).await?;
    let mut answers = Vec::with_capacity(moves.len());
    for one in &moves {
        let mut answer = Moved { written: Written::Nothing, watched: None };
        for row in &rows {
            if row.try_get::<Uuid, _>(0)? != one.id {
                continue;
            }
            let (moved, known): (bool, bool) = (row.try_get(1)?, row.try_get(2)?);
            answer.written = match (moved, known) {
                (true, _) => Written::Moved,
                (false, true) => Written::Known,
                (false, false) => Written::Nothing,
            };
            answer.watched = row.try_get(3)?;
        }
        answers.push(answer);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::{Form, STATEMENTS};

    fn form(held: bool) -> Form {
        let (machine, heard, keeps) = ("no machine", None, Vec::new());
        Form { machine, event: 1, from: 2, to: 3, held: vec![held], heard, keeps }
    }

    #[test]
    fn a_statement_is_written_down_once_and_is_another_where_a_ground_did_not_hold() {
        assert_eq!(&*STATEMENTS.of(form(true), || "held".to_owned()), "held");
        assert_eq!(&*STATEMENTS.of(form(false), || "not held".to_owned()), "not held");
        assert_eq!(&*STATEMENTS.of(form(true), || unreachable!("it is known")), "held");
    }
}
