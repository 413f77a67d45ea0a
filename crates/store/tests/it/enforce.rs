//! What the database itself refuses, whoever asks.

use domain::ids::{AllocationId, EventId};
use domain::machines::allocation::Event;
use sqlx::{AssertSqlSafe, Row as _};
use store::lifecycle::stored::tables;
use store::{Error, Options, Store};
use testkit::{Database, new_id};
use uuid::Uuid;

/// A move by hand, with the next number.
fn forged(table: &str, to: &str) -> String {
    // tidy: a forbidden write, on purpose
    format!("UPDATE {table} SET status = '{to}', seq = seq + 1 WHERE id = $1")
}

/// The SQLSTATE and message with which the database refuses.
async fn refusal(database: &Database, statement: &str, id: Uuid) -> (String, String) {
    let result =
        sqlx::query(AssertSqlSafe(statement.to_owned())).bind(id).execute(&database.sql).await;
    let error = result.expect_err(statement);
    let error = error.as_database_error().expect("the database says so");
    (error.code().unwrap_or_default().into_owned(), error.message().to_owned())
}

#[tokio::test]
async fn a_hand_typed_status_is_rejected_for_every_machine() {
    let database = Database::new().await;
    for (machine, table) in tables() {
        let id = database.newborn(machine.name).await;
        for status in &machine.statuses {
            // tidy: a forbidden write, on purpose
            let statement = format!("UPDATE {table} SET status = '{}' WHERE id = $1", status.code);
            if status.code == machine.statuses[machine.initial].code {
                sqlx::query(AssertSqlSafe(statement))
                    .bind(id)
                    .execute(&database.sql)
                    .await
                    .expect("nothing changes");
                continue;
            }
            let (code, message) = refusal(&database, &statement, id).await;
            assert_eq!(code, "BT001", "{message}");
            assert!(message.contains("report an event instead"), "{message}");
        }
    }
    database.remove().await;
}

#[tokio::test]
async fn a_move_without_its_log_record_is_rejected_at_commit() {
    let database = Database::new().await;
    for (machine, table) in tables() {
        let id = database.newborn(machine.name).await;
        let (_, to) = *machine
            .pairs()
            .iter()
            .find(|(from, _)| *from == machine.initial)
            .expect("it can leave");
        let to = machine.statuses[to].code;
        let statement = forged(table, to);
        let (code, message) = refusal(&database, &statement, id).await;
        assert_eq!(code, "BT003", "{message}");
        assert!(message.contains("without its record in lifecycle_log"), "{message}");
    }
    database.remove().await;
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "somebody with a terminal does not ask the store")]
async fn a_record_that_tells_another_story_does_not_count() {
    let database = Database::new().await;
    let id = database.allocation().await.allocation.uuid();
    for (from, to) in [("active", "provisioning"), ("requested", "releasing")] {
        let mut tx = database.sql.begin().await.expect("a transaction begins");
        let moved = forged("allocations", "provisioning");
        sqlx::query(AssertSqlSafe(moved))
            .bind(id)
            .execute(&mut *tx)
            .await
            .expect("a move of the table");
        sqlx::query(
            "INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, source, actor)
             VALUES ('allocation', $1, 2, gen_random_uuid(), 'x', $2, $3, 'user', 'z')",
        )
        .bind(id)
        .bind(from)
        .bind(to)
        .execute(&mut *tx)
        .await
        .expect("the log takes it");
        let error = tx.commit().await.expect_err("it is not what happened");
        assert_eq!(
            error.as_database_error().and_then(|e| e.code()).as_deref(),
            Some("BT003"),
            "{error}"
        );
    }
    database.remove().await;
}

/// Two that were requested go on by one statement, and so many of them are recorded after it.
#[expect(clippy::disallowed_methods, reason = "somebody with a terminal does not ask the store")]
async fn two_move_and_are_recorded(
    database: &Database,
    recorded: usize,
) -> Result<(), sqlx::Error> {
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(database.allocation().await.allocation.uuid());
    }
    let mut tx = database.sql.begin().await?;
    let moved = forged("allocations", "provisioning").replace("= $1", "= ANY ($1)");
    sqlx::query(AssertSqlSafe(moved)).bind(&ids).execute(&mut *tx).await?;
    sqlx::query(
        "INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, source, actor)
         SELECT 'allocation', id, 2, gen_random_uuid(), 'x', 'requested', 'provisioning', 'user', 'z'
           FROM unnest($1::uuid[]) AS of_it (id)",
    )
    .bind(&ids[..recorded])
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

#[tokio::test]
async fn each_of_those_that_move_together_needs_its_record_and_nothing_is_owed_after_it() {
    let database = Database::new().await;
    for recorded in [0, 1] {
        let error =
            two_move_and_are_recorded(&database, recorded).await.expect_err("one is missing");
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some("BT003"), "{error}");
    }
    two_move_and_are_recorded(&database, 2).await.expect("both are recorded");
    let owed = sqlx::query("SELECT count(*) FROM lifecycle_owed").fetch_one(&database.sql).await;
    assert_eq!(owed.expect("a count").get::<i64, _>(0), 0);
    database.remove().await;
}

