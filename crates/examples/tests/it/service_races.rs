//! The five races of the service, with a daemon whose answers come late, twice or never.

use examples::columns::{
    ARCHIVED_AT, CLEANUP_REQUESTED_AT, DELETED_AT, DESTROY_ATTEMPT_ID, ENVIRONMENT_ID, MANAGED,
    PATH, STOP_REQUESTED_AT,
};
use examples::environment_v1::{Environment, Status as ES};
use examples::home::Home;
use examples::service::{ACKNOWLEDGED, Answer, Command, Service, Work};
use examples::shelf::Shelf;
use examples::thread_v1::{Event as TE, Status as TS, Thread};
use lifecycle::{Facts, Value};

use crate::support::{Kit, everything, fresh, on_both_stores, place, row};

on_both_stores!(
    a_start_that_succeeds_while_the_stop_is_under_way_does_not_wake_the_thread,
    a_provision_that_succeeds_after_the_project_is_gone_finalises_the_thread_and_destroys_the_workspace,
    a_turn_completion_delivered_again_to_a_settled_thread_is_acknowledged_and_changes_nothing,
    a_stop_finalised_twice_happens_once,
    a_destroy_that_succeeds_after_the_environment_was_revived_touches_nothing,
    a_stop_whose_answer_never_comes_keeps_its_wish_on_the_row,
    a_destroy_that_succeeds_in_time_is_told_to_the_threads_that_lost_their_workspace,
    two_sweeps_send_one_destroy_and_a_failed_one_is_sent_again,
    a_clean_up_without_a_workspace_needs_no_daemon,
);

const THREAD: u128 = 11;
const ENVIRONMENT: u128 = 1;

fn house<K: Kit>(environment: (ES, Facts), thread: (TS, Facts)) -> Service<K::Home> {
    let mut home = K::home();
    let managed = environment.1.with(MANAGED, Value::Bool(true));
    place(home.environments(), ENVIRONMENT, environment.0, managed);
    let inside = thread.1.with(ENVIRONMENT_ID, Value::Id(ENVIRONMENT));
    place(home.threads(), THREAD, thread.0, inside);
    Service::new(home)
}

fn on_disk() -> Facts {
    Facts::NONE.with(PATH, Value::Text("/srv/space".into()))
}

fn snapshot(service: &mut Service<impl Home>) -> String {
    let threads = everything::<Thread>(service.home.threads());
    let environments = everything::<Environment>(service.home.environments());
    format!("{threads}\n{environments}\n{:?}\n{}", service.timeline, service.daemon.waiting())
}

fn a_start_that_succeeds_while_the_stop_is_under_way_does_not_wake_the_thread<K: Kit>() {
    let mut service = house::<K>((ES::Ready, on_disk()), (TS::Idle, Facts::NONE));
    service.request_start(THREAD, false).unwrap();
    service.request_stop(THREAD).unwrap();
    let (start, stop) = (service.daemon.take().unwrap(), service.daemon.take().unwrap());

    service.settle(&start, &Answer::Done).unwrap();
    let thread = row::<Thread>(service.home.threads(), THREAD);
    assert_eq!(thread.status, TS::Idle);
    assert!(!thread.facts.get(STOP_REQUESTED_AT).is_null(), "the wish is kept until it is met");
    let remark = service.home.threads().remarks().unwrap().pop().unwrap();
    assert_eq!(remark.name.as_deref(), Some("notStopRequested"));

    service.settle(&stop, &Answer::Done).unwrap();
    let thread = row::<Thread>(service.home.threads(), THREAD);
    assert_eq!(thread.status, TS::Idle);
    assert!(thread.facts.get(STOP_REQUESTED_AT).is_null());
    assert!(!service.is_under_way(Work::Stop, THREAD));
}

fn a_provision_that_succeeds_after_the_project_is_gone_finalises_the_thread_and_destroys_the_workspace<
    K: Kit,
>() {
    let mut service = house::<K>((ES::Provisioning, Facts::NONE), (TS::Provisioning, Facts::NONE));
    service.provision(ENVIRONMENT);
    let provision = service.daemon.take().unwrap();
    service.delete_project(ENVIRONMENT).unwrap();

    service.settle(&provision, &Answer::MadeAt("/srv/orphan")).unwrap();

    let thread = row::<Thread>(service.home.threads(), THREAD);
    assert_eq!(thread.status, TS::Idle, "finalised, not activated");
    assert!(!thread.facts.get(DELETED_AT).is_null());
    let environment = row::<Environment>(service.home.environments(), ENVIRONMENT);
    assert_eq!(environment.status, ES::Destroying);
    let Some(Command::Destroy { environment: gone, attempt }) = service.daemon.take() else {
        panic!("nobody destroys the orphan")
    };
    assert_eq!(gone, ENVIRONMENT);
    assert_eq!(*environment.facts.get(DESTROY_ATTEMPT_ID), Value::Id(attempt));
    assert_eq!(service.daemon.take(), None, "above all, no start");
}

fn a_turn_completion_delivered_again_to_a_settled_thread_is_acknowledged_and_changes_nothing<
    K: Kit,
>() {
    let mut service = house::<K>((ES::Ready, on_disk()), (TS::Active, Facts::NONE));
    let delivery = fresh();
    assert_eq!(service.ingest(THREAD, TE::TurnCompleted, delivery).unwrap(), ACKNOWLEDGED);
    assert_eq!(row::<Thread>(service.home.threads(), THREAD).status, TS::Idle);
    let before = snapshot(&mut service);
    for event_id in [delivery, fresh()] {
        assert_eq!(service.ingest(THREAD, TE::TurnCompleted, event_id).unwrap(), ACKNOWLEDGED);
        assert_eq!(snapshot(&mut service), before);
    }
}

