//! What stands longer than its status allows. The queries are made from the tables of the machines, so that a machine that is
//! added, or a status that gets a deadline, is asked for by itself.

use jiff::Timestamp;
use jiff_sqlx::{Timestamp as SqlTimestamp, ToSqlx as _};
use lifecycle::{Rest, Source, Table};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::lifecycle::stored::tables;
use crate::{Error, Store};

/// A status that somebody has to lead out of in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Whose status.
    pub machine: &'static str,
    /// The status.
    pub status: &'static str,
    /// Who owns the next step.
    pub owner: Source,
    /// How long it may last.
    pub seconds: u32,
    /// What it means.
    pub meaning: &'static str,
    /// The table in which the rows are.
    pub rows: &'static str,
    /// Whether a row says why.
    says_why: bool,
}

/// Every such status of every machine, with the deadlines of the tables.
pub fn waiting() -> Vec<Waiting> {
    tables().into_iter().flat_map(|(table, rows)| of_machine(table, rows)).collect()
}

fn of_machine(table: &'static Table, rows: &'static str) -> impl Iterator<Item = Waiting> {
    let says_why = table.all_stamps().any(|stamp| stamp.column.name == "reason");
    table.statuses.iter().filter_map(move |entry| {
        let (owner, seconds) = match entry.rest {
            Rest::Transient { owner, seconds, .. } | Rest::Parked { owner, seconds } => {
                (owner, seconds)
            }
            Rest::Terminal | Rest::Restful | Rest::Derived => return None,
        };
        let (machine, status, meaning) = (table.name, entry.code, entry.meaning);
        Some(Waiting { machine, status, owner, seconds, meaning, rows, says_why })
    })
}

/// A row that stands longer than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which machine's.
    pub machine: String,
    /// Which row.
    pub id: Uuid,
    /// What it is called, if it is called anything.
    pub name: Option<String>,
    /// Where it stands.
    pub status: String,
    /// Since when.
    pub since: Timestamp,
    /// Until when it might have.
    pub deadline_at: Timestamp,
    /// Why, as the row has it.
    pub reason: Option<String>,
    /// The node it is on, and how that stands.
    pub node: Option<(String, String)>,
    /// What the workflow waits for that is at it; none when none is.
    pub run: Option<Run>,
    /// The allocation that it is about, and how that stands.
    pub allocation: Option<(Uuid, String)>,
}

/// How far the workflow is that looks after a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What it waits for.
    pub waits_for: Option<String>,
    /// How often its present step was tried in vain.
    pub attempts: i32,
    /// What went wrong the last time.
    pub reason: Option<String>,
}

/// What is known of a row beside its status: SQL of ours.
struct Around {
    name: &'static str,
    /// The node it is on.
    node: &'static str,
    /// The allocation whose workflow looks after it.
    allocation: &'static str,
}

fn around(machine: &str) -> Around {
    let nothing = "NULL::uuid";
    match machine {
        "allocation" => Around {
            name: "row.name",
            node: "(SELECT node_id FROM claims WHERE allocation_id = row.id ORDER BY id DESC LIMIT 1)",
            allocation: "row.id",
        },
        "claim" => Around {
            name: "(SELECT name FROM allocations WHERE id = row.allocation_id)",
            node: "row.node_id",
            allocation: "row.allocation_id",
        },
        "node" => Around { name: "row.name", node: nothing, allocation: nothing },
        "node_task" => {
            Around { name: "row.kind", node: "row.node_id", allocation: "row.allocation_id" }
        }
        "allocation_group" => Around { name: "row.name", node: nothing, allocation: nothing },
        _ => Around { name: "NULL", node: nothing, allocation: nothing },
    }
}