#[tokio::test]
async fn every_move_that_is_not_in_the_table_is_rejected_even_with_the_next_number() {
    let database = Database::new().await;
    let mut refused = 0;
    for (machine, table) in tables() {
        let id = database.newborn(machine.name).await;
        let legal: Vec<usize> = machine
            .pairs()
            .iter()
            .filter(|(from, _)| *from == machine.initial)
            .map(|(_, to)| *to)
            .collect();
        for (number, status) in machine.statuses.iter().enumerate() {
            if legal.contains(&number) {
                continue;
            }
            let statement = forged(table, status.code);
            let (code, message) = refusal(&database, &statement, id).await;
            assert_eq!(code, "BT001", "{message}");
            refused += 1;
        }
    }
    assert!(refused > 30, "only {refused} moves were tried");
    database.remove().await;
}

#[tokio::test]
async fn an_illegal_first_status_is_rejected() {
    let database = Database::new().await;
    // tidy: a forbidden write, on purpose
    let born_ready = "INSERT INTO nodes (id, name, region, sku, status) VALUES ($1, 'n', 'north', 'h100', 'ready')";
    let (code, message) = refusal(&database, born_ready, new_id()).await;
    assert_eq!(code, "BT001");
    assert!(message.contains("a node is born in enrolling"), "{message}");
    let unlogged = "INSERT INTO nodes (id, name, region, sku) VALUES ($1, 'n', 'north', 'h100')";
    let (code, _) = refusal(&database, unlogged, new_id()).await;
    assert_eq!(code, "BT003", "a birth without its log record");
    let counted =
        "INSERT INTO nodes (id, name, region, sku, seq) VALUES ($1, 'n', 'north', 'h100', 7)";
    assert_eq!(refusal(&database, counted, new_id()).await.0, "BT001");
    database.remove().await;
}

#[tokio::test]
async fn rows_of_a_machine_are_never_deleted_and_never_renamed() {
    let database = Database::new().await;
    for (machine, table) in tables() {
        let id = database.newborn(machine.name).await;
        assert_eq!(
            refusal(&database, &format!("DELETE FROM {table} WHERE id = $1"), id).await.0,
            "BT002"
        );
        let renamed = format!("UPDATE {table} SET id = gen_random_uuid() WHERE id = $1");
        assert_eq!(refusal(&database, &renamed, id).await.0, "BT001");
        let truncated = sqlx::query(AssertSqlSafe(format!("TRUNCATE {table} CASCADE")))
            .execute(&database.sql)
            .await;
        assert!(truncated.is_err(), "{table} was emptied");
    }
    database.remove().await;
}

#[tokio::test]
async fn what_was_logged_or_refused_stays() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    let nobody = AllocationId(new_id());
    let outcome =
        database.report(nobody, Event::ReleaseRequested, domain::ids::OperationId(new_id())).await;
    assert!(!outcome.is_applied());
    let logged = fixture.allocation.uuid();
    for (table, id) in [("lifecycle_log", logged), ("lifecycle_refusals", nobody.uuid())] {
        let actor = format!("UPDATE {table} SET actor = 'nobody' WHERE entity_id = $1");
        assert_eq!(refusal(&database, &actor, id).await.0, "BT002");
        assert_eq!(
            refusal(&database, &format!("DELETE FROM {table} WHERE entity_id = $1"), id).await.0,
            "BT002"
        );
        let emptied =
            sqlx::query(AssertSqlSafe(format!("TRUNCATE {table}"))).execute(&database.sql).await;
        assert!(emptied.is_err(), "{table} was emptied");
    }
    database.remove().await;
}

async fn opened(database: &Database) -> Result<(), Error> {
    let store =
        Store::open(&database.url(), Options { connections_max: 1, ..Options::default() }).await?;
    store.close().await;
    Ok(())
}

