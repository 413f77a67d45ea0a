//! How each machine lies in SQLite: its columns, its guards as SQL, and the tables it shares with
//! the others.

use lifecycle::{Code, Column, Fence, Guard, Kind, Lawful, OPERATION_ID};

use crate::columns::{
    ARCHIVED_AT, ATTENTION_AT, CLEANUP_MODE, CLEANUP_REQUESTED_AT, DELETED_AT, DESTROY_ATTEMPT_ID,
    ENVIRONMENT_ID, MANAGED, PARENT_ID, PATH, RETIRING_SINCE, STOP_REQUESTED_AT, UPDATED_AT,
};
use crate::{environment_v1, environment_v2, thread_v1, thread_v2};

/// A machine whose rows have a table of their own, named like the machine.
pub trait Stored: Lawful {
    /// The columns of its table beside id, status and seq.
    const COLUMNS: &'static [Column];

    /// The guard as a condition that uses `?1` for the id of the row; none for a guard nobody can
    /// answer.
    fn guard_sql(guard: Guard) -> Option<&'static str>;
}

impl Stored for thread_v1::Thread {
    const COLUMNS: &'static [Column] = &[
        DELETED_AT,
        ARCHIVED_AT,
        STOP_REQUESTED_AT,
        ATTENTION_AT,
        PARENT_ID,
        ENVIRONMENT_ID,
        UPDATED_AT,
    ];

    fn guard_sql(_: Guard) -> Option<&'static str> {
        None
    }
}

impl Stored for thread_v2::Thread {
    const COLUMNS: &'static [Column] = &[
        DELETED_AT,
        ARCHIVED_AT,
        ATTENTION_AT,
        PARENT_ID,
        ENVIRONMENT_ID,
        OPERATION_ID,
        UPDATED_AT,
    ];

    fn guard_sql(_: Guard) -> Option<&'static str> {
        None
    }
}

impl Stored for environment_v1::Environment {
    const COLUMNS: &'static [Column] =
        &[MANAGED, PATH, CLEANUP_REQUESTED_AT, CLEANUP_MODE, DESTROY_ATTEMPT_ID, UPDATED_AT];

    fn guard_sql(guard: Guard) -> Option<&'static str> {
        if guard == environment_v1::NO_LIVE_THREAD {
            Some(
                "NOT EXISTS (SELECT 1 FROM thread_v1 WHERE environment_id = ?1 \
                 AND archived_at IS NULL AND deleted_at IS NULL)",
            )
        } else if guard == environment_v1::NO_PENDING_STOP {
            Some(
                "NOT EXISTS (SELECT 1 FROM thread_v1 WHERE environment_id = ?1 \
                 AND stop_requested_at IS NOT NULL)",
            )
        } else {
            None
        }
    }
}

impl Stored for environment_v2::Environment {
    const COLUMNS: &'static [Column] = &[MANAGED, PATH, RETIRING_SINCE, OPERATION_ID, UPDATED_AT];

    fn guard_sql(guard: Guard) -> Option<&'static str> {
        if guard == environment_v2::NO_LIVE_THREAD {
            Some(
                "NOT EXISTS (SELECT 1 FROM thread_v2 WHERE environment_id = ?1 \
                 AND archived_at IS NULL AND deleted_at IS NULL)",
            )
        } else if guard == environment_v2::NO_STOPPING_THREAD {
            Some(
                "NOT EXISTS (SELECT 1 FROM thread_v2 WHERE environment_id = ?1 \
                 AND status = 'stopping')",
            )
        } else {
            None
        }
    }
}

fn sql_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool | Kind::Int | Kind::Time => "INTEGER",
        Kind::Id => "BLOB",
        Kind::Text => "TEXT",
    }
}

fn table_of<M: Stored>() -> String {
    let statuses: Vec<_> = M::Status::ALL.iter().map(|s| format!("'{s}'")).collect();
    let columns: String =
        M::COLUMNS.iter().map(|c| format!(",\n  {} {}", c.name, sql_type(c.kind))).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS {} (\n  id BLOB PRIMARY KEY,\n  \
         status TEXT NOT NULL CHECK (status IN ({})),\n  seq INTEGER NOT NULL{columns}\n) STRICT;\n",
        M::NAME,
        statuses.join(", "),
    )
}

const RECORDS: &str = "
CREATE TABLE IF NOT EXISTS lifecycle_log (
  machine TEXT NOT NULL,
  entity_id BLOB NOT NULL,
  seq INTEGER NOT NULL,
  event_id BLOB NOT NULL,
  event TEXT NOT NULL,
  from_status TEXT,
  to_status TEXT NOT NULL,
  source TEXT NOT NULL,
  operation_id BLOB,
  occurred_at INTEGER NOT NULL,
  UNIQUE (machine, entity_id, event_id)
) STRICT;
CREATE TABLE IF NOT EXISTS outbox (
  machine TEXT NOT NULL,
  entity_id BLOB NOT NULL,
  seq INTEGER NOT NULL,
  topic TEXT NOT NULL,
  occurred_at INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS refusals (
  machine TEXT NOT NULL,
  entity_id BLOB NOT NULL,
  event_id BLOB NOT NULL,
  event TEXT NOT NULL,
  status TEXT,
  reason TEXT NOT NULL,
  name TEXT,
  detail TEXT NOT NULL,
  occurred_at INTEGER NOT NULL
) STRICT;
";

// A log in which two writers can't both record step n is a fence of its own. A design that compares
// nothing but the status has no such number, so the weakened store goes without.
const STEP_FENCE: &str = "
CREATE UNIQUE INDEX IF NOT EXISTS lifecycle_log_step ON lifecycle_log (machine, entity_id, seq);
CREATE UNIQUE INDEX IF NOT EXISTS outbox_step ON outbox (machine, entity_id, seq, topic);
";

/// The whole database of the four machines.
pub fn schema(fence: Fence) -> String {
    let mut sql = table_of::<thread_v1::Thread>();
    sql += &table_of::<thread_v2::Thread>();
    sql += &table_of::<environment_v1::Environment>();
    sql += &table_of::<environment_v2::Environment>();
    sql += RECORDS;
    if fence != Fence::StatusOnly {
        sql += STEP_FENCE;
    }
    sql
}
