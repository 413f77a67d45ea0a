//! The writer's statements. Only these are put together from pieces, and every piece is a constant of ours: names of
//! tables, columns, statuses and topics. What comes from outside is always bound.

use std::fmt::Write as _;

use jiff_sqlx::ToSqlx as _;
use lifecycle::{Check, Column, Facts, Kind, Set, StampEntry, Table, Test, Value};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use uuid::Uuid;

use super::report::{Heard, Kept};

/// One move of one row, as SQL.
pub(crate) struct Change<'a> {
    pub(crate) table: &'static str,
    /// The column with the allocation whose watchers are told.
    pub(crate) watched: Option<&'static str>,
    pub(crate) machine: &'a Table,
    pub(crate) event: usize,
    pub(crate) stamps: &'a [&'a StampEntry],
    /// What the move was judged by, and how.
    pub(crate) grounds: &'a [(Check, bool)],
    /// Who has heard of it.
    pub(crate) heard: Option<Heard>,
    /// What is kept in the row.
    pub(crate) keeps: &'a [(&'static str, Kept)],
}

/// Instead of an allocation.
const NOBODY: &str = "NULL::uuid";
/// $1 id, $2 seq, $3 event id, $4 source, $5 actor, $6 cause, $7 operation, $8 reason; then what checks and stamps need and what is
/// kept; then, if anything is published, the place in the trace and one identity for each message.
const FIXED: usize = 8;

impl Change<'_> {
    /// The whole move in one statement: the event-id look-up, the compare-and-set, the log record and the outbox rows.
    /// One moment, `at`, is the time of all of them. Answers whether it moved, whether the event id was known, and whose
    /// watchers are to be told.
    ///
    /// The status is compared by `IS NOT DISTINCT FROM`, which no index can serve: with `=`, and statistics that call the
    /// status rare, the planner takes an index on status for the row's key and reads the whole fleet.
    pub(crate) fn statement(&self, from: &str, to: &str) -> String {
        let mut next = FIXED;
        let mut take = || {
            next += 1;
            next
        };
        let event = &self.machine.events[self.event];
        let machine = self.machine.name;
        let mut conditions = String::new();
        for (check, held) in self.grounds {
            let not = if *held { "" } else { "NOT " };
            let _ = write!(conditions, " AND {not}({})", condition(check, &mut take));
        }
        let mut sets = String::new();
        for stamp in self.stamps {
            let _ = write!(sets, ", {} = {}", stamp.column.name, stamped(stamp, &mut take));
        }
        for (column, _) in self.keeps {
            let _ = write!(sets, ", {column} = ${}", take());
        }
        let mut statement = format!(
            "WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at), \
             known AS MATERIALIZED (SELECT 1 FROM lifecycle_log \
                WHERE entity_id = $1 AND event_id = $3 AND machine = '{machine}'), \
             moved AS (UPDATE {table} SET status = '{to}', seq = seq + 1, status_at = (SELECT at FROM moment){sets} \
                WHERE id = $1 AND status IS NOT DISTINCT FROM '{from}' AND seq = $2{conditions} AND NOT EXISTS (SELECT 1 FROM known) \
                RETURNING id, seq, {watched} AS watched), \
             logged AS (INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, \
                operation_id, source, actor, cause, reason, occurred_at) \
                SELECT '{machine}', id, seq, $3, '{event}', '{from}', '{to}', $7, $4, $5, $6, $8, at FROM moved, moment)",
            table = self.table,
            event = event.code,
            watched = self.watched.unwrap_or(NOBODY),
        );
        let trace = if event.publishes.is_empty() { 0 } else { take() };
        for topic in &event.publishes {
            let message = Message { machine, event: event.code, from: Some(from), to, topic };
            let luggage = Luggage::bound([take(), 3, 7, trace], self.heard);
            message.append(&mut statement, "moved, moment", &luggage);
        }
        statement
            + " SELECT EXISTS (SELECT 1 FROM moved), EXISTS (SELECT 1 FROM known), (SELECT watched FROM moved)"
    }

    /// What checks and stamps need, in the order in which [`Change::statement`] numbers it.
    pub(crate) fn values(&self, payload: &Facts) -> Vec<(Kind, Value)> {
        let checks = self.grounds.iter().map(|(check, _)| check);
        let compared = checks
            .filter_map(|check| check.field())
            .map(|field| (field, payload.get(field).clone()));
        let stamped = self.stamps.iter().filter_map(|stamp| match stamp.set {
            Set::Field(field) => Some((field, payload.get(field).clone())),
            Set::Now | Set::Clear | Set::Raise => None,
        });
        compared.chain(stamped).map(|(field, value)| (field.kind, value)).collect()
    }
}