/// When a row's time is up, as SQL. Some rows have a time of their own.
fn deadline(waiting: &Waiting, seconds: u32) -> String {
    let usual = format!("row.status_at + interval '{seconds} seconds'");
    let of_sku = |sku: &str, more: u32| {
        format!(
            "row.status_at + make_interval(secs => coalesce((SELECT provision_timeout_seconds + {more} FROM skus WHERE code = {sku}), {seconds}))"
        )
    };
    match (waiting.machine, waiting.status) {
        ("allocation", "provisioning") => of_sku("row.sku", 0),
        // A minute more than the allocation's: it follows.
        ("claim", "reserved") => {
            of_sku("(SELECT sku FROM allocations WHERE id = row.allocation_id)", 60)
        }
        ("node_task", _) => format!("coalesce(row.deadline_at, {usual})"),
        _ => usual,
    }
}

/// The rows of a status whose time is up at `$1`. What can be said of `status_at` alone is said so, for the index.
fn overdue(waiting: &Waiting, seconds: u32) -> String {
    let (rows, status) = (waiting.rows, waiting.status);
    let usual =
        deadline(waiting, seconds) == format!("row.status_at + interval '{seconds} seconds'");
    let late = match usual {
        true => format!("row.status_at <= $1 - interval '{seconds} seconds'"),
        false => format!("{} <= $1", deadline(waiting, seconds)),
    };
    format!("FROM {rows} AS row WHERE row.status = '{status}' AND {late}")
}

/// The rows whose time is up at `now`, the most overdue first. `seconds` says how long a status may last.
///
/// # Errors
/// When the database fails.
pub async fn list(
    store: &Store,
    now: Timestamp,
    seconds: &(dyn Fn(&Waiting) -> u32 + Sync),
    limit: i64,
) -> Result<Vec<Standing>, Error> {
    let parts: Vec<String> = waiting()
        .iter()
        .map(|waiting| {
            let (machine, seconds) = (waiting.machine, seconds(waiting));
            let Around { name, node, allocation } = around(machine);
            let reason = if waiting.says_why { "row.reason" } else { "NULL" };
            format!(
                "(SELECT '{machine}' AS machine, row.id, {name}::text AS name, row.status, row.status_at AS since,
                         {} AS deadline_at, {reason}::text AS reason, {node} AS node_id, {allocation} AS allocation_id
                    {}
                   ORDER BY row.status_at LIMIT $2)",
                deadline(waiting, seconds),
                overdue(waiting, seconds),
            )
        })
        .collect();
    let statement = format!(
        "WITH late AS (
            SELECT machine, id, name, status, since, deadline_at, reason, node_id, allocation_id
              FROM ({}) AS late
             ORDER BY deadline_at, id
             LIMIT $2
         )
         SELECT late.machine, late.id, late.name, late.status, late.since, late.deadline_at, late.reason,
                node.name, node.status, run.waits_for, run.attempts, run.reason, late.allocation_id, allocation.status
           FROM late
           LEFT JOIN allocations AS allocation ON allocation.id = late.allocation_id
           LEFT JOIN nodes AS node ON node.id = late.node_id
           LEFT JOIN LATERAL (
                SELECT waits_for, attempts, workflow_runs.reason
                  FROM workflow_runs
                 WHERE entity_id = late.allocation_id AND done_at IS NULL
                 ORDER BY created_at DESC
                 LIMIT 1
                ) AS run ON true
          ORDER BY late.deadline_at, late.id",
        parts.join(" UNION ALL ")
    );
    // Made of constants and numbers of ours.
    let query = sqlx::query(AssertSqlSafe(statement)).bind(now.to_sqlx()).bind(limit);
    query.fetch_all(store.pool()).await?.iter().map(standing).collect()
}

fn standing(row: &PgRow) -> Result<Standing, Error> {
    let moment = |column: usize| -> Result<Timestamp, Error> {
        Ok(row.try_get::<SqlTimestamp, _>(column)?.to_jiff())
    };
    let (node, stands): (Option<String>, Option<String>) = (row.try_get(7)?, row.try_get(8)?);
    let attempts: Option<i32> = row.try_get(10)?;
    let (waits_for, reason) = (row.try_get(9)?, row.try_get(11)?);
    let (of, its): (Option<Uuid>, Option<String>) = (row.try_get(12)?, row.try_get(13)?);
    Ok(Standing {
        machine: row.try_get(0)?,
        id: row.try_get(1)?,
        name: row.try_get(2)?,
        status: row.try_get(3)?,
        since: moment(4)?,
        deadline_at: moment(5)?,
        reason: row.try_get(6)?,
        node: node.zip(stands),
        run: attempts.map(|attempts| Run { waits_for, attempts, reason }),
        allocation: of.zip(its),
    })
}

