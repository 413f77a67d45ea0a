//! The meter: stretches begin and end with the allocation's own steps, at their very moments.

use domain::ids::{AllocationId, OperationId};
use domain::machines::allocation::Event;
use jiff::SignedDuration;
use lifecycle::Source;
use store::{allocations, charging};
use testkit::{Database, Fixture, new_id};

use crate::report;
use crate::sessions::overtaken;

/// The records of an allocation in order: whether each began at a step into `active`, and the step at whose moment it ended.
async fn stretches(database: &Database, allocation: AllocationId) -> Vec<(bool, Option<String>)> {
    sqlx::query_as(
        "SELECT (SELECT opening.to_status = 'active' AND opening.occurred_at = record.started_at
                   FROM lifecycle_log AS opening
                  WHERE opening.entity_id = allocation_id AND opening.machine = 'allocation'
                    AND opening.seq = opened_seq),
                (SELECT ending.to_status
                   FROM lifecycle_log AS ending
                  WHERE ending.entity_id = allocation_id AND ending.machine = 'allocation'
                    AND ending.occurred_at = record.ended_at)
           FROM usage_records AS record
          WHERE allocation_id = $1
          ORDER BY opened_seq",
    )
    .bind(allocation.uuid())
    .fetch_all(&database.sql)
    .await
    .expect("records")
}

async fn told(database: &Database, fixture: &Fixture, event: Event, operation: OperationId) {
    let outcome = database.report(fixture.allocation, event, operation).await;
    assert!(outcome.is_applied(), "{event}: {outcome:?}");
}

#[tokio::test]
async fn a_stretch_is_from_active_to_the_moment_it_is_given_back() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    assert_eq!(stretches(&database, fixture.allocation).await, [(true, None)]);
    let release = OperationId(new_id());
    told(&database, &fixture, Event::ReleaseRequested, release).await;
    let once = [(true, Some("releasing".to_owned()))];
    assert_eq!(stretches(&database, fixture.allocation).await, once);
    // Nobody pays for a clean-up, nor for one that fails and is asked for again.
    told(&database, &fixture, Event::ReleaseExhausted, release).await;
    let again = OperationId(new_id());
    told(&database, &fixture, Event::ReleaseRequested, again).await;
    told(&database, &fixture, Event::ReleaseCompleted, again).await;
    assert_eq!(stretches(&database, fixture.allocation).await, once);
    database.remove().await;
}

#[tokio::test]
async fn a_restart_is_one_stretch_and_a_failed_one_ends_it_until_it_is_active_again() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    let [first, second, third] = std::array::from_fn(|_| OperationId(new_id()));
    told(&database, &fixture, Event::RestartRequested, first).await;
    told(&database, &fixture, Event::RestartCompleted, first).await;
    assert_eq!(stretches(&database, fixture.allocation).await, [(true, None)], "still billed");
    told(&database, &fixture, Event::RestartRequested, second).await;
    told(&database, &fixture, Event::RestartFailedToReturn, second).await;
    let ended = (true, Some("restart_failed".to_owned()));
    let once = std::slice::from_ref(&ended);
    assert_eq!(stretches(&database, fixture.allocation).await, once);
    told(&database, &fixture, Event::RestartRequested, third).await;
    assert_eq!(stretches(&database, fixture.allocation).await, once, "not active yet");
    told(&database, &fixture, Event::RestartCompleted, third).await;
    assert_eq!(stretches(&database, fixture.allocation).await, [ended, (true, None)]);
    database.remove().await;
}

#[tokio::test]
async fn what_never_became_active_was_never_metered() {
    let database = Database::new().await;
    let failed = database.allocation().await;
    told(&database, &failed, Event::ProvisionStarted, failed.provision).await;
    told(&database, &failed, Event::ProvisionFailed, failed.provision).await;
    let cancelled = database.leaving_allocation().await;
    for fixture in [failed, cancelled] {
        assert_eq!(stretches(&database, fixture.allocation).await, []);
    }
    database.remove().await;
}

