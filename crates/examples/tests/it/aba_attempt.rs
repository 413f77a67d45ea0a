//! A to B and back to A: the status is what it was, but it is not the same operation any more.

use examples::columns::{CLEANUP_REQUESTED_AT, DESTROY_ATTEMPT_ID, MANAGED, PATH};
use examples::environment_v1::{Environment, Event, Status};
use examples::shelf::Shelf;
use examples::{environment_v2 as v2, thread_v2};
use lifecycle::{Facts, Fence, OPERATION_ID, Outcome, Reason, Report, Source, Value};

use crate::support::{Kit, Race, fresh, on_both_stores, place, row, said};

on_both_stores!(
    a_status_only_fence_lets_a_failure_of_one_attempt_undo_the_next,
    our_fence_keeps_the_next_attempt_when_the_failure_of_the_one_before_is_written,
    the_sequence_number_alone_tells_two_stays_in_one_status_apart,
    the_first_machine_lets_a_late_success_of_one_attempt_finish_the_next,
    a_late_success_of_one_attempt_does_not_finish_the_next,
    a_destroy_given_up_for_lost_is_still_proved_by_its_own_answer,
    a_workspace_made_for_an_old_request_does_not_answer_the_new_one,
    an_old_run_that_succeeds_does_not_settle_the_present_run,
    a_failed_destroy_does_not_start_the_retire_clock_again,
);

const A: u128 = 71;
const B: u128 = 72;

fn attempt<E>(event: E, attempt: u128) -> Report<E> {
    said(event).with(DESTROY_ATTEMPT_ID, Value::Id(attempt))
}

fn busy_with_a<K: Kit>(fence: Fence) -> K::Shelf<Environment> {
    let mut environments = K::Shelf::<Environment>::fenced(fence);
    let facts = Facts::NONE
        .with(MANAGED, Value::Bool(true))
        .with(PATH, Value::Text("/srv/space".into()))
        .with(CLEANUP_REQUESTED_AT, Value::Time(1))
        .with(DESTROY_ATTEMPT_ID, Value::Id(A));
    place(&mut environments, 1, Status::Destroying, facts);
    environments
}

/// The sweep gives A up, and B claims the environment.
fn b_takes_over(environments: &mut impl Shelf<Environment>) {
    assert!(environments.report(1, &said(Event::DestroyLost)).unwrap().landed_on(Status::Ready));
    let claim = attempt(Event::DestroyDispatched, B);
    assert!(environments.report(1, &claim).unwrap().landed_on(Status::Destroying));
}

// The second hole: the failure of A was checked against A, but is written over B.
fn a_status_only_fence_lets_a_failure_of_one_attempt_undo_the_next<K: Kit>() {
    let mut environments = busy_with_a::<K>(Fence::StatusOnly);
    let outcome = environments.interleaved(1, &attempt(Event::DestroyFailed, A), b_takes_over);
    assert!(outcome.is_applied());
    let after = row(&mut environments, 1);
    assert_eq!(after.status, Status::Ready, "B is still taking it down");
    assert!(after.facts.get(DESTROY_ATTEMPT_ID).is_null(), "and nobody will know its answer");
}

fn our_fence_keeps_the_next_attempt_when_the_failure_of_the_one_before_is_written<K: Kit>() {
    let mut environments = busy_with_a::<K>(Fence::Checked);
    let failure = attempt(Event::DestroyFailed, A);
    let outcome = environments.interleaved(1, &failure, b_takes_over);
    assert_eq!(outcome.reason(), Some(&Reason::Conflict));
    let after = row(&mut environments, 1);
    assert_eq!(after.status, Status::Destroying);
    assert_eq!(*after.facts.get(DESTROY_ATTEMPT_ID), Value::Id(B));
    let again = environments.report(1, &failure).unwrap();
    assert_eq!(again.reason(), Some(&Reason::Superseded("matchingDestroyAttempt")));
}

fn the_sequence_number_alone_tells_two_stays_in_one_status_apart<K: Kit>() {
    let written = |fence| {
        let mut environments = busy_with_a::<K>(fence);
        environments.interleaved(1, &said(Event::DestroySucceeded), b_takes_over)
    };
    assert!(written(Fence::StatusOnly).landed_on(Status::Destroyed));
    assert_eq!(written(Fence::Checked).reason(), Some(&Reason::Conflict));
    assert_eq!(written(Fence::Locked).reason(), Some(&Reason::Conflict));
}

// No fence helps against a table that does not ask: the success of A arrives when B is long under
// way.
fn the_first_machine_lets_a_late_success_of_one_attempt_finish_the_next<K: Kit>() {
    let mut environments = busy_with_a::<K>(Fence::Locked);
    b_takes_over(&mut environments);
    let success_of_a = said(Event::DestroySucceeded);
    assert!(environments.report(1, &success_of_a).unwrap().landed_on(Status::Destroyed));
}

fn answer<E>(event: E, operation: u128) -> Report<E> {
    Report::new(event, fresh(), Source::Agent).with(OPERATION_ID, Value::Id(operation))
}

