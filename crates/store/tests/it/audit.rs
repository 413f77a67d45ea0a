//! The checker: silent on a database that is as it should be, and loud about every rule that is broken by hand.

use std::collections::BTreeMap;

use domain::ids::{NodeId, NodeTaskId, OperationId};
use domain::machines::allocation::Event;
use domain::machines::node_task::{self, AGENT_ID, CLEANUP_COMPLETE, DISPATCH, NODE_ID};
use domain::machines::{Claim, NodeTask, REASON, claim};
use jiff::{SignedDuration, Timestamp};
use lifecycle::{Outcome, Source, Value};
use serde_json::json;
use store::audit::{self, INVARIANTS};
use store::lifecycle::apply;
use store::{Error, Tx, node_tasks, outbox};
use testkit::{Database, Fixture, new_id};
use uuid::Uuid;

use crate::report;
use crate::sessions::birth;

/// What the test breaks, in a database that was as it should be.
struct Healthy {
    database: Database,
    active: Fixture,
    requested: Fixture,
    released: Fixture,
    proof: NodeTaskId,
    provision: NodeTaskId,
}

async fn applied<S: lifecycle::Code>(outcome: Result<Outcome<S>, Error>) -> Result<(), Error> {
    let outcome = outcome?;
    assert!(outcome.is_applied(), "{outcome:?}");
    Ok(())
}

