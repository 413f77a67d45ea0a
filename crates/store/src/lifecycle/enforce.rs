//! The database's own guard over the single writer: triggers generated from the machines' tables, installed by
//! `migrate`, and compared with the binary's tables when a store is opened.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lifecycle::Table;
use sqlx::{AssertSqlSafe, Row as _};

use super::stored::tables;
use crate::{Error, Store, Tx};

/// The triggers every machine's table carries, and what each of them is for.
const TRIGGERS: &[(&str, &str)] = &[
    (
        "lifecycle_birth",
        "BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION enforce_{machine}()",
    ),
    (
        "lifecycle_move",
        "BEFORE UPDATE ON {table} FOR EACH ROW \
         WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.seq IS DISTINCT FROM NEW.seq OR OLD.id IS DISTINCT FROM NEW.id) \
         EXECUTE FUNCTION enforce_{machine}()",
    ),
    // A row that could be deleted could be born again in another status.
    (
        "lifecycle_end",
        "BEFORE DELETE OR TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION reject_change()",
    ),
];

/// Those that ask for the records of what was written: of a birth when the statement ends, for all its rows at once. A move is asked
/// about in the same way where hardly anything but moves changes rows.
const BIRTH_RECORD: (&str, &str) = (
    "lifecycle_birth_record",
    "AFTER INSERT ON {table} REFERENCING NEW TABLE AS changed \
     FOR EACH STATEMENT EXECUTE FUNCTION require_birth_records('{machine}')",
);

const MOVE_RECORDS: (&str, &str) = (
    "lifecycle_move_record",
    "AFTER UPDATE ON {table} REFERENCING OLD TABLE AS former NEW TABLE AS changed \
     FOR EACH STATEMENT EXECUTE FUNCTION require_move_records('{machine}')",
);

/// The same row by row when the transaction ends, which costs nothing for a row that has not moved.
const MOVE_RECORD: (&str, &str) = (
    "lifecycle_move_record",
    "AFTER UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW \
     WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.seq IS DISTINCT FROM NEW.seq) \
     EXECUTE FUNCTION require_log_record('{machine}')",
);

/// Whose rows are hardly ever changed but by moves.
const MOVED_MOSTLY: &[&str] = &["allocations", "claims", "node_tasks"];

/// What a table carries: the name of each trigger, what it is for, and whether it is one that waits for the transaction's end.
fn triggers_of(table: &str) -> Vec<(&'static str, &'static str, bool)> {
    let move_record = if MOVED_MOSTLY.contains(&table) { MOVE_RECORDS } else { MOVE_RECORD };
    TRIGGERS
        .iter()
        .chain([&BIRTH_RECORD, &move_record])
        .map(|(name, pattern)| (*name, *pattern, pattern.contains(" DEFERRABLE ")))
        .collect()
}

/// The function that a trigger calls.
fn called(definition: &str) -> &str {
    let call = definition.rsplit_once("EXECUTE FUNCTION ").map_or("", |(_, call)| call);
    call.split_once('(').map_or(call, |(name, _)| name)
}

/// The body of a machine's trigger function: which first status, and which moves, there are.
fn body(machine: &Table) -> String {
    let name = machine.name;
    let initial = machine.statuses[machine.initial].code;
    let mut moves = String::new();
    for (from, to) in machine.pairs() {
        let separator = if moves.is_empty() { "" } else { "," };
        let _ = write!(
            moves,
            "{separator}\n            '{} {}'",
            machine.statuses[from].code, machine.statuses[to].code
        );
    }
    format!(
        "
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> '{initial}' OR NEW.seq <> 1 THEN
            RAISE EXCEPTION '{name} % is born in status % (seq %): a {name} is born in {initial} (seq 1)',
                NEW.id, NEW.status, NEW.seq USING ERRCODE = 'BT001';
        END IF;
    ELSIF NEW.id <> OLD.id OR NEW.seq <> OLD.seq + 1
        OR OLD.status || ' ' || NEW.status NOT IN ({moves}
        ) THEN
        RAISE EXCEPTION '{name} %: % (seq %) -> % (seq %) is not a move of its lifecycle; report an event instead',
            OLD.id, OLD.status, OLD.seq, NEW.status, NEW.seq USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
END;
"
    )
}

fn definition(pattern: &str, machine: &Table, table: &str) -> String {
    pattern.replace("{table}", table).replace("{machine}", machine.name)
}

