//! The claim for a destroy looks at the threads of the environment, and what it answers while one
//! is in the way.

use examples::columns::{
    ARCHIVED_AT, CLEANUP_REQUESTED_AT, DELETED_AT, DESTROY_ATTEMPT_ID, ENVIRONMENT_ID, MANAGED,
    PATH, STOP_REQUESTED_AT,
};
use examples::environment_v1::{Environment, Event, Status};
use examples::home::Home;
use examples::shelf::Shelf;
use examples::thread_v1;
use lifecycle::{Column, Facts, Outcome, Reason, Value};

use crate::support::{Kit, everything, on_both_stores, place, row, said};

on_both_stores!(
    a_live_thread_refuses_the_claim_until_it_is_gone,
    a_thread_asked_to_stop_refuses_the_claim_even_when_deleted,
    threads_of_other_environments_do_not_matter,
    a_refused_claim_is_not_a_lost_race_and_leaves_no_attempt_behind,
    a_claimed_environment_is_not_claimed_again,
);

const HERE: u128 = 1;
const CHILD: u128 = 11;

fn with_child<K: Kit>(environment: u128) -> K::Home {
    let mut home = K::home();
    let facts = Facts::NONE
        .with(MANAGED, Value::Bool(true))
        .with(PATH, Value::Text("/srv/space".into()))
        .with(CLEANUP_REQUESTED_AT, Value::Time(1));
    place(home.environments(), HERE, Status::Ready, facts);
    let inside = Facts::NONE.with(ENVIRONMENT_ID, Value::Id(environment));
    place::<thread_v1::Thread>(home.threads(), CHILD, thread_v1::Status::Idle, inside);
    home
}

fn claim(home: &mut impl Home) -> Outcome<Status> {
    let claim = said(Event::DestroyDispatched).with(DESTROY_ATTEMPT_ID, Value::Id(5));
    home.environments().report(HERE, &claim).unwrap()
}

fn mark(home: &mut impl Home, column: Column, value: Value) {
    home.threads().write_aside(CHILD, column, value).unwrap();
}

fn a_live_thread_refuses_the_claim_until_it_is_gone<K: Kit>() {
    for gone in [ARCHIVED_AT, DELETED_AT] {
        let mut home = with_child::<K>(HERE);
        assert_eq!(claim(&mut home).reason(), Some(&Reason::Guard("noLiveThread")));
        mark(&mut home, gone, Value::Time(1));
        assert!(claim(&mut home).landed_on(Status::Destroying), "{}", gone.name);
        let claimed = row::<Environment>(home.environments(), HERE);
        assert_eq!(*claimed.facts.get(DESTROY_ATTEMPT_ID), Value::Id(5));
    }
}

fn a_thread_asked_to_stop_refuses_the_claim_even_when_deleted<K: Kit>() {
    let mut home = with_child::<K>(HERE);
    mark(&mut home, DELETED_AT, Value::Time(1));
    mark(&mut home, STOP_REQUESTED_AT, Value::Time(1));
    assert_eq!(claim(&mut home).reason(), Some(&Reason::Guard("noPendingStop")));
    mark(&mut home, STOP_REQUESTED_AT, Value::Null);
    assert!(claim(&mut home).landed_on(Status::Destroying));
}

fn threads_of_other_environments_do_not_matter<K: Kit>() {
    let mut home = with_child::<K>(HERE + 1);
    mark(&mut home, STOP_REQUESTED_AT, Value::Time(1));
    assert!(claim(&mut home).landed_on(Status::Destroying));
}

fn a_refused_claim_is_not_a_lost_race_and_leaves_no_attempt_behind<K: Kit>() {
    let mut home = with_child::<K>(HERE);
    let before = everything::<Environment>(home.environments());
    let outcome = claim(&mut home);
    assert!(!outcome.is_retryable(), "asking again at once would not help");
    assert_eq!(everything::<Environment>(home.environments()), before);
    let remark = home.environments().remarks().unwrap().pop().unwrap();
    assert_eq!((remark.reason.as_str(), remark.name.as_deref()), ("guard", Some("noLiveThread")));
}

fn a_claimed_environment_is_not_claimed_again<K: Kit>() {
    let mut home = with_child::<K>(HERE + 1);
    assert!(claim(&mut home).is_applied());
    let second = said(Event::DestroyDispatched).with(DESTROY_ATTEMPT_ID, Value::Id(6));
    let outcome = home.environments().report(HERE, &second).unwrap();
    assert!(!outcome.is_applied(), "only who moved it may send the destroy");
    let claimed = row::<Environment>(home.environments(), HERE);
    assert_eq!(*claimed.facts.get(DESTROY_ATTEMPT_ID), Value::Id(5));
}