/// Queues a task for an allocation and hands it out.
async fn dispatched(
    tx: &mut Tx,
    fixture: &Fixture,
    (operation, kind): (OperationId, &'static str),
    agent: Uuid,
) -> Result<NodeTaskId, Error> {
    let task = node_tasks::NewTask {
        id: NodeTaskId(new_id()),
        node: fixture.node,
        allocation: fixture.allocation,
        operation,
        kind,
        params: json!({}),
        run: None,
        deadline: None,
    };
    assert!(node_tasks::insert(tx, &task, birth()).await?, "it is queued");
    let given = report(node_task::Event::Dispatching, Source::Agent)
        .with(NODE_ID, Value::Id(fixture.node.uuid().as_u128()))
        .with(AGENT_ID, Value::Id(agent.as_u128()));
    let lease_until = Timestamp::now() + SignedDuration::from_secs(60);
    let sealed = node_tasks::Sealed { envelope: "{}", signature: "s", lease_until };
    applied(apply::<NodeTask>(tx, task.id, &sealed.with(given)).await).await?;
    Ok(task.id)
}

async fn succeeded(tx: &mut Tx, task: NodeTaskId, agent: Uuid) -> Result<(), Error> {
    let done = report(node_task::Event::Success, Source::Agent)
        .with(AGENT_ID, Value::Id(agent.as_u128()))
        .with(DISPATCH, Value::Int(1))
        .with(CLEANUP_COMPLETE, Value::Bool(true));
    applied(apply::<NodeTask>(tx, task, &done).await).await
}

async fn moved(tx: &mut Tx, fixture: &Fixture, event: claim::Event, operation: OperationId) {
    let source = match event {
        claim::Event::Quarantining | claim::Event::Cleared => Source::Operator,
        claim::Event::Activated
        | claim::Event::CleaningBegan
        | claim::Event::Freeing
        | claim::Event::GotStuck => Source::Worker,
    };
    let report = report(event, source).about(operation).with(REASON, Value::Text("x".into()));
    applied(apply::<Claim>(tx, fixture.claim, &report).await).await.expect("it moves");
}

/// Released on proof; released by an operator; failed and still being cleaned; never handed to a node; at work.
async fn healthy() -> Healthy {
    let database = Database::new().await;
    let (requested, active) = (database.allocation().await, database.active_allocation().await);
    let agent = new_id();
    let provision = (active.provision, "slice.vm_provision");
    let provision =
        database.in_transaction(async |tx| dispatched(tx, &active, provision, agent).await).await;

    let released = database.active_allocation().await;
    let release = OperationId(new_id());
    let leave = async |fixture: &Fixture, event, operation| {
        let outcome = database.report(fixture.allocation, event, operation).await;
        assert!(outcome.is_applied(), "{outcome:?}");
    };
    leave(&released, Event::ReleaseRequested, release).await;
    let proof = database.in_transaction(async |tx| {
        moved(tx, &released, claim::Event::CleaningBegan, release).await;
        let task = dispatched(tx, &released, (release, "slice.vm_release"), agent).await?;
        succeeded(tx, task, agent).await?;
        Ok(task)
    });
    let proof = proof.await.expect("it is cleaned");
    let freed = database.in_transaction(async |tx| {
        let completed = report(Event::ReleaseCompleted, Source::Worker).about(release);
        let outcome = store::allocations::report(tx, released.allocation, &completed).await;
        applied(outcome).await?;
        moved(tx, &released, claim::Event::Freeing, release).await;
        Ok(())
    });
    freed.await.expect("it is freed");

    let failed = database.allocation().await;
    let failing = database.in_transaction(async |tx| {
        let failed_report = report(Event::ProvisionFailed, Source::Worker)
            .about(failed.provision)
            .with(REASON, Value::Text("timeout".into()));
        let outcome = store::allocations::report(tx, failed.allocation, &failed_report).await;
        applied(outcome).await?;
        moved(tx, &failed, claim::Event::CleaningBegan, failed.provision).await;
        Ok(())
    });
    failing.await.expect("it fails");
    abandoned(&database).await;
    Healthy { database, active, requested, released, proof, provision: provision.expect("given") }
}

/// An allocation whose clean-up an operator answers for; its slot is set aside.
async fn abandoned(database: &Database) {
    let (fixture, release) = (database.active_allocation().await, OperationId(new_id()));
    for event in [Event::ReleaseRequested, Event::ReleaseExhausted] {
        assert!(database.report(fixture.allocation, event, release).await.is_applied());
    }
    let done = database.in_transaction(async |tx| {
        let agent = new_id();
        let task = dispatched(tx, &fixture, (release, "slice.vm_release"), agent).await?;
        let off = report(node_task::Event::Cancelling, Source::Operator);
        applied(apply::<NodeTask>(tx, task, &off).await).await?;
        for event in
            [claim::Event::CleaningBegan, claim::Event::GotStuck, claim::Event::Quarantining]
        {
            moved(tx, &fixture, event, release).await;
        }
        let abandoned = report(Event::ReleaseAbandoned, Source::Operator);
        applied(store::allocations::report(tx, fixture.allocation, &abandoned).await).await
    });
    done.await.expect("it is abandoned");
}

impl Healthy {
    /// How many rows break each invariant.
    async fn counts(&self) -> BTreeMap<&'static str, i64> {
        let findings = audit::run(&self.database.store).await.expect("it answers");
        findings.into_iter().map(|(invariant, _, count)| (invariant.name, count)).collect()
    }

    /// Breaks something by hand, as somebody who has switched every trigger off. `$1` is the row.
    async fn break_by(&self, statement: &'static str, id: Uuid) {
        let mut sql = self.database.sql.acquire().await.expect("it connects");
        let off = "SET session_replication_role = replica";
        sqlx::query(off).execute(&mut *sql).await.expect("an owner may do this");
        let broken = if statement.contains("$1") {
            sqlx::query(statement).bind(id).execute(&mut *sql).await
        } else {
            sqlx::query(statement).execute(&mut *sql).await
        };
        broken.unwrap_or_else(|error| panic!("{statement}: {error}"));
        let on = "SET session_replication_role = origin";
        sqlx::query(on).execute(&mut *sql).await.expect("an owner may do this");
    }
}

#[tokio::test]
async fn every_invariant_holds_on_a_database_that_is_as_it_should_be() {
    let healthy = healthy().await;
    let findings = audit::run(&healthy.database.store).await.expect("it answers");
    assert_eq!(findings.len(), INVARIANTS.len());
    for (invariant, rows, count) in findings {
        assert_eq!(
            (count, rows),
            (0, Vec::<String>::new()),
            "{}: {}",
            invariant.name,
            invariant.holds
        );
    }
    // Messages that were passed on are as good as those that wait.
    outbox::relay(&healthy.database.store, &[]).await.expect("the relay moves");
    assert!(healthy.counts().await.values().all(|count| *count == 0));
    healthy.database.remove().await;
}

/// One rule broken by one statement, and the invariant that must tell.
type Breakage = (&'static str, &'static str, Uuid);