/// Puts the function and triggers of every machine into the database, replacing what is there. Where it is all there
/// already it touches nothing: replacing a trigger keeps everybody else from writing.
pub(crate) async fn install(store: &Store) -> Result<(), Error> {
    let mut tx = store.begin().await?;
    // Several processes may start at once; the second finds the work of the first.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('berth lifecycle triggers'))")
        .execute(tx.connection())
        .await?;
    if wrong(&mut tx, false).await?.is_empty() {
        return tx.commit().await;
    }
    for (machine, table) in tables() {
        let mut statements = vec![format!(
            "CREATE OR REPLACE FUNCTION enforce_{}() RETURNS trigger LANGUAGE plpgsql AS $body${}$body$",
            machine.name,
            body(machine)
        )];
        for (name, pattern, waits) in triggers_of(table) {
            // One that waits can't be replaced, and replaces none.
            statements.push(format!("DROP TRIGGER IF EXISTS {name} ON {table}"));
            let definition = definition(pattern, machine, table);
            let kind = if waits { "CONSTRAINT TRIGGER" } else { "TRIGGER" };
            statements.push(format!("CREATE {kind} {name} {definition}"));
        }
        for statement in statements {
            sqlx::query(AssertSqlSafe(statement)).execute(tx.connection()).await?;
        }
    }
    tx.commit().await
}

/// Compares what the database enforces with the tables of this binary. One that a `newer` binary has migrated may know more.
pub(crate) async fn verify(store: &Store, newer: bool) -> Result<(), Error> {
    let mut tx = store.begin().await?;
    let wrong = wrong(&mut tx, newer).await?;
    // There, waiting for a lock that nobody wrote under raises nothing, and a guard then reads what was true before.
    let show = sqlx::query("SHOW default_transaction_isolation").fetch_one(tx.connection()).await?;
    let isolation: String = show.try_get(0)?;
    tx.commit().await?;
    if !wrong.is_empty() {
        return Err(Error::NotEnforced(wrong));
    }
    if isolation == "repeatable read" { Err(Error::Isolation) } else { Ok(()) }
}

/// Whether a function lets everything happen that this machine does; a newer binary's may let more.
fn covers(function: &str, machine: &Table) -> bool {
    let initial = format!("NEW.status <> '{}'", machine.statuses[machine.initial].code);
    let moves = |(from, to): (usize, usize)| {
        format!("'{} {}'", machine.statuses[from].code, machine.statuses[to].code)
    };
    function.contains(&initial)
        && machine.pairs().into_iter().all(|pair| function.contains(&moves(pair)))
}

/// What is not as the tables of this binary have it.
async fn wrong(tx: &mut Tx, newer: bool) -> Result<Vec<String>, Error> {
    let functions =
        named(tx, "SELECT proname::text, prosrc FROM pg_proc WHERE proname LIKE 'enforce\\_%'")
            .await?;
    let (enabled, calls) = (enabled(tx).await?, calls(tx).await?);
    let defaults = named(
        tx,
        "SELECT table_name::text, column_default::text
           FROM information_schema.columns
          WHERE table_schema = current_schema() AND column_name = 'status' AND column_default IS NOT NULL",
    )
    .await?;
    // A trigger that is disabled, or enabled only for replicas, enforces nothing.
    let works = |name: &str| matches!(enabled.get(name).map(String::as_str), Some("O" | "A"));
    let mut wrong = Vec::new();
    for (machine, table) in tables() {
        let name = machine.name;
        let function = functions.get(&format!("enforce_{name}"));
        let tolerated = newer && function.is_some_and(|function| covers(function, machine));
        if function != Some(&body(machine)) && !tolerated {
            wrong.push(format!("the moves of {name} differ"));
        }
        let initial = format!("'{}'::text", machine.statuses[machine.initial].code);
        if defaults.get(table) != Some(&initial) {
            wrong.push(format!("a new row of {table} is not born in {initial}"));
        }
        for (trigger, pattern, _) in triggers_of(table) {
            let (full, definition) =
                (format!("{table}.{trigger}"), definition(pattern, machine, table));
            if !works(&full) {
                wrong.push(format!("trigger {trigger} of {table} is missing or disabled"));
            } else if !newer && calls.get(&full).map(String::as_str) != Some(called(&definition)) {
                wrong.push(format!("trigger {trigger} of {table} asks for something else"));
            }
        }
    }
    let said = "what was said may be changed";
    for (trigger, otherwise) in [
        ("lifecycle_log.append_only", said),
        ("lifecycle_refusals.append_only", said),
        ("lifecycle_refusals.kept_while_young", said),
        ("lifecycle_owed.owed", "a record that is owed may never come"),
    ] {
        if !works(trigger) {
            wrong.push(format!("{otherwise}: trigger {trigger} is missing or disabled"));
        }
    }
    Ok(wrong)
}

/// Each trigger, and how it is enabled.
async fn enabled(tx: &mut Tx) -> Result<BTreeMap<String, String>, Error> {
    let query = "SELECT tgrelid::regclass || '.' || tgname, tgenabled::text
                   FROM pg_trigger
                  WHERE NOT tgisinternal";
    named(tx, query).await
}

/// Each trigger, and the function that it calls.
async fn calls(tx: &mut Tx) -> Result<BTreeMap<String, String>, Error> {
    let query = "SELECT tgrelid::regclass || '.' || tgname, tgfoid::regproc::text
                   FROM pg_trigger
                  WHERE NOT tgisinternal";
    named(tx, query).await
}

async fn named(tx: &mut Tx, query: &'static str) -> Result<BTreeMap<String, String>, Error> {
    let rows = sqlx::query(query).fetch_all(tx.connection()).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}
