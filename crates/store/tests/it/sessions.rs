//! What scripted races are made of: plain sessions on scratch tables, and somebody who watches. That a session waits
//! is observed, never slept for. Also the serial orders that a race is compared with, from the store in memory.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use domain::ids::{AllocationGroupId, AllocationId, EventId, NodeTaskId, OperationId};
use domain::machines::allocation::{Event, NO_LIVE_TASKS, Status};
use domain::machines::node_task;
use domain::machines::{Allocation, NodeTask};
use lifecycle::{Code as _, Facts, Lawful, Memory, OPERATION_ID, Outcome, Source, Value};
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Row as _};
use store::lifecycle::{Birth, Report, apply};
use store::{Error, Store, Tx, allocations};
use testkit::{Database, actor, new_id};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use uuid::Uuid;

/// How often the watcher looks before it gives up, two milliseconds apart.
const LOOKS_MAX: u32 = 5_000;

/// A parent that may be destroyed only without live children, and that somebody may ask to stop.
const SCRATCH: &str = "
    CREATE TABLE parents (id int PRIMARY KEY, state text NOT NULL, stop_at timestamptz, version int NOT NULL DEFAULT 1);
    CREATE TABLE children (id int PRIMARY KEY, parent_id int NOT NULL REFERENCES parents, state text NOT NULL);
    INSERT INTO parents (id, state) VALUES (1, 'ready');
";

/// A connection that does what it is told, statement by statement.
pub(crate) struct Session(PgConnection);

impl Session {
    async fn open(database: &Database) -> Session {
        Session(PgConnection::connect(&database.url()).await.expect("a session opens"))
    }

    /// The number of rows it touched, or the SQLSTATE it failed with.
    pub(crate) async fn run(&mut self, statement: &'static str) -> Result<u64, String> {
        match sqlx::query(statement).execute(&mut self.0).await {
            Ok(done) => Ok(done.rows_affected()),
            Err(error) => {
                let code = error.as_database_error().and_then(|error| error.code());
                Err(code.map_or_else(|| error.to_string(), |code| code.to_string()))
            }
        }
    }

    /// The one text that a query answers, or the SQLSTATE it failed with.
    pub(crate) async fn ask(&mut self, query: &'static str) -> Result<String, String> {
        match sqlx::query(query).fetch_one(&mut self.0).await {
            Ok(row) => Ok(row.get(0)),
            Err(error) => {
                let code = error.as_database_error().and_then(|error| error.code());
                Err(code.map_or_else(|| error.to_string(), |code| code.to_string()))
            }
        }
    }
}

/// A database with the scratch tables and two sessions on it.
pub(crate) struct Scratch {
    database: Database,
    pub(crate) a: Session,
    pub(crate) b: Session,
}

impl Scratch {
    pub(crate) async fn new() -> Scratch {
        let database = Database::new().await;
        sqlx::raw_sql(SCRATCH)
            .execute(&database.sql)
            .await
            .expect("the scratch tables can be made");
        let (a, b) = (Session::open(&database).await, Session::open(&database).await);
        Scratch { database, a, b }
    }

    /// `A` starts `statement` and is seen to wait; then `B` says `ending`. Answers what became of the statement.
    pub(crate) async fn a_waits(
        &mut self,
        statement: &'static str,
        ending: &'static str,
    ) -> Result<u64, String> {
        let (waited, ended) =
            overtaken(&self.database, self.a.run(statement), self.b.run(ending)).await;
        ended.expect("the session that is waited for ends its transaction");
        waited
    }

    /// The parent's state, whether somebody asked it to stop, and how many live children it has.
    pub(crate) async fn end(self) -> (String, bool, i64) {
        let query = "SELECT state, stop_at IS NOT NULL, (SELECT count(*) FROM children WHERE children.state = 'live')
                       FROM parents";
        let row =
            sqlx::query_as(query).fetch_one(&self.database.sql).await.expect("the parent is there");
        drop((self.a, self.b));
        self.database.remove().await;
        row
    }
}

