//! The writer layer: one body of tests, run on the store in memory and on SQLite.

use examples::columns::{
    ATTENTION_AT, CLEANUP_MODE, CLEANUP_REQUESTED_AT, DELETED_AT, DESTROY_ATTEMPT_ID, MANAGED,
    PARENT_ID, PATH, STOP_REQUESTED_AT, UPDATED_AT,
};
use examples::environment_v1::{self, Environment, Event as EE, Status as ES, change_kinds};
use examples::schema::Stored;
use examples::shelf::Shelf;
use examples::thread_v1::{self, Event as TE, Status as TS, Thread};
use examples::{environment_v2, thread_v2};
use lifecycle::{
    Cell, Code, Facts, Fence, OPERATION_ID, Outcome, Reason, Report, Source, Value, Why,
};

use crate::support::{
    Abort, Kit, Race, clean, dress, everything, fresh, on_both_stores, place, reporter, row, said,
    take_edge, topics,
};

on_both_stores!(
    a_legal_event_moves_the_thread_and_is_told_exactly_once,
    a_legal_event_moves_the_environment_and_is_told_exactly_once,
    an_event_joins_the_transaction_of_its_caller,
    a_caller_who_gives_up_leaves_no_trace_of_the_event,
    an_illegal_event_leaves_every_column_as_it_was_and_tells_nobody,
    a_deleted_thread_is_not_started_by_a_late_answer,
    a_thread_asked_to_stop_is_not_started_by_a_late_answer,
    a_failure_of_an_earlier_destroy_does_not_touch_the_present_one,
    an_event_for_a_row_that_is_not_there_is_not_found,
    the_second_of_two_identical_events_is_a_no_op,
    a_report_delivered_twice_is_one_report_even_after_the_row_came_back,
    a_destroy_that_settles_twice_settles_once,
    a_thread_asks_for_attention_only_where_a_person_has_to_look,
    a_claim_for_a_destroy_keeps_its_attempt_id,
    reaching_destroyed_forgets_the_intent_and_tells_of_both_changes,
    a_lost_destroy_ends_by_path_and_forgets_its_attempt,
    a_failed_destroy_restores_the_environment_and_keeps_the_wish_to_clean_up,
    the_metadata_writer_does_not_touch_the_status,
    every_cell_of_every_machine_is_written_as_the_table_says,
    every_absent_cell_of_every_machine_writes_nothing,
    the_log_replays_to_the_row_without_a_gap,
    the_end_of_a_run_may_overtake_its_beginning,
    of_two_sends_to_an_idle_thread_one_is_refused_and_told_so,
    a_stop_that_nobody_confirms_is_an_error_until_its_late_proof,
    every_step_of_a_run_is_logged_under_its_operation,
);

fn thread_in<K: Kit>(status: TS, facts: Facts) -> K::Shelf<Thread> {
    let mut threads = K::Shelf::<Thread>::fenced(Fence::Locked);
    place(&mut threads, 1, status, facts);
    threads
}

fn environment_in<K: Kit>(status: ES, facts: Facts) -> K::Shelf<Environment> {
    let mut environments = K::Shelf::<Environment>::fenced(Fence::Locked);
    place(&mut environments, 1, status, facts);
    environments
}

fn about_to_go() -> Facts {
    Facts::NONE
        .with(MANAGED, Value::Bool(true))
        .with(PATH, Value::Text("/srv/space".into()))
        .with(CLEANUP_REQUESTED_AT, Value::Time(1))
        .with(CLEANUP_MODE, Value::Text("full".into()))
}

fn destroying(attempt: u128) -> Facts {
    about_to_go().with(DESTROY_ATTEMPT_ID, Value::Id(attempt))
}

