//! Interruptions of many threads at once, and of one thread twice.

use examples::columns::STOP_REQUESTED_AT;
use examples::home::Home;
use examples::service::{ACKNOWLEDGED, Service};
use examples::shelf::Shelf;
use examples::thread_v1::{Event, Status, Thread};
use lifecycle::{Facts, Reason, Value, Why};

use crate::support::{Kit, everything, fresh, on_both_stores, place, row};

on_both_stores!(
    one_thread_that_moved_on_does_not_hold_up_the_interruption_of_the_rest,
    a_missing_thread_does_not_hold_up_the_interruption_of_the_rest,
    an_interruption_delivered_twice_has_its_effects_once,
    an_interruption_of_an_idle_thread_has_no_effects,
);

fn three_active<K: Kit>() -> Service<K::Home> {
    let mut home = K::home();
    for id in [1, 2, 3] {
        place::<Thread>(home.threads(), id, Status::Active, Facts::NONE);
    }
    Service::new(home)
}

fn statuses(service: &mut Service<impl Home>) -> Vec<Status> {
    let ids = service.home.threads().ids().unwrap();
    ids.into_iter().map(|id| row::<Thread>(service.home.threads(), id).status).collect()
}

fn one_thread_that_moved_on_does_not_hold_up_the_interruption_of_the_rest<K: Kit>() {
    let mut service = three_active::<K>();
    let list = service.home.threads().ids().unwrap();
    // After the list was drawn up, the second one finishes by itself.
    assert_eq!(service.ingest(2, Event::TurnCompleted, fresh()).unwrap(), ACKNOWLEDGED);

    let outcomes = service.lose_sessions(&list).unwrap();

    assert!(outcomes[0].landed_on(Status::Error) && outcomes[2].landed_on(Status::Error));
    assert_eq!(outcomes[1].reason(), Some(&Reason::Illegal(Why::Late)));
    assert_eq!(statuses(&mut service), [Status::Error, Status::Idle, Status::Error]);
}

fn a_missing_thread_does_not_hold_up_the_interruption_of_the_rest<K: Kit>() {
    let mut service = three_active::<K>();
    let outcomes = service.lose_sessions(&[404, 1, 2, 3]).unwrap();
    assert_eq!(outcomes[0].reason(), Some(&Reason::NotFound));
    assert_eq!(statuses(&mut service), [Status::Error; 3]);
}

fn an_interruption_delivered_twice_has_its_effects_once<K: Kit>() {
    let mut service = three_active::<K>();
    service.request_stop(1).unwrap();
    let delivery = fresh();
    assert_eq!(service.ingest(1, Event::TurnInterrupted, delivery).unwrap(), ACKNOWLEDGED);
    assert_eq!(service.timeline, [(1, "interrupted")]);
    let interrupted = row::<Thread>(service.home.threads(), 1);
    assert_eq!(interrupted.status, Status::Idle);
    assert!(interrupted.facts.get(STOP_REQUESTED_AT).is_null(), "the stop is acknowledged by it");

    for event_id in [delivery, fresh()] {
        assert_eq!(service.ingest(1, Event::TurnInterrupted, event_id).unwrap(), ACKNOWLEDGED);
    }
    assert_eq!(service.timeline, [(1, "interrupted")]);
}

fn an_interruption_of_an_idle_thread_has_no_effects<K: Kit>() {
    let mut service = three_active::<K>();
    assert_eq!(service.ingest(1, Event::TurnCompleted, fresh()).unwrap(), ACKNOWLEDGED);
    // A wish that came after the turn had ended is not answered by an old interruption.
    service.home.threads().write_aside(1, STOP_REQUESTED_AT, Value::Time(1)).unwrap();
    let before = everything::<Thread>(service.home.threads());
    assert_eq!(service.ingest(1, Event::TurnInterrupted, fresh()).unwrap(), ACKNOWLEDGED);
    assert_eq!(everything::<Thread>(service.home.threads()), before);
    assert!(service.timeline.is_empty());
}