/// Whoever asks for a row by its key gets it by that: with the status beside it, an index of what waits looks as good as long as hardly
/// anything does, and the plan may be kept until much does.
const BY_KEY: &str = "OFFSET 0";

/// The first log record of a row that is in the table already, and the messages of its birth. Answers whether the row
/// is there and newborn, and whose watchers are to be told.
pub(crate) fn birth(machine: &Table, table: &str, watched: Option<&str>) -> String {
    let (name, initial) = (machine.name, machine.statuses[machine.initial].code);
    let mut statement = format!(
        "WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at), \
         newborn AS MATERIALIZED (SELECT id, seq, {watched} AS watched \
            FROM (SELECT * FROM {table} WHERE id = $1 {BY_KEY}) AS row WHERE status = '{initial}' AND seq = 1), \
         logged AS (INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, \
            operation_id, source, actor, cause, occurred_at) \
            SELECT '{name}', id, seq, $2, '{born}', NULL, '{initial}', $6::uuid, $3, $4, $5, at FROM newborn, moment \
            ON CONFLICT (entity_id, seq, machine) DO NOTHING RETURNING entity_id AS id, seq)",
        born = lifecycle::writer::BORN,
        watched = watched.unwrap_or(NOBODY),
    );
    for (position, topic) in machine.born.iter().enumerate() {
        let luggage = Luggage::bound([position + 8, 2, 6, 7], None);
        Message::of_birth(machine, topic).append(&mut statement, "logged, moment", &luggage);
    }
    statement + " SELECT EXISTS (SELECT 1 FROM newborn), (SELECT watched FROM newborn)"
}

/// The first log records of several rows, whose machine publishes nothing at a birth.
pub(crate) fn births(machine: &Table, table: &str) -> String {
    debug_assert!(machine.born.is_empty(), "each message needs an identity of its own");
    let (name, initial) = (machine.name, machine.statuses[machine.initial].code);
    format!(
        "INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, \
            operation_id, source, actor, cause, occurred_at) \
         SELECT '{name}', id, seq, $2, '{born}', NULL, '{initial}', $6::uuid, $3, $4, $5, clock_timestamp() \
           FROM (SELECT * FROM {table} WHERE id = ANY($1) {BY_KEY}) AS row WHERE status = '{initial}' AND seq = 1",
        born = lifecycle::writer::BORN,
    )
}

/// The first log records of the rows of `part`, another part of the statement that inserts them, and the message of each birth: as
/// parts of that statement. `part` has `id`, `event_id`, `operation_id`, `source`, `actor` and `cause`, and, for a machine that
/// publishes its births, `message_id` and `traceparent`; `at` is the moment of all of them, and `heard` who has heard of them.
pub(crate) fn births_in(machine: &Table, part: &str, at: &str, heard: Option<Heard>) -> String {
    debug_assert!(machine.born.len() < 2, "each message needs an identity of its own");
    let (name, initial) = (machine.name, machine.statuses[machine.initial].code);
    let mut parts = format!(
        "{name}_logged AS (INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, \
            operation_id, source, actor, cause, occurred_at) \
         SELECT '{name}', id, 1, event_id, '{born}', NULL, '{initial}', operation_id, source, actor, cause, {at} FROM {part})",
        born = lifecycle::writer::BORN,
    );
    for topic in machine.born {
        let luggage = Luggage {
            id: "message_id".to_owned(),
            event_id: "event_id".to_owned(),
            operation: "operation_id".to_owned(),
            trace: "traceparent".to_owned(),
            heard,
        };
        let rows = format!("(SELECT *, 1::bigint AS seq, {at} AS at FROM {part}) AS newborn");
        Message::of_birth(machine, topic).append(&mut parts, &rows, &luggage);
    }
    parts
}

/// One outbox row: a pointer with a little luggage. Consumers load the row and trust only what can't change.
struct Message<'a> {
    machine: &'a str,
    event: &'a str,
    from: Option<&'a str>,
    to: &'a str,
    topic: &'a str,
}

/// What comes with a message, as expressions.
struct Luggage {
    id: String,
    event_id: String,
    operation: String,
    trace: String,
    heard: Option<Heard>,
}

