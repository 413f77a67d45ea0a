//! Two sessions at once. The scripts `e1` to `e9` first show on scratch tables what Postgres does, its holes included,
//! so that nobody "simplifies" the writer; then that the product's own path is right in the same interleaving.
//! Then races without a script: they end as one of the serial orders, and never in a deadlock.

use std::sync::Arc;

use domain::ids::{AllocationGroupId, ClaimId, NodeId, NodeTaskId, OperationId};
use domain::machines::allocation::{Event, Status};
use domain::machines::{Node, NodeTask, node, node_task};
use lifecycle::{Code as _, Outcome, Reason, Source, Value, Why};
use store::lifecycle::{Report, apply};
use store::{Error, Options, Store, allocation_groups, allocations, claims, node_tasks};
use testkit::{Database, new_id};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::report;
use crate::sessions::{
    Past, Random, Scratch, birth, counted, dispatched, member, overtaken, said, standing, told,
    told_at_once, traces,
};

const PROVISIONING: &[Event] = &[Event::ProvisionStarted];
const ACTIVE: &[Event] = &[Event::ProvisionStarted, Event::ProvisionSucceeded];
const RESTARTING: &[Event] =
    &[Event::ProvisionStarted, Event::ProvisionSucceeded, Event::RestartRequested];
const RESTART_FAILED: &[Event] = &[
    Event::ProvisionStarted,
    Event::ProvisionSucceeded,
    Event::RestartRequested,
    Event::RestartFailedToReturn,
];
const RELEASING: &[Event] = &[Event::ReleaseRequested];
const RELEASE_FAILED: &[Event] = &[Event::ReleaseRequested, Event::ReleaseExhausted];

/// The other session asks the parent to stop.
const ASK_TO_STOP: &str = "UPDATE parents SET stop_at = clock_timestamp() WHERE id = 1";
/// A compare-and-set on the status alone.
const BY_STATE: &str = "UPDATE parents SET state = 'running' WHERE id = 1 AND state = 'ready'";

/// One statement that claims the parent for destruction.
const CLAIM: &str = "UPDATE parents SET state = 'destroying' WHERE id = 1 AND state = 'ready'
    AND NOT EXISTS (SELECT 1 FROM children WHERE parent_id = 1 AND state = 'live')";
/// The same with a correlated subquery.
const CLAIM_CORRELATED: &str = "UPDATE parents SET state = 'destroying' WHERE id = 1 AND state = 'ready'
    AND NOT EXISTS (SELECT 1 FROM children WHERE children.parent_id = parents.id AND children.state = 'live')";
const LOCK: &str = "SELECT state FROM parents WHERE id = 1 FOR UPDATE";
const SHARE: &str = "SELECT state FROM parents WHERE id = 1 FOR SHARE";
const BUMP: &str = "UPDATE parents SET version = version + 1 WHERE id = 1";
/// A child, by a path that relies on the foreign key alone.
const CHILD: &str = "INSERT INTO children (id, parent_id, state) VALUES (1, 1, 'live')";

fn ends(state: &str, stopped: bool, children: i64) -> (String, bool, i64) {
    (state.to_owned(), stopped, children)
}

// What Postgres does.

#[tokio::test]
async fn e1_a_status_only_write_is_applied_although_superseded() {
    let mut scratch = Scratch::new().await;
    assert_eq!(
        scratch.a.ask("SELECT state FROM parents WHERE stop_at IS NULL").await,
        Ok("ready".to_owned())
    );
    assert_eq!(scratch.b.run(ASK_TO_STOP).await, Ok(1));
    assert_eq!(scratch.a.run(BY_STATE).await, Ok(1), "the hole");
    assert_eq!(
        scratch.end().await,
        ends("running", true, 0),
        "it runs although it was asked to stop"
    );
}

#[tokio::test]
async fn e2_the_predicates_repeated_in_the_write_see_that_it_is_superseded() {
    let mut scratch = Scratch::new().await;
    assert_eq!(
        scratch.a.ask("SELECT state FROM parents WHERE stop_at IS NULL").await,
        Ok("ready".to_owned())
    );
    assert_eq!(scratch.b.run(ASK_TO_STOP).await, Ok(1));
    let checked =
        "UPDATE parents SET state = 'running' WHERE id = 1 AND state = 'ready' AND stop_at IS NULL";
    assert_eq!(scratch.a.run(checked).await, Ok(0));
    assert_eq!(scratch.end().await, ends("ready", true, 0));
}

