//! Genuine races: somebody else writes between a writer's load and its write.

use examples::columns::{
    CLEANUP_REQUESTED_AT, DESTROY_ATTEMPT_ID, MANAGED, PATH, STOP_REQUESTED_AT,
};
use examples::environment_v1::{Environment, Event as EE, Status as ES};
use examples::shelf::Shelf;
use examples::thread_v1::{Event as TE, Status as TS, Thread};
use examples::{environment_v2, thread_v2};
use lifecycle::{Code, Facts, Fence, Memory, OPERATION_ID, Outcome, Reason, Report, Source, Value};

use crate::support::{Kit, Race, fresh, on_both_stores, place, row, said, topics};

on_both_stores!(
    a_thread_that_moved_meanwhile_is_a_conflict_and_keeps_the_other_move,
    an_environment_that_moved_meanwhile_is_a_conflict_and_keeps_the_other_move,
    a_report_that_lost_a_race_can_be_made_again,
    a_status_only_fence_starts_a_thread_that_was_asked_to_stop_meanwhile,
    our_fence_does_not_start_a_thread_that_was_asked_to_stop_meanwhile,
    a_status_only_fence_destroys_what_was_wanted_back_meanwhile,
    our_fence_does_not_destroy_what_was_wanted_back_meanwhile,
    a_stop_meanwhile_is_a_status_in_the_redesign_so_even_the_status_sees_it,
);

const ALL_FENCES: [Fence; 3] = [Fence::StatusOnly, Fence::Checked, Fence::Locked];

fn a_thread_that_moved_meanwhile_is_a_conflict_and_keeps_the_other_move<K: Kit>() {
    for fence in ALL_FENCES {
        let mut threads = K::Shelf::<Thread>::fenced(fence);
        place(&mut threads, 1, TS::Active, Facts::NONE);
        let (seq, told) = (row(&mut threads, 1).seq, topics(&mut threads, 1).len());
        let outcome = threads.interleaved(1, &said(TE::TurnCompleted), |threads| {
            assert!(threads.report(1, &said(TE::TurnFailed)).unwrap().landed_on(TS::Error));
        });
        assert_eq!(outcome.reason(), Some(&Reason::Conflict), "{fence:?}");
        let after = row(&mut threads, 1);
        assert_eq!((after.status, after.seq), (TS::Error, seq + 1));
        assert_eq!(topics(&mut threads, 1).len(), told + 1, "only the move that happened is told");
        assert_eq!(threads.steps().unwrap().pop().unwrap().event, "turn.failed");
    }
}

fn an_environment_that_moved_meanwhile_is_a_conflict_and_keeps_the_other_move<K: Kit>() {
    for fence in ALL_FENCES {
        let mut environments = K::Shelf::<Environment>::fenced(fence);
        place(&mut environments, 1, ES::Ready, about_to_go());
        let claim = said(EE::DestroyDispatched).with(DESTROY_ATTEMPT_ID, Value::Id(5));
        let outcome = environments.interleaved(1, &claim, |environments| {
            let revived = environments.report(1, &said(EE::ProvisionRequested)).unwrap();
            assert!(revived.landed_on(ES::Provisioning));
        });
        assert_eq!(outcome.reason(), Some(&Reason::Conflict), "{fence:?}");
        let after = row(&mut environments, 1);
        assert_eq!(after.status, ES::Provisioning);
        assert!(after.facts.get(DESTROY_ATTEMPT_ID).is_null(), "the claim left nothing behind");
    }
}

fn a_report_that_lost_a_race_can_be_made_again<K: Kit>() {
    let mut threads = K::Shelf::<Thread>::fenced(Fence::Checked);
    place(&mut threads, 1, TS::Provisioning, Facts::NONE);
    let report = said(TE::TurnInterrupted);
    let outcome = threads.interleaved(1, &report, |threads| {
        assert!(threads.report(1, &said(TE::StartSucceeded)).unwrap().is_applied());
    });
    assert!(outcome.is_retryable());
    let again = threads.report(1, &report).unwrap();
    assert!(matches!(again, Outcome::Applied { from: TS::Active, to: TS::Idle, .. }));
}

fn about_to_go() -> Facts {
    Facts::NONE
        .with(MANAGED, Value::Bool(true))
        .with(PATH, Value::Text("/srv/space".into()))
        .with(CLEANUP_REQUESTED_AT, Value::Time(1))
}

/// A start is answered, and between the load and the write somebody asks the thread to stop.
fn start_answered_while_a_stop_is_requested<K: Kit>(
    fence: Fence,
) -> (K::Shelf<Thread>, Outcome<TS>) {
    let mut threads = K::Shelf::<Thread>::fenced(fence);
    place(&mut threads, 1, TS::Idle, Facts::NONE);
    let outcome = threads.interleaved(1, &said(TE::StartSucceeded), |threads| {
        threads.write_aside(1, STOP_REQUESTED_AT, Value::Time(1)).unwrap();
    });
    (threads, outcome)
}