fn a_stop_finalised_twice_happens_once<K: Kit>() {
    let mut service = house::<K>((ES::Ready, on_disk()), (TS::Active, Facts::NONE));
    service.request_stop(THREAD).unwrap();
    let stop = service.daemon.take().unwrap();
    service.settle(&stop, &Answer::Done).unwrap();
    let thread = row::<Thread>(service.home.threads(), THREAD);
    assert_eq!(thread.status, TS::Idle);
    assert!(thread.facts.get(STOP_REQUESTED_AT).is_null());
    assert_eq!(service.timeline, [(THREAD, "stopped")]);

    let before = snapshot(&mut service);
    service.settle(&stop, &Answer::Done).unwrap();
    service.finalise(THREAD).unwrap();
    assert_eq!(snapshot(&mut service), before);
}

fn a_destroy_that_succeeds_after_the_environment_was_revived_touches_nothing<K: Kit>() {
    let retired = on_disk().with(CLEANUP_REQUESTED_AT, Value::Time(1));
    let archived = Facts::NONE.with(ARCHIVED_AT, Value::Time(1));
    let mut service = house::<K>((ES::Ready, retired), (TS::Idle, archived));
    service.clean_up(ENVIRONMENT).unwrap();
    let destroy = service.daemon.take().unwrap();
    // Somebody takes the thread out of the archive and wants the environment back.
    service.home.threads().write_aside(THREAD, ARCHIVED_AT, Value::Null).unwrap();
    service.revive(ENVIRONMENT).unwrap();
    let provision = service.daemon.take().unwrap();
    service
        .home
        .environments()
        .write_aside(ENVIRONMENT, CLEANUP_REQUESTED_AT, Value::Null)
        .unwrap();
    service.settle(&provision, &Answer::MadeAt("/srv/again")).unwrap();
    let start = service.daemon.take().unwrap();
    service.settle(&start, &Answer::Done).unwrap();
    assert_eq!(row::<Thread>(service.home.threads(), THREAD).status, TS::Active);

    let before = snapshot(&mut service);
    service.settle(&destroy, &Answer::Done).unwrap();
    assert_eq!(snapshot(&mut service), before);
    assert_eq!(row::<Environment>(service.home.environments(), ENVIRONMENT).status, ES::Ready);
}

fn a_stop_whose_answer_never_comes_keeps_its_wish_on_the_row<K: Kit>() {
    let mut service = house::<K>((ES::Ready, on_disk()), (TS::Active, Facts::NONE));
    service.request_stop(THREAD).unwrap();
    // The process dies with its permits; the next one finds the wish and asks again.
    let mut next = Service::new(service.home);
    let thread = row::<Thread>(next.home.threads(), THREAD);
    assert!(!thread.facts.get(STOP_REQUESTED_AT).is_null());
    next.request_stop(THREAD).unwrap();
    let stop = next.daemon.take().unwrap();
    next.settle(&stop, &Answer::Done).unwrap();
    assert_eq!(row::<Thread>(next.home.threads(), THREAD).status, TS::Idle);
}

fn a_destroy_that_succeeds_in_time_is_told_to_the_threads_that_lost_their_workspace<K: Kit>() {
    let archived = Facts::NONE.with(ARCHIVED_AT, Value::Time(1));
    let retired = on_disk().with(CLEANUP_REQUESTED_AT, Value::Time(1));
    let mut service = house::<K>((ES::Ready, retired), (TS::Idle, archived));
    service.clean_up(ENVIRONMENT).unwrap();
    let destroy = service.daemon.take().unwrap();
    let live = Facts::NONE.with(ENVIRONMENT_ID, Value::Id(ENVIRONMENT));
    place(service.home.threads(), THREAD + 1, TS::Active, live);

    service.settle(&destroy, &Answer::Done).unwrap();

    assert_eq!(row::<Environment>(service.home.environments(), ENVIRONMENT).status, ES::Destroyed);
    assert_eq!(row::<Thread>(service.home.threads(), THREAD).status, TS::Idle, "it is put aside");
    assert_eq!(row::<Thread>(service.home.threads(), THREAD + 1).status, TS::Error);
}

fn two_sweeps_send_one_destroy_and_a_failed_one_is_sent_again<K: Kit>() {
    let archived = Facts::NONE.with(ARCHIVED_AT, Value::Time(1));
    let retired = on_disk().with(CLEANUP_REQUESTED_AT, Value::Time(1));
    let mut service = house::<K>((ES::Ready, retired), (TS::Idle, archived));
    service.clean_up(ENVIRONMENT).unwrap();
    service.clean_up(ENVIRONMENT).unwrap();
    let first = service.daemon.take().unwrap();
    assert_eq!(service.daemon.take(), None, "only who claimed it may send");

    service.settle(&first, &Answer::Failed).unwrap();
    service.clean_up(ENVIRONMENT).unwrap();
    let second = service.daemon.take().unwrap();
    assert_ne!(first, second, "another attempt has another id");
    service.settle(&first, &Answer::Failed).unwrap();
    let environment = row::<Environment>(service.home.environments(), ENVIRONMENT);
    assert_eq!(
        environment.status,
        ES::Destroying,
        "the old failure, come again, is not the new one's"
    );
}

fn a_clean_up_without_a_workspace_needs_no_daemon<K: Kit>() {
    let archived = Facts::NONE.with(ARCHIVED_AT, Value::Time(1));
    let mut service = house::<K>((ES::Error, Facts::NONE), (TS::Idle, archived));
    service.request_clean_up(ENVIRONMENT).unwrap();
    service.clean_up(ENVIRONMENT).unwrap();
    assert_eq!(row::<Environment>(service.home.environments(), ENVIRONMENT).status, ES::Destroyed);
    assert_eq!(service.daemon.take(), None);
}