fn breakages_of_holdings(healthy: &Healthy) -> Vec<Breakage> {
    let Healthy { active, requested, released, proof, .. } = healthy;
    let (active_id, released_id) = (active.allocation.uuid(), released.allocation.uuid());
    let requested_id = requested.allocation.uuid();
    let NodeId(node) = requested.node;
    vec![
        ("HINT", "UPDATE nodes SET free_numa_max = 7 WHERE id = $1", node),
        (
            "I07",
            "UPDATE claims SET operation_id = gen_random_uuid() WHERE allocation_id = $1",
            released_id,
        ),
        ("I06", "UPDATE node_tasks SET cleanup_complete = false WHERE id = $1", proof.uuid()),
        ("I04", "UPDATE claims SET slot_id = NULL WHERE allocation_id = $1", released_id),
        (
            "I02",
            "INSERT INTO claims (id, allocation_id, node_id) SELECT gen_random_uuid(), allocation_id, node_id FROM claims WHERE allocation_id = $1",
            active_id,
        ),
        // tidy: a forbidden write, on purpose
        ("I03", "UPDATE claims SET status = 'freed' WHERE allocation_id = $1", requested_id),
        // tidy: a forbidden write, on purpose
        ("I03", "UPDATE claims SET status = 'held' WHERE allocation_id = $1", released_id),
        // tidy: a forbidden write, on purpose
        ("I05", "UPDATE allocations SET status = 'active' WHERE id = $1", requested_id),
        (
            "I05",
            "UPDATE lifecycle_log SET event = 'provision.failed' WHERE entity_id = $1 AND seq = 2",
            active_id,
        ),
        ("I05", "DELETE FROM lifecycle_log WHERE entity_id = $1 AND seq = 2", released_id),
    ]
}

fn breakages_of_records(healthy: &Healthy) -> Vec<Breakage> {
    let Healthy { active, requested, released, proof, provision, .. } = healthy;
    let (active_id, released_id) = (active.allocation.uuid(), released.allocation.uuid());
    let requested_id = requested.allocation.uuid();
    let NodeId(node) = requested.node;
    vec![
        (
            "I08",
            "UPDATE outbox_events SET occurred_at = clock_timestamp() - interval '61 seconds' WHERE entity_id = $1 AND seq = 1",
            requested_id,
        ),
        ("I08", "DELETE FROM outbox_events WHERE entity_id = $1 AND seq = 3", active_id),
        ("I10", "UPDATE node_tasks SET agent_id = NULL WHERE id = $1", provision.uuid()),
        (
            "I10",
            // tidy: a forbidden write, on purpose
            "INSERT INTO node_task_events (task_id, dispatch, seq, phase, stands, at) VALUES ($1, 9, 1, 'wiped', 'running', clock_timestamp())",
            provision.uuid(),
        ),
        (
            "I11",
            "UPDATE node_tasks SET node_id = gen_random_uuid() WHERE id = $1",
            provision.uuid(),
        ),
        (
            "I22",
            "INSERT INTO idempotency_keys (principal, route, key, fingerprint) VALUES ($1, 'r', 'k', 'short')",
            active_id,
        ),
        (
            "I22",
            "INSERT INTO idempotency_keys (principal, route, key, fingerprint, body) VALUES ($1, 'r', 'l', sha256('x'), '{}')",
            active_id,
        ),
        (
            "I25",
            "UPDATE allocations SET active_at = created_at - interval '1 hour' WHERE id = $1",
            active_id,
        ),
        (
            "I25",
            "UPDATE lifecycle_log SET occurred_at = occurred_at - interval '1 hour' WHERE entity_id = $1 AND seq = 3",
            released_id,
        ),
        (
            "I25",
            "UPDATE node_tasks SET ended_at = clock_timestamp() + interval '1 hour' WHERE id = $1",
            proof.uuid(),
        ),
        (
            "I26",
            "INSERT INTO workflow_runs (id, workflow, entity_id, state) VALUES ('r', 'release', $1, '{}')",
            active_id,
        ),
        (
            "GUESTS",
            "UPDATE nodes SET heartbeat_at = clock_timestamp(), inventory = '{\"guests\": [{\"allocation_id\": \"00000000-0000-0000-0000-000000000001\", \"slots\": []}]}' WHERE id = $1",
            node,
        ),
    ]
}