fn a_legal_event_moves_the_thread_and_is_told_exactly_once<K: Kit>() {
    let mut threads = thread_in::<K>(TS::Idle, Facts::NONE);
    let (before, told) = (row(&mut threads, 1), topics(&mut threads, 1).len());

    let outcome = threads.report(1, &said(TE::TurnDispatched)).unwrap();

    assert_eq!(outcome, Outcome::Applied { from: TS::Idle, to: TS::Active, seq: before.seq + 1 });
    let after = row(&mut threads, 1);
    assert_eq!((after.status, after.seq), (TS::Active, before.seq + 1));
    assert!(!after.facts.get(UPDATED_AT).is_null());
    assert_eq!(topics(&mut threads, 1)[told..], [thread_v1::STATUS_CHANGED]);
    let notice = threads.notices().unwrap().pop().unwrap();
    assert_eq!((notice.id, notice.seq), (1, after.seq));
}

fn a_legal_event_moves_the_environment_and_is_told_exactly_once<K: Kit>() {
    let mut environments = environment_in::<K>(ES::Provisioning, Facts::NONE);

    let outcome = environments.report(1, &said(EE::ProvisionSucceeded)).unwrap();

    assert!(outcome.landed_on(ES::Ready));
    assert_eq!(change_kinds(&outcome), [environment_v1::STATUS_CHANGED]);
    assert_eq!(row(&mut environments, 1).status, ES::Ready);
    assert_eq!(topics(&mut environments, 1), [environment_v1::STATUS_CHANGED]);
}

fn an_event_joins_the_transaction_of_its_caller<K: Kit>() {
    let mut threads = thread_in::<K>(TS::Active, Facts::NONE);
    let told = topics(&mut threads, 1).len();
    let result = threads.transacted(|threads| {
        let outcome = threads.report(1, &said(TE::TurnCompleted)).unwrap();
        threads.write_aside(1, STOP_REQUESTED_AT, Value::Null).unwrap();
        Ok(outcome)
    });
    assert!(result.unwrap().landed_on(TS::Idle));
    assert_eq!(row(&mut threads, 1).status, TS::Idle);
    assert_eq!(topics(&mut threads, 1).len(), told + 1);

    let mut environments = environment_in::<K>(ES::Provisioning, Facts::NONE);
    let result = environments.transacted(|e| Ok(e.report(1, &said(EE::ProvisionFailed)).unwrap()));
    assert!(result.unwrap().landed_on(ES::Error));
    assert_eq!(row(&mut environments, 1).status, ES::Error);
}

fn a_caller_who_gives_up_leaves_no_trace_of_the_event<K: Kit>() {
    let mut threads = thread_in::<K>(TS::Active, Facts::NONE);
    let before = everything(&mut threads);
    let report = said(TE::TurnCompleted);
    let result = threads.transacted(|threads| {
        assert!(threads.report(1, &report).unwrap().is_applied());
        Err::<(), _>(Abort)
    });
    assert_eq!(result, Err(Abort));
    assert_eq!(everything(&mut threads), before);
    assert!(threads.report(1, &report).unwrap().is_applied(), "the report was not used up");
}

fn an_illegal_event_leaves_every_column_as_it_was_and_tells_nobody<K: Kit>() {
    let mut threads = thread_in::<K>(TS::Active, Facts::NONE.with(PARENT_ID, Value::Id(9)));
    let before = everything(&mut threads);
    let outcome = threads.report(1, &said(TE::ReprovisionStarted)).unwrap();
    assert_eq!(outcome.reason(), Some(&Reason::Illegal(Why::Late)));
    assert_eq!(everything(&mut threads), before);

    let mut environments = environment_in::<K>(ES::Ready, about_to_go());
    let before = everything(&mut environments);
    let outcome = environments.report(1, &said(EE::ProvisionCancelled)).unwrap();
    assert_eq!(outcome.reason(), Some(&Reason::Illegal(Why::Bug)));
    assert_eq!(change_kinds(&outcome), [""; 0]);
    assert_eq!(everything(&mut environments), before);
}

fn a_deleted_thread_is_not_started_by_a_late_answer<K: Kit>() {
    let tombstone =
        Facts::NONE.with(DELETED_AT, Value::Time(1)).with(STOP_REQUESTED_AT, Value::Time(1));
    let mut threads = thread_in::<K>(TS::Provisioning, tombstone);
    let before = everything(&mut threads);
    let outcome = threads.report(1, &said(TE::StartSucceeded)).unwrap();
    assert_eq!(outcome.reason(), Some(&Reason::Superseded("notDeleted")));
    assert_eq!(everything(&mut threads), before);
}