#[tokio::test]
async fn e3_a_version_is_as_good_as_the_writer_that_forgets_to_raise_it() {
    let raising =
        "UPDATE parents SET stop_at = clock_timestamp(), version = version + 1 WHERE id = 1";
    for (other, touched) in [(raising, 0), (ASK_TO_STOP, 1)] {
        let mut scratch = Scratch::new().await;
        assert_eq!(scratch.a.ask("SELECT version::text FROM parents").await, Ok("1".to_owned()));
        assert_eq!(scratch.b.run(other).await, Ok(1));
        let versioned =
            "UPDATE parents SET state = 'running', version = 2 WHERE id = 1 AND version = 1";
        assert_eq!(scratch.a.run(versioned).await, Ok(touched), "after {other}");
        assert_eq!(
            scratch.end().await,
            ends(if touched == 0 { "ready" } else { "running" }, true, 0)
        );
    }
}

#[tokio::test]
async fn e4_a_row_loaded_for_update_makes_the_other_writer_wait() {
    let mut scratch = Scratch::new().await;
    assert_eq!(scratch.b.run("BEGIN").await, Ok(0));
    assert_eq!(scratch.b.ask(LOCK).await, Ok("ready".to_owned()));
    assert_eq!(scratch.b.run(BY_STATE).await, Ok(1));
    assert_eq!(scratch.a_waits(ASK_TO_STOP, "COMMIT").await, Ok(1));
    assert_eq!(scratch.end().await, ends("running", true, 0), "first the one, then the other");
}

#[tokio::test]
async fn e5_a_compare_and_set_waits_for_an_uncommitted_status_and_believes_only_a_commit() {
    for (ending, touched, state) in [("COMMIT", 0, "gone"), ("ROLLBACK", 1, "running")] {
        let mut scratch = Scratch::new().await;
        assert_eq!(scratch.b.run("BEGIN").await, Ok(0));
        assert_eq!(scratch.b.run("UPDATE parents SET state = 'gone' WHERE id = 1").await, Ok(1));
        assert_eq!(scratch.a_waits(BY_STATE, ending).await, Ok(touched));
        assert_eq!(scratch.end().await, ends(state, false, 0));
    }
}

#[tokio::test]
async fn e6_under_repeatable_read_the_loser_gets_an_error_instead_of_no_row() {
    let mut scratch = Scratch::new().await;
    assert_eq!(scratch.a.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await, Ok(0));
    assert_eq!(scratch.a.ask("SELECT state FROM parents").await, Ok("ready".to_owned()));
    assert_eq!(scratch.b.run("BEGIN").await, Ok(0));
    assert_eq!(scratch.b.run("UPDATE parents SET state = 'gone' WHERE id = 1").await, Ok(1));
    assert_eq!(scratch.a_waits(BY_STATE, "COMMIT").await, Err("40001".to_owned()));
    assert_eq!(scratch.end().await, ends("gone", false, 0));
}

/// Beside E6: a lock that was only shared changes nothing, so there is no error either; the guard then looks at a
/// snapshot from before the wait. A guard after the lock is right under READ COMMITTED only.
#[tokio::test]
async fn e6_under_repeatable_read_a_guard_after_the_lock_is_blind_to_what_the_wait_was_for() {
    let mut scratch = Scratch::new().await;
    for statement in ["BEGIN", SHARE, CHILD] {
        assert!(scratch.b.run(statement).await.is_ok());
    }
    assert_eq!(scratch.a.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await, Ok(0));
    assert_eq!(scratch.a_waits(LOCK, "COMMIT").await, Ok(1));
    assert_eq!(scratch.a.run(CLAIM).await, Ok(1), "the hole");
    assert_eq!(scratch.a.run("COMMIT").await, Ok(0));
    assert_eq!(scratch.end().await, ends("destroying", false, 1));
}

#[tokio::test]
async fn e7_a_parent_is_claimed_while_a_child_is_uncommitted_in_spite_of_the_foreign_key() {
    let mut scratch = Scratch::new().await;
    assert_eq!(scratch.b.run("BEGIN").await, Ok(0));
    assert_eq!(scratch.b.run(CHILD).await, Ok(1));
    assert_eq!(scratch.a.run(CLAIM).await, Ok(1), "the hole: it does not even wait");
    assert_eq!(scratch.b.run("COMMIT").await, Ok(0));
    assert_eq!(scratch.end().await, ends("destroying", false, 1), "destroying with a live child");
}