/// How a status stands: how many rows are over their time, and since when the oldest of all is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Which status.
    pub waiting: Waiting,
    /// How many are over their time.
    pub overdue: i64,
    /// Since when the oldest stands there, whether or not its time is up.
    pub oldest_since: Option<Timestamp>,
}

/// Every status with a deadline, also those in which nothing stands.
///
/// # Errors
/// When the database fails.
pub async fn tally(
    store: &Store,
    now: Timestamp,
    seconds: &(dyn Fn(&Waiting) -> u32 + Sync),
) -> Result<Vec<Tally>, Error> {
    let statuses = waiting();
    let parts: Vec<String> = statuses
        .iter()
        .enumerate()
        .map(|(number, waiting)| {
            let (rows, status) = (waiting.rows, waiting.status);
            format!(
                "SELECT {number}, (SELECT count(*) {}), (SELECT min(status_at) FROM {rows} WHERE status = '{status}')",
                overdue(waiting, seconds(waiting)),
            )
        })
        .collect();
    let statement = format!("{} ORDER BY 1", parts.join(" UNION ALL "));
    // Made of constants and numbers of ours.
    let query = sqlx::query(AssertSqlSafe(statement)).bind(now.to_sqlx());
    let rows = query.fetch_all(store.pool()).await?;
    let tally = |(waiting, row): (&Waiting, &PgRow)| {
        let oldest: Option<SqlTimestamp> = row.try_get(2)?;
        let oldest_since = oldest.map(SqlTimestamp::to_jiff);
        Ok(Tally { waiting: *waiting, overdue: row.try_get(1)?, oldest_since })
    };
    statuses.iter().zip(&rows).map(tally).collect()
}

/// A workflow whose step fails again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// The run.
    pub id: String,
    /// Which workflow.
    pub workflow: String,
    /// What it looks after.
    pub entity_id: Uuid,
    /// How often the step was tried.
    pub attempts: i32,
    /// What went wrong the last time.
    pub reason: Option<String>,
    /// When the run began.
    pub since: Timestamp,
}

/// The runs whose step failed more than `attempts` times, the most tried first.
///
/// # Errors
/// When the database fails.
pub async fn failing(store: &Store, attempts: i32, limit: i64) -> Result<Vec<Failing>, Error> {
    let rows = sqlx::query(
        "SELECT id, workflow, entity_id, attempts, reason, created_at
           FROM workflow_runs
          WHERE done_at IS NULL AND attempts > $1
          ORDER BY attempts DESC, id
          LIMIT $2",
    )
    .bind(attempts)
    .bind(limit)
    .fetch_all(store.pool())
    .await?;
    let failing = |row: &PgRow| {
        Ok(Failing {
            id: row.try_get(0)?,
            workflow: row.try_get(1)?,
            entity_id: row.try_get(2)?,
            attempts: row.try_get(3)?,
            reason: row.try_get(4)?,
            since: row.try_get::<SqlTimestamp, _>(5)?.to_jiff(),
        })
    };
    rows.iter().map(failing).collect()
}

/// How many dead letters there are, and how many findings are open.
///
/// # Errors
/// When the database fails.
pub async fn left_over(store: &Store) -> Result<(i64, i64), Error> {
    let row = sqlx::query(
        "SELECT (SELECT count(*) FROM bus_deliveries WHERE dead_at IS NOT NULL),
                (SELECT count(*) FROM findings WHERE closed_at IS NULL)",
    )
    .fetch_one(store.pool())
    .await?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}
