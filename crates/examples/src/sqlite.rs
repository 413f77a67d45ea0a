//! A store on SQLite: status, log, outbox and stamps in one immediate transaction, and a
//! compare-and-set that repeats every check in SQL. Its fence can be weakened to the status alone,
//! to show what that lets through.

use std::marker::PhantomData;
use std::path::Path;
use std::rc::Rc;

use lifecycle::{
    Assign, Change, Check, Code, Column, Entry, Facts, Fence, Guard, Kind, Outcome, Refusal,
    Report, Row, Source, Store, Test, Value, apply, born,
};
use rusqlite::types::{Value as Sql, ValueRef};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params, params_from_iter};

use crate::schema::{Stored, schema};
use crate::shelf::{Notice, Remark, Shelf, Step};

/// What can break in the store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another connection is writing; the same report can be made again.
    #[error("another connection is writing")]
    Busy,
    /// A row has a status that its machine does not know.
    #[error("a row has the unknown status `{0}`")]
    UnknownStatus(String),
    /// A column holds something that its kind does not allow.
    #[error("column {0} holds something else than it should")]
    WrongKind(&'static str),
    /// SQLite failed.
    #[error("SQLite failed")]
    Sqlite(#[source] rusqlite::Error),
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Busy,
            _ => Error::Sqlite(error),
        }
    }
}

// The store's clock, in microseconds.
const NOW: &str = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";

/// The rows of one machine in a SQLite database that other machines may share.
pub struct Sqlite<M> {
    connection: Rc<Connection>,
    fence: Fence,
    machine: PhantomData<M>,
}

impl<M: Stored> Sqlite<M> {
    /// A database that lives as long as its connection.
    ///
    /// # Errors
    /// When SQLite can't open it.
    pub fn in_memory(fence: Fence) -> Result<Self, Error> {
        Self::on(Connection::open_in_memory()?, fence)
    }

    /// The database in a file, which is made when it is missing. Whoever finds it locked is told at
    /// once.
    ///
    /// # Errors
    /// When SQLite can't open it.
    pub fn in_file(path: &Path, fence: Fence) -> Result<Self, Error> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(std::time::Duration::ZERO)?;
        Self::on(connection, fence)
    }

    fn on(connection: Connection, fence: Fence) -> Result<Self, Error> {
        connection.execute_batch(&schema(fence))?;
        Ok(Self { connection: Rc::new(connection), fence, machine: PhantomData })
    }

    /// The rows of another machine, on the same connection and so in the same transactions.
    pub fn beside<N: Stored>(&self) -> Sqlite<N> {
        Sqlite { connection: Rc::clone(&self.connection), fence: self.fence, machine: PhantomData }
    }

    /// The connection, for what the store does not offer.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Runs `work` in one transaction, or inside the one that is open. When `work` fails, nothing
    /// has happened.
    ///
    /// # Errors
    /// When the database fails. What `work` fails with comes back inside.
    pub fn transact<T, E>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<Result<T, E>, Error> {
        // Immediate: a transaction that only later finds out that it writes may have read what is
        // no longer so.
        let (begin, commit, undo) = if self.connection.is_autocommit() {
            ("BEGIN IMMEDIATE", "COMMIT", "ROLLBACK")
        } else {
            ("SAVEPOINT inner", "RELEASE inner", "ROLLBACK TO inner; RELEASE inner")
        };
        self.connection.execute_batch(begin)?;
        let result = work(self);
        let end = if result.is_ok() { commit } else { undo };
        if let Err(error) = self.connection.execute_batch(end) {
            // The first error is the one to tell; a transaction that is already over has nothing to
            // undo.
            let _ = self.connection.execute_batch(undo);
            return Err(error.into());
        }
        Ok(result)
    }

    /// What SQLite says of a check on a row; none when there is no such row.
    ///
    /// # Errors
    /// When SQLite fails.
    pub fn holds(&self, id: u128, check: &Check, payload: &Facts) -> Result<Option<bool>, Error> {
        let mut values = Vec::new();
        let condition = fragment(check, payload, &mut values);
        values.push(blob(id));
        let sql = format!("SELECT COALESCE({condition}, FALSE) FROM {} WHERE id = ?", M::NAME);
        let answer =
            self.connection.query_row(&sql, params_from_iter(values), |row| row.get::<_, bool>(0));
        Ok(answer.optional()?)
    }

    fn row(&self, id: u128) -> Result<Option<Row<M::Status>>, Error> {
        let columns: String = M::COLUMNS.iter().map(|c| format!(", {}", c.name)).collect();
        let sql = format!("SELECT status, seq{columns} FROM {} WHERE id = ?", M::NAME);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([blob(id)])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let status: String = row.get(0)?;
        let mut facts = Facts::NONE;
        for (at, column) in M::COLUMNS.iter().enumerate() {
            facts.set(*column, read(*column, row.get_ref(at + 2)?)?);
        }
        let Some(status) = M::Status::parse(&status) else {
            return Err(Error::UnknownStatus(status));
        };
        Ok(Some(Row { status, seq: row.get(1)?, facts }))
    }
}

