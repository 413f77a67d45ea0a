//! What the planner makes of the writer's statements.

use domain::ids::OperationId;
use domain::machines::allocation::Event;
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
