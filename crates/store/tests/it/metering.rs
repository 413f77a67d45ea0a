//! The meter: stretches begin and end with the allocation's own steps, at their very moments.

use domain::ids::{AllocationId, OperationId};
use domain::machines::allocation::Event;
use testkit::{Database, Fixture, new_id};

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