impl<M: Stored> Store<M> for Sqlite<M> {
    type Id = u128;
    type Error = Error;

    fn load(&mut self, id: &u128) -> Result<Option<Row<M::Status>>, Error> {
        self.row(*id)
    }

    fn knows(&mut self, id: &u128, event_id: u128) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT 1 FROM lifecycle_log \
                   WHERE machine = ?1 AND entity_id = ?2 AND event_id = ?3)";
        let known = params![M::NAME, blob(*id), blob(event_id)];
        Ok(self.connection.query_row(sql, known, |row| row.get(0))?)
    }

    fn guard(&mut self, id: &u128, guard: Guard) -> Result<bool, Error> {
        let Some(condition) = M::guard_sql(guard) else {
            return Ok(false);
        };
        let sql = format!("SELECT {condition}");
        Ok(self.connection.query_row(&sql, [blob(*id)], |row| row.get(0))?)
    }

    fn compare_and_set(
        &mut self,
        id: &u128,
        change: &Change<'_, M::Status>,
    ) -> Result<bool, Error> {
        let mut values = vec![text(change.to.code())];
        let mut sql = format!("UPDATE {} SET status = ?, seq = seq + 1", M::NAME);
        for assign in &change.assigns {
            match assign {
                Assign::Value(column, value) => {
                    sql += &format!(", {} = ?", column.name);
                    values.push(written(value));
                }
                Assign::Now(column) => sql += &format!(", {} = {NOW}", column.name),
                Assign::Raise(column) => {
                    sql += &format!(", {0} = coalesce({0}, 0) + 1", column.name);
                }
            }
        }
        sql += " WHERE id = ? AND status = ?";
        values.extend([blob(*id), text(change.from.code())]);
        if self.fence != Fence::StatusOnly {
            sql += " AND seq = ?";
            values.push(Sql::Integer(change.seq));
            for (check, held) in &change.grounds {
                let fragment = fragment(check, change.payload, &mut values);
                sql += &format!(" AND ({fragment}) IS {}", if *held { "TRUE" } else { "NOT TRUE" });
            }
        }
        Ok(self.connection.execute(&sql, params_from_iter(values))? == 1)
    }

    fn append(&mut self, entry: Entry<u128>) -> Result<(), Error> {
        let sql = format!(
            "INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, \
             to_status, source, operation_id, occurred_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, {NOW})"
        );
        let step = params![
            entry.machine,
            blob(entry.id),
            entry.seq,
            blob(entry.event_id),
            entry.event,
            entry.from,
            entry.to,
            entry.source.code(),
            entry.operation.map(blob),
        ];
        self.connection.execute(&sql, step)?;
        let sql = format!(
            "INSERT INTO outbox (machine, entity_id, seq, topic, occurred_at) \
             VALUES (?, ?, ?, ?, {NOW})"
        );
        for topic in entry.topics {
            self.connection
                .execute(&sql, params![entry.machine, blob(entry.id), entry.seq, topic])?;
        }
        Ok(())
    }

    fn refused(
        &mut self,
        id: &u128,
        event_id: u128,
        refusal: &Refusal<M::Status>,
    ) -> Result<(), Error> {
        let remark = Remark::of(*id, event_id, refusal);
        let sql = format!(
            "INSERT INTO refusals (machine, entity_id, event_id, event, status, reason, name, \
             detail, occurred_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, {NOW})"
        );
        let said = params![
            M::NAME,
            blob(*id),
            blob(event_id),
            remark.event,
            remark.status,
            remark.reason,
            remark.name,
            remark.detail,
        ];
        self.connection.execute(&sql, said)?;
        Ok(())
    }
}

impl<M: Stored> Shelf<M> for Sqlite<M> {
    type Fault = Error;

    fn insert(&mut self, id: u128, facts: Facts, event_id: u128) -> Result<(), Error> {
        let columns: String = M::COLUMNS.iter().map(|c| format!(", {}", c.name)).collect();
        let marks = ", ?".repeat(M::COLUMNS.len());
        let sql =
            format!("INSERT INTO {} (id, status, seq{columns}) VALUES (?, ?, 1{marks})", M::NAME);
        let mut values = vec![blob(id), text(M::INITIAL.code())];
        values.extend(M::COLUMNS.iter().map(|column| written(facts.get(*column))));
        self.transact(|store| {
            store.connection.execute(&sql, params_from_iter(values))?;
            born::<M, _>(store, &id, event_id, Source::User)
        })?
    }

    fn report(&mut self, id: u128, report: &Report<M::Event>) -> Result<Outcome<M::Status>, Error> {
        self.transact(|store| apply::<M, _>(store, &id, report))?
    }

    fn find(&mut self, id: u128) -> Result<Option<Row<M::Status>>, Error> {
        self.row(id)
    }

