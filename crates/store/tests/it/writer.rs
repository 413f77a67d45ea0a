//! The writer: everything or nothing, once, and never an old answer over a newer truth.

use domain::ids::{AllocationId, EventId, NodeTaskId, OperationId, PaymentSessionId};
use domain::machines::allocation::{Event, Status};
use domain::machines::{Allocation, Claim, Node, NodeTask, PaymentSession};
use domain::machines::{claim, node, node_task, payment_session};
use jiff::Timestamp;
use lifecycle::{Machine as _, Outcome, Reason, Source, Value, Why};
use sqlx::Row as _;
use store::lifecycle::{Birth, apply, born};
use store::{Error, allocations, claims, node_tasks, nodes, terminal_sessions};
use testkit::{Database, Fixture, actor, new_id};
use uuid::Uuid;

use crate::report;

async fn count(database: &Database, query: &'static str, id: Uuid) -> i64 {
    sqlx::query(query).bind(id).fetch_one(&database.sql).await.expect("it counts").get(0)
}

const LOGGED: &str = "SELECT count(*) FROM lifecycle_log WHERE entity_id = $1";
const PUBLISHED: &str = "SELECT count(*) FROM outbox_events WHERE entity_id = $1";
const REFUSED: &str = "SELECT count(*) FROM lifecycle_refusals WHERE entity_id = $1";

async fn status(database: &Database, id: AllocationId) -> String {
    sqlx::query("SELECT status FROM allocations WHERE id = $1")
        .bind(id.uuid())
        .fetch_one(&database.sql)
        .await
        .expect("it is there")
        .get(0)
}

#[tokio::test]
async fn row_record_and_message_are_one_transaction() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let id = fixture.allocation;
    let before =
        (count(&database, LOGGED, id.uuid()).await, count(&database, PUBLISHED, id.uuid()).await);
    let request = report(Event::ReleaseRequested, Source::User).about(OperationId(new_id()));

    let mut tx = database.store.begin().await.expect("a transaction begins");
    let outcome = allocations::report(&mut tx, id, &request).await.expect("it answers");
    assert_eq!(outcome, Outcome::Applied { from: Status::Active, to: Status::Releasing, seq: 4 });
    drop(tx);
    let undone =
        (count(&database, LOGGED, id.uuid()).await, count(&database, PUBLISHED, id.uuid()).await);
    assert_eq!(
        (status(&database, id).await.as_str(), undone),
        ("active", before),
        "dropped means undone"
    );

    let done =
        database.in_transaction(async |tx| allocations::report(tx, id, &request).await).await;
    assert!(done.expect("it answers").landed_on(Status::Releasing), "the same report counts now");
    let after =
        (count(&database, LOGGED, id.uuid()).await, count(&database, PUBLISHED, id.uuid()).await);
    assert_eq!(
        (status(&database, id).await.as_str(), after),
        ("releasing", (before.0 + 1, before.1 + 1))
    );
    database.remove().await;
}

/// The table calls a repeat in `releasing` a duplicate; after the row has come back only the event id can.
#[tokio::test]
async fn a_request_redelivered_after_the_release_failed_is_a_duplicate() {
    let database = Database::new().await;
    let id = database.active_allocation().await.allocation;
    let operation = OperationId(new_id());
    let request = report(Event::ReleaseRequested, Source::User).about(operation);
    let deliver = async || {
        database.in_transaction(async |tx| allocations::report(tx, id, &request).await).await
    };
    assert!(deliver().await.expect("it answers").landed_on(Status::Releasing));
    assert!(
        database
            .report(id, Event::ReleaseExhausted, operation)
            .await
            .landed_on(Status::ReleaseFailed)
    );

    let repeated = deliver().await.expect("it answers");
    assert!(
        matches!(&repeated, Outcome::Duplicate(standing) if standing.status == Status::ReleaseFailed),
        "{repeated:?}"
    );
    assert_eq!(
        repeated.require().map(|standing| standing.status),
        Ok(Status::ReleaseFailed),
        "and no error"
    );
    assert_eq!(status(&database, id).await, "release_failed");
    assert_eq!(count(&database, REFUSED, id.uuid()).await, 0, "a duplicate is no refusal");
    database.remove().await;
}

