//! Every machine, walked at random on real Postgres and in memory at once: the same outcomes, the same rows, the same log,
//! the same messages. What the memory store proves about the rules then holds for the writer's SQL too.

use domain::ids::{AllocationId, EventId};
use domain::machines::{
    Allocation, AllocationGroup, Balance, Claim, Node, NodeTask, PaymentSession, StorageAttachment,
    TerminalSession, UsageRecord,
};
use lifecycle::{Code, Column, Facts, Kind, Lawful, Machine as _, Memory, Outcome, Source, Value};
use sqlx::Row as _;
use store::lifecycle::{Actor, Report, Stored, apply};
use store::{Error, Tx, allocations};
use testkit::{Database, new_id};
use uuid::Uuid;

const STEPS: usize = 120;

/// A small generator of its own, so that a failing walk can be walked again.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("it is below a usize")
    }
}

/// Every column that a rule reads or stamps.
fn columns<M: Lawful>() -> Vec<Column> {
    let mut columns = M::table().columns_read();
    for stamp in M::table().all_stamps() {
        if !columns.contains(&stamp.column) {
            columns.push(stamp.column);
        }
    }
    columns
}

async fn facts<M: Stored>(database: &Database, id: Uuid) -> (String, i64, Facts) {
    let mut query = "SELECT status, seq".to_owned();
    for column in columns::<M>() {
        query += &match column.kind {
            Kind::Time => format!(", (extract(epoch FROM {}) * 1000000)::bigint", column.name),
            Kind::Bool | Kind::Int | Kind::Id | Kind::Text => format!(", {}", column.name),
        };
    }
    let query = format!("{query} FROM {} WHERE id = $1", M::TABLE);
    let row = sqlx::query(sqlx::AssertSqlSafe(query))
        .bind(id)
        .fetch_one(&database.sql)
        .await
        .expect("it is there");
    let mut facts = Facts::NONE;
    for (position, column) in columns::<M>().iter().enumerate() {
        let at = position + 2;
        let value = match column.kind {
            Kind::Bool => row.get::<Option<bool>, _>(at).map(Value::Bool),
            Kind::Int => row.get::<Option<i64>, _>(at).map(Value::Int),
            Kind::Time => row.get::<Option<i64>, _>(at).map(Value::Time),
            Kind::Id => row.get::<Option<Uuid>, _>(at).map(|id| Value::Id(id.as_u128())),
            Kind::Text => row.get::<Option<String>, _>(at).map(|text| Value::Text(text.into())),
        };
        facts.set(*column, value.unwrap_or(Value::Null));
    }
    (row.get(0), row.get(1), facts)
}

/// A value that often is the row's own, so that checks pass as often as they fail.
fn value(random: &mut Random, column: Column, row: &Facts) -> Value {
    if random.below(4) > 0 && !row.get(column).is_null() {
        return row.get(column).clone();
    }
    let number = i64::try_from(random.below(3)).expect("it is small");
    match column.kind {
        Kind::Bool => Value::Bool(number == 0),
        Kind::Int => Value::Int(number),
        Kind::Time => Value::Time(1_700_000_000_000_000 + number),
        Kind::Id if number == 0 => Value::Null,
        Kind::Id => Value::Id(new_id().as_u128()),
        Kind::Text => Value::Text(format!("text {number}").into()),
    }
}

/// The same, with moments reduced to whether there is one: the two stores have different clocks. A moment that was
/// reported is the same in both, but only the database knows when "now" was.
fn without_clock<M: Lawful>(facts: &Facts) -> Facts {
    let mut plain = facts.clone();
    for column in columns::<M>() {
        if column.kind == Kind::Time && !plain.get(column).is_null() {
            plain.set(column, Value::Bool(true));
        }
    }
    plain
}

async fn walk<M: Reached>(database: &Database, seed: u64) {
    let mut random = Random(seed);
    let id = database.newborn(M::NAME).await;
    let number = id.as_u128();
    let mut memory = Memory::<M>::default();
    for guard in M::table().events.iter().flat_map(|event| &event.guards) {
        memory.answer(*guard, |_| true);
    }
    memory.insert(number, facts::<M>(database, id).await.2, 0, Source::Worker);
    let mut earlier: Vec<Report<M::Event>> = Vec::new();
    for step in 0..STEPS {
        let report = next(&mut random, &earlier, &memory, number);
        let expected = memory.apply(
            number,
            &lifecycle::Report {
                event: report.event,
                event_id: report.event_id.uuid().as_u128(),
                source: report.actor.source,
                payload: report.payload.clone(),
            },
        );
        let mut tx = database.store.begin().await.expect("a transaction begins");
        let outcome = M::reach(&mut tx, id, &report).await.expect("the database answers");
        tx.commit().await.expect("it commits");
        assert_eq!(outcome, expected, "{} seed {seed} step {step}: {report:?}", M::NAME);

        let (status, seq, now) = facts::<M>(database, id).await;
        let row = memory.row(number).expect("it is there");
        assert_eq!(
            (status.as_str(), seq),
            (row.status.code(), row.seq),
            "{} seed {seed} step {step}",
            M::NAME
        );
        assert_eq!(
            without_clock::<M>(&now),
            without_clock::<M>(&row.facts),
            "{} seed {seed} step {step}",
            M::NAME
        );
        // What is compared next time is what the database has.
        for column in columns::<M>().into_iter().filter(|column| column.kind == Kind::Time) {
            memory.write_aside(number, column, now.get(column).clone());
        }
        earlier.push(report);
    }
    same_history::<M>(database, id, &memory).await;
}

