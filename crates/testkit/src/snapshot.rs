//! Every row of every table at a moment, and what differs between two: for tests of what must be left alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use sqlx::AssertSqlSafe;
use sqlx::types::Json;

use crate::Database;

/// Every row of every table, by its table and its primary key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    rows: BTreeMap<(String, String), Map<String, Value>>,
}

/// One thing that differs between two moments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// There is a row that was not there.
    Added {
        /// Its table.
        table: String,
        /// Its primary key, as JSON.
        key: String,
    },
    /// A row is gone.
    Removed {
        /// Its table.
        table: String,
        /// Its primary key, as JSON.
        key: String,
    },
    /// A column of a row has another value.
    Moved {
        /// Its table.
        table: String,
        /// Its primary key, as JSON.
        key: String,
        /// The column.
        column: String,
    },
}

impl Snapshot {
    /// Every change from here to a later moment, in the order of tables and keys.
    pub fn changes_to(&self, later: &Snapshot) -> BTreeSet<Change> {
        let keys: BTreeSet<_> = self.rows.keys().chain(later.rows.keys()).collect();
        let mut changes = BTreeSet::new();
        for place in keys {
            let (table, key) = place.clone();
            match (self.rows.get(place), later.rows.get(place)) {
                (None, _) => {
                    changes.insert(Change::Added { table, key });
                }
                (_, None) => {
                    changes.insert(Change::Removed { table, key });
                }
                (Some(before), Some(after)) => {
                    let moved =
                        after.iter().filter(|(column, value)| before.get(*column) != Some(value));
                    changes.extend(moved.map(|(column, _)| {
                        let (table, key) = (table.clone(), key.clone());
                        Change::Moved { table, key, column: column.clone() }
                    }));
                }
            }
        }
        changes
    }

    /// The rows of one table.
    pub fn of(&self, table: &str) -> Vec<&Map<String, Value>> {
        self.rows.iter().filter(|((of, _), _)| of == table).map(|(_, row)| row).collect()
    }
}

impl Database {
    /// Everything that is in it now.
    pub async fn snapshot(&self) -> Snapshot {
        let tables: Vec<(String, Vec<String>)> = sqlx::query_as(
            "SELECT relname::text, array_agg(attname::text ORDER BY attnum)
               FROM pg_index
               JOIN pg_class ON pg_class.oid = pg_index.indrelid
               JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
              WHERE indisprimary AND relnamespace = 'public'::regnamespace AND NOT relispartition
              GROUP BY relname",
        )
        .fetch_all(&self.sql)
        .await
        .expect("tables");
        let all = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition";
        let all = self.number(all).await;
        assert_eq!(tables.len(), usize::try_from(all).expect("a few"), "each table has a key");
        // Names of our own schema, not input; all of it in one look.
        let looks = tables
            .iter()
            .map(|(table, _)| format!("SELECT '{table}'::text, to_jsonb(t) FROM {table} AS t"));
        let query = looks.collect::<Vec<_>>().join(" UNION ALL ");
        let found: Vec<(String, Json<Map<String, Value>>)> =
            sqlx::query_as(AssertSqlSafe(query)).fetch_all(&self.sql).await.expect("rows");
        let keys: BTreeMap<String, Vec<String>> = tables.into_iter().collect();
        let mut rows = BTreeMap::new();
        for (table, Json(row)) in found {
            let key: Vec<&Value> =
                keys[&table].iter().filter_map(|column| row.get(column)).collect();
            let key = serde_json::to_string(&key).expect("it is JSON already");
            rows.insert((table, key), row);
        }
        Snapshot { rows }
    }
}