fn breakages_of_groups(healthy: &Healthy) -> Vec<Breakage> {
    let Healthy { active, requested, .. } = healthy;
    let (active_id, requested_id) = (active.allocation.uuid(), requested.allocation.uuid());
    vec![
        (
            "I26",
            "INSERT INTO allocation_groups (id, project_id, release_id, release_noted_at) VALUES (gen_random_uuid(), $1, $1, clock_timestamp() - interval '3 minutes')",
            active_id,
        ),
        (
            "I21",
            "INSERT INTO allocation_groups (id, project_id, release_requested_at) VALUES (gen_random_uuid(), $1, clock_timestamp())",
            active_id,
        ),
        (
            "APPS",
            "INSERT INTO app_instances (id, project_id, owner_id, name, app, allocation_id) VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'n', 'a', $1)",
            active_id,
        ),
        (
            "PAYMENTS",
            "INSERT INTO payment_sessions (id, account_id, amount_minor, currency, user_id, refunded_minor) VALUES ($1, $1, 1, 'USD', $1, 5)",
            requested_id,
        ),
        (
            "APPS",
            "INSERT INTO app_instance_members (app_instance_id, allocation_id, role) SELECT app_instances.id, $1, 'spy' FROM app_instances",
            requested_id,
        ),
    ]
}

fn breakages_of_the_audit_log(healthy: &Healthy) -> Vec<Breakage> {
    let active_id = healthy.active.allocation.uuid();
    let requested_id = healthy.requested.allocation.uuid();
    let NodeId(node) = healthy.requested.node;
    vec![
        (
            "I23",
            "INSERT INTO audit_entries (id, at, role, action, target_kind, target, outcome) VALUES ($1, '2020-01-01', 'user', 'a', 'b', 'c', 'done')",
            active_id,
        ),
        (
            "I23",
            "UPDATE lifecycle_log SET source = 'user', cause = 'request 0' WHERE entity_id = $1 AND seq = 1",
            active_id,
        ),
        ("I23", "INSERT INTO audit_links (position, entry_id, hash) VALUES (1, $1, 'x')", node),
        (
            "I23",
            "INSERT INTO audit_links (position, entry_id, hash) VALUES (3, $1, 'x')",
            requested_id,
        ),
    ]
}

/// Money that is not what steps and payments make of it.
fn breakages_of_money(healthy: &Healthy) -> Vec<(&'static str, &'static str, Uuid)> {
    let active = healthy.active.allocation.uuid();
    vec![
        (
            "I16",
            "UPDATE usage_records SET started_at = started_at - interval '1 minute' WHERE allocation_id = $1",
            active,
        ),
        ("I13", "INSERT INTO accounts (id, balance_minor) VALUES ($1, 5)", active),
        (
            "I12",
            "INSERT INTO usage_records (id, allocation_id, account_id, started_at, charged_until, gpus)
             VALUES (gen_random_uuid(), gen_random_uuid(), $1, clock_timestamp() - interval '5 minutes', clock_timestamp(), 1)",
            active,
        ),
        (
            "I15",
            "INSERT INTO usage_records (id, allocation_id, account_id, started_at, charged_until, gpus, charged_minor)
             VALUES (gen_random_uuid(), gen_random_uuid(), $1, 'epoch', 'epoch', 1, 7)",
            active,
        ),
        (
            "I14",
            "INSERT INTO usage_credits (usage_record_id, window_at, amount_minor, posting_id, outage_id) VALUES ($1, 'epoch', 1, $1, $1)",
            active,
        ),
        (
            "I17",
            // tidy: a forbidden write, on purpose
            "INSERT INTO payment_sessions (id, status, account_id, amount_minor, currency, credited_amount_minor, ledger_entry_id)
             VALUES ($1, 'credited', $1, 5, 'USD', 5, $1)",
            active,
        ),
        (
            "I18",
            // tidy: a forbidden write, on purpose
            "WITH project AS (
                INSERT INTO projects (id, name, account_id) SELECT project_id, 'theirs', $1 FROM allocations WHERE id = $1
             ), dear AS (
                UPDATE allocations SET price_micros_per_gpu_second = 1, status_at = clock_timestamp() - interval '1 hour' WHERE id = $1
             )
             UPDATE accounts SET status = 'depleted', status_at = clock_timestamp() - interval '1 hour' WHERE id = $1",
            active,
        ),
    ]
}