/// E8, E8b, E8d: the child path locks or bumps the parent, the claim is one statement, also with a correlated subquery.
#[tokio::test]
async fn e8_a_claim_in_one_statement_waits_for_the_child_and_then_still_does_not_see_it() {
    for (holding, claim) in
        [(SHARE, CLAIM), (BUMP, CLAIM), (SHARE, CLAIM_CORRELATED), (BUMP, CLAIM_CORRELATED)]
    {
        let mut scratch = Scratch::new().await;
        for statement in ["BEGIN", holding, CHILD] {
            assert!(scratch.b.run(statement).await.is_ok());
        }
        assert_eq!(scratch.a_waits(claim, "COMMIT").await, Ok(1), "the hole: {holding}, {claim}");
        assert_eq!(scratch.end().await, ends("destroying", false, 1));
    }
}

/// E8c, E8e: the same, with the parent locked by a statement of its own before the claim.
#[tokio::test]
async fn e8c_a_claim_that_locks_first_sees_the_child_it_waited_for() {
    for (holding, claim) in
        [(SHARE, CLAIM), (BUMP, CLAIM), (SHARE, CLAIM_CORRELATED), (BUMP, CLAIM_CORRELATED)]
    {
        let mut scratch = Scratch::new().await;
        for statement in ["BEGIN", holding, CHILD] {
            assert!(scratch.b.run(statement).await.is_ok());
        }
        assert_eq!(scratch.a.run("BEGIN").await, Ok(0));
        assert_eq!(scratch.a_waits(LOCK, "COMMIT").await, Ok(1));
        assert_eq!(scratch.a.run(claim).await, Ok(0), "{holding}, {claim}");
        assert_eq!(scratch.a.run("COMMIT").await, Ok(0));
        assert_eq!(scratch.end().await, ends("ready", false, 1));
    }
}

#[tokio::test]
async fn e8f_a_child_path_that_locks_sees_that_the_parent_is_no_longer_ready() {
    let mut scratch = Scratch::new().await;
    for statement in ["BEGIN", LOCK, CLAIM] {
        assert!(scratch.b.run(statement).await.is_ok());
    }
    assert_eq!(scratch.a.run("BEGIN").await, Ok(0));
    let share_if_ready = "SELECT 1 FROM parents WHERE id = 1 AND state = 'ready' FOR SHARE";
    assert_eq!(scratch.a_waits(share_if_ready, "COMMIT").await, Ok(0));
    assert_eq!(scratch.a.run("COMMIT").await, Ok(0));
    assert_eq!(scratch.end().await, ends("destroying", false, 0));
}

#[tokio::test]
async fn e8g_a_claim_that_locks_waits_even_for_a_child_that_has_only_its_foreign_key() {
    let mut scratch = Scratch::new().await;
    for statement in ["BEGIN", CHILD] {
        assert!(scratch.b.run(statement).await.is_ok());
    }
    assert_eq!(scratch.a.run("BEGIN").await, Ok(0));
    assert_eq!(scratch.a_waits(LOCK, "COMMIT").await, Ok(1));
    assert_eq!(scratch.a.run(CLAIM).await, Ok(0), "right, but in this order only");
    assert_eq!(scratch.a.run("COMMIT").await, Ok(0));
    assert_eq!(scratch.end().await, ends("ready", false, 1));
}

#[tokio::test]
async fn e8h_a_child_with_only_its_foreign_key_gets_in_under_a_destroying_parent() {
    let mut scratch = Scratch::new().await;
    for statement in ["BEGIN", LOCK, CLAIM] {
        assert!(scratch.b.run(statement).await.is_ok());
    }
    assert_eq!(scratch.a_waits(CHILD, "COMMIT").await, Ok(1), "the hole");
    assert_eq!(scratch.end().await, ends("destroying", false, 1));
}

#[tokio::test]
async fn e9_under_serializable_one_side_fails_and_finds_the_truth_when_it_tries_again() {
    let mut scratch = Scratch::new().await;
    for session in [&mut scratch.a, &mut scratch.b] {
        assert_eq!(session.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await, Ok(0));
    }
    assert_eq!(
        scratch.b.ask("SELECT state FROM parents WHERE id = 1").await,
        Ok("ready".to_owned())
    );
    assert_eq!(scratch.b.run(CHILD).await, Ok(1));
    assert_eq!(scratch.a.run(CLAIM).await, Ok(1), "so far it looks like E7");
    assert_eq!(scratch.b.run("COMMIT").await, Ok(0));
    assert_eq!(scratch.a.run("COMMIT").await, Err("40001".to_owned()));
    for (statement, touched) in
        [("BEGIN ISOLATION LEVEL SERIALIZABLE", 0), (CLAIM, 0), ("COMMIT", 0)]
    {
        assert_eq!(scratch.a.run(statement).await, Ok(touched));
    }
    assert_eq!(scratch.end().await, ends("ready", false, 1));
}

// What the product does in the same interleavings.