fn a_thread_asked_to_stop_is_not_started_by_a_late_answer<K: Kit>() {
    let mut threads = thread_in::<K>(TS::Idle, Facts::NONE.with(STOP_REQUESTED_AT, Value::Time(1)));
    let before = everything(&mut threads);
    for event in [TE::StartSucceeded, TE::TurnStarted, TE::RuntimeObservedActive] {
        let outcome = threads.report(1, &said(event)).unwrap();
        assert_eq!(outcome.reason(), Some(&Reason::Superseded("notStopRequested")), "{event}");
    }
    assert_eq!(everything(&mut threads), before);
}

fn a_failure_of_an_earlier_destroy_does_not_touch_the_present_one<K: Kit>() {
    let mut environments = environment_in::<K>(ES::Destroying, destroying(2));
    let before = everything(&mut environments);
    let stale = said(EE::DestroyFailed).with(DESTROY_ATTEMPT_ID, Value::Id(1));
    let outcome = environments.report(1, &stale).unwrap();
    assert_eq!(outcome.reason(), Some(&Reason::Superseded("matchingDestroyAttempt")));
    assert_eq!(everything(&mut environments), before);
}

fn an_event_for_a_row_that_is_not_there_is_not_found<K: Kit>() {
    let mut threads = K::Shelf::<Thread>::fenced(Fence::Locked);
    let outcome = threads.report(404, &said(TE::TurnStarted)).unwrap();
    assert_eq!(outcome.reason(), Some(&Reason::NotFound));
    assert!(threads.ids().unwrap().is_empty());
    let mut environments = K::Shelf::<Environment>::fenced(Fence::Locked);
    let outcome = environments.report(404, &said(EE::ProvisionSucceeded)).unwrap();
    assert_eq!(outcome.reason(), Some(&Reason::NotFound));
}

fn the_second_of_two_identical_events_is_a_no_op<K: Kit>() {
    let mut threads = thread_in::<K>(TS::Active, Facts::NONE);
    assert!(threads.report(1, &said(TE::TurnCompleted)).unwrap().is_applied());
    let before = everything(&mut threads);
    let again = threads.report(1, &said(TE::TurnCompleted)).unwrap();
    assert!(matches!(again, Outcome::Duplicate(standing) if standing.status == TS::Idle));
    assert_eq!(everything(&mut threads), before);
}

fn a_report_delivered_twice_is_one_report_even_after_the_row_came_back<K: Kit>() {
    let mut threads = thread_in::<K>(TS::Active, Facts::NONE);
    let completion = said(TE::TurnCompleted);
    assert!(threads.report(1, &completion).unwrap().is_applied());
    assert!(threads.report(1, &said(TE::TurnDispatched)).unwrap().is_applied());
    let before = everything(&mut threads);
    let again = threads.report(1, &completion).unwrap();
    assert!(matches!(again, Outcome::Duplicate(standing) if standing.status == TS::Active));
    assert_eq!(everything(&mut threads), before);
}

fn a_destroy_that_settles_twice_settles_once<K: Kit>() {
    let mut environments = environment_in::<K>(ES::Destroying, destroying(2));
    assert!(environments.report(1, &said(EE::DestroySucceeded)).unwrap().is_applied());
    let before = everything(&mut environments);
    let again = environments.report(1, &said(EE::DestroySucceeded)).unwrap();
    assert!(matches!(again, Outcome::Duplicate(_)));
    assert_eq!(everything(&mut environments), before);
}

