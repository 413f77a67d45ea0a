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

/// A move of rows of one machine, as SQL: of as many as there are, each by its own reasons.
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

/// What comes with every move, in this order: see [`Change::statement`].
const FIXED: [(&str, &str); 8] = [
    ("id", "uuid"),
    ("seq", "bigint"),
    ("event_id", "uuid"),
    ("source", "text"),
    ("actor", "text"),
    ("cause", "text"),
    ("operation_id", "uuid"),
    ("reason", "text"),
];

/// The parameters of a statement: arrays, each a column of `wish` with a row for each who wishes something.
struct Wish {
    columns: Vec<String>,
    arrays: Vec<String>,
}

impl Wish {
    fn new() -> Wish {
        let mut wish = Wish { columns: Vec::new(), arrays: Vec::new() };
        for (column, kind) in FIXED {
            wish.add(column.to_owned(), kind);
        }
        wish
    }

    fn add(&mut self, column: String, kind: &str) {
        self.columns.push(column);
        self.arrays.push(format!("${}::{kind}[]", self.arrays.len() + 1));
    }

    /// One more that is known by its number, as `wish` has it.
    fn take(&mut self, kind: &str) -> String {
        let column = format!("value_{}", self.arrays.len() + 1);
        let value = format!("wish.{column}");
        self.add(column, kind);
        value
    }
}

impl Change<'_> {
    /// The whole move in one statement: the event-id look-up, the compare-and-set, the log record and the outbox rows.
    /// One moment, `at`, is the time of all of them. Answers for each row whether it moved, whether the event id was known, and whose
    /// watchers are to be told.
    ///
    /// What is bound are arrays: [`FIXED`]; then what checks and stamps need and what is kept; then, if anything is published, the places
    /// in the trace and an identity for each message.
    ///
    /// The log is asked row by row, by an expression that is never made a join: a join that is planned while the log is empty reads all of
    /// it. The status is compared by `IS NOT DISTINCT FROM`, which no index can serve: with `=`, and statistics that call the
    /// status rare, the planner takes an index on status for the row's key and reads the whole fleet.
    pub(crate) fn statement(&self, from: &str, to: &str) -> String {
        let event = &self.machine.events[self.event];
        let machine = self.machine.name;
        let mut wish = Wish::new();
        let mut conditions = String::new();
        for (check, held) in self.grounds {
            let not = if *held { "" } else { "NOT " };
            let met =
                condition(check, "held.", |field| value_of(field, &wish.take(bound(field.kind))));
            let _ = write!(conditions, " AND {not}({met})");
        }
        let mut sets = String::new();
        for stamp in self.stamps {
            let _ = write!(sets, ", {} = {}", stamp.column.name, stamped(stamp, &mut wish));
        }
        for (column, kept) in self.keeps {
            let _ = write!(sets, ", {column} = {}", wish.take(kept.kind()));
        }
        let mut messages = String::new();
        if !event.publishes.is_empty() {
            wish.add("traceparent".to_owned(), "text");
        }
        for (number, topic) in event.publishes.iter().enumerate() {
            wish.add(format!("message_{number}"), "uuid");
            let message = Message { machine, event: event.code, from: Some(from), to, topic };
            let luggage = Luggage::named(format!("message_{number}"), self.heard);
            message.append(&mut messages, "moved, moment", &luggage);
        }
        format!(
            "WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS at), \
             wish AS MATERIALIZED (SELECT *, (SELECT true FROM lifecycle_log AS log \
                WHERE log.entity_id = wish.id AND log.event_id = wish.event_id AND log.machine = '{machine}') AS known \
                FROM unnest({arrays}) AS wish ({columns})), \
             moved AS (UPDATE {table} AS held SET status = '{to}', seq = held.seq + 1, status_at = (SELECT at FROM moment){sets} \
                FROM wish \
                WHERE held.id = wish.id AND held.status IS NOT DISTINCT FROM '{from}' AND held.seq = wish.seq{conditions} \
                AND wish.known IS NULL \
                RETURNING held.id, held.seq, {watched} AS watched, {carried}), \
             logged AS (INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, \
                operation_id, source, actor, cause, reason, occurred_at) \
                SELECT '{machine}', id, seq, event_id, '{event}', '{from}', '{to}', operation_id, source, actor, cause, reason, at \
                  FROM moved, moment){messages} \
             SELECT wish.id, moved.id IS NOT NULL, wish.known IS NOT NULL, moved.watched \
               FROM wish LEFT JOIN moved ON moved.id = wish.id",
            table = self.table,
            event = event.code,
            arrays = wish.arrays.join(", "),
            columns = wish.columns.join(", "),
            watched =
                self.watched.map_or_else(|| NOBODY.to_owned(), |column| format!("held.{column}")),
            carried = carried(&wish),
        )
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

/// What the log and the messages need of a wish that was granted.
fn carried(wish: &Wish) -> String {
    let needed = |column: &&String| {
        !["id", "seq"].contains(&column.as_str()) && !column.starts_with("value_")
    };
    let columns: Vec<String> =
        wish.columns.iter().filter(needed).map(|column| format!("wish.{column}")).collect();
    columns.join(", ")
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
        let luggage = Luggage::bound([position + 8, 2, 6, 7]);
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
        let luggage = Luggage::named("message_id".to_owned(), heard);
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
    fn bound(numbers: [usize; 4]) -> Luggage {
        let [id, event_id, operation, trace] = numbers.map(|number| format!("${number}"));
        Luggage { id, event_id, operation, trace, heard: None }
    }

    /// Columns of the rows themselves; the message's own identity is called so.
    fn named(id: String, heard: Option<Heard>) -> Luggage {
        let [event_id, operation, trace] =
            ["event_id", "operation_id", "traceparent"].map(str::to_owned);
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
            ", told_{name} AS (INSERT INTO outbox_events (id, subject, machine, entity_id, seq, payload, occurred_at, traceparent{columns}) \
             SELECT {id}, '{topic}', '{machine}', id, seq, jsonb_build_object('version', 1, 'machine', '{machine}', \
             'id', id, 'seq', seq, 'event', '{event}', 'event_id', {event_id}::uuid, 'from', {from}::text, \
             'to', '{to}', 'operation_id', {operation}::uuid, 'occurred_at', at), at, {trace}::text{values} FROM {rows})"
        );
    }
}