fn redesigned_busy_with_a<K: Kit>() -> K::Shelf<v2::Environment> {
    let mut environments = K::Shelf::<v2::Environment>::fenced(Fence::Locked);
    let facts = Facts::NONE
        .with(MANAGED, Value::Bool(true))
        .with(PATH, Value::Text("/srv/space".into()))
        .with(OPERATION_ID, Value::Id(A));
    place(&mut environments, 1, v2::Status::Destroying, facts);
    environments
}

fn lost(operation: u128) -> Report<v2::Event> {
    Report { source: Source::Timer, ..answer(v2::Event::DestroyLost, operation) }
}

fn a_late_success_of_one_attempt_does_not_finish_the_next<K: Kit>() {
    let mut environments = redesigned_busy_with_a::<K>();
    assert!(environments.report(1, &lost(A)).unwrap().landed_on(v2::Status::Error));
    let retire = said(v2::Event::RetireRequested);
    assert!(environments.report(1, &retire).unwrap().landed_on(v2::Status::Retiring));
    let claim = Report { source: Source::Worker, ..answer(v2::Event::DestroyDispatched, B) };
    assert!(environments.report(1, &claim).unwrap().landed_on(v2::Status::Destroying));

    let late = environments.report(1, &answer(v2::Event::DestroySucceeded, A)).unwrap();
    assert_eq!(late.reason(), Some(&Reason::Superseded("same_operation")));
    assert_eq!(row(&mut environments, 1).status, v2::Status::Destroying);

    let success = answer(v2::Event::DestroySucceeded, B);
    assert!(environments.report(1, &success).unwrap().landed_on(v2::Status::Destroyed));
    let again = environments.report(1, &answer(v2::Event::DestroySucceeded, B)).unwrap();
    assert!(matches!(again, Outcome::Duplicate(_)));
}

fn a_destroy_given_up_for_lost_is_still_proved_by_its_own_answer<K: Kit>() {
    let mut environments = redesigned_busy_with_a::<K>();
    assert!(environments.report(1, &lost(A)).unwrap().landed_on(v2::Status::Error));
    let proof = environments.report(1, &answer(v2::Event::DestroySucceeded, A)).unwrap();
    assert!(proof.landed_on(v2::Status::Destroyed));
    assert!(row(&mut environments, 1).facts.get(PATH).is_null());
}

fn a_workspace_made_for_an_old_request_does_not_answer_the_new_one<K: Kit>() {
    let mut environments = K::Shelf::<v2::Environment>::fenced(Fence::Locked);
    place(
        &mut environments,
        1,
        v2::Status::Provisioning,
        Facts::NONE.with(OPERATION_ID, Value::Id(A)),
    );
    let timed_out = Report { source: Source::Timer, ..answer(v2::Event::ProvisionFailed, A) };
    assert!(environments.report(1, &timed_out).unwrap().landed_on(v2::Status::Error));
    let again = said(v2::Event::ProvisionRequested).with(OPERATION_ID, Value::Id(B));
    assert!(environments.report(1, &again).unwrap().landed_on(v2::Status::Provisioning));

    let made = |operation| {
        answer(v2::Event::ProvisionSucceeded, operation).with(PATH, Value::Text("/b".into()))
    };
    let late = environments.report(1, &made(A)).unwrap();
    assert_eq!(late.reason(), Some(&Reason::Superseded("same_operation")));
    assert!(row(&mut environments, 1).facts.get(PATH).is_null());
    assert!(environments.report(1, &made(B)).unwrap().landed_on(v2::Status::Ready));
    assert_eq!(*row(&mut environments, 1).facts.get(PATH), Value::Text("/b".into()));
}

fn an_old_run_that_succeeds_does_not_settle_the_present_run<K: Kit>() {
    use thread_v2::{Event, Status, Thread};
    let mut threads = K::Shelf::<Thread>::fenced(Fence::Locked);
    place(&mut threads, 1, Status::Active, Facts::NONE.with(OPERATION_ID, Value::Id(B)));
    for event in [Event::RunSucceeded, Event::RunFailed, Event::StopSettled, Event::RunStarted] {
        let late = threads.report(1, &answer(event, A)).unwrap();
        assert_eq!(late.reason(), Some(&Reason::Superseded("same_operation")), "{event}");
    }
    assert_eq!(row(&mut threads, 1).status, Status::Active);
    assert!(threads.report(1, &answer(Event::RunSucceeded, B)).unwrap().landed_on(Status::Idle));
}

fn a_failed_destroy_does_not_start_the_retire_clock_again<K: Kit>() {
    use examples::columns::RETIRING_SINCE;
    let mut environments = redesigned_busy_with_a::<K>();
    environments.write_aside(1, RETIRING_SINCE, Value::Time(7)).unwrap();
    let failure = answer(v2::Event::DestroyFailed, A);
    assert!(environments.report(1, &failure).unwrap().landed_on(v2::Status::Retiring));
    assert_eq!(*row(&mut environments, 1).facts.get(RETIRING_SINCE), Value::Time(7));
}