fn a_thread_asks_for_attention_only_where_a_person_has_to_look<K: Kit>() {
    let asks = |from, event, facts: Facts| {
        let mut threads = thread_in::<K>(from, facts);
        assert!(threads.report(1, &said(event)).unwrap().is_applied());
        !row(&mut threads, 1).facts.get(ATTENTION_AT).is_null()
    };
    let child = Facts::NONE.with(PARENT_ID, Value::Id(9));
    assert!(asks(TS::Active, TE::TurnCompleted, Facts::NONE), "a root thread has finished");
    assert!(!asks(TS::Active, TE::TurnCompleted, child.clone()), "its parent watches a child");
    assert!(asks(TS::Active, TE::TurnFailed, child), "a failure concerns a person, child or not");
    assert!(asks(TS::Provisioning, TE::ProvisionFailed, Facts::NONE), "so does a failed provision");
    assert!(!asks(TS::Idle, TE::TurnFailed, Facts::NONE), "nothing was running");
    assert!(!asks(TS::Provisioning, TE::TurnCompleted, Facts::NONE), "nothing was running");
}

fn a_claim_for_a_destroy_keeps_its_attempt_id<K: Kit>() {
    let mut environments = environment_in::<K>(ES::Ready, about_to_go());
    let claim = said(EE::DestroyDispatched).with(DESTROY_ATTEMPT_ID, Value::Id(5));
    assert!(environments.report(1, &claim).unwrap().landed_on(ES::Destroying));
    assert_eq!(*row(&mut environments, 1).facts.get(DESTROY_ATTEMPT_ID), Value::Id(5));
}

fn reaching_destroyed_forgets_the_intent_and_tells_of_both_changes<K: Kit>() {
    let bare = destroying(2).with(PATH, Value::Null);
    for (event, facts) in [(EE::DestroySucceeded, destroying(2)), (EE::CleanupCompleted, bare)] {
        let mut environments = environment_in::<K>(ES::Destroying, facts);
        let told = topics(&mut environments, 1).len();
        let outcome = environments.report(1, &said(event)).unwrap();
        assert!(outcome.landed_on(ES::Destroyed));
        let facts = row(&mut environments, 1).facts;
        for column in [DESTROY_ATTEMPT_ID, CLEANUP_REQUESTED_AT, CLEANUP_MODE] {
            assert!(facts.get(column).is_null(), "{}", column.name);
        }
        let both = [environment_v1::STATUS_CHANGED, environment_v1::METADATA_CHANGED];
        assert_eq!(change_kinds(&outcome), both);
        assert_eq!(topics(&mut environments, 1)[told..], both);
    }
}

fn a_lost_destroy_ends_by_path_and_forgets_its_attempt<K: Kit>() {
    let bare = destroying(2).with(PATH, Value::Null);
    for (facts, end, kept) in [(destroying(2), ES::Ready, true), (bare, ES::Destroyed, false)] {
        let mut environments = environment_in::<K>(ES::Destroying, facts);
        assert!(environments.report(1, &said(EE::DestroyLost)).unwrap().landed_on(end));
        let facts = row(&mut environments, 1).facts;
        assert!(facts.get(DESTROY_ATTEMPT_ID).is_null());
        assert_eq!(!facts.get(CLEANUP_REQUESTED_AT).is_null(), kept);
    }
}

fn a_failed_destroy_restores_the_environment_and_keeps_the_wish_to_clean_up<K: Kit>() {
    let bare = destroying(2).with(PATH, Value::Null);
    for (facts, end) in [(destroying(2), ES::Ready), (bare, ES::Error)] {
        let mut environments = environment_in::<K>(ES::Destroying, facts);
        let failure = said(EE::DestroyFailed).with(DESTROY_ATTEMPT_ID, Value::Id(2));
        let outcome = environments.report(1, &failure).unwrap();
        assert!(outcome.landed_on(end));
        assert_eq!(change_kinds(&outcome), [environment_v1::STATUS_CHANGED]);
        let facts = row(&mut environments, 1).facts;
        assert!(facts.get(DESTROY_ATTEMPT_ID).is_null());
        assert_eq!(
            *facts.get(CLEANUP_REQUESTED_AT),
            Value::Time(1),
            "so that the sweep tries again"
        );
        assert_eq!(*facts.get(CLEANUP_MODE), Value::Text("full".into()));
    }
}