// The first hole: the status is what it was, so a fence that looks at nothing else lets the late
// start through.
fn a_status_only_fence_starts_a_thread_that_was_asked_to_stop_meanwhile<K: Kit>() {
    let (mut threads, outcome) = start_answered_while_a_stop_is_requested::<K>(Fence::StatusOnly);
    assert!(outcome.landed_on(TS::Active));
    let after = row(&mut threads, 1);
    assert_eq!(after.status, TS::Active, "it runs");
    assert!(!after.facts.get(STOP_REQUESTED_AT).is_null(), "although it was asked to stop");
}

fn our_fence_does_not_start_a_thread_that_was_asked_to_stop_meanwhile<K: Kit>() {
    let (mut threads, outcome) = start_answered_while_a_stop_is_requested::<K>(Fence::Checked);
    assert_eq!(outcome.reason(), Some(&Reason::Conflict));
    let after = row(&mut threads, 1);
    assert_eq!(after.status, TS::Idle);
    assert!(!after.facts.get(STOP_REQUESTED_AT).is_null());
    let again = threads.report(1, &said(TE::StartSucceeded)).unwrap();
    assert_eq!(again.reason(), Some(&Reason::Superseded("notStopRequested")));
}

// Behind a lock the request to stop waits its turn and is then seen by whoever stops active
// threads.
#[test]
fn behind_a_lock_the_request_to_stop_comes_after_the_start_and_is_not_lost() {
    let mut threads: Memory<Thread> = Race::fenced(Fence::Locked);
    place(&mut threads, 1, TS::Idle, Facts::NONE);
    let outcome = threads.interleaved(1, &said(TE::StartSucceeded), |threads| {
        threads.write_aside(1, STOP_REQUESTED_AT, Value::Time(1));
        assert!(threads.row(1).unwrap().facts.get(STOP_REQUESTED_AT).is_null(), "it waits");
    });
    assert!(outcome.landed_on(TS::Active));
    assert!(!row(&mut threads, 1).facts.get(STOP_REQUESTED_AT).is_null());
    assert!(threads.apply(1, &said(TE::StopCompleted)).landed_on(TS::Idle));
}

fn claim_while_the_clean_up_is_called_off<K: Kit>(
    fence: Fence,
) -> (K::Shelf<Environment>, Outcome<ES>) {
    let mut environments = K::Shelf::<Environment>::fenced(fence);
    place(&mut environments, 1, ES::Ready, about_to_go());
    let claim = said(EE::DestroyDispatched).with(DESTROY_ATTEMPT_ID, Value::Id(5));
    let outcome = environments.interleaved(1, &claim, |environments| {
        environments.write_aside(1, CLEANUP_REQUESTED_AT, Value::Null).unwrap();
    });
    (environments, outcome)
}

fn a_status_only_fence_destroys_what_was_wanted_back_meanwhile<K: Kit>() {
    let (mut environments, outcome) =
        claim_while_the_clean_up_is_called_off::<K>(Fence::StatusOnly);
    assert!(outcome.landed_on(ES::Destroying));
    assert!(row(&mut environments, 1).facts.get(CLEANUP_REQUESTED_AT).is_null());
}

fn our_fence_does_not_destroy_what_was_wanted_back_meanwhile<K: Kit>() {
    let (mut environments, outcome) = claim_while_the_clean_up_is_called_off::<K>(Fence::Checked);
    assert_eq!(outcome.reason(), Some(&Reason::Conflict));
    assert_eq!(row(&mut environments, 1).status, ES::Ready);
    let again = said(EE::DestroyDispatched).with(DESTROY_ATTEMPT_ID, Value::Id(6));
    let again = environments.report(1, &again).unwrap();
    assert_eq!(again.reason(), Some(&Reason::Superseded("cleanupRequested")));
}

fn a_stop_meanwhile_is_a_status_in_the_redesign_so_even_the_status_sees_it<K: Kit>() {
    use environment_v2::{Environment, Event as EE, Status as ES};
    use thread_v2::{Event as TE, Status as TS, Thread};
    for fence in ALL_FENCES {
        let busy = Facts::NONE.with(OPERATION_ID, Value::Id(5));
        let mut threads = K::Shelf::<Thread>::fenced(fence);
        place(&mut threads, 1, TS::Starting, busy.clone());
        let started =
            Report::new(TE::RunStarted, fresh(), Source::Agent).with(OPERATION_ID, Value::Id(5));
        let outcome = threads.interleaved(1, &started, |threads| {
            assert!(threads.report(1, &said(TE::StopRequested)).unwrap().is_applied());
        });
        assert_eq!(outcome.reason(), Some(&Reason::Conflict), "{fence:?}");
        assert_eq!(row(&mut threads, 1).status, TS::Stopping);

        let mut environments = K::Shelf::<Environment>::fenced(fence);
        let managed = busy.with(MANAGED, Value::Bool(true));
        place(&mut environments, 1, ES::Ready, managed);
        let again = said(EE::ProvisionRequested).with(OPERATION_ID, Value::Id(6));
        let outcome = environments.interleaved(1, &again, |environments| {
            assert!(environments.report(1, &said(EE::RetireRequested)).unwrap().is_applied());
        });
        assert_eq!(outcome.reason(), Some(&Reason::Conflict), "{fence:?}");
        assert_eq!(row(&mut environments, 1).status.code(), "retiring");
    }
}
