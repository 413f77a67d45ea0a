//! What the planner makes of what the product asks: the plan of every statement as it is run, those inside functions and triggers
//! among them, and a history beside which a table that is read whole would be noticed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

use crate::Database;

/// How a statement was run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Explained {
    /// The statement, on one line.
    pub statement: String,
    /// What it read, and by which index.
    pub reads: BTreeSet<String>,
    /// The tables that it read from their beginning to their end.
    pub read_whole: BTreeSet<String>,
    /// The indexes that it walked through before it knew which of their rows it is asked for: all of them, or to gather or sort them.
    pub walked: BTreeSet<String>,
    /// What it looked for by comparing each row of one side with all that an index has for the other.
    pub compared: BTreeSet<String>,
    /// Whether it was planned once for whatever it is asked.
    pub hot: bool,
}

/// Gathers the plans of what is asked from this thread, as long as it is kept. A test has one thread.
pub struct Plans {
    seen: Arc<Mutex<BTreeSet<Explained>>>,
    _subscribed: DefaultGuard,
}

impl Plans {
    /// Begins to gather. Only databases that [`Database::explains`] tell of their plans.
    pub fn gather() -> Plans {
        let seen = Arc::new(Mutex::default());
        let subscribed = tracing::subscriber::set_default(Notices(Arc::clone(&seen)));
        Plans { seen, _subscribed: subscribed }
    }