/// The first report is made but not committed when the second is made and seen to wait. Answers the second's outcome.
async fn while_uncommitted(
    database: &Database,
    past: &Past,
    first: &Report<Event>,
    second: &Report<Event>,
    committed: bool,
) -> Outcome<Status> {
    let mut held = database.store.begin().await.expect("a transaction begins");
    let outcome =
        allocations::report(&mut held, past.id, first).await.expect("the database answers");
    assert!(outcome.is_applied(), "{outcome:?}");
    let end = async { if committed { held.commit().await } else { held.rollback().await } };
    let (outcome, ended) = overtaken(database, told(&database.store, past.id, second), end).await;
    ended.expect("the first ends");
    outcome.expect("the second is answered")
}

/// E1 and E4 by the product.
#[tokio::test]
async fn e1_e4_a_result_waits_for_a_release_and_is_then_superseded() {
    let database = Database::new().await;
    for (way, result) in
        [(PROVISIONING, Event::ProvisionSucceeded), (RESTARTING, Event::RestartCompleted)]
    {
        let past = Past::lived(&database, way).await;
        let release = said(Event::ReleaseRequested, past.operation());
        let result = said(result, past.operation());
        let outcome = while_uncommitted(&database, &past, &release, &result, true).await;
        assert_eq!(outcome.reason(), Some(&Reason::Superseded("same_operation")), "{outcome:?}");
        let seq = i64::try_from(way.len()).expect("it is short") + 2;
        assert_eq!(standing(&database, past.id).await, ("releasing".to_owned(), seq));
    }
    database.remove().await;
}

/// E4 the other way round: who comes second waits, and both are applied in that order.
#[tokio::test]
async fn e4_a_release_waits_for_a_result_and_then_follows_it() {
    let database = Database::new().await;
    let past = Past::lived(&database, PROVISIONING).await;
    let result = said(Event::ProvisionSucceeded, past.operation());
    let release = said(Event::ReleaseRequested, past.operation());
    let outcome = while_uncommitted(&database, &past, &result, &release, true).await;
    assert_eq!(outcome, Outcome::Applied { from: Status::Active, to: Status::Releasing, seq: 4 });
    database.remove().await;
}

/// E2 and E3 by the product: whoever changes what a check reads is seen, also if he goes round the writer.
#[tokio::test]
async fn e2_e3_an_operation_written_by_hand_supersedes_a_result_that_waited_for_it() {
    let database = Database::new().await;
    let past = Past::lived(&database, PROVISIONING).await;
    let mut hand = database.sql.acquire().await.expect("a session opens");
    sqlx::raw_sql("BEGIN").execute(&mut *hand).await.expect("it begins");
    let write = sqlx::query("UPDATE allocations SET operation_id = $2 WHERE id = $1");
    write.bind(past.id.uuid()).bind(new_id()).execute(&mut *hand).await.expect("it is written");
    let result = said(Event::ProvisionSucceeded, past.operation());
    let end = async { sqlx::raw_sql("COMMIT").execute(&mut *hand).await };
    let (outcome, ended) = overtaken(&database, told(&database.store, past.id, &result), end).await;
    ended.expect("it is committed");
    let outcome = outcome.expect("the result is answered");
    assert_eq!(outcome.reason(), Some(&Reason::Superseded("same_operation")), "{outcome:?}");
    drop(hand);
    database.remove().await;
}

#[tokio::test]
async fn e5_the_loser_waits_and_is_told_what_became_of_the_row() {
    let database = Database::new().await;
    let late = Some(&Reason::Illegal(Why::Late));
    for (committed, reason) in [(true, late), (false, None)] {
        let past = Past::lived(&database, PROVISIONING).await;
        let failed = said(Event::ProvisionFailed, past.operation());
        let succeeded = said(Event::ProvisionSucceeded, past.operation());
        let outcome = while_uncommitted(&database, &past, &failed, &succeeded, committed).await;
        assert_eq!(outcome.reason(), reason, "{outcome:?}");
        assert_eq!(outcome.is_applied(), !committed);
    }
    database.remove().await;
}

async fn isolated(database: &Database, level: &str) -> Store {
    database.reopened("default_transaction_isolation", level).await
}

