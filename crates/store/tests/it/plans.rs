//! What the planner makes of the writer's statements.

use domain::ids::OperationId;
use domain::machines::allocation::Event;
use jiff::Timestamp;
use store::node_outages;
use store::views::stuck;
use testkit::{Database, Fixture, new_id};

/// An index on status is natural for a listing. With statistics that call a status rare it looks as good as the row's
/// key, and a writer that fell for it read every row that ever had that status: ten times slower within a minute.
#[tokio::test]
async fn an_index_on_status_is_never_taken_for_the_key_of_a_row() {
    let database = Database::new().await;
    let mut fixtures: Vec<Fixture> = Vec::new();
    for _ in 0..20 {
        fixtures.push(database.active_allocation().await);
    }
    for statement in [
        "ALTER TABLE allocations DISABLE TRIGGER USER",
        // tidy: a forbidden write, on purpose
        "INSERT INTO allocations (id, project_id, operation_id, sku, gpus, status, seq)
         SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'h100', 1, 'active', 3
           FROM generate_series(1, 20000)",
        "ALTER TABLE allocations ENABLE TRIGGER USER",
        "CREATE INDEX by_status ON allocations (status, status_at)",
        "ANALYZE allocations",
    ] {
        sqlx::query(statement).execute(&database.sql).await.expect("an owner may do this");
    }
    for fixture in &fixtures {
        let restart = OperationId(new_id());
        for event in [Event::RestartRequested, Event::RestartCompleted] {
            assert!(database.report(fixture.allocation, event, restart).await.is_applied());
        }
    }
    // A connection hands its counts in when it ends at the latest.
    database.store.close().await;
    let (by_key, by_status): (i64, i64) = sqlx::query_as(
        "SELECT (SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'allocations_pkey'),
                (SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'by_status')",
    )
    .fetch_one(&database.sql)
    .await
    .expect("the database counts");
    assert_eq!(by_status, 0, "against {by_key} scans by key");
    database.remove().await;
}

/// Most rows rest, and the list is looked at every few seconds: it reads what waits, and nothing else.
#[tokio::test]
async fn the_stuck_list_reads_no_row_that_rests() {
    let database = Database::new().await;
    let waiting = database.allocation().await;
    let resting = [
        // tidy: a forbidden write, on purpose
        "INSERT INTO allocations (id, project_id, operation_id, sku, gpus, status, seq)
         SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'h100', 1, 'released', 3
           FROM generate_series(1, 50000)",
        // tidy: a forbidden write, on purpose
        "INSERT INTO claims (id, allocation_id, node_id, status)
         SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'freed'
           FROM generate_series(1, 50000)",
        // tidy: a forbidden write, on purpose
        "INSERT INTO node_tasks (id, node_id, operation_id, kind, fence, status)
         SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'k', 1, 'succeeded'
           FROM generate_series(1, 50000)",
    ];
    database.tamper(&resting).await;
    for statement in ["ANALYZE allocations, claims, node_tasks", "SELECT pg_stat_reset()"] {
        assert!(database.lets(statement).await);
    }
    let later = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let table = |waiting: &stuck::Waiting| waiting.seconds;
    let listed = stuck::list(&database.store, later, &table, 10).await.expect("a list");
    assert_eq!(listed[0].id, waiting.allocation.uuid());
    let tally = stuck::tally(&database.store, later, &table).await.expect("a tally");
    assert_eq!(tally.iter().map(|each| each.overdue).sum::<i64>(), listed.len() as i64);
    // A connection hands its counts in when it ends at the latest.
    database.store.close().await;
    let read = database
        .number(
            "SELECT coalesce(sum(seq_tup_read), 0)::bigint FROM pg_stat_user_tables
              WHERE relname IN ('allocations', 'claims', 'node_tasks')",
        )
        .await;
    assert_eq!(read, 0, "a table was read from its beginning to its end");
    database.remove().await;
}

/// What the database has counted: a connection hands its counts in a moment after it was closed.
async fn counted(database: &Database, query: &str) -> i64 {
    for _ in 0..200 {
        let counted = database.number(query).await;
        if counted > 0 {
            return counted;
        }
        assert!(database.lets("SELECT pg_sleep(0.02)").await);
    }
    panic!("nothing was ever counted by {query}");
}

/// Records last for months, and outages for minutes: what is given back is found by its minutes, among however many there are.
#[tokio::test]
async fn what_an_outage_gives_back_is_found_without_reading_the_minutes_before_it() {
    let database = Database::new().await;
    let history = [
        "INSERT INTO accounts (id) VALUES (md5('account')::uuid)",
        "INSERT INTO usage_records (id, allocation_id, started_at, charged_until, account_id, node_id, sku, gpus, price_micros_per_gpu_second)
         SELECT md5('record ' || n)::uuid, md5('allocation ' || n)::uuid, '2026-01-01T00:00Z', '2026-01-08T00:00Z', md5('account')::uuid,
                md5('node')::uuid, 'h100.slice', 1, 831
           FROM generate_series(1, 4) AS n",
        "INSERT INTO usage_windows (usage_record_id, window_at, micros, amount_minor)
         SELECT md5('record ' || n)::uuid, '2026-01-01T00:00Z'::timestamptz + minute * interval '1 minute', 60000000, 4
           FROM generate_series(1, 4) AS n, generate_series(0, 7 * 1440 - 1) AS minute",
        "INSERT INTO node_outages (id, node_id, from_at, until_at, credited_until)
         VALUES (md5('outage')::uuid, md5('node')::uuid, '2026-01-07T00:00:30Z', '2026-01-07T00:05:30Z', '2026-01-07T00:00:30Z')",
    ];
    database.tamper(&history).await;
    // What the planner knows is from when there was nothing yet.
    assert!(database.lets("SELECT pg_stat_reset()").await);
    assert_eq!(node_outages::give_back(&database.store).await.expect("it is given"), 4 * 6);
    database.store.close().await;
    let read = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname LIKE 'usage_windows%')::bigint
                     + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname LIKE 'usage_windows%')::bigint";
    let read = counted(&database, read).await;
    assert!((24..500).contains(&read), "{read} of 40,320 minutes were read");
    database.remove().await;
}