fn the_metadata_writer_does_not_touch_the_status<K: Kit>() {
    let mut environments = environment_in::<K>(ES::Destroying, destroying(2));
    let (before, told) = (row(&mut environments, 1), topics(&mut environments, 1));
    environments.write_aside(1, PATH, Value::Text("/elsewhere".into())).unwrap();
    environments.write_aside(1, CLEANUP_REQUESTED_AT, Value::Null).unwrap();
    let after = row(&mut environments, 1);
    assert_eq!((after.status, after.seq), (before.status, before.seq));
    assert_eq!(*after.facts.get(PATH), Value::Text("/elsewhere".into()));
    assert_eq!(*after.facts.get(DESTROY_ATTEMPT_ID), Value::Id(2));
    assert_eq!(topics(&mut environments, 1), told);
}

fn every_cell_of_every_machine_is_written_as_the_table_says<K: Kit>() {
    fn of<K: Kit, M: Stored>() {
        let mut shelf = K::Shelf::<M>::fenced(Fence::Locked);
        for (number, edge) in M::table().edges().into_iter().enumerate() {
            let id = number as u128;
            place::<M>(&mut shelf, id, M::Status::ALL[edge.1], Facts::NONE);
            let before = row(&mut shelf, id);
            let report = take_edge::<M>(&mut shelf, id, edge);
            let after = row(&mut shelf, id);
            assert_eq!((after.status.index(), after.seq), (edge.2, before.seq + 1));
            let step = shelf.steps().unwrap().pop().unwrap();
            assert_eq!((step.id, step.seq, step.event_id), (id, after.seq, report.event_id));
            assert_eq!(step.event, report.event.code());
            assert_eq!(step.from.as_deref(), Some(before.status.code()));
            assert_eq!(
                (step.to.as_str(), step.source.as_str()),
                (after.status.code(), report.source.code())
            );
        }
    }
    of::<K, Thread>();
    of::<K, Environment>();
    of::<K, thread_v2::Thread>();
    of::<K, environment_v2::Environment>();
}

fn every_absent_cell_of_every_machine_writes_nothing<K: Kit>() {
    fn of<K: Kit, M: Stored>() {
        let table = M::table();
        let mut shelf = K::Shelf::<M>::fenced(Fence::Locked);
        for status in M::Status::ALL {
            place::<M>(&mut shelf, status.index() as u128, *status, Facts::NONE);
            let id = status.index() as u128;
            for event in M::Event::ALL {
                let Cell::Absent(why) = table.cells[event.index()][status.index()] else {
                    continue;
                };
                let (facts, payload) = clean(table, event.index(), Facts::NONE);
                dress::<M>(&mut shelf, id, &facts);
                let before = everything::<M>(&mut shelf);
                let report = Report {
                    event: *event,
                    event_id: fresh(),
                    source: reporter(table, event.index()),
                    payload,
                };
                match shelf.report(id, &report).unwrap() {
                    Outcome::Duplicate(_) => assert_eq!(why, Why::Duplicate),
                    Outcome::Refused(refusal) => assert_eq!(refusal.reason, Reason::Illegal(why)),
                    Outcome::Applied { .. } => panic!("{event} applied in {status}"),
                }
                assert_eq!(everything::<M>(&mut shelf), before);
            }
        }
    }
    of::<K, Thread>();
    of::<K, Environment>();
    of::<K, thread_v2::Thread>();
    of::<K, environment_v2::Environment>();
}

fn the_log_replays_to_the_row_without_a_gap<K: Kit>() {
    fn of<K: Kit, M: Stored>() {
        let mut shelf = K::Shelf::<M>::fenced(Fence::Locked);
        for status in M::Status::ALL {
            place::<M>(&mut shelf, status.index() as u128, *status, Facts::NONE);
        }
        let steps = shelf.steps().unwrap();
        for id in shelf.ids().unwrap() {
            let mine: Vec<_> = steps.iter().filter(|step| step.id == id).collect();
            for (at, step) in mine.iter().enumerate() {
                assert_eq!(step.seq, at as i64 + 1);
                let before = at.checked_sub(1).map(|before| mine[before].to.as_str());
                assert_eq!(step.from.as_deref(), before);
            }
            let row = row(&mut shelf, id);
            let last = mine.last().unwrap();
            assert_eq!((last.to.as_str(), last.seq), (row.status.code(), row.seq));
            let told = shelf.notices().unwrap().into_iter().filter(|notice| notice.id == id);
            let moves = mine.iter().filter(|step| step.from.is_some()).map(|step| step.seq);
            let mut told: Vec<_> = told.map(|notice| notice.seq).collect();
            told.dedup();
            assert_eq!(told, moves.collect::<Vec<_>>());
        }
    }
    of::<K, Thread>();
    of::<K, Environment>();
    of::<K, thread_v2::Thread>();
    of::<K, environment_v2::Environment>();
}