#[tokio::test]
async fn a_late_result_of_an_older_operation_is_superseded() {
    let database = Database::new().await;
    let id = database.active_allocation().await.allocation;
    let (first, second) = (OperationId(new_id()), OperationId(new_id()));
    assert!(database.report(id, Event::ReleaseRequested, first).await.landed_on(Status::Releasing));
    assert!(
        database.report(id, Event::ReleaseExhausted, first).await.landed_on(Status::ReleaseFailed)
    );
    assert!(
        database.report(id, Event::ReleaseRequested, second).await.landed_on(Status::Releasing)
    );

    let late = database.report(id, Event::ReleaseCompleted, first).await;
    assert_eq!(late.reason(), Some(&Reason::Superseded("same_operation")));
    assert_eq!(status(&database, id).await, "releasing");
    assert!(
        database.report(id, Event::ReleaseExhausted, second).await.landed_on(Status::ReleaseFailed)
    );
    let proof = database.report(id, Event::ReleaseCompleted, second).await;
    assert!(
        proof.landed_on(Status::Released),
        "a proof that arrives after giving up still counts: {proof:?}"
    );

    let refused =
        database.store.refusals(Allocation::NAME, id.uuid()).await.expect("they can be read");
    let said: Vec<_> =
        refused.iter().map(|r| (r.event.as_str(), r.reason.as_str(), r.name.as_deref())).collect();
    assert_eq!(said, [("release.completed", "superseded", Some("same_operation"))]);
    assert_eq!(refused[0].status.as_deref(), Some("releasing"));
    database.remove().await;
}

#[tokio::test]
async fn a_provision_that_succeeds_after_a_cancel_revives_nothing() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    let id = fixture.allocation;
    assert!(database.report(id, Event::ProvisionStarted, fixture.provision).await.is_applied());
    assert!(
        database
            .report(id, Event::ReleaseRequested, OperationId(new_id()))
            .await
            .landed_on(Status::Releasing)
    );
    let late = database.report(id, Event::ProvisionSucceeded, fixture.provision).await;
    assert_eq!(late.reason(), Some(&Reason::Superseded("same_operation")));
    let active: Option<bool> =
        sqlx::query("SELECT active_at IS NOT NULL FROM allocations WHERE id = $1")
            .bind(id.uuid())
            .fetch_one(&database.sql)
            .await
            .expect("it is there")
            .get(0);
    assert_eq!(active, Some(false), "it was never active, so it is never billed");
    database.remove().await;
}

#[tokio::test]
async fn a_refusal_leaves_every_column_as_it_was() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let id = fixture.allocation;
    let whole = "SELECT to_jsonb(allocations)::text FROM allocations WHERE id = $1";
    let row = async || -> String {
        sqlx::query(whole).bind(id.uuid()).fetch_one(&database.sql).await.expect("there").get(0)
    };
    let before = row().await;
    let illegal = database.report(id, Event::ReleaseAbandoned, fixture.provision).await;
    assert_eq!(illegal.reason(), Some(&Reason::Illegal(Why::Bug)));
    let refusal = illegal.require().expect_err("it is the requester's mistake");
    assert_eq!(
        refusal.to_string(),
        "release.abandoned must not be reported of this allocation in status active"
    );
    assert_eq!(row().await, before);
    database.remove().await;
}

#[tokio::test]
async fn an_unknown_row_is_not_found_and_said_to_be() {
    let database = Database::new().await;
    let nobody = AllocationId(new_id());
    let outcome = database.report(nobody, Event::ReleaseRequested, OperationId(new_id())).await;
    assert_eq!(outcome.reason(), Some(&Reason::NotFound));
    assert_eq!(count(&database, REFUSED, nobody.uuid()).await, 1);
    database.remove().await;
}