#[tokio::test]
async fn e6_a_loser_that_the_database_ends_is_told_to_try_again_and_has_written_nothing() {
    let database = Database::new().await;
    let store = isolated(&database, "serializable").await;
    let group = database.group().await;
    for past in [member(&database, None).await, member(&database, Some(group)).await] {
        let started =
            told(&database.store, past.id, &said(Event::ProvisionStarted, past.operation())).await;
        assert!(started.expect("the database answers").is_applied());
        let mut held = store.begin().await.expect("a transaction begins");
        let release = said(Event::ReleaseRequested, past.operation());
        let outcome =
            allocations::report(&mut held, past.id, &release).await.expect("the database answers");
        assert!(outcome.is_applied(), "{outcome:?}");

        let succeeded = said(Event::ProvisionSucceeded, past.operation());
        let mut loser = store.begin().await.expect("a transaction begins");
        let waiter = allocations::report(&mut loser, past.id, &succeeded);
        let (outcome, ended) = overtaken(&database, waiter, held.commit()).await;
        ended.expect("the first commits");
        let outcome = outcome.expect("a lost race is no error");
        assert_eq!(outcome.reason(), Some(&Reason::Conflict), "{outcome:?}");
        assert!(outcome.is_retryable());
        let committed = loser.commit().await;
        assert!(matches!(committed, Err(Error::Conflict)), "{committed:?}");
        let refusals =
            database.store.refusals("allocation", past.id.uuid()).await.expect("they can be read");
        assert_eq!(refusals, [], "nothing was written");
        assert_eq!(standing(&database, past.id).await, ("releasing".to_owned(), 3));

        let again = told(&store, past.id, &succeeded).await.expect("the database answers");
        assert_eq!(again.reason(), Some(&Reason::Superseded("same_operation")), "{again:?}");
    }
    store.close().await;
    database.remove().await;
}

/// A claim on the only slot of a new node, by an allocation that is elsewhere otherwise.
async fn claim_to_be(database: &Database) -> claims::NewClaim {
    let (node, slots) = database.ready_node(1).await;
    let allocation = member(database, None).await.id;
    claims::NewClaim { id: ClaimId(new_id()), allocation, node, slot: slots.first().copied() }
}

fn retiring() -> Report<node::Event> {
    report(node::Event::Retiring, Source::Operator)
}

async fn retire(store: &Store, node: NodeId) -> Result<Outcome<node::Status>, Error> {
    let mut tx = store.begin().await?;
    let outcome = apply::<Node>(&mut tx, node, &retiring()).await?;
    tx.commit().await?;
    Ok(outcome)
}

async fn claim(store: &Store, new: &claims::NewClaim) -> Result<bool, Error> {
    let mut tx = store.begin().await?;
    let claimed = claims::insert(&mut tx, new, &birth()).await?;
    tx.commit().await?;
    Ok(claimed)
}

/// The node's status, and how many live claims there are on it.
async fn occupancy(database: &Database, node: NodeId) -> (String, i64) {
    let query = "SELECT nodes.status, (SELECT count(*) FROM claims WHERE node_id = nodes.id AND claims.status <> 'freed')
                   FROM nodes WHERE id = $1";
    sqlx::query_as(query).bind(node.uuid()).fetch_one(&database.sql).await.expect("it is there")
}

/// E7, E8 to E8e and E8g by the product: the child comes first.
#[tokio::test]
async fn e7_e8_a_node_with_a_claim_that_was_uncommitted_is_not_retired() {
    let database = Database::new().await;
    for committed in [true, false] {
        let new = claim_to_be(&database).await;
        let mut held = database.store.begin().await.expect("a transaction begins");
        assert!(claims::insert(&mut held, &new, &birth()).await.expect("the database answers"));
        let end = async { if committed { held.commit().await } else { held.rollback().await } };
        let (outcome, ended) = overtaken(&database, retire(&database.store, new.node), end).await;
        ended.expect("the claim ends");
        let outcome = outcome.expect("the database answers");
        let (reason, standing) = if committed {
            (Some(&Reason::Guard("no_live_claims")), ("ready", 1))
        } else {
            (None, ("retired", 0))
        };
        assert_eq!(outcome.reason(), reason, "{outcome:?}");
        assert_eq!(occupancy(&database, new.node).await, (standing.0.to_owned(), standing.1));
    }
    database.remove().await;
}

/// E8f and E8h by the product: the parent comes first.
#[tokio::test]
async fn e8f_e8h_no_claim_gets_in_under_a_node_whose_retirement_was_uncommitted() {
    let database = Database::new().await;
    for committed in [true, false] {
        let new = claim_to_be(&database).await;
        let mut held = database.store.begin().await.expect("a transaction begins");
        let outcome =
            apply::<Node>(&mut held, new.node, &retiring()).await.expect("the database answers");
        assert!(outcome.landed_on(node::Status::Retired), "{outcome:?}");
        let end = async { if committed { held.commit().await } else { held.rollback().await } };
        let (claimed, ended) = overtaken(&database, claim(&database.store, &new), end).await;
        ended.expect("the retirement ends");
        assert_eq!(claimed.expect("the database answers"), !committed);
        let standing = if committed { ("retired", 0) } else { ("ready", 1) };
        assert_eq!(occupancy(&database, new.node).await, (standing.0.to_owned(), standing.1));
    }
    database.remove().await;
}