    /// Those of different statements, in the order of their words.
    pub fn take(&self) -> BTreeSet<Explained> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Notices(Arc<Mutex<BTreeSet<Explained>>>);

impl Subscriber for Notices {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::postgres::notice"
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _from: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut said = Said(String::new());
        event.record(&mut said);
        if let Some(explained) = explained(&said.0) {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(explained);
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

struct Said(String);

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

fn explained(message: &str) -> Option<Explained> {
    let document: Value = serde_json::from_str(message.split_once("plan:")?.1).ok()?;
    let words: Vec<&str> = document["Query Text"].as_str()?.split_whitespace().collect();
    let mut explained = Explained {
        statement: words.join(" "),
        reads: BTreeSet::new(),
        read_whole: BTreeSet::new(),
        walked: BTreeSet::new(),
        compared: BTreeSet::new(),
        hot: document["Settings"]["plan_cache_mode"] == "force_generic_plan",
    };
    read(&document["Plan"], false, &mut explained);
    Some(explained)
}

fn read(node: &Value, gathers: bool, explained: &mut Explained) {
    let (kind, table) = (node["Node Type"].as_str().unwrap_or_default(), &node["Relation Name"]);
    if let Some(index) = node["Index Name"].as_str() {
        // Which way it is walked, whether by way of a bitmap, and in the partition of which day, is of no concern.
        let dateless: Vec<&str> = index.split('_').filter(|word| !is_date(word)).collect();
        let index = dateless.join("_");
        if gathers || !by_key(node["Index Cond"].as_str().unwrap_or_default()) {
            explained.walked.insert(index.clone());
        }
        explained.reads.insert(index);
    } else if let Some(table) = table.as_str().filter(|_| kind == "Seq Scan") {
        explained.reads.insert(format!("all of {table}"));
        explained.read_whole.insert(table.to_owned());
    }
    let filter = node["Join Filter"].as_str().filter(|filter| filter.contains(" = "));
    if kind == "Nested Loop" && node["Plans"][1]["Index Name"].is_string() {
        explained.compared.extend(filter.map(str::to_owned));
    }
    for below in node["Plans"].as_array().into_iter().flatten() {
        let key_unknown = matches!(kind, "Hash" | "Merge Join");
        read(below, gathers || key_unknown, explained);
    }
}

/// Whether an index is asked for what somebody has said, or for what was found in another table, and not only for a constant.
fn by_key(condition: &str) -> bool {
    let said = condition.split('\'').step_by(2);
    said.into_iter().any(|words| words.contains(['$', '.']))
}

fn is_date(word: &str) -> bool {
    word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// What does not grow with time, or has a row for each thing that an operator has set up.
const SET_UP: &[&str] =
    &["skus", "images", "sku_images", "regions", "policies", "installation_keys", "ledger_books"];

impl Database {
    /// From the next connection on, the database tells how it has run each statement.
    pub async fn explains(&self) {
        let name: String = sqlx::query_scalar("SELECT current_database()")
            .fetch_one(&self.sql)
            .await
            .expect("it has a name");
        for (setting, value) in [
            ("session_preload_libraries", "auto_explain"),
            ("auto_explain.log_min_duration", "0"),
            ("auto_explain.log_nested_statements", "on"),
            ("auto_explain.log_settings", "on"),
            ("auto_explain.log_format", "json"),
            // To whoever asked, and to no log.
            ("auto_explain.log_level", "notice"),
        ] {
            let set = format!("ALTER DATABASE {name} SET {setting} = '{value}'");
            assert!(self.lets(&set).await, "{set}");
        }
        self.end_connections().await;
    }

    /// Everything that has happened here has also happened so many times before, to others: of every row of every table that grows
    /// there are so many more, each about a world of its own.
    pub async fn repeat_history(&self, times: u32) {
        let columns = sqlx::query(
            "SELECT columns.table_name::text, columns.column_name::text, columns.data_type::text,
                    EXISTS (
                        SELECT 1
                          FROM pg_index
                          JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
                         WHERE indrelid = format('%I', columns.table_name)::regclass AND indisunique AND attname = columns.column_name)
               FROM information_schema.columns
               JOIN information_schema.tables USING (table_schema, table_name)
               JOIN pg_class ON pg_class.oid = format('%I', columns.table_name)::regclass AND NOT relispartition
              WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND table_name NOT LIKE '\\_%' AND is_generated = 'NEVER'
              ORDER BY table_name, ordinal_position",
        )
        .fetch_all(&self.sql)
        .await
        .expect("the columns");
        let mut tables: Vec<(String, Vec<String>, Vec<String>)> = Vec::new();
        for column in &columns {
            let (table, name): (String, String) = (column.get(0), column.get(1));
            if SET_UP.contains(&table.as_str()) {
                continue;
            }
            let copied = copied(&name, column.get::<String, _>(2).as_str(), column.get(3));
            match tables.last_mut().filter(|(last, ..)| *last == table) {
                Some((_, names, values)) => {
                    names.push(name);
                    values.push(copied);
                }
                None => tables.push((table, vec![name], vec![copied])),
            }
        }
        let mut sql = self.sql.acquire().await.expect("it connects");
        let mut statements = vec!["SET session_replication_role = replica".to_owned()];
        for (table, names, values) in tables {
            let (names, values) = (names.join(", "), values.join(", "));
            statements.push(format!(
                "INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE
                 SELECT {values} FROM {table} AS was, generate_series(1, {times}) AS n ON CONFLICT DO NOTHING"
            ));
        }
        statements.extend(["SET session_replication_role = origin", "ANALYZE"].map(str::to_owned));
        for statement in statements {
            let done = sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut *sql).await;
            done.unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
    }
}

impl Database {
    /// The tables that have at least so many rows, as far as the database knows.
    pub async fn tables_of(&self, rows: u32) -> BTreeSet<String> {
        let found: Vec<String> = sqlx::query_scalar(
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND reltuples >= $1",
        )
        .bind(rows as f32)
        .fetch_all(&self.sql)
        .await
        .expect("the tables");
        found.into_iter().collect()
    }
}

/// A column of a copy: identities are others, the same ones in every table; what must be unique differs; all else is as it was.
fn copied(name: &str, kind: &str, unique: bool) -> String {
    // Names of kinds, not of things.
    const KINDS: &[&str] = &[
        "book", "consumer", "machine", "route", "image", "sku", "code", "status", "kind",
        "currency",
    ];
    match kind {
        // Where nobody asks for anything: what is asked for is placed on the nodes that the test has.
        _ if name == "region" => "'elsewhere'".to_owned(),
        "uuid" => format!("md5(was.{name}::text || n)::uuid"),
        "text" if unique && !KINDS.contains(&name) => format!("was.{name} || '-' || n"),
        "bigint" if unique && !["seq", "dispatch"].contains(&name) => {
            format!("was.{name} + n * 100000::bigint")
        }
        "bytea" if unique => format!("sha256(was.{name} || n::text::bytea)"),
        _ => format!("was.{name}"),
    }
}
