//! The schema as the database has it: how far it was migrated, and all of it printed for `docs/generated/schema.sql`, which is
//! what all migrations and the generated triggers amount to, in an order that does not depend on when anything was added.

use sqlx::Row as _;
use sqlx::migrate::Migrator;

use crate::{Error, Store};

/// Every step from an empty database to the schema of this binary.
pub(crate) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// How far a database was migrated, by the number of its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// As far as this binary knows.
    Here,
    /// Not as far as this binary needs.
    Older {
        /// How far; 0 for a database with nothing in it.
        at: i64,
        /// How far is needed.
        needed: i64,
    },
    /// Further. Steps only add while processes of two versions run side by side, so that this binary can go on.
    Newer(i64),
}

/// How far the database was migrated.
pub(crate) async fn reached(store: &Store) -> Result<Reached, Error> {
    let known: bool = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(store.pool())
        .await?
        .try_get(0)?;
    let mut done: Vec<i64> = Vec::new();
    if known {
        let query = "SELECT version FROM _sqlx_migrations WHERE success ORDER BY version";
        let rows = sqlx::query(query).fetch_all(store.pool()).await?;
        done = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    }
    let needed = MIGRATIONS.iter().map(|step| step.version).max().unwrap_or(0);
    let at = done.last().copied().unwrap_or(0);
    let whole = MIGRATIONS.iter().all(|step| done.contains(&step.version));
    Ok(match whole {
        true if at > needed => Reached::Newer(at),
        true => Reached::Here,
        false => Reached::Older { at: at.min(needed), needed },
    })
}

/// Each query gives the pieces of one kind, already in order. Partitions are left out: which there are depends on the day.
const PARTS: &[&str] = &[
    "SELECT CASE c.relpersistence WHEN 'u' THEN 'CREATE UNLOGGED TABLE ' ELSE 'CREATE TABLE ' END || c.relname || E' (\\n' || (
            SELECT string_agg(line, E',\\n' ORDER BY place, line)
              FROM (
                    SELECT 0 AS kind, lpad(a.attnum::text, 4, '0') AS place,
                           '    ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                           || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
                           || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '') AS line
                      FROM pg_attribute a
                      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                    UNION ALL
                    SELECT 1, '9999', '    CONSTRAINT ' || conname || ' ' || pg_get_constraintdef(oid)
                      FROM pg_constraint
                     WHERE conrelid = c.oid AND contype IN ('p', 'u', 'c', 'f')
                   ) AS lines
            ) || E'\\n)' || coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', '')
            || coalesce(' PARTITION BY ' || pg_get_partkeydef(c.oid), '') || ';'
       FROM pg_class c
      WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> '_sqlx_migrations'
      ORDER BY c.relname",
    "SELECT pg_get_indexdef(i.indexrelid) || ';'
       FROM pg_index i
       JOIN pg_class c ON c.oid = i.indrelid
      WHERE c.relnamespace = current_schema()::regnamespace AND NOT c.relispartition AND c.relname <> '_sqlx_migrations'
        AND NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u'))
      ORDER BY i.indexrelid::regclass::text",
    "SELECT rtrim(pg_get_functiondef(p.oid), E'\\n') || ';'
       FROM pg_proc p
      WHERE p.pronamespace = current_schema()::regnamespace
      ORDER BY p.proname",
    "SELECT pg_get_triggerdef(t.oid) || ';'
       FROM pg_trigger t
       JOIN pg_class c ON c.oid = t.tgrelid
      WHERE NOT t.tgisinternal AND NOT c.relispartition AND c.relnamespace = current_schema()::regnamespace
      ORDER BY c.relname, t.tgname",
];

impl Store {
    /// The whole schema as SQL, for people to read.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn schema(&self) -> Result<String, Error> {
        let mut text = String::new();
        for part in PARTS {
            let rows = sqlx::query(*part).fetch_all(self.pool()).await?;
            for row in &rows {
                let piece: &str = row.try_get(0)?;
                let lines = piece.lines().map(str::trim_end).collect::<Vec<_>>();
                text.push_str(&lines.join("\n"));
                text.push_str("\n\n");
            }
        }
        Ok(text.trim_end().to_owned() + "\n")
    }
}