/// A report, now and then one that was made before.
fn next<M: Stored>(
    random: &mut Random,
    earlier: &[Report<M::Event>],
    memory: &Memory<M>,
    id: u128,
) -> Report<M::Event> {
    if !earlier.is_empty() && random.below(6) == 0 {
        return earlier[random.below(earlier.len())].clone();
    }
    let event = M::Event::ALL[random.below(M::Event::ALL.len())];
    let entry = &M::table().events[event.index()];
    let source = match entry.reporters.as_slice() {
        [] => Source::Worker,
        _ if random.below(12) == 0 => Source::ALL[random.below(Source::ALL.len())],
        some => some[random.below(some.len())],
    };
    let mut report = Report::new(event, EventId(new_id()), Actor::new(source, "walker"));
    let row = memory.row(id).expect("it is there");
    for field in &entry.carries {
        report = report.with(*field, value(random, *field, &row.facts));
    }
    // A fresh operation now and then, or a walk would never leave its first.
    if entry.stamps.iter().any(|stamp| stamp.column == lifecycle::OPERATION_ID) {
        report = report.about(domain::ids::OperationId(new_id()));
    }
    report
}

async fn same_history<M: Stored>(database: &Database, id: Uuid, memory: &Memory<M>) {
    let log = database.store.transitions(M::NAME, id).await.expect("the log can be read");
    let steps: Vec<_> = log
        .iter()
        .map(|step| (step.seq, step.event.as_str(), step.from.as_deref(), step.to.as_str()))
        .collect();
    let expected: Vec<_> =
        memory.log().iter().map(|entry| (entry.seq, entry.event, entry.from, entry.to)).collect();
    assert_eq!(steps, expected, "{}", M::NAME);
    assert!(log.is_sorted_by_key(|step| step.occurred_at_micros), "{}: time goes on", M::NAME);

    let published: Vec<(String, i64)> =
        sqlx::query_as("SELECT subject, seq FROM outbox_events WHERE entity_id = $1 AND machine = $2 ORDER BY seq, subject")
            .bind(id)
            .bind(M::NAME)
            .fetch_all(&database.sql)
            .await
            .expect("the outbox can be read");
    let mut expected: Vec<(String, i64)> =
        memory.outbox().into_iter().map(|(topic, _, seq)| (topic.to_owned(), seq)).collect();
    expected.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    assert_eq!(published, expected, "{}", M::NAME);

    let refused = database.store.refusals(M::NAME, id).await.expect("the refusals can be read");
    let mut ids: Vec<u128> = memory.refusals().iter().map(|refused| refused.event_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(refused.len(), ids.len(), "{}: each refused report is kept once", M::NAME);
}

/// The door through which reports reach a machine.
trait Reached: Stored {
    async fn reach(
        tx: &mut Tx,
        id: Uuid,
        report: &Report<Self::Event>,
    ) -> Result<Outcome<Self::Status>, Error>;
}

impl Reached for Allocation {
    async fn reach(
        tx: &mut Tx,
        id: Uuid,
        report: &Report<Self::Event>,
    ) -> Result<Outcome<Self::Status>, Error> {
        allocations::report(tx, AllocationId(id), report).await
    }
}

macro_rules! walks {
    ($($name:ident: $machine:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            let database = Database::new().await;
            for seed in 1..=6 {
                walk::<$machine>(&database, seed * 7_919).await;
            }
            database.remove().await;
        }
    )+

        /// Derived machines follow others and can't be reported to: `derived` has their tests.
        #[test]
        fn no_machine_is_left_out() {
            let derived = [AllocationGroup::NAME, Balance::NAME];
            let mut walked = [derived.as_slice(), &[$($machine::NAME),+]].concat();
            let mut all: Vec<_> = domain::machines::tables().iter().map(|table| table.name).collect();
            let mut stored: Vec<_> = store::lifecycle::stored::tables().iter().map(|(table, _)| table.name).collect();
            walked.sort_unstable();
            all.sort_unstable();
            stored.sort_unstable();
            assert_eq!(walked, all, "a machine has no walk on Postgres");
            assert_eq!(stored, all, "a machine has no table");
        }
    };
}

macro_rules! reached {
    ($($machine:ident),+) => {$(
        impl Reached for $machine {
            async fn reach(tx: &mut Tx, id: Uuid, report: &Report<Self::Event>) -> Result<Outcome<Self::Status>, Error> {
                apply::<$machine>(tx, id.into(), report).await
            }
        }
    )+};
}

reached!(Claim, Node, NodeTask, PaymentSession, TerminalSession, StorageAttachment, UsageRecord);

walks! {
    an_allocation_walks_on_postgres_as_in_memory: Allocation,
    a_claim_walks_on_postgres_as_in_memory: Claim,
    a_node_walks_on_postgres_as_in_memory: Node,
    a_node_task_walks_on_postgres_as_in_memory: NodeTask,
    a_payment_session_walks_on_postgres_as_in_memory: PaymentSession,
    a_terminal_session_walks_on_postgres_as_in_memory: TerminalSession,
    a_storage_attachment_walks_on_postgres_as_in_memory: StorageAttachment,
    a_usage_record_walks_on_postgres_as_in_memory: UsageRecord,
}