#[tokio::test]
async fn only_those_who_may_report_an_event_are_heard() {
    let database = Database::new().await;
    let id = database.active_allocation().await.allocation;
    let operation = OperationId(new_id());
    database.report(id, Event::ReleaseRequested, operation).await.require().expect("it moves");
    database.report(id, Event::ReleaseExhausted, operation).await.require().expect("it moves");
    let by_user = report(Event::ReleaseAbandoned, Source::User);
    let outcome =
        database.in_transaction(async |tx| allocations::report(tx, id, &by_user).await).await;
    let outcome = outcome.expect("it answers");
    assert_eq!(outcome.reason(), Some(&Reason::Illegal(Why::Bug)));
    let refusal = outcome.require().expect_err("it is not theirs to say");
    let sentence = "release.abandoned may not be reported of this allocation in the role of user";
    assert_eq!(refusal.to_string(), sentence);
    assert!(
        database.report(id, Event::ReleaseAbandoned, operation).await.landed_on(Status::Released)
    );
    database.remove().await;
}

async fn queue(
    database: &Database,
    fixture: &Fixture,
    operation: OperationId,
) -> Option<NodeTaskId> {
    let task = node_tasks::NewTask {
        id: NodeTaskId(new_id()),
        node: fixture.node,
        allocation: fixture.allocation,
        operation,
        kind: "slice.vm_release",
        params: serde_json::Value::Null,
        run: None,
        deadline: None,
    };
    let birth = Birth::new(EventId(new_id()), actor(Source::Worker));
    let queued =
        database.in_transaction(async |tx| node_tasks::insert(tx, &task, birth).await).await;
    queued.expect("it answers").then_some(task.id)
}

async fn run(database: &Database, task: NodeTaskId, fixture: &Fixture, cleanup_complete: bool) {
    let agent = Value::Id(new_id().as_u128());
    let dispatched = report(node_task::Event::Dispatching, Source::Agent)
        .with(node_task::NODE_ID, Value::Id(fixture.node.uuid().as_u128()))
        .with(node_task::AGENT_ID, agent.clone());
    let succeeded = report(node_task::Event::Success, Source::Agent)
        .with(node_task::AGENT_ID, agent)
        .with(node_task::DISPATCH, Value::Int(1))
        .with(node_task::CLEANUP_COMPLETE, Value::Bool(cleanup_complete));
    for report in [dispatched, succeeded] {
        let outcome =
            database.in_transaction(async |tx| apply::<NodeTask>(tx, task, &report).await).await;
        assert!(outcome.as_ref().is_ok_and(Outcome::is_applied), "{outcome:?}");
    }
}

async fn report_claim(
    database: &Database,
    fixture: &Fixture,
    event: claim::Event,
    op: OperationId,
) -> Outcome<claim::Status> {
    let report = report(event, Source::Worker).about(op);
    let outcome =
        database.in_transaction(async |tx| apply::<Claim>(tx, fixture.claim, &report).await).await;
    outcome.expect("it answers")
}

#[tokio::test]
async fn a_claim_is_freed_only_when_its_own_clean_up_is_proven() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let (first, second) = (OperationId(new_id()), OperationId(new_id()));
    for (operation, complete) in [(first, false), (second, true)] {
        database
            .report(fixture.allocation, Event::ReleaseRequested, operation)
            .await
            .require()
            .expect("it moves");
        report_claim(&database, &fixture, claim::Event::CleaningBegan, operation)
            .await
            .require()
            .expect("it moves");
        let task =
            queue(&database, &fixture, operation).await.expect("the allocation is releasing");
        let waiting = report_claim(&database, &fixture, claim::Event::Freeing, operation).await;
        assert_eq!(
            waiting.reason(),
            Some(&Reason::Guard("cleanup_proven")),
            "not while the task is open"
        );
        run(&database, task, &fixture, complete).await;
        let freed = report_claim(&database, &fixture, claim::Event::Freeing, operation).await;
        assert_eq!(freed.landed_on(claim::Status::Freed), complete, "{freed:?}");
        if !complete {
            assert_eq!(freed.reason(), Some(&Reason::Guard("cleanup_proven")));
            report_claim(&database, &fixture, claim::Event::GotStuck, operation)
                .await
                .require()
                .expect("it moves");
            database
                .report(fixture.allocation, Event::ReleaseExhausted, operation)
                .await
                .require()
                .expect("it moves");
        }
    }
    database.remove().await;
}