#[tokio::test]
async fn a_store_does_not_open_over_a_database_that_enforces_something_else() {
    let tampered = [
        "ALTER TABLE claims DISABLE TRIGGER lifecycle_move",
        "DROP TRIGGER lifecycle_move_record ON allocations",
        "ALTER TABLE nodes ALTER COLUMN status SET DEFAULT 'ready'",
        "CREATE OR REPLACE FUNCTION enforce_node() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END;'",
        "ALTER TABLE lifecycle_log DISABLE TRIGGER append_only",
        "ALTER TABLE lifecycle_refusals DISABLE TRIGGER kept_while_young",
        "ALTER TABLE lifecycle_owed DISABLE TRIGGER owed",
        "CREATE OR REPLACE TRIGGER lifecycle_birth_record AFTER INSERT ON claims FOR EACH STATEMENT EXECUTE FUNCTION reject_change()",
    ];
    for statement in tampered {
        let database = Database::new().await;
        opened(&database).await.expect("it is as it was made");
        sqlx::query(AssertSqlSafe(statement))
            .execute(&database.sql)
            .await
            .expect("an owner may do this");
        let error = opened(&database).await.expect_err(statement);
        assert!(matches!(error, Error::NotEnforced(_)), "{error:?}");
        assert!(error.to_string().contains("berth migrate"), "it says what to do: {error}");
        let by_hand = ["lifecycle_log", "lifecycle_refusals", "lifecycle_owed", "DEFAULT"];
        if !by_hand.iter().any(|word| statement.contains(word)) {
            Store::migrate(&database.url()).await.expect("migrating mends it");
            opened(&database).await.expect("it is as it was");
        }
        database.remove().await;
    }
}

#[tokio::test]
async fn processes_that_start_at_once_migrate_once() {
    let database = Database::new().await;
    let tampered = "ALTER TABLE claims DISABLE TRIGGER lifecycle_move";
    sqlx::query(tampered).execute(&database.sql).await.expect("an owner may do this");
    let url = database.url();
    let starts =
        [Store::migrate(&url), Store::migrate(&url), Store::migrate(&url), Store::migrate(&url)];
    let [a, b, c, d] = starts;
    let done = tokio::join!(a, b, c, d);
    assert!(matches!(done, (Ok(()), Ok(()), Ok(()), Ok(()))), "{done:?}");
    opened(&database).await.expect("it is as it was made");
    database.remove().await;
}

#[tokio::test]
async fn migrating_twice_changes_nothing() {
    let database = Database::new().await;
    let before = database.store.schema().await.expect("the schema can be read");
    Store::migrate(&database.url()).await.expect("it migrates again");
    assert_eq!(database.store.schema().await.expect("the schema can be read"), before);
    database.remove().await;
}

/// The last fence: even somebody who forges the log record can't record one step twice, or one fact twice.
#[tokio::test]
async fn a_step_and_a_fact_are_recorded_once() {
    let database = Database::new().await;
    let id = database.allocation().await.allocation.uuid();
    let event_id: Uuid = sqlx::query("SELECT event_id FROM lifecycle_log WHERE entity_id = $1")
        .bind(id)
        .fetch_one(&database.sql)
        .await
        .expect("it was born")
        .get(0);
    let forged = "INSERT INTO lifecycle_log (machine, entity_id, seq, event_id, event, from_status, to_status, source, actor)
                  VALUES ('allocation', $1, $2, $3, 'x', $4, 'y', 'user', 'z')";
    for (seq, event_id, from) in
        [(1_i64, EventId(new_id()).uuid(), None), (2, event_id, Some("requested"))]
    {
        let result = sqlx::query(forged)
            .bind(id)
            .bind(seq)
            .bind(event_id)
            .bind(from)
            .execute(&database.sql)
            .await;
        let error = result.expect_err("it is there already");
        assert!(
            error.as_database_error().is_some_and(|error| error.is_unique_violation()),
            "{error}"
        );
    }
    database.remove().await;
}

#[tokio::test]
async fn a_database_of_a_newer_binary_is_used_if_it_knows_every_move_and_an_older_one_is_refused() {
    let database = Database::new().await;
    let open = async || {
        Store::open(&database.url(), Options { connections_max: 1, ..Options::default() }).await
    };
    // A later step and one move more: this binary goes on beside the newer one.
    database
        .tamper(&[
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                   VALUES (9999, 'later', true, '', 0)",
        ])
        .await;
    let function: String =
        sqlx::query_scalar("SELECT pg_get_functiondef('enforce_allocation'::regproc)")
            .fetch_one(&database.sql)
            .await
            .expect("it is there");
    let replaced = function.replace("NOT IN (", "NOT IN ('active sleeping', ");
    assert!(replaced != function && database.lets(&replaced).await);
    open().await.expect("it can be used").close().await;
    // One move less: what this binary does would be refused.
    let replaced = function.replace("'requested provisioning'", "'requested elsewhere'");
    assert!(replaced != function && database.lets(&replaced).await);
    let error = open().await.expect_err("a move is missing");
    assert!(matches!(error, Error::NotEnforced(_)), "{error:?}");
    assert!(database.lets(&function).await);
    // The last step that this binary needs is not there.
    let last = "(SELECT max(version) FROM _sqlx_migrations WHERE version < 9999)";
    database.tamper(&[format!("DELETE FROM _sqlx_migrations WHERE version >= {last}")]).await;
    let error = open().await.expect_err("it is too old");
    assert!(matches!(error, Error::Outdated { at, needed } if at + 1 == needed), "{error:?}");
    assert!(error.to_string().contains("berth migrate"), "{error}");
    database.remove().await;
}
