//! Work that a process does once at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use examples::service::{Command, Service, Work};
use lifecycle::InFlight;

use crate::support::{InMemory, Kit};

#[test]
fn a_claim_is_refused_while_it_is_held_and_free_when_the_permit_is_gone() {
    let in_flight = InFlight::new();
    let permit = in_flight.claim((Work::Stop, 1)).unwrap();
    assert!(in_flight.claim((Work::Stop, 1)).is_none());
    drop(permit);
    assert!(in_flight.claim((Work::Stop, 1)).is_some());
}

#[test]
fn kinds_and_threads_are_independent() {
    let in_flight = InFlight::new();
    let _start = in_flight.claim((Work::Start, 1)).unwrap();
    let _stop = in_flight.claim((Work::Stop, 1)).unwrap();
    let _title = in_flight.claim((Work::TitleSync, 1)).unwrap();
    let _other = in_flight.claim((Work::Start, 2)).unwrap();
    assert!(in_flight.claim((Work::Start, 1)).is_none());
}

#[test]
fn asking_does_not_claim() {
    let in_flight = InFlight::new();
    assert!(!in_flight.is_held(&(Work::Start, 1)));
    assert!(!in_flight.is_held(&(Work::Start, 1)));
    let _permit = in_flight.claim((Work::Start, 1)).unwrap();
    assert!(in_flight.is_held(&(Work::Start, 1)));
}

#[test]
fn a_panic_gives_the_claim_back() {
    let in_flight = InFlight::new();
    let broken = catch_unwind(AssertUnwindSafe(|| {
        let _permit = in_flight.claim((Work::Start, 1)).unwrap();
        panic!("the work breaks");
    }));
    assert!(broken.is_err());
    assert!(!in_flight.is_held(&(Work::Start, 1)));
}

#[test]
fn a_start_is_sent_once_until_it_is_answered_and_its_title_goes_with_it() {
    let mut service = Service::new(InMemory::home());
    service.request_start(1, true).unwrap();
    service.request_start(1, true).unwrap();
    assert_eq!(service.daemon.waiting(), 1);
    assert!(service.is_under_way(Work::Start, 1) && service.is_under_way(Work::TitleSync, 1));

    let start = service.daemon.take().unwrap();
    service.settle(&start, &examples::service::Answer::Failed).unwrap();
    assert!(!service.is_under_way(Work::Start, 1) && !service.is_under_way(Work::TitleSync, 1));
    service.request_start(1, false).unwrap();
    assert_eq!(service.daemon.take(), Some(Command::Start { thread: 1 }));
}

#[test]
fn a_stop_is_sent_once_until_it_is_answered() {
    let mut service = Service::new(InMemory::home());
    service.request_stop(1).unwrap();
    service.request_stop(1).unwrap();
    assert_eq!(service.daemon.waiting(), 1);
}