#[tokio::test]
async fn a_release_waits_for_the_last_task_of_its_allocation() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let release = OperationId(new_id());
    database
        .report(fixture.allocation, Event::ReleaseRequested, release)
        .await
        .require()
        .expect("it moves");
    let task = queue(&database, &fixture, release).await.expect("the allocation is releasing");
    let early = database.report(fixture.allocation, Event::ReleaseCompleted, release).await;
    assert_eq!(early.reason(), Some(&Reason::Guard("no_live_tasks")));
    assert!(!early.is_retryable(), "asking again does not help");
    run(&database, task, &fixture, true).await;
    assert!(
        database
            .report(fixture.allocation, Event::ReleaseCompleted, release)
            .await
            .landed_on(Status::Released)
    );
    assert_eq!(
        queue(&database, &fixture, release).await,
        None,
        "nothing new is started for what is over"
    );
    database.remove().await;
}

#[tokio::test]
async fn a_task_is_queued_only_for_the_operation_the_allocation_is_busy_with() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    assert!(queue(&database, &fixture, fixture.provision).await.is_some());
    database
        .report(fixture.allocation, Event::ReleaseRequested, OperationId(new_id()))
        .await
        .require()
        .expect("moves");
    assert_eq!(
        queue(&database, &fixture, fixture.provision).await,
        None,
        "a workflow that wakes up late"
    );
    database.remove().await;
}

#[tokio::test]
async fn a_node_with_live_claims_is_neither_retired_nor_drained() {
    let database = Database::new().await;
    let fixture = database.leaving_allocation().await;
    let say = async |event: node::Event| {
        let report = report(event, Source::Operator);
        database
            .in_transaction(async |tx| apply::<Node>(tx, fixture.node, &report).await)
            .await
            .expect("it answers")
    };
    assert_eq!(say(node::Event::Retiring).await.reason(), Some(&Reason::Guard("no_live_claims")));
    assert!(say(node::Event::DrainRequested).await.landed_on(node::Status::Draining));
    assert_eq!(
        say(node::Event::DrainCompleted).await.reason(),
        Some(&Reason::Guard("no_live_claims"))
    );
    let claim = claims::NewClaim {
        id: domain::ids::ClaimId(new_id()),
        allocation: fixture.allocation,
        node: fixture.node,
        slot: None,
    };
    let birth = Birth::new(EventId(new_id()), actor(Source::Worker));
    let taken = database.in_transaction(async |tx| claims::insert(tx, &claim, &birth).await).await;
    assert!(!taken.expect("it answers"), "a draining node takes no placements");

    // Nothing was ever given to the node, so there is nothing to prove.
    let operation = OperationId(new_id());
    report_claim(&database, &fixture, claim::Event::CleaningBegan, operation)
        .await
        .require()
        .expect("it moves");
    report_claim(&database, &fixture, claim::Event::Freeing, operation)
        .await
        .require()
        .expect("it moves");
    assert!(say(node::Event::DrainCompleted).await.landed_on(node::Status::Maintenance));
    assert!(say(node::Event::Retiring).await.landed_on(node::Status::Retired));
    database.remove().await;
}

