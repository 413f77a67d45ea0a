//! What a caller is told, and what is kept of a report that changed nothing.

use examples::columns::{DELETED_AT, STOP_REQUESTED_AT};
use examples::environment_v1::{Environment, Event as EE, Status as ES};
use examples::shelf::Shelf;
use examples::thread_v1::{Event as TE, Status as TS, Thread};
use lifecycle::{Facts, Fence, Reason, Standing, Value, Why};

use crate::support::{Kit, Race, on_both_stores, place, row, said};

on_both_stores!(
    require_gives_where_the_row_stands_or_an_error_with_reason_and_detail,
    require_takes_what_is_already_so_for_a_success,
    every_refusal_is_recorded_once_with_the_fields_of_a_log_line,
    what_applies_or_is_already_so_is_no_refusal,
    every_refusal_but_a_lost_race_is_acknowledged_to_its_sender,
);

fn idle_thread<K: Kit>(facts: Facts) -> K::Shelf<Thread> {
    let mut threads = K::Shelf::<Thread>::fenced(Fence::Locked);
    place(&mut threads, 1, TS::Idle, facts);
    threads
}

fn require_gives_where_the_row_stands_or_an_error_with_reason_and_detail<K: Kit>() {
    let mut threads = idle_thread::<K>(Facts::NONE);
    let seq = row(&mut threads, 1).seq;
    let standing = threads.report(1, &said(TE::TurnDispatched)).unwrap().require();
    assert_eq!(standing, Ok(Standing { status: TS::Active, seq: seq + 1 }));
    let refusal = threads.report(1, &said(TE::ReprovisionStarted)).unwrap().require().unwrap_err();
    assert_eq!(refusal.reason, Reason::Illegal(Why::Late));
    assert_eq!(refusal.status, Some(TS::Active));
    assert_eq!(
        refusal.to_string(),
        "reprovision.started comes too late for this thread_v1 in status active"
    );

    let mut environments = K::Shelf::<Environment>::fenced(Fence::Locked);
    place(&mut environments, 1, ES::Provisioning, Facts::NONE);
    let standing = environments.report(1, &said(EE::ProvisionSucceeded)).unwrap().require();
    assert_eq!(standing.unwrap().status, ES::Ready);
    let refusal =
        environments.report(1, &said(EE::DestroyDispatched)).unwrap().require().unwrap_err();
    assert_eq!(refusal.reason, Reason::Superseded("managed"));
    assert!(refusal.to_string().contains("managed does not hold"), "{refusal}");
}

fn require_takes_what_is_already_so_for_a_success<K: Kit>() {
    let mut threads = idle_thread::<K>(Facts::NONE);
    assert!(threads.report(1, &said(TE::TurnDispatched)).unwrap().is_applied());
    let again = threads.report(1, &said(TE::StartSucceeded)).unwrap().require();
    assert_eq!(again.unwrap().status, TS::Active);
}

fn every_refusal_is_recorded_once_with_the_fields_of_a_log_line<K: Kit>() {
    let mut threads = idle_thread::<K>(Facts::NONE.with(STOP_REQUESTED_AT, Value::Time(1)));
    let reports = [
        (1, said(TE::StartSucceeded), "superseded", Some("notStopRequested"), Some("idle")),
        (1, said(TE::SessionLost), "late", None, Some("idle")),
        (404, said(TE::SessionLost), "not_found", None, None),
    ];
    for (id, report, ..) in &reports {
        assert!(!threads.report(*id, report).unwrap().is_applied());
    }
    let remarks = threads.remarks().unwrap();
    assert_eq!(remarks.len(), reports.len());
    for (remark, (id, report, reason, name, status)) in remarks.iter().zip(&reports) {
        assert_eq!((remark.id, remark.event_id), (*id, report.event_id));
        assert_eq!(remark.event, report.event.to_string());
        assert_eq!((remark.reason.as_str(), remark.name.as_deref()), (*reason, *name));
        assert_eq!(remark.status.as_deref(), *status);
        assert!(remark.detail.starts_with(&remark.event), "{}", remark.detail);
    }
}

fn what_applies_or_is_already_so_is_no_refusal<K: Kit>() {
    let mut threads = idle_thread::<K>(Facts::NONE);
    let report = said(TE::TurnDispatched);
    assert!(threads.report(1, &report).unwrap().is_applied());
    for repeated in [&report, &said(TE::TurnStarted)] {
        assert!(threads.report(1, repeated).unwrap().require().is_ok());
    }
    assert!(threads.remarks().unwrap().is_empty());
}

fn every_refusal_but_a_lost_race_is_acknowledged_to_its_sender<K: Kit>() {
    let mut threads = idle_thread::<K>(Facts::NONE.with(DELETED_AT, Value::Time(1)));
    assert!(!threads.report(1, &said(TE::StartSucceeded)).unwrap().is_retryable());
    assert!(!threads.report(1, &said(TE::SessionLost)).unwrap().is_retryable());
    assert!(!threads.report(404, &said(TE::SessionLost)).unwrap().is_retryable());
    let lost = threads.interleaved(1, &said(TE::TurnFailed), |threads| {
        assert!(threads.report(1, &said(TE::TurnDispatched)).unwrap().is_applied());
    });
    assert!(lost.is_retryable());
}