/// A clean-up task for an allocation that is being released.
async fn task_to_be(database: &Database) -> (Past, node_tasks::NewTask) {
    let past = Past::lived(database, RELEASING).await;
    let (node, slots) = database.ready_node(1).await;
    let slot = slots.first().copied();
    let held = claims::NewClaim { id: ClaimId(new_id()), allocation: past.id, node, slot };
    assert!(claim(&database.store, &held).await.expect("the database answers"));
    let (id, operation) = (NodeTaskId(new_id()), past.operation());
    let task = node_tasks::NewTask {
        id,
        node,
        allocation: past.id,
        operation,
        kind: "slice.vm_clean",
        params: serde_json::Value::Null,
        run: None,
        deadline: None,
    };
    (past, task)
}

async fn queue(store: &Store, task: &node_tasks::NewTask) -> Result<bool, Error> {
    let mut tx = store.begin().await?;
    let queued = node_tasks::insert(&mut tx, task, birth()).await?;
    tx.commit().await?;
    Ok(queued)
}

#[tokio::test]
async fn e7_e8_an_allocation_with_a_task_that_was_uncommitted_is_not_released() {
    let database = Database::new().await;
    let (past, task) = task_to_be(&database).await;
    let mut held = database.store.begin().await.expect("a transaction begins");
    assert!(node_tasks::insert(&mut held, &task, birth()).await.expect("the database answers"));
    let completed = said(Event::ReleaseCompleted, past.operation());
    let waiter = told(&database.store, past.id, &completed);
    let (outcome, ended) = overtaken(&database, waiter, held.commit()).await;
    ended.expect("the task is committed");
    let outcome = outcome.expect("the database answers");
    assert_eq!(outcome.reason(), Some(&Reason::Guard("no_live_tasks")), "{outcome:?}");
    assert_eq!(standing(&database, past.id).await, ("releasing".to_owned(), 2));
    database.remove().await;
}

#[tokio::test]
async fn e8f_e8h_no_task_gets_in_under_an_allocation_whose_release_was_uncommitted() {
    let database = Database::new().await;
    let (past, task) = task_to_be(&database).await;
    let mut held = database.store.begin().await.expect("a transaction begins");
    let completed = said(Event::ReleaseCompleted, past.operation());
    let outcome =
        allocations::report(&mut held, past.id, &completed).await.expect("the database answers");
    assert!(outcome.landed_on(Status::Released), "{outcome:?}");
    let (queued, ended) = overtaken(&database, queue(&database.store, &task), held.commit()).await;
    ended.expect("the release is committed");
    assert!(!queued.expect("the database answers"), "there is nothing left to work for");
    database.remove().await;
}

#[tokio::test]
async fn e9_under_serializable_the_product_is_right_once_the_loser_has_tried_again() {
    let database = Database::new().await;
    let store = isolated(&database, "serializable").await;

    let new = claim_to_be(&database).await;
    let mut held = store.begin().await.expect("a transaction begins");
    assert!(claims::insert(&mut held, &new, &birth()).await.expect("the database answers"));
    let (lost, ended) = overtaken(&database, retire(&store, new.node), held.commit()).await;
    ended.expect("the claim is committed");
    assert!(matches!(lost, Err(Error::Conflict)), "{lost:?}");
    let again = retire(&store, new.node).await.expect("the database answers");
    assert_eq!(again.reason(), Some(&Reason::Guard("no_live_claims")), "{again:?}");
    assert_eq!(occupancy(&database, new.node).await, ("ready".to_owned(), 1));

    let new = claim_to_be(&database).await;
    let mut held = store.begin().await.expect("a transaction begins");
    let outcome =
        apply::<Node>(&mut held, new.node, &retiring()).await.expect("the database answers");
    assert!(outcome.is_applied(), "{outcome:?}");
    let (lost, ended) = overtaken(&database, claim(&store, &new), held.commit()).await;
    ended.expect("the retirement is committed");
    assert!(matches!(lost, Err(Error::Conflict)), "{lost:?}");
    assert!(!claim(&store, &new).await.expect("the database answers"));
    assert_eq!(occupancy(&database, new.node).await, ("retired".to_owned(), 0));
    store.close().await;
    database.remove().await;
}

// Races without a script.