#[tokio::test]
async fn a_heartbeat_that_comes_after_all_supersedes_the_loss() {
    let database = Database::new().await;
    let (node, _) = database.ready_node(1).await;
    let heard = async || {
        database
            .in_transaction(async |tx| nodes::heard_at(tx, node, Timestamp::now()).await)
            .await
            .expect("heard")
    };
    let last = async || -> Option<i64> {
        let query =
            "SELECT (extract(epoch FROM heartbeat_at) * 1000000)::bigint FROM nodes WHERE id = $1";
        sqlx::query(query)
            .bind(node.uuid())
            .fetch_one(&database.sql)
            .await
            .expect("it is there")
            .get(0)
    };
    let lost = async |since: Option<i64>| {
        let since = since.map_or(Value::Null, Value::Time);
        let report =
            report(node::Event::HeartbeatLost, Source::Timer).with(node::HEARTBEAT_AT, since);
        database
            .in_transaction(async |tx| apply::<Node>(tx, node, &report).await)
            .await
            .expect("it answers")
    };
    heard().await;
    let counted_from = last().await;
    heard().await;
    assert_eq!(lost(counted_from).await.reason(), Some(&Reason::Superseded("still_silent")));
    assert!(lost(last().await).await.landed_on(node::Status::Offline));
    database.remove().await;
}

#[tokio::test]
async fn a_payment_of_another_amount_or_currency_is_not_credited() {
    let database = Database::new().await;
    let id = PaymentSessionId(database.newborn("payment_session").await);
    let say = async |event, source, minor: i64, currency: &'static str| {
        let report = report(event, source)
            .with(payment_session::AMOUNT_MINOR, Value::Int(minor))
            .with(payment_session::CURRENCY, Value::Text(currency.into()))
            .with(payment_session::LEDGER_ENTRY_ID, Value::Id(7))
            .with(payment_session::CREDITED_AMOUNT_MINOR, Value::Int(minor));
        database
            .in_transaction(async |tx| apply::<PaymentSession>(tx, id, &report).await)
            .await
            .expect("it answers")
    };
    use payment_session::Event::{Completed, CreditPosted, Expiring};
    say(Expiring, Source::Timer, 0, "").await.require().expect("nobody paid in time");
    say(Completed, Source::Outside, 0, "")
        .await
        .require()
        .expect("money that arrives late is honoured");
    let wrong = say(CreditPosted, Source::Worker, 4_999, "EUR").await;
    assert_eq!(wrong.reason(), Some(&Reason::Superseded("amount_matches")));
    let foreign = say(CreditPosted, Source::Worker, 5_000, "USD").await;
    assert_eq!(foreign.reason(), Some(&Reason::Superseded("currency_matches")));
    assert!(
        say(CreditPosted, Source::Worker, 5_000, "EUR")
            .await
            .landed_on(payment_session::Status::Credited)
    );
    database.remove().await;
}

/// Two transitions in one transaction happen at two moments; `now()` would give them one, and a wrong one.
#[tokio::test]
async fn times_are_the_moments_of_the_transitions_and_agree_everywhere() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    let id = fixture.allocation;
    let started = report(Event::ProvisionStarted, Source::Worker);
    let succeeded = report(Event::ProvisionSucceeded, Source::Worker).about(fixture.provision);
    let both = database.in_transaction(async |tx| {
        allocations::report(tx, id, &started).await?.require().expect("it moves");
        allocations::report(tx, id, &succeeded).await?.require().expect("it moves");
        Ok(())
    });
    both.await.expect("it commits");
    let log =
        database.store.transitions(Allocation::NAME, id.uuid()).await.expect("the log can be read");
    assert!(log[1].occurred_at_micros < log[2].occurred_at_micros, "{log:?}");
    let agree: bool = sqlx::query(
        "SELECT allocations.status_at = log.occurred_at AND active_at = log.occurred_at AND message.occurred_at = log.occurred_at
           FROM allocations
           JOIN lifecycle_log AS log ON log.entity_id = allocations.id AND log.seq = allocations.seq
           JOIN outbox_events AS message ON message.entity_id = allocations.id AND message.seq = allocations.seq
          WHERE allocations.id = $1",
    )
    .bind(id.uuid())
    .fetch_one(&database.sql)
    .await
    .expect("there is one message")
    .get(0);
    assert!(agree, "row, stamp, record and message tell one time");
    database.remove().await;
}

#[tokio::test]
async fn one_terminal_is_live_at_a_time() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let open = async || {
        let birth = Birth::new(EventId(new_id()), actor(Source::User));
        let (id, opening) = (domain::ids::TerminalSessionId(new_id()), OperationId(new_id()));
        database
            .in_transaction(async |tx| {
                terminal_sessions::insert(tx, id, fixture.allocation, opening, birth).await
            })
            .await
    };
    open().await.expect("the first opens");
    assert!(open().await.is_err(), "the second has to wait");
    database.remove().await;
}