    fn ids(&mut self) -> Result<Vec<u128>, Error> {
        let mut statement =
            self.connection.prepare(&format!("SELECT id FROM {} ORDER BY id", M::NAME))?;
        let ids = statement.query_map([], |row| id_at(row, 0))?;
        Ok(ids.collect::<Result<_, _>>()?)
    }

    fn write_aside(&mut self, id: u128, column: Column, value: Value) -> Result<(), Error> {
        let sql = format!("UPDATE {} SET {} = ? WHERE id = ?", M::NAME, column.name);
        self.connection.execute(&sql, params![written(&value), blob(id)])?;
        Ok(())
    }

    fn steps(&mut self) -> Result<Vec<Step>, Error> {
        let mut statement = self.connection.prepare(
            "SELECT entity_id, seq, event_id, event, from_status, to_status, source, operation_id \
             FROM lifecycle_log WHERE machine = ? ORDER BY rowid",
        )?;
        let steps = statement.query_map([M::NAME], |row| {
            let operation: Option<[u8; 16]> = row.get(7)?;
            Ok(Step {
                id: id_at(row, 0)?,
                seq: row.get(1)?,
                event_id: id_at(row, 2)?,
                event: row.get(3)?,
                from: row.get(4)?,
                to: row.get(5)?,
                source: row.get(6)?,
                operation: operation.map(u128::from_be_bytes),
            })
        })?;
        Ok(steps.collect::<Result<_, _>>()?)
    }

    fn notices(&mut self) -> Result<Vec<Notice>, Error> {
        let mut statement = self
            .connection
            .prepare("SELECT topic, entity_id, seq FROM outbox WHERE machine = ? ORDER BY rowid")?;
        let notices = statement.query_map([M::NAME], |row| {
            Ok(Notice { topic: row.get(0)?, id: id_at(row, 1)?, seq: row.get(2)? })
        })?;
        Ok(notices.collect::<Result<_, _>>()?)
    }

    fn remarks(&mut self) -> Result<Vec<Remark>, Error> {
        let mut statement = self.connection.prepare(
            "SELECT entity_id, event_id, event, status, reason, name, detail \
             FROM refusals WHERE machine = ? ORDER BY rowid",
        )?;
        let remarks = statement.query_map([M::NAME], |row| {
            Ok(Remark {
                id: id_at(row, 0)?,
                event_id: id_at(row, 1)?,
                event: row.get(2)?,
                status: row.get(3)?,
                reason: row.get(4)?,
                name: row.get(5)?,
                detail: row.get(6)?,
            })
        })?;
        Ok(remarks.collect::<Result<_, _>>()?)
    }
}

/// The check as a condition; what it compares with goes to `values`, in the order of the question
/// marks.
fn fragment(check: &Check, payload: &Facts, values: &mut Vec<Sql>) -> String {
    match check.test {
        Test::Null(column) => format!("{} IS NULL", column.name),
        Test::Present(column) => format!("{} IS NOT NULL", column.name),
        Test::True(column) => format!("{} IS TRUE", column.name),
        Test::NotTrue(column) => format!("{} IS NOT TRUE", column.name),
        Test::Same(column, field) => {
            values.push(written(payload.get(field)));
            format!("{} IS ?", column.name)
        }
        Test::Below(low, high) => format!("{} < {}", low.name, high.name),
    }
}

fn id_at(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<u128> {
    row.get::<_, [u8; 16]>(at).map(u128::from_be_bytes)
}

// Big end first, so that SQLite sorts ids as Rust does.
fn blob(id: u128) -> Sql {
    Sql::Blob(id.to_be_bytes().to_vec())
}

fn text(text: &str) -> Sql {
    Sql::Text(text.to_owned())
}

fn written(value: &Value) -> Sql {
    match value {
        Value::Null => Sql::Null,
        Value::Bool(yes) => Sql::Integer(i64::from(*yes)),
        Value::Int(number) | Value::Time(number) => Sql::Integer(*number),
        Value::Id(id) => blob(*id),
        Value::Text(content) => text(content),
    }
}

fn read(column: Column, value: ValueRef<'_>) -> Result<Value, Error> {
    let wrong = || Error::WrongKind(column.name);
    Ok(match (column.kind, value) {
        (_, ValueRef::Null) => Value::Null,
        (Kind::Bool, ValueRef::Integer(number)) => Value::Bool(number != 0),
        (Kind::Int, ValueRef::Integer(number)) => Value::Int(number),
        (Kind::Time, ValueRef::Integer(moment)) => Value::Time(moment),
        (Kind::Id, ValueRef::Blob(bytes)) => {
            Value::Id(u128::from_be_bytes(bytes.try_into().map_err(|_| wrong())?))
        }
        (Kind::Text, ValueRef::Text(bytes)) => {
            let content = std::str::from_utf8(bytes).map_err(|_| wrong())?;
            Value::Text(content.to_owned().into())
        }
        _ => return Err(wrong()),
    })
}