/// Every ordered pair of events, reported at once to a row that has gone this way.
async fn every_pair_ends_serially(way: &[Event]) {
    let database = Database::new().await;
    for (first, second) in Event::ALL.iter().flat_map(|a| Event::ALL.iter().map(move |b| (*a, *b)))
    {
        let past = Past::lived(&database, way).await;
        let (a, b) = (said(first, past.operation()), said(second, past.operation()));
        let outcomes = told_at_once(&database.store, past.id, &[a.clone(), b.clone()]).await;
        let (status, seq) = standing(&database, past.id).await;

        let (s, n, [x, y]) = past.then([&a, &b]);
        let in_order = (s.to_owned(), n, vec![x, y]);
        let (s, n, [y, x]) = past.then([&b, &a]);
        let reversed = (s.to_owned(), n, vec![x, y]);
        let found = (status, seq, outcomes);
        assert!(
            found == in_order || found == reversed,
            "{first:?} with {second:?} after {way:?} ended as {found:?}, neither as {in_order:?} nor as {reversed:?}"
        );
    }
    database.remove().await;
}

macro_rules! pairs {
    ($($name:ident: $way:expr),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            every_pair_ends_serially($way).await;
        }
    )+};
}

pairs! {
    two_events_at_once_in_requested_end_as_one_after_the_other: &[],
    two_events_at_once_in_provisioning_end_as_one_after_the_other: PROVISIONING,
    two_events_at_once_in_active_end_as_one_after_the_other: ACTIVE,
    two_events_at_once_in_restarting_end_as_one_after_the_other: RESTARTING,
    two_events_at_once_in_restart_failed_end_as_one_after_the_other: RESTART_FAILED,
    two_events_at_once_in_releasing_end_as_one_after_the_other: RELEASING,
    two_events_at_once_in_release_failed_end_as_one_after_the_other: RELEASE_FAILED,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_report_delivered_twice_at_once_is_applied_once() {
    let database = Database::new().await;
    for event in
        [Event::ProvisionSucceeded, Event::ProvisionFailed, Event::ReleaseRequested].repeat(8)
    {
        let past = Past::lived(&database, PROVISIONING).await;
        let report = said(event, past.operation());
        let outcomes =
            told_at_once(&database.store, past.id, &[report.clone(), report.clone()]).await;
        assert_eq!(
            outcomes.iter().filter(|outcome| outcome.is_applied()).count(),
            1,
            "{outcomes:?}"
        );
        assert!(
            outcomes.iter().any(|outcome| matches!(outcome, Outcome::Duplicate(_))),
            "{outcomes:?}"
        );
        assert_eq!(traces(&database, past.id.uuid(), report.event_id.uuid()).await, (1, 1, 0));
    }
    database.remove().await;
}

/// The second delivery waits for the first, and takes over if the first is undone.
#[tokio::test]
async fn a_delivery_that_waits_for_the_same_report_believes_only_a_commit() {
    let database = Database::new().await;
    for committed in [true, false] {
        let past = Past::lived(&database, PROVISIONING).await;
        let release = said(Event::ReleaseRequested, past.operation());
        let outcome = while_uncommitted(&database, &past, &release, &release, committed).await;
        assert_eq!(outcome.is_applied(), !committed, "{outcome:?}");
        assert_eq!(outcome.reason(), None, "{outcome:?}");
        assert_eq!(traces(&database, past.id.uuid(), release.event_id.uuid()).await, (1, 1, 0));
    }
    database.remove().await;
}

fn dispatch_to(agent: Uuid, task: &node_tasks::NewTask) -> Report<node_task::Event> {
    report(node_task::Event::Dispatching, Source::Agent)
        .with(node_task::NODE_ID, Value::Id(task.node.uuid().as_u128()))
        .with(node_task::AGENT_ID, Value::Id(agent.as_u128()))
}

/// Without the event id the ninety-nine would be `late`: the task is dispatched already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_report_delivered_a_hundred_times_is_applied_once_and_never_refused() {
    let database = Database::new().await;
    let (past, task) = task_to_be(&database).await;
    assert!(queue(&database.store, &task).await.expect("the database answers"));
    let report = dispatch_to(new_id(), &task);
    let counts = dispatched(&database.store, task.id, vec![report.clone(); 100]).await;
    assert_eq!(counts, counted([("applied", 1), ("duplicate", 99)]));
    assert_eq!(traces(&database, task.id.uuid(), report.event_id.uuid()).await, (1, 0, 0));

    let release = said(Event::ReleaseExhausted, past.operation());
    // Each of them has a connection of its own, and half of a store's are for what is planned once.
    let options = Options { connections_max: 32, ..Options::default() };
    let store = Store::open(&database.url(), options).await.expect("the store opens");
    let outcomes = told_at_once(&store, past.id, &vec![release.clone(); 16]).await;
    store.close().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_applied()).count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.reason().is_none()), "{outcomes:?}");
    assert_eq!(traces(&database, past.id.uuid(), release.event_id.uuid()).await, (1, 1, 0));
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_agents_that_take_one_task_at_once_one_gets_it_and_the_others_are_late() {
    let database = Database::new().await;
    for agents in [2, 16, 48] {
        let (_, task) = task_to_be(&database).await;
        assert!(queue(&database.store, &task).await.expect("the database answers"));
        let reports: Vec<_> = (0..agents).map(|_| dispatch_to(new_id(), &task)).collect();
        let counts = dispatched(&database.store, task.id, reports).await;
        assert_eq!(counts, counted([("applied", 1), ("late", agents - 1)]));
        let dispatch: i64 = sqlx::query_scalar("SELECT dispatch FROM node_tasks WHERE id = $1")
            .bind(task.id.uuid())
            .fetch_one(&database.sql)
            .await
            .expect("it is there");
        assert_eq!(dispatch, 1);
    }
    database.remove().await;
}

