//! The checker: what must be true of the database at every moment, one query each, which names the rows that break it.
//! Run after tests and in production; it changes nothing.

mod allocations;
mod entries;
mod groups;
mod money;
mod payments;
mod spine;
mod sums;

use lifecycle::writer::BORN;
use sqlx::{AssertSqlSafe, Row as _};

use crate::lifecycle::stored::tables;
use crate::{Error, Store};
pub use sums::sums;

/// How many offending rows are named.
const NAMED_MAX: i64 = 20;

/// Something that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant {
    /// Its name, which never changes.
    pub name: &'static str,
    /// What must hold.
    pub holds: &'static str,
    /// A query of one text column that names each row that breaks it. It may use `edges` (machine, event, source, target)
    /// and `topics` (machine, event, topic), the tables of this binary's machines.
    pub sql: &'static str,
}

/// One invariant, the first rows that break it, and how many there are.
pub type Finding = (Invariant, Vec<String>, i64);

/// All of them.
pub const INVARIANTS: &[Invariant] = &[
    allocations::I01,
    allocations::I02,
    allocations::I03,
    allocations::I04,
    spine::I05,
    allocations::I06,
    allocations::I07,
    spine::I08,
    spine::I09,
    spine::I10,
    spine::I11,
    money::I12,
    money::I13,
    money::I14,
    money::I15,
    money::I16,
    money::I17,
    money::I18,
    groups::I21,
    spine::I22,
    entries::I23,
    spine::I25,
    spine::I26,
    allocations::HINT,
    allocations::GUESTS,
    groups::APPS,
    payments::PAYMENTS,
];

/// Those of money alone.
pub const MONEY: &[Invariant] =
    &[money::I12, money::I13, money::I14, money::I15, money::I16, money::I17, money::I18];

/// Asks every invariant.
///
/// # Errors
/// When the database fails.
pub async fn run(store: &Store) -> Result<Vec<Finding>, Error> {
    ask_all(store, INVARIANTS).await
}

/// Asks these invariants.
///
/// # Errors
/// When the database fails.
pub async fn ask_all(store: &Store, invariants: &[Invariant]) -> Result<Vec<Finding>, Error> {
    let machines = Machines::of_this_binary();
    let mut findings = Vec::with_capacity(invariants.len());
    for invariant in invariants {
        findings.push(ask(store, *invariant, &machines).await?);
    }
    Ok(findings)
}

async fn ask(store: &Store, invariant: Invariant, machines: &Machines) -> Result<Finding, Error> {
    let statement = format!(
        "WITH edges (machine, event, source, target) AS (
            SELECT machine, event, source, target
              FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS edge (machine, event, source, target)
         ), topics (machine, event, topic) AS (
            SELECT machine, event, topic
              FROM unnest($5::text[], $6::text[], $7::text[]) AS published (machine, event, topic)
         )
         SELECT broken.name, count(*) OVER ()
           FROM ({}) AS broken (name)
          ORDER BY broken.name
          LIMIT {NAMED_MAX}",
        invariant.sql
    );
    let [machine, event, source, target] = &machines.edges;
    let [publisher, published, topic] = &machines.topics;
    let mut query = sqlx::query(AssertSqlSafe(statement));
    for words in [machine, event, source, target, publisher, published, topic] {
        query = query.bind(words);
    }
    let rows = query.fetch_all(store.pool()).await?;
    let count = rows.first().map_or(Ok(0), |row| row.try_get(1))?;
    let names = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<_, Error>>()?;
    Ok((invariant, names, count))
}

type Words = Vec<Option<&'static str>>;

/// The machines of this binary as columns of words.
struct Machines {
    /// Machine, event, status before (none for a birth), status after.
    edges: [Words; 4],
    /// Machine, event, topic.
    topics: [Words; 3],
}

impl Machines {
    fn of_this_binary() -> Machines {
        let mut machines = Machines { edges: Default::default(), topics: Default::default() };
        for (table, _) in tables() {
            let initial = table.statuses[table.initial].code;
            push(&mut machines.edges, [Some(table.name), Some(BORN), None, Some(initial)]);
            for topic in table.born {
                push(&mut machines.topics, [Some(table.name), Some(BORN), Some(topic)]);
            }
            for (event, from, to) in table.edges() {
                let (from, to) = (table.statuses[from].code, table.statuses[to].code);
                let event = table.events[event].code;
                push(&mut machines.edges, [table.name, event, from, to].map(Some));
            }
            for event in &table.events {
                for topic in &event.publishes {
                    push(&mut machines.topics, [table.name, event.code, topic].map(Some));
                }
            }
        }
        machines
    }
}

fn push<const N: usize>(columns: &mut [Words; N], row: [Option<&'static str>; N]) {
    for (column, word) in columns.iter_mut().zip(row) {
        column.push(word);
    }
}