fn run(event: thread_v2::Event, by: Source, operation: u128) -> Report<thread_v2::Event> {
    Report::new(event, fresh(), by).with(OPERATION_ID, Value::Id(operation))
}

fn redesigned_in<K: Kit>(
    status: thread_v2::Status,
    operation: u128,
) -> K::Shelf<thread_v2::Thread> {
    let mut threads = K::Shelf::<thread_v2::Thread>::fenced(Fence::Locked);
    let busy = Facts::NONE.with(OPERATION_ID, Value::Id(operation));
    place(&mut threads, 1, status, busy);
    threads
}

// The cell that was once tightened away and had to come back.
fn the_end_of_a_run_may_overtake_its_beginning<K: Kit>() {
    use thread_v2::{Event, Status};
    let mut threads = redesigned_in::<K>(Status::Starting, 5);
    let end = run(Event::RunSucceeded, Source::Agent, 5);
    assert!(threads.report(1, &end).unwrap().landed_on(Status::Idle));
    let beginning = run(Event::RunStarted, Source::Agent, 5);
    let outcome = threads.report(1, &beginning).unwrap();
    assert_eq!(outcome.reason(), Some(&Reason::Illegal(Why::Late)));
    assert_eq!(row(&mut threads, 1).status, Status::Idle);
}

fn of_two_sends_to_an_idle_thread_one_is_refused_and_told_so<K: Kit>() {
    use thread_v2::{Event, Status};
    let mut threads = redesigned_in::<K>(Status::Idle, 4);
    let (first, second) =
        (run(Event::RunPreparing, Source::User, 5), run(Event::RunPreparing, Source::User, 6));
    assert!(threads.report(1, &first).unwrap().require().is_ok());
    assert!(threads.report(1, &second).unwrap().require().is_err(), "its message stays queued");
    assert!(threads.report(1, &first).unwrap().require().is_ok(), "the same send again is fine");
    assert_eq!(*row(&mut threads, 1).facts.get(OPERATION_ID), Value::Id(5));
}

fn a_stop_that_nobody_confirms_is_an_error_until_its_late_proof<K: Kit>() {
    use thread_v2::{Event, Status};
    let mut threads = redesigned_in::<K>(Status::Stopping, 5);
    let new_work = run(Event::RunPreparing, Source::User, 6);
    assert!(!threads.report(1, &new_work).unwrap().is_applied(), "no new work while stopping");
    let timed_out = run(Event::RunFailed, Source::Timer, 5);
    assert!(threads.report(1, &timed_out).unwrap().landed_on(Status::Error));
    let proof = run(Event::StopSettled, Source::Agent, 5);
    assert!(threads.report(1, &proof).unwrap().landed_on(Status::Idle));
}

fn every_step_of_a_run_is_logged_under_its_operation<K: Kit>() {
    use thread_v2::{Event, Status};
    let mut threads = redesigned_in::<K>(Status::Idle, 4);
    let begun = threads.steps().unwrap().len();
    let stop = Report::new(Event::StopRequested, fresh(), Source::User);
    let steps = [
        run(Event::RunPreparing, Source::User, 5),
        run(Event::RunStarted, Source::Agent, 5),
        stop,
        run(Event::StopSettled, Source::Agent, 5),
    ];
    for report in &steps {
        assert!(threads.report(1, report).unwrap().is_applied());
    }
    let logged = threads.steps().unwrap();
    assert!(logged[begun..].iter().all(|step| step.operation == Some(5)), "{logged:#?}");
}