/// Runs `waiter` until it is seen to wait for a lock, and only then `holder`. Panics if it never waits.
pub(crate) async fn overtaken<T, U>(
    database: &Database,
    waiter: impl Future<Output = T>,
    holder: impl Future<Output = U>,
) -> (T, U) {
    tokio::join!(waiter, async {
        until_somebody_waits(database).await;
        holder.await
    })
}

/// In a test's own database nobody but the session in question can be waiting.
async fn until_somebody_waits(database: &Database) {
    let mut observer = database.sql.acquire().await.expect("the observer connects");
    for _ in 0..LOOKS_MAX {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&mut *observer)
        .await
        .expect("the observer sees");
        if waiting > 0 {
            return;
        }
        sqlx::query("SELECT pg_sleep(0.002)")
            .execute(&mut *observer)
            .await
            .expect("the observer rests");
    }
    panic!("nobody waits for anybody");
}

/// The product's path to an allocation, in a transaction of its own.
pub(crate) async fn told(
    store: &Store,
    id: AllocationId,
    report: &Report<Event>,
) -> Result<Outcome<Status>, Error> {
    let mut tx = store.begin().await?;
    let outcome = allocations::report(&mut tx, id, report).await?;
    tx.commit().await?;
    Ok(outcome)
}

/// The same by several tasks at once, which start together. Answers in the order of `reports`.
pub(crate) async fn told_at_once(
    store: &Store,
    id: AllocationId,
    reports: &[Report<Event>],
) -> Vec<Outcome<Status>> {
    let (start, mut tasks) = (Arc::new(Barrier::new(reports.len())), JoinSet::new());
    for (position, report) in reports.iter().cloned().enumerate() {
        let (store, start) = (store.clone(), Arc::clone(&start));
        tasks.spawn(async move {
            let mut tx = store.begin().await.expect("a transaction begins");
            start.wait().await;
            let outcome =
                allocations::report(&mut tx, id, &report).await.expect("the database answers");
            tx.commit().await.expect("it commits");
            (position, outcome)
        });
    }
    let mut outcomes = tasks.join_all().await;
    outcomes.sort_by_key(|(position, _)| *position);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// A report by somebody who may make it. One that opens an operation opens a new one; any other is about `current`.
pub(crate) fn said(event: Event, current: OperationId) -> Report<Event> {
    let entry = &Allocation::table().events[event.index()];
    let opens = entry.stamps.iter().any(|stamp| stamp.column == OPERATION_ID);
    let operation = if opens { OperationId(new_id()) } else { current };
    crate::report(event, entry.reporters[0]).about(operation)
}

/// What an allocation went through: its identity, the operation it began with, and the reports since.
#[derive(Clone)]
pub(crate) struct Past {
    pub(crate) id: AllocationId,
    provision: OperationId,
    reports: Vec<Report<Event>>,
}

impl Past {
    /// The operation it is busy with.
    pub(crate) fn operation(&self) -> OperationId {
        let opened =
            self.reports.iter().rev().find_map(|report| match report.payload.get(OPERATION_ID) {
                Value::Id(id) => Some(OperationId(Uuid::from_u128(*id))),
                Value::Null | Value::Bool(_) | Value::Int(_) | Value::Text(_) | Value::Time(_) => {
                    None
                }
            });
        opened.unwrap_or(self.provision)
    }

    /// A new allocation on Postgres that went this way, each step of which applies.
    pub(crate) async fn lived(database: &Database, way: &[Event]) -> Past {
        let mut past = member(database, None).await;
        for event in way {
            let report = said(*event, past.operation());
            let outcome =
                told(&database.store, past.id, &report).await.expect("the database answers");
            assert!(outcome.is_applied(), "{event:?}: {outcome:?}");
            past.reports.push(report);
        }
        past
    }

    /// Where the row ends in memory, and what is answered, if `reports` come one after the other.
    pub(crate) fn then(
        &self,
        reports: [&Report<Event>; 2],
    ) -> (&'static str, i64, [Outcome<Status>; 2]) {
        let mut memory = Memory::<Allocation>::default();
        memory.answer(NO_LIVE_TASKS, |_| true);
        let mut facts = Facts::NONE;
        facts.set(OPERATION_ID, Value::Id(self.provision.uuid().as_u128()));
        memory.insert(0, facts, 0, Source::Worker);
        let mut tell = |report: &Report<Event>| {
            let (event, event_id) = (report.event, report.event_id.uuid().as_u128());
            let (source, payload) = (report.actor.source, report.payload.clone());
            memory.apply(0, &lifecycle::Report { event, event_id, source, payload })
        };
        for report in &self.reports {
            assert!(tell(report).is_applied(), "it was applied on Postgres");
        }
        let outcomes = reports.map(tell);
        let row = memory.row(0).expect("it was inserted");
        (row.status.code(), row.seq, outcomes)
    }
}

/// A new allocation that holds nothing, in a group or alone.
pub(crate) async fn member(database: &Database, group: Option<AllocationGroupId>) -> Past {
    let (id, provision) = (AllocationId(new_id()), OperationId(new_id()));
    let new = allocations::NewAllocation {
        id,
        project_id: new_id(),
        member_of: group.map(|group| (group, true)),
        provision,
        sku: "h100".to_owned(),
        gpus: 1,
        terms: allocations::Terms::default(),
    };
    let made =
        database.in_transaction(async |tx: &mut Tx| allocations::insert(tx, &new, birth()).await);
    made.await.expect("an allocation can be made");
    Past { id, provision, reports: Vec::new() }
}

/// A birth by nobody in particular.
pub(crate) fn birth() -> Birth {
    Birth::new(EventId(new_id()), actor(Source::Worker))
}

/// Status and sequence number of an allocation, as they are stored.
pub(crate) async fn standing(database: &Database, id: AllocationId) -> (String, i64) {
    let query = sqlx::query_as("SELECT status, seq FROM allocations WHERE id = $1").bind(id.uuid());
    query.fetch_one(&database.sql).await.expect("it is there")
}

/// How often the log has the report, and how many messages and refusals there are of it.
pub(crate) async fn traces(database: &Database, entity: Uuid, event_id: Uuid) -> (i64, i64, i64) {
    let query = "SELECT (SELECT count(*) FROM lifecycle_log WHERE entity_id = $1 AND event_id = $2),
                        (SELECT count(*) FROM outbox_events WHERE entity_id = $1 AND payload ->> 'event_id' = $2::text),
                        (SELECT count(*) FROM lifecycle_refusals WHERE entity_id = $1)";
    let row = sqlx::query_as(query).bind(entity).bind(event_id).fetch_one(&database.sql);
    row.await.expect("the records can be read")
}

/// Sixteen tasks deliver the reports of `deliveries`; answers how many of each kind of outcome there were.
pub(crate) async fn dispatched(
    store: &Store,
    task: NodeTaskId,
    deliveries: Vec<Report<node_task::Event>>,
) -> BTreeMap<String, usize> {
    let mut tasks = JoinSet::new();
    for number in 0..16 {
        let mine: Vec<_> = deliveries.iter().skip(number).step_by(16).cloned().collect();
        let store = store.clone();
        tasks.spawn(async move {
            let mut kinds = Vec::new();
            for report in mine {
                let mut tx = store.begin().await.expect("a transaction begins");
                let outcome =
                    apply::<NodeTask>(&mut tx, task, &report).await.expect("the database answers");
                tx.commit().await.expect("it commits");
                kinds.push(match outcome {
                    Outcome::Applied { .. } => "applied".to_owned(),
                    Outcome::Duplicate(_) => "duplicate".to_owned(),
                    Outcome::Refused(refusal) => refusal.reason.code().to_owned(),
                });
            }
            kinds
        });
    }
    let mut counts = BTreeMap::new();
    for kind in tasks.join_all().await.into_iter().flatten() {
        *counts.entry(kind).or_insert(0) += 1;
    }
    counts
}

pub(crate) fn counted<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
    counts.map(|(kind, count)| (kind.to_owned(), count)).into()
}

/// A small generator of its own, so that a failing race can at least be started again.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("it is below a usize")
    }
}
