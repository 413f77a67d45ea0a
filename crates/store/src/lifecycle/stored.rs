//! Which machine rests in which table, and how a row is read for the evaluator.

use std::collections::HashMap;
use std::marker::PhantomData;

use domain::ids::{
    AccountId, AllocationGroupId, AllocationId, ClaimId, NodeId, NodeTaskId, PaymentSessionId,
    StorageAttachmentId, TerminalSessionId, UsageRecordId,
};
use domain::machines::{
    Allocation, AllocationGroup, Balance, Claim, Node, NodeTask, PaymentSession, StorageAttachment,
    TerminalSession, UsageRecord,
};
use lifecycle::{Code, Column, Facts, Kind, Lawful, OPERATION_ID, Table, Value};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::company::Question;
use crate::{Error, Tx};

/// A machine whose rows rest in a table of the database.
pub trait Stored: Lawful {
    /// What names a row.
    type Id: Copy + Into<Uuid> + Send;
    /// The table.
    const TABLE: &'static str;
    /// The column with the allocation whose watchers are told of every move; none when nobody watches.
    const WATCHED: Option<&'static str>;
}

/// A machine whose rows can be reported to on their own. Allocations can't, because a group is locked before its members:
/// they are reached through [`allocations`](crate::allocations). Nor can what is derived: it follows.
pub trait Alone: Stored {}

macro_rules! stored {
    ($($machine:ident by $id:ident in $table:literal $(watched as $watched:literal)?),+ $(,)?) => {
        $(impl Stored for $machine {
            type Id = $id;
            const TABLE: &'static str = $table;
            const WATCHED: Option<&'static str> = [$(Some($watched),)? None][0];
        })+

        /// Every machine with the table it rests in.
        pub fn tables() -> Vec<(&'static Table, &'static str)> {
            vec![$((<$machine as Lawful>::table(), $table)),+]
        }
    };
}

stored! {
    Allocation by AllocationId in "allocations" watched as "id",
    AllocationGroup by AllocationGroupId in "allocation_groups",
    Claim by ClaimId in "claims",
    Node by NodeId in "nodes",
    NodeTask by NodeTaskId in "node_tasks" watched as "allocation_id",
    PaymentSession by PaymentSessionId in "payment_sessions",
    TerminalSession by TerminalSessionId in "terminal_sessions",
    StorageAttachment by StorageAttachmentId in "storage_attachments",
    UsageRecord by UsageRecordId in "usage_records",
    Balance by AccountId in "accounts",
}

impl Alone for Claim {}
impl Alone for Node {}
impl Alone for NodeTask {}
impl Alone for PaymentSession {}
impl Alone for TerminalSession {}
impl Alone for StorageAttachment {}
impl Alone for UsageRecord {}

/// A row as the evaluator sees it, locked.
#[derive(Clone, Debug)]
pub(crate) struct Locked<S> {
    pub(crate) status: S,
    pub(crate) seq: i64,
    pub(crate) operation: Option<Uuid>,
    pub(crate) facts: Facts,
}

/// Reads the row and keeps everybody else from changing it until the transaction ends.
pub(crate) async fn lock<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
) -> Result<Option<Locked<M::Status>>, Error> {
    lock_if::<M>(tx, id, "true").await
}

/// The same, for a row of which `condition`, a constant of ours, holds; another is not even locked.
pub(crate) async fn lock_if<M: Stored>(
    tx: &mut Tx,
    id: Uuid,
    condition: &'static str,
) -> Result<Option<Locked<M::Status>>, Error> {
    tx.ask(Lock::<M> { id, condition, of: PhantomData }).await
}

/// Reads a row and keeps everybody else from changing it.
struct Lock<M> {
    id: Uuid,
    condition: &'static str,
    of: PhantomData<fn() -> M>,
}

impl<M: Stored> Question for Lock<M> {
    type Answer = Option<Locked<M::Status>>;
    const WRITES: bool = false;

    fn statement(&self) -> &str {
        self.condition
    }

    async fn answer(
        connection: &mut PgConnection,
        questions: Vec<Self>,
    ) -> Result<Vec<Self::Answer>, Error> {
        let condition = questions.first().map_or("true", |first| first.condition);
        let ids: Vec<Uuid> = questions.iter().map(|question| question.id).collect();
        // In one order, whoever locks them.
        let statement = format!(
            "SELECT id, {} FROM {} WHERE id = ANY ($1) AND {condition} ORDER BY id FOR UPDATE",
            columns::<M>(""),
            M::TABLE
        );
        let rows = sqlx::query(AssertSqlSafe(statement)).bind(&ids).fetch_all(connection).await?;
        let mut found = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id: Uuid = row.try_get(0)?;
            found.insert(id, locked::<M>(row, id, 1)?);
        }
        Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
    }
}

/// What the evaluator needs of a row, as the columns of a query that locks it; each behind `of`, the table's name there.
pub(crate) fn columns<M: Stored>(of: &str) -> String {
    let columns = M::table().columns_read();
    let read: String = columns.iter().map(|column| format!(", {}", read(of, *column))).collect();
    format!("{of}status, {of}seq{read}")
}

/// A row that a query has locked, with [`columns`] from `first` on.
pub(crate) fn locked<M: Stored>(
    row: &PgRow,
    id: Uuid,
    first: usize,
) -> Result<Locked<M::Status>, Error> {
    let text: &str = row.try_get(first)?;
    // A status we do not know is never guessed at: another binary may have written it.
    let Some(status) = M::Status::parse(text) else {
        return Err(Error::UnknownStatus { machine: M::NAME, id, status: text.to_owned() });
    };
    let mut facts = Facts::NONE;
    for (position, column) in M::table().columns_read().iter().enumerate() {
        facts.set(*column, value(row, first + position + 2, column.kind)?);
    }
    let operation = match facts.get(OPERATION_ID) {
        Value::Id(id) => Some(Uuid::from_u128(*id)),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Text(_) | Value::Time(_) => None,
    };
    Ok(Locked { status, seq: row.try_get(first + 1)?, operation, facts })
}

fn read(of: &str, column: Column) -> String {
    let name = column.name;
    match column.kind {
        Kind::Time => format!("(extract(epoch FROM {of}{name}) * 1000000)::bigint"),
        Kind::Bool | Kind::Int | Kind::Id | Kind::Text => format!("{of}{name}"),
    }
}

fn value(row: &PgRow, position: usize, kind: Kind) -> Result<Value, sqlx::Error> {
    Ok(match kind {
        Kind::Bool => row.try_get::<Option<bool>, _>(position)?.map_or(Value::Null, Value::Bool),
        Kind::Int => row.try_get::<Option<i64>, _>(position)?.map_or(Value::Null, Value::Int),
        Kind::Time => row.try_get::<Option<i64>, _>(position)?.map_or(Value::Null, Value::Time),
        Kind::Id => row
            .try_get::<Option<Uuid>, _>(position)?
            .map_or(Value::Null, |id| Value::Id(id.as_u128())),
        Kind::Text => row
            .try_get::<Option<String>, _>(position)?
            .map_or(Value::Null, |text| Value::Text(text.into())),
    })
}