/// A check as SQL, with its columns behind `of`, and whatever `with` says that a field is compared with. Means exactly what
/// [`Check::holds`] means, and is never null, so that its opposite is its opposite.
pub(crate) fn condition(check: &Check, of: &str, mut with: impl FnMut(Column) -> String) -> String {
    match check.test {
        Test::Null(column) => format!("{of}{} IS NULL", column.name),
        Test::Present(column) => format!("{of}{} IS NOT NULL", column.name),
        Test::True(column) => format!("{of}{} IS TRUE", column.name),
        Test::NotTrue(column) => format!("{of}{} IS NOT TRUE", column.name),
        Test::Same(column, field) => {
            format!("{of}{} IS NOT DISTINCT FROM {}", column.name, with(field))
        }
        // Null is below nothing, and nothing below null: the comparison is then unknown, which is not true.
        Test::Below(low, high) => format!("({of}{} < {of}{}) IS TRUE", low.name, high.name),
    }
}

fn stamped(stamp: &StampEntry, wish: &mut Wish) -> String {
    match stamp.set {
        Set::Now => "(SELECT at FROM moment)".to_owned(),
        Set::Field(field) => value_of(field, &wish.take(bound(field.kind))),
        Set::Clear => "NULL".to_owned(),
        Set::Raise => format!("coalesce(held.{}, 0) + 1", stamp.column.name),
    }
}

/// As what a value is bound. A moment is bound as whole microseconds.
const fn bound(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "boolean",
        Kind::Int | Kind::Time => "bigint",
        Kind::Id => "uuid",
        Kind::Text => "text",
    }
}

/// A value that was bound, as the column's type.
fn value_of(field: Column, bound: &str) -> String {
    match field.kind {
        Kind::Bool | Kind::Int | Kind::Id | Kind::Text => bound.to_owned(),
        Kind::Time => format!("('epoch'::timestamptz + {bound} * interval '1 microsecond')"),
    }
}

/// Binds a column of values, each as that kind; a value of another kind than its column is nothing at all.
pub(crate) fn bind_all<'q>(
    query: Query<'q, Postgres, PgArguments>,
    kind: Kind,
    values: impl Iterator<Item = Value>,
) -> Query<'q, Postgres, PgArguments> {
    macro_rules! all {
        ($kind:pat => $value:expr) => {
            values
                .map(|value| if let $kind = value { Some($value) } else { None })
                .collect::<Vec<_>>()
        };
    }
    match kind {
        Kind::Bool => query.bind(all!(Value::Bool(b) => b)),
        Kind::Int => query.bind(all!(Value::Int(n) => n)),
        Kind::Time => query.bind(all!(Value::Time(at) => at)),
        Kind::Id => query.bind(all!(Value::Id(id) => Uuid::from_u128(id))),
        Kind::Text => query.bind(all!(Value::Text(text) => text.into_owned())),
    }
}

/// Binds a column of values that are kept: all of them are of one kind, because they are kept in one column.
pub(crate) fn bind_kept<'q>(
    query: Query<'q, Postgres, PgArguments>,
    values: Vec<Kept>,
) -> Query<'q, Postgres, PgArguments> {
    macro_rules! all {
        ($kind:pat => $value:expr) => {
            values
                .into_iter()
                .map(|value| if let $kind = value { Some($value) } else { None })
                .collect::<Vec<_>>()
        };
    }
    match values.first() {
        Some(Kept::Json(_)) => query.bind(all!(Kept::Json(json) => json)),
        Some(Kept::Time(_)) => query.bind(all!(Kept::Time(at) => at.to_sqlx())),
        Some(Kept::Text(_)) | None => query.bind(all!(Kept::Text(text) => text)),
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::{Check, Column, Facts, Kind, Test, Value};
    use sqlx::{AssertSqlSafe, Row as _};

    use super::{bind_all, bound, condition, value_of};

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

    /// The first of an array that is bound.
    fn parameter(field: Column, number: usize) -> String {
        value_of(field, &format!("(${number}::{}[])[1]", bound(field.kind)))
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
        let mut given = Vec::new();
        let table: Vec<String> = COLUMNS
            .iter()
            .map(|column| {
                given.push((column.kind, row.get(*column).clone()));
                format!("{} AS {}", parameter(*column, given.len()), column.name)
            })
            .collect();
        let sql = condition(&check, "row.", |field| parameter(field, COLUMNS.len() + 1));
        given.extend(check.field().map(|field| (field.kind, payload.get(field).clone())));
        let query = format!("SELECT {sql}, NOT ({sql}) FROM (SELECT {}) AS row", table.join(", "));
        let mut query = sqlx::query(AssertSqlSafe(query));
        for (kind, value) in given {
            query = bind_all(query, kind, std::iter::once(value));
        }
        let answer = query.fetch_one(&database.sql).await.unwrap();
        let holds = check.holds(&row, &payload);
        let answers: (Option<bool>, Option<bool>) = (answer.get(0), answer.get(1));
        assert_eq!(answers, (Some(holds), Some(!holds)), "{check:?} on {row:?} with {payload:?}");
    }
}