impl Luggage {
    /// Bound as the parameters of these numbers.
    fn bound(numbers: [usize; 4], heard: Option<Heard>) -> Luggage {
        let [id, event_id, operation, trace] = numbers.map(|number| format!("${number}"));
        Luggage { id, event_id, operation, trace, heard }
    }

    /// Who has heard of it, and since when nobody is to be told: the columns, and their values.
    fn told(&self) -> (&'static str, String) {
        match self.heard {
            None => ("", String::new()),
            Some(Heard { by, alone: false }) => (", heard", format!(", ARRAY['{by}']")),
            Some(Heard { by, alone: true }) => {
                (", heard, published_at", format!(", ARRAY['{by}'], at"))
            }
        }
    }
}

impl<'a> Message<'a> {
    /// What is told when a row comes into being.
    fn of_birth(machine: &'a Table, topic: &'a str) -> Message<'a> {
        let to = machine.statuses[machine.initial].code;
        Message { machine: machine.name, event: lifecycle::writer::BORN, from: None, to, topic }
    }

    /// `rows` is where the statement has the row and its moment: `id`, `seq` and `at`.
    fn append(&self, statement: &mut String, rows: &str, luggage: &Luggage) {
        let Message { machine, event, from, to, topic } = self;
        let Luggage { id, event_id, operation, trace, .. } = luggage;
        let (columns, values) = luggage.told();
        let from = from.map_or_else(|| "NULL".to_owned(), |from| format!("'{from}'"));
        let name = id.trim_start_matches('$');
        let _ = write!(
            statement,
            ", message_{name} AS (INSERT INTO outbox_events (id, subject, machine, entity_id, seq, payload, occurred_at, traceparent{columns}) \
             SELECT {id}, '{topic}', '{machine}', id, seq, jsonb_build_object('version', 1, 'machine', '{machine}', \
             'id', id, 'seq', seq, 'event', '{event}', 'event_id', {event_id}::uuid, 'from', {from}::text, \
             'to', '{to}', 'operation_id', {operation}::uuid, 'occurred_at', at), at, {trace}::text{values} FROM {rows})"
        );
    }
}

/// A check as SQL, with the number of the parameter it is compared with. Means exactly what [`Check::holds`] means, and is
/// never null, so that its opposite is its opposite.
pub(crate) fn condition(check: &Check, take: &mut impl FnMut() -> usize) -> String {
    match check.test {
        Test::Null(column) => format!("{} IS NULL", column.name),
        Test::Present(column) => format!("{} IS NOT NULL", column.name),
        Test::True(column) => format!("{} IS TRUE", column.name),
        Test::NotTrue(column) => format!("{} IS NOT TRUE", column.name),
        Test::Same(column, field) => {
            format!("{} IS NOT DISTINCT FROM {}", column.name, parameter(field, take()))
        }
        // Null is below nothing, and nothing below null: the comparison is then unknown, which is not true.
        Test::Below(low, high) => format!("({} < {}) IS TRUE", low.name, high.name),
    }
}

fn stamped(stamp: &StampEntry, take: &mut impl FnMut() -> usize) -> String {
    match stamp.set {
        Set::Now => "(SELECT at FROM moment)".to_owned(),
        Set::Field(field) => parameter(field, take()),
        Set::Clear => "NULL".to_owned(),
        Set::Raise => format!("coalesce({}, 0) + 1", stamp.column.name),
    }
}

/// A bound value, as the column's type. A moment is bound as whole microseconds.
fn parameter(field: Column, number: usize) -> String {
    match field.kind {
        Kind::Bool => format!("${number}::boolean"),
        Kind::Int => format!("${number}::bigint"),
        Kind::Id => format!("${number}::uuid"),
        Kind::Text => format!("${number}::text"),
        Kind::Time => {
            format!("('epoch'::timestamptz + ${number}::bigint * interval '1 microsecond')")
        }
    }
}

/// Binds a value as its kind; a value of another kind than its column is nothing at all.
pub(crate) fn bind<'q>(
    query: Query<'q, Postgres, PgArguments>,
    (kind, value): (Kind, Value),
) -> Query<'q, Postgres, PgArguments> {
    match kind {
        Kind::Bool => query.bind(if let Value::Bool(b) = value { Some(b) } else { None }),
        Kind::Int => query.bind(if let Value::Int(n) = value { Some(n) } else { None }),
        Kind::Time => query.bind(if let Value::Time(at) = value { Some(at) } else { None }),
        Kind::Id => {
            query.bind(if let Value::Id(id) = value { Some(Uuid::from_u128(id)) } else { None })
        }
        Kind::Text => {
            query.bind(if let Value::Text(text) = value { Some(text.into_owned()) } else { None })
        }
    }
}

