//! The lease reconciler: what is proven dead is returned, what is still there is left alone and reported.

use agent::drivers::simulated;
use agent::faults::{Fault, FaultKind};
use agent::journal::Place;
use wire::node::{FailureReason, Lease, Phase, PhaseStatus};

use crate::crashes::succeeded;
use crate::fences::reason;
use crate::gateway::Log;
use crate::house::{House, Order, farewell, id, provision, release, user};

fn leases(log: &Log) -> Vec<Lease> {
    log.heartbeats.last().map(|last| last.leases.clone()).unwrap_or_default()
}

async fn worked(house: &House, order: &Order) -> bool {
    house.push(order);
    succeeded(&house.gateway.outcome(order.task).await)
}

async fn is_refused(house: &House, order: &Order) {
    house.push(order);
    let outcome = house.gateway.outcome(order.task).await;
    assert_eq!(reason(&outcome), Some(FailureReason::StaleFence), "{outcome:?}");
}

/// An allocation that has a lease, and nothing on the machine.
async fn forlorn(house: &House, slot: i16) -> Order {
    house.faults(&[Fault::new(FaultKind::Fail).at(Phase::ImagePrepared).times(1)]);
    let order = Order::new(id(), 1, provision(&[slot]));
    assert!(!worked(house, &order).await);
    order
}

#[tokio::test(start_paused = true)]
async fn heartbeats_say_who_has_what_by_the_books() {
    let house = House::new();
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[2, 3]));
    assert!(worked(&house, &come).await);
    let log = house.gateway.heartbeats(1).await;
    let Order { allocation, operation, .. } = come;
    let expected = Lease { allocation_id: allocation, operation_id: operation, slots: vec![2, 3] };
    assert_eq!(leases(&log), [expected]);
    assert!(worked(&house, &Order::new(allocation, 2, release(&[2, 3]))).await);
    assert_eq!(leases(&house.gateway.heartbeats(1).await), []);
    let whole = Order::new(id(), 1, user());
    assert!(worked(&house, &whole).await);
    let log = house.gateway.heartbeats(1).await;
    assert_eq!((leases(&log)[0].allocation_id, leases(&log)[0].slots.len()), (whole.allocation, 0));
    assert!(worked(&house, &Order::new(whole.allocation, 2, farewell())).await);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_over_and_gone_is_returned_and_never_begins_again() {
    let mut house = House::new();
    house.journal_bytes = 512;
    let agent = house.start();
    let dead = forlorn(&house, 0).await;
    let other = Order::new(id(), 1, provision(&[0]));
    assert!(!worked(&house, &other).await, "the place is taken");
    assert!(leases(&house.gateway.heartbeats(1).await).iter().any(|it| it.slots == [0]));
    house.gateway.end(dead.allocation);
    house.gateway.heartbeats(2).await;
    assert_eq!(leases(&house.gateway.log()), []);
    is_refused(&house, &Order::new(dead.allocation, 99, provision(&[0]))).await;
    assert!(worked(&house, &Order::new(id(), 1, provision(&[0]))).await, "the place is free");
    agent.killed().await;

    // Not after a death either, nor once the journal was rewritten many times.
    let agent = house.start();
    for _ in 0..4 {
        let come = Order::new(id(), 1, provision(&[5]));
        assert!(worked(&house, &come).await);
        assert!(worked(&house, &Order::new(come.allocation, 2, release(&[5]))).await);
    }
    agent.killed().await;
    let agent = house.start();
    is_refused(&house, &Order::new(dead.allocation, 100, release(&[0]))).await;
    // What it did before is still answered for.
    house.push(&dead.dispatched(2));
    let again = |log: &Log| log.results_of(dead.task).len() == 2;
    house.gateway.until("the recorded outcome", again).await;
    assert_eq!(leases(&house.gateway.heartbeats(1).await).len(), 1);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_over_and_still_there_is_left_and_reported_until_somebody_wiped_it() {
    let house = House::new();
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[4, 5]));
    assert!(worked(&house, &come).await);
    house.gateway.end(come.allocation);
    let log = house.gateway.heartbeats(5).await;
    let last = log.heartbeats.last().expect("there are some");
    assert_eq!((last.guests.len(), last.leases.len()), (1, 1));
    assert_eq!((house.guests(), house.residue()), (1, 2));
    let wiped = simulated::wipe(house.path(), Some(4)).expect("it is there");
    assert_eq!(wiped.guests, [come.allocation]);
    assert_eq!(wiped.places, [Place::Slot(4)]);
    let wiped = simulated::wipe(house.path(), None).expect("it is there");
    assert_eq!((wiped.guests.len(), wiped.places), (0, vec![Place::Slot(5)]));
    house.gateway.heartbeats(3).await;
    assert_eq!(leases(&house.gateway.log()), []);
    assert!(worked(&house, &Order::new(id(), 1, provision(&[4, 5]))).await);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_under_way_is_not_closed_under_its_feet() {
    let house = House::new();
    house.faults(&[Fault::new(FaultKind::Hang).at(Phase::ImagePrepared).times(1)]);
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[0]));
    house.push(&come);
    let hangs = |log: &Log| log.heard(come.task, Phase::ImagePrepared, PhaseStatus::Running);
    house.gateway.until("the phase that hangs", hangs).await;
    house.gateway.end(come.allocation);
    let log = house.gateway.heartbeats(3).await;
    assert_eq!(leases(&log).len(), 1);
    assert!(worked(&house, &Order::new(come.allocation, 2, release(&[0]))).await);
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_does_not_say_what_runs_on_it_proves_nothing_dead() {
    let house = House::new();
    let agent = house.start();
    let come = Order::new(id(), 1, provision(&[0]));
    assert!(worked(&house, &come).await);
    let path = house.path().join("world/guests").join(format!("{}.json", come.allocation));
    std::fs::write(&path, "no guest that anybody could read").expect("written");
    house.gateway.end(come.allocation);
    let log = house.gateway.heartbeats(3).await;
    let last = log.heartbeats.last().expect("there are some");
    assert_eq!(last.leases.len(), 1, "nothing is returned");
    let guest = last.guests.first().expect("what has a lease may be there");
    assert_eq!((guest.allocation_id, guest.slots.as_slice()), (come.allocation, &[0_i16][..]));
    agent.stopped().await;
}