#[tokio::test]
async fn every_invariant_tells_when_its_rule_is_broken() {
    let healthy = healthy().await;
    let mut before = healthy.counts().await;
    let mut told: Vec<&str> = Vec::new();
    let mut expect = async |name: &'static str, statement: &'static str, id: Uuid| {
        healthy.break_by(statement, id).await;
        let after = healthy.counts().await;
        assert!(after[name] > before[name], "{name} said nothing of: {statement}\n{after:?}");
        told.push(name);
        before = after;
    };
    let breakages = [
        breakages_of_holdings(&healthy),
        breakages_of_records(&healthy),
        breakages_of_groups(&healthy),
        breakages_of_the_audit_log(&healthy),
        breakages_of_money(&healthy),
    ];
    for (name, statement, id) in breakages.concat() {
        expect(name, statement, id).await;
    }
    // What an index or a key keeps out is checked all the same.
    drop_then(&healthy, "DROP INDEX claims_live_slot").await;
    drop_then(&healthy, "ALTER TABLE consumed_events DROP CONSTRAINT consumed_events_pkey").await;
    for (name, statement) in [
        (
            "I01",
            "INSERT INTO claims (id, allocation_id, node_id, slot_id)
             SELECT gen_random_uuid(), allocation_id, node_id, slot_id FROM claims WHERE allocation_id = $1 AND slot_id IS NOT NULL",
        ),
        (
            "I09",
            "INSERT INTO consumed_events (consumer, event_id) VALUES ('c', $1), ('c', $1)",
        ),
    ] {
        let before = healthy.counts().await;
        healthy.break_by(statement, healthy.active.allocation.uuid()).await;
        assert!(healthy.counts().await[name] > before[name], "{name}");
        told.push(name);
    }
    for invariant in INVARIANTS {
        assert!(told.contains(&invariant.name), "{} was never broken", invariant.name);
    }
    healthy.database.remove().await;
}

async fn drop_then(healthy: &Healthy, statement: &'static str) {
    sqlx::query(statement).execute(&healthy.database.sql).await.expect("an owner may do this");
}

/// What is forgotten is told after two minutes, and not while a run, a message or a delivery is about it.
#[tokio::test]
async fn what_nobody_is_at_is_told_and_what_somebody_is_at_is_not() {
    let healthy = healthy().await;
    let id = healthy.requested.allocation.uuid();
    let late =
        "UPDATE allocations SET status_at = clock_timestamp() - interval '3 minutes' WHERE id = $1";
    healthy.break_by(late, id).await;
    assert_eq!(healthy.counts().await["I26"], 0, "its message is still in the outbox");
    outbox::relay(&healthy.database.store, &[]).await.expect("the relay moves");
    assert_eq!(healthy.counts().await["I26"], 1, "nobody heard of it");
    let run = store::workflow_runs::NewRun {
        id: "provisioning-1",
        workflow: "provisioning",
        entity_id: id,
        state: &json!({}),
    };
    store::workflow_runs::start(&healthy.database.store, &run).await.expect("it starts");
    assert_eq!(healthy.counts().await["I26"], 0, "a run is at it");
    let named = audit::run(&healthy.database.store).await.expect("it answers");
    assert!(named.iter().all(|(_, rows, count)| rows.is_empty() && *count == 0));
    healthy.database.remove().await;
}

/// A guest is not news before the heartbeat is newer than the end of its claim.
#[tokio::test]
async fn a_guest_that_has_just_been_removed_is_given_half_a_minute() {
    let healthy = healthy().await;
    let Healthy { released, database, .. } = &healthy;
    let tell = async |later: &str| {
        let statement = format!(
            "UPDATE nodes
                SET heartbeat_at = claims.ended_at + interval '{later}',
                    inventory = jsonb_build_object('guests', jsonb_build_array(
                        jsonb_build_object('allocation_id', claims.allocation_id, 'slots', '[]'::jsonb)))
               FROM claims
              WHERE claims.node_id = nodes.id AND claims.allocation_id = $1"
        );
        let told = sqlx::query(sqlx::AssertSqlSafe(statement)).bind(released.allocation.uuid());
        told.execute(&database.sql).await.expect("it is told");
        healthy.counts().await["GUESTS"]
    };
    assert_eq!((tell("29 seconds").await, tell("31 seconds").await), (0, 1));
    healthy.database.remove().await;
}

#[test]
fn the_names_of_invariants_are_unique_and_each_says_what_holds() {
    let mut names: Vec<&str> = INVARIANTS.iter().map(|invariant| invariant.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), INVARIANTS.len());
    assert!(INVARIANTS.iter().all(|invariant| !invariant.holds.is_empty()));
}