/// The agent that comes second waits for the first, and gets the task if the first is undone.
#[tokio::test]
async fn an_agent_that_waits_for_another_is_late_or_gets_the_task() {
    let database = Database::new().await;
    for committed in [true, false] {
        let (_, task) = task_to_be(&database).await;
        assert!(queue(&database.store, &task).await.expect("the database answers"));
        let mut held = database.store.begin().await.expect("a transaction begins");
        let first = dispatch_to(new_id(), &task);
        let outcome =
            apply::<NodeTask>(&mut held, task.id, &first).await.expect("the database answers");
        assert!(outcome.is_applied(), "{outcome:?}");
        let end = async { if committed { held.commit().await } else { held.rollback().await } };
        let deliveries = vec![dispatch_to(new_id(), &task)];
        let (counts, ended) =
            overtaken(&database, dispatched(&database.store, task.id, deliveries), end).await;
        ended.expect("the first ends");
        assert_eq!(counts, counted([(if committed { "late" } else { "applied" }, 1)]));
    }
    database.remove().await;
}

/// One transaction at random: reports to up to three members in any order, and now and then a release of the group.
async fn stir(
    database: &Database,
    group: AllocationGroupId,
    members: &[Past],
    random: &mut Random,
) -> Result<(), Error> {
    let mut tx = database.store.begin().await?;
    if random.below(40) == 0 {
        let followed = allocation_groups::request_release(&mut tx, group, "a user").await?;
        assert!(followed.is_none_or(|outcome| outcome.is_applied()), "the group can follow");
    }
    for _ in 0..=random.below(3) {
        let id = members[random.below(members.len())].id;
        let operation: Uuid =
            sqlx::query_scalar("SELECT operation_id FROM allocations WHERE id = $1")
                .bind(id.uuid())
                .fetch_one(&database.sql)
                .await?;
        let event = Event::ALL[random.below(Event::ALL.len())];
        let outcome =
            allocations::report(&mut tx, id, &said(event, OperationId(operation))).await?;
        assert!(!outcome.is_retryable(), "{event:?}: {outcome:?}");
    }
    tx.commit().await?;
    let mut tx = database.store.begin().await?;
    let (stored, folded) = allocation_groups::fold(&mut tx, group).await?;
    assert_eq!(stored, folded, "whoever looks sees the group as its members say");
    tx.commit().await
}

/// Group, then member: a deadlock would end one of the transactions with 40P01, which the store calls a conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_and_its_members_stirred_by_many_at_once_never_deadlock_and_agree() {
    let database = Arc::new(Database::new().await);
    for round in 1..=6 {
        let group = database.group().await;
        let mut members = Vec::new();
        for _ in 0..4 {
            members.push(member(&database, Some(group)).await);
        }
        let mut tasks = JoinSet::new();
        for seed in 1..=8_u64 {
            let (database, members) = (Arc::clone(&database), members.clone());
            let mut random = Random((round * 100 + seed) * 0x9E37_79B9);
            tasks.spawn(async move {
                for _ in 0..15 {
                    stir(&database, group, &members, &mut random)
                        .await
                        .expect("no deadlock and no other fault");
                }
            });
        }
        let _finished = tasks.join_all().await;
        let agreed = database.in_transaction(async |tx| allocation_groups::fold(tx, group).await);
        let (stored, folded) = agreed.await.expect("the group can be folded");
        assert_eq!(stored, folded);
    }
    Arc::into_inner(database).expect("all tasks have ended").remove().await;
}