#[tokio::test]
async fn a_birth_is_recorded_once_and_only_of_a_newborn() {
    let database = Database::new().await;
    let fixture = database.allocation().await;
    let birth = Birth::new(EventId(new_id()), actor(Source::Worker)).beginning(fixture.provision);
    let again = database
        .in_transaction(async |tx| born::<Allocation>(tx, fixture.allocation, &birth).await)
        .await;
    assert_eq!(again.expect("it answers").seq, 1);
    assert_eq!(count(&database, LOGGED, fixture.allocation.uuid()).await, 1);
    assert_eq!(
        count(&database, PUBLISHED, fixture.allocation.uuid()).await,
        1,
        "and published once"
    );
    let nobody = AllocationId(new_id());
    let unborn =
        database.in_transaction(async |tx| born::<Allocation>(tx, nobody, &birth).await).await;
    assert!(matches!(unborn, Err(Error::Unborn { .. })), "{unborn:?}");
    let grown = database.active_allocation().await.allocation;
    let unborn =
        database.in_transaction(async |tx| born::<Allocation>(tx, grown, &birth).await).await;
    assert!(matches!(unborn, Err(Error::Unborn { .. })), "{unborn:?}");
    database.remove().await;
}

#[tokio::test]
async fn a_status_nobody_knows_is_an_error_and_not_a_guess() {
    let database = Database::new().await;
    let id = database.allocation().await.allocation;
    for statement in [
        "ALTER TABLE allocations DISABLE TRIGGER USER",
        // tidy: a forbidden write, on purpose
        "UPDATE allocations SET status = 'hibernating'",
    ] {
        sqlx::query(statement).execute(&database.sql).await.expect("an owner may do this");
    }
    let request = report(Event::ReleaseRequested, Source::User).about(OperationId(new_id()));
    let answer =
        database.in_transaction(async |tx| allocations::report(tx, id, &request).await).await;
    let error = answer.expect_err("nobody knows this status");
    assert!(error.to_string().contains("hibernating"), "{error}");
    database.remove().await;
}

/// A trigger that swallows the write stands in for a writer that went round the lock.
#[tokio::test]
async fn a_write_that_no_longer_fits_the_row_is_a_conflict() {
    let database = Database::new().await;
    let id = database.allocation().await.allocation;
    for statement in [
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END;'",
        "CREATE TRIGGER aaa BEFORE UPDATE ON allocations FOR EACH ROW EXECUTE FUNCTION swallow()",
    ] {
        sqlx::query(statement).execute(&database.sql).await.expect("an owner may do this");
    }
    let outcome = database.report(id, Event::ProvisionStarted, OperationId(new_id())).await;
    assert_eq!(outcome.reason(), Some(&Reason::Conflict));
    assert!(outcome.is_retryable());
    assert_eq!(count(&database, LOGGED, id.uuid()).await, 1, "nothing was recorded of it");
    database.remove().await;
}

#[tokio::test]
async fn a_transaction_that_waits_for_the_world_is_ended() {
    let database = Database::new().await;
    let id = database.allocation().await.allocation;
    let mut tx = database.store.begin().await.expect("a transaction begins");
    let started = report(Event::ProvisionStarted, Source::Worker);
    assert!(allocations::report(&mut tx, id, &started).await.expect("it answers").is_applied());
    let open = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND state = 'idle in transaction' AND pg_sleep(0.05) IS NOT NULL";
    let mut looks = 0;
    while sqlx::query(open).fetch_one(&database.sql).await.expect("it counts").get::<i64, _>(0) > 0
    {
        looks += 1;
        assert!(looks < 400, "the database lets a transaction wait for the world");
    }
    assert!(tx.commit().await.is_err(), "it was ended");
    assert_eq!(status(&database, id).await, "requested", "and undone");
    database.remove().await;
}
