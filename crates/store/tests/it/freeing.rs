//! A slot that is freed against a task that is queued for it: E7 and E8h once more, with the claim as the parent. A slot
//! is never somebody else's while work for its last tenant is queued.

use domain::ids::{NodeTaskId, OperationId};
use domain::machines::allocation::Event;
use domain::machines::{Claim, claim};
use lifecycle::{Outcome, Reason, Source};
use store::lifecycle::apply;
use store::{Error, Store, node_tasks};
use testkit::{Database, Fixture, new_id};

use crate::report;
use crate::sessions::{birth, overtaken};

/// An allocation that is being released, its claim being cleaned, and nothing given to the node yet.
async fn cleaning(database: &Database) -> (Fixture, OperationId) {
    let (fixture, release) = (database.allocation().await, OperationId(new_id()));
    let leaving = database.report(fixture.allocation, Event::ReleaseRequested, release).await;
    assert!(leaving.is_applied(), "{leaving:?}");
    let began = report(claim::Event::CleaningBegan, Source::Worker).about(release);
    let outcome =
        database.in_transaction(async |tx| apply::<Claim>(tx, fixture.claim, &began).await).await;
    assert!(outcome.expect("it answers").is_applied());
    (fixture, release)
}

fn task(fixture: &Fixture, operation: OperationId) -> node_tasks::NewTask {
    node_tasks::NewTask {
        id: NodeTaskId(new_id()),
        node: fixture.node,
        allocation: fixture.allocation,
        operation,
        kind: "slice.vm_release",
        params: serde_json::Value::Null,
        run: None,
        deadline: None,
    }
}

async fn free(
    store: &Store,
    fixture: &Fixture,
    operation: OperationId,
) -> Result<Outcome<claim::Status>, Error> {
    let freed = report(claim::Event::Freeing, Source::Worker).about(operation);
    let mut tx = store.begin().await?;
    let outcome = apply::<Claim>(&mut tx, fixture.claim, &freed).await?;
    tx.commit().await?;
    Ok(outcome)
}

#[tokio::test]
async fn e7_a_slot_is_not_freed_under_a_task_that_was_uncommitted() {
    let database = Database::new().await;
    let (fixture, release) = cleaning(&database).await;
    let mut held = database.store.begin().await.expect("a transaction begins");
    let queued = node_tasks::insert(&mut held, &task(&fixture, release), birth()).await;
    assert!(queued.expect("it answers"));
    let freeing = free(&database.store, &fixture, release);
    let (outcome, ended) = overtaken(&database, freeing, held.commit()).await;
    ended.expect("the first commits");
    let outcome = outcome.expect("it answers");
    assert_eq!(outcome.reason(), Some(&Reason::Guard("cleanup_proven")), "{outcome:?}");
    database.remove().await;
}

#[tokio::test]
async fn e8h_no_task_is_queued_for_a_slot_that_is_being_freed() {
    let database = Database::new().await;
    let (fixture, release) = cleaning(&database).await;
    let mut held = database.store.begin().await.expect("a transaction begins");
    let freed = report(claim::Event::Freeing, Source::Worker).about(release);
    let outcome = apply::<Claim>(&mut held, fixture.claim, &freed).await.expect("it answers");
    assert!(outcome.landed_on(claim::Status::Freed), "nothing was given to the node: {outcome:?}");
    let late = task(&fixture, release);
    let queueing = database.in_transaction(async |tx| node_tasks::insert(tx, &late, birth()).await);
    let (queued, ended) = overtaken(&database, queueing, held.commit()).await;
    ended.expect("the first commits");
    assert!(!queued.expect("it answers"), "the slot may be somebody else's by now");
    let again = database.in_transaction(async |tx| node_tasks::insert(tx, &late, birth()).await);
    assert!(!again.await.expect("it answers"), "and later neither");
    database.remove().await;
}

#[tokio::test]
async fn a_claims_own_deadline_takes_nothing_from_a_tenant() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let timer = report(claim::Event::CleaningBegan, Source::Timer).about(OperationId(new_id()));
    let outcome =
        database.in_transaction(async |tx| apply::<Claim>(tx, fixture.claim, &timer).await).await;
    assert_eq!(outcome.expect("it answers").reason(), Some(&Reason::Guard("allocation_leaving")));
    database.remove().await;
}

#[tokio::test]
async fn tasks_of_a_later_operation_stand_behind_a_higher_fence() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let mut fences: Vec<i64> = Vec::new();
    let mut operation = fixture.provision;
    for opens in [Event::RestartRequested, Event::ReleaseRequested] {
        let task = task(&fixture, operation);
        let queued =
            database.in_transaction(async |tx| node_tasks::insert(tx, &task, birth()).await);
        assert!(queued.await.expect("it answers"));
        let fence = sqlx::query_scalar("SELECT fence FROM node_tasks WHERE id = $1")
            .bind(task.id.uuid())
            .fetch_one(&database.sql);
        fences.push(fence.await.expect("it is there"));
        operation = OperationId(new_id());
        assert!(database.report(fixture.allocation, opens, operation).await.is_applied());
    }
    assert!(fences[0] < fences[1], "{fences:?}");
    database.remove().await;
}

#[tokio::test]
async fn a_store_does_not_open_where_guards_would_be_blind() {
    let database = Database::new().await;
    let level = "ALTER DATABASE current SET default_transaction_isolation = 'repeatable read'";
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(&database.sql)
        .await
        .expect("it has a name");
    sqlx::query(sqlx::AssertSqlSafe(level.replace("current", &name)))
        .execute(&database.sql)
        .await
        .expect("an owner may do this");
    let error = Store::open(&database.url(), store::Options::default()).await;
    let error = error.expect_err("guards would not see what they waited for");
    assert!(matches!(error, Error::Isolation), "{error:?}");
    assert!(error.to_string().contains("READ COMMITTED"), "it says what to do: {error}");
    database.remove().await;
}
