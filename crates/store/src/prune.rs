//! What is pruned, and how: a page of what is old is read by its index and locked, and what of it nobody needs goes, in one short
//! statement that is a transaction of its own. Two who prune at once take different pages. What is old and still needed is passed
//! by, once a run, however much of it there is.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;

use crate::{Error, Store};

/// How many rows one statement looks at.
pub const PAGE: i64 = 1_000;
/// How many statements one run makes: what is left is for the next.
const PAGES_MAX: u32 = 1_000;

/// A table that is pruned.
#[derive(Clone, Copy, Debug)]
pub struct Prune {
    /// The table.
    pub table: &'static str,
    /// `$1` is the moment before which a row is old, `$2` the last moment that was looked at, `$3` how many rows to look at. Answers
    /// how many were, the last moment of them, and how many rows are gone.
    sql: &'static str,
}

impl Prune {
    pub(crate) const fn new(table: &'static str, sql: &'static str) -> Prune {
        Prune { table, sql }
    }

    /// The statement, for who wants to know how it is planned.
    pub fn sql(&self) -> &'static str {
        self.sql
    }
}

/// The statement that prunes a table by one of its times. What else of a row is needed to judge it is named by its columns; the rest
/// says, of a `page` of old rows, which may go. Rows are removed by their place, which the lock keeps them at: as a join, the planner
/// might rather read the whole table.
macro_rules! pruning {
    ($table:literal, $at:literal, $columns:literal, $may_go:literal) => {
        concat!(
            "WITH page AS MATERIALIZED (
                SELECT ctid AS place, ",
            $at,
            " AS at",
            $columns,
            "
                  FROM ",
            $table,
            "
                 WHERE ",
            $at,
            " < $1 AND ",
            $at,
            " > coalesce($2::timestamptz, '-infinity')
                 ORDER BY ",
            $at,
            "
                 LIMIT $3
                   FOR UPDATE SKIP LOCKED
             ), gone AS (
                DELETE FROM ",
            $table,
            "
                 WHERE ctid = ANY (ARRAY(SELECT place FROM page WHERE ",
            $may_go,
            "))
                RETURNING 1
             )
             SELECT (SELECT count(*) FROM page), (SELECT max(at) FROM page), (SELECT count(*) FROM gone)"
        )
    };
}

pub(crate) use pruning;

/// Prunes what is older than `older_than` and not needed; answers how many rows are gone.
///
/// # Errors
/// When the database fails; what is gone by then stays so.
pub async fn run(store: &Store, what: &Prune, older_than: Timestamp) -> Result<u64, Error> {
    let (mut gone, mut after): (u64, Option<jiff_sqlx::Timestamp>) = (0, None);
    for _ in 0..PAGES_MAX {
        let row = sqlx::query(what.sql)
            .bind(older_than.to_sqlx())
            .bind(after)
            .bind(PAGE)
            .fetch_one(store.pool())
            .await?;
        gone += row.try_get::<i64, _>(2)?.unsigned_abs();
        if row.try_get::<i64, _>(0)? < PAGE {
            break;
        }
        after = row.try_get(1)?;
    }
    Ok(gone)
}