#[tokio::test]
async fn a_restart_that_is_called_off_ends_its_stretch_once() {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    told(&database, &fixture, Event::RestartRequested, OperationId(new_id())).await;
    told(&database, &fixture, Event::ReleaseRequested, OperationId(new_id())).await;
    let refused =
        database.report(fixture.allocation, Event::RestartCompleted, fixture.provision).await;
    assert!(!refused.is_applied());
    let once = [(true, Some("releasing".to_owned()))];
    assert_eq!(stretches(&database, fixture.allocation).await, once);
    database.remove().await;
}

/// Two members of one group: the meter follows there, too.
#[tokio::test]
async fn members_of_a_group_are_metered_one_by_one() {
    let database = Database::new().await;
    let group = database.group().await;
    let [one, two] = [
        database.member_of(Some((group, true))).await,
        database.member_of(Some((group, true))).await,
    ];
    for member in [&one, &two] {
        told(&database, member, Event::ProvisionStarted, member.provision).await;
        told(&database, member, Event::ProvisionSucceeded, member.provision).await;
    }
    told(&database, &one, Event::ReleaseRequested, OperationId(new_id())).await;
    assert_eq!(stretches(&database, one.allocation).await, [(true, Some("releasing".to_owned()))]);
    assert_eq!(stretches(&database, two.allocation).await, [(true, None)]);
    database.remove().await;
}

/// An allocation that is active for three minutes and a half, and somebody who pays for it.
async fn paid_for() -> (Database, Fixture) {
    let database = Database::new().await;
    let fixture = database.active_allocation().await;
    database
        .tamper(&[
            "INSERT INTO accounts (id) VALUES (md5('account')::uuid)",
            "UPDATE usage_records SET account_id = md5('account')::uuid, started_at = started_at - interval '210 seconds'",
            "UPDATE usage_records SET charged_until = started_at",
        ])
        .await;
    (database, fixture)
}

#[tokio::test]
async fn charging_waits_for_a_release_that_is_under_way_and_charges_to_its_end() {
    let (database, fixture) = paid_for().await;
    let mut tx = database.store.begin().await.expect("a transaction");
    let release = report(Event::ReleaseRequested, Source::User).about(OperationId(new_id()));
    let told = allocations::report(&mut tx, fixture.allocation, &release).await;
    assert!(told.expect("it is told").is_applied());
    // Whoever charges believes that it goes on for two minutes more.
    let now = charging::now(&database.store).await.expect("a clock");
    let until = now + SignedDuration::from_mins(2);
    let (charged, ended) =
        overtaken(&database, charging::charge(&database.store, until), tx.commit()).await;
    ended.expect("the release is committed");
    charged.expect("it is charged");
    let exact = "SELECT count(*) FROM usage_records AS record
                  WHERE settled_at IS NOT NULL AND charged_until = ended_at
                    AND micros_between(started_at, ended_at) = (SELECT sum(micros) FROM usage_windows WHERE usage_record_id = record.id)";
    assert_eq!(database.number(exact).await, 1);
    let given_back = "SELECT count(*) FROM ledger_postings WHERE kind = 'overrun'";
    assert_eq!(database.number(given_back).await, 0, "nothing was charged behind the end");
    database.remove().await;
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "somebody who holds a lock for longer than the store would"
)]
async fn the_moment_of_a_release_is_taken_when_nobody_charges_any_more() {
    let (database, fixture) = paid_for().await;
    let mut charging = database.sql.begin().await.expect("a transaction");
    let held = sqlx::query("SELECT id FROM usage_records FOR UPDATE").execute(&mut *charging);
    held.await.expect("it is held");
    let release =
        database.report(fixture.allocation, Event::ReleaseRequested, OperationId(new_id()));
    let (released, ()) = overtaken(&database, release, async {
        let charge = "UPDATE usage_records SET charged_until = clock_timestamp()";
        sqlx::query(charge).execute(&mut *charging).await.expect("it is charged until now");
        charging.commit().await.expect("it is over");
    })
    .await;
    assert!(released.is_applied(), "{released:?}");
    let behind = "SELECT count(*) FROM usage_records WHERE ended_at < charged_until";
    assert_eq!(database.number(behind).await, 0, "it was charged behind its end");
    database.remove().await;
}