/// Binds a value that is kept.
pub(crate) fn bind_kept<'q>(
    query: Query<'q, Postgres, PgArguments>,
    value: &'q Kept,
) -> Query<'q, Postgres, PgArguments> {
    match value {
        Kept::Text(text) => query.bind(text),
        Kept::Json(json) => query.bind(json),
        Kept::Time(at) => query.bind(at.to_sqlx()),
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::{Check, Column, Facts, Kind, Test, Value};
    use sqlx::{AssertSqlSafe, Row as _};

    use super::{bind, condition, parameter};

    const COLUMNS: [Column; 7] = [
        Column::new("yes", Kind::Bool),
        Column::new("low", Kind::Int),
        Column::new("high", Kind::Int),
        Column::new("id", Kind::Id),
        Column::new("text", Kind::Text),
        Column::new("at", Kind::Time),
        Column::new("other_at", Kind::Time),
    ];

    fn values(kind: Kind) -> Vec<Value> {
        let some = match kind {
            Kind::Bool => vec![Value::Bool(true), Value::Bool(false)],
            Kind::Int => vec![Value::Int(0), Value::Int(1), Value::Int(i64::MAX)],
            Kind::Id => vec![Value::Id(0), Value::Id(7), Value::Id(u128::MAX)],
            Kind::Text => vec![Value::Text("".into()), Value::Text("it's".into())],
            Kind::Time => vec![Value::Time(0), Value::Time(1_763_236_800_123_457)],
        };
        [vec![Value::Null], some].concat()
    }

    fn checks() -> Vec<Check> {
        let mut tests = vec![
            Test::True(COLUMNS[0]),
            Test::NotTrue(COLUMNS[0]),
            Test::Below(COLUMNS[1], COLUMNS[2]),
            Test::Below(COLUMNS[2], COLUMNS[1]),
        ];
        for column in COLUMNS {
            tests.extend([Test::Null(column), Test::Present(column), Test::Same(column, column)]);
        }
        tests.into_iter().map(|test| Check::new("a check", test)).collect()
    }

    /// One declaration of a check is evaluated in Rust and in SQL; they must never disagree, or a row that was judged one
    /// way would be written the other way.
    #[tokio::test]
    async fn a_check_means_the_same_in_rust_and_in_sql() {
        let database = testkit::Database::new().await;
        let mut compared = 0;
        for check in checks() {
            for ours in &COLUMNS.map(|column| values(column.kind)).concat() {
                for theirs in &COLUMNS.map(|column| values(column.kind)).concat() {
                    let fits = |column: &Column, value: &Value| values(column.kind).contains(value);
                    let columns = check.columns();
                    let last = columns[columns.len() - 1];
                    if !fits(&columns[0], ours) || !fits(&last, theirs) {
                        continue;
                    }
                    compared += 1;
                    assert_same(&database, check, (ours, theirs)).await;
                }
            }
        }
        assert!(compared > 200, "only {compared} rows were compared");
        database.remove().await;
    }

    async fn assert_same(
        database: &testkit::Database,
        check: Check,
        (ours, theirs): (&Value, &Value),
    ) {
        let columns = check.columns();
        let mut row = Facts::NONE.with(columns[0], ours.clone());
        let mut payload = Facts::NONE;
        match check.field() {
            Some(field) => payload.set(field, theirs.clone()),
            None => row.set(columns[columns.len() - 1], theirs.clone()),
        }
        let mut bound = Vec::new();
        let table: Vec<String> = COLUMNS
            .iter()
            .map(|column| {
                bound.push((column.kind, row.get(*column).clone()));
                format!("{} AS {}", parameter(*column, bound.len()), column.name)
            })
            .collect();
        let mut take = || COLUMNS.len() + 1;
        let sql = condition(&check, &mut take);
        bound.extend(check.field().map(|field| (field.kind, payload.get(field).clone())));
        let query = format!("SELECT {sql}, NOT ({sql}) FROM (SELECT {}) AS row", table.join(", "));
        let mut query = sqlx::query(AssertSqlSafe(query));
        for value in bound {
            query = bind(query, value);
        }
        let answer = query.fetch_one(&database.sql).await.unwrap();
        let holds = check.holds(&row, &payload);
        let answers: (Option<bool>, Option<bool>) = (answer.get(0), answer.get(1));
        assert_eq!(answers, (Some(holds), Some(!holds)), "{check:?} on {row:?} with {payload:?}");
    }
}
