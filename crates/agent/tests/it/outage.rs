//! R26: the whole control plane is away for an hour. What was ordered is finished, and then nothing on the machine changes,
//! byte for byte, not even when the agent is started again; and what there is to tell is told once.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use uuid::Uuid;
use wire::node::{Phase, PhaseStatus, TaskKind, Work};

use crate::crashes::{effects, succeeded};
use crate::gateway::{Log, Mood};
use crate::house::{House, Order, id, provision, release, user};

async fn pass(minutes: u64) {
    let nothing = std::future::pending::<()>();
    let _ = tokio::time::timeout(Duration::from_secs(minutes * 60), nothing).await;
}

/// Every file under a folder, and what is in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = fs::read(&path).expect("a file");
            found.insert(path, bytes);
        }
    }
    found
}

fn world(house: &House) -> BTreeMap<PathBuf, Vec<u8>> {
    files(&house.path().join("world"))
}

/// Does `work` for an allocation, and waits for its end.
async fn done(house: &House, work: Work) -> Uuid {
    let order = Order::new(id(), 1, work);
    house.push(&order);
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    order.allocation
}

/// Begins `work`, until it is in that phase.
async fn begun(house: &House, order: &Order, phase: Phase) {
    house.push(order);
    let reached = |log: &Log| log.heard(order.task, phase, PhaseStatus::Running);
    house.gateway.until("the phase", reached).await;
}

#[tokio::test(start_paused = true)]
async fn r26_an_hour_without_a_control_plane_changes_nothing_on_the_machine() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let agent = house.start();
    let tenant = done(&house, provision(&[0, 1])).await;
    let leaving = done(&house, provision(&[2])).await;
    // A provision is in the middle and a release has begun when everything goes away.
    let phases = agent::tasks::phases(TaskKind::SliceProvision);
    let half = Order::new(id(), 1, provision(&[3, 4]));
    let last = Order::new(leaving, 2, release(&[2]));
    begun(&house, &half, phases[1]).await;
    begun(&house, &last, agent::tasks::phases(TaskKind::SliceRelease)[0]).await;
    let guest = house.guest(tenant);
    house.gateway.set_mood(Mood::Away);

    pass(15).await;
    assert_eq!(house.effects(half.allocation), effects(TaskKind::SliceProvision), "finished");
    let released = house.effects(leaving);
    assert!(released.ends_with(&effects(TaskKind::SliceRelease)), "{released:?}");
    let everything = files(house.path());
    pass(30).await;
    // Not a byte is written for being alone: what is kept to be told later does not grow.
    assert_eq!(files(house.path()), everything);
    let machine = world(&house);
    agent.killed().await;
    let agent = house.start();
    pass(15).await;
    assert_eq!(world(&house), machine, "an agent that begins alone changes nothing either");
    assert_eq!(house.guest(tenant), guest);

    let (before, back) = (house.gateway.log(), house.clock.now());
    assert!(before.outcome(half.task).is_none() && before.outcome(last.task).is_none());
    house.gateway.set_mood(Mood::Well);
    for order in [&half, &last] {
        assert!(succeeded(&house.gateway.outcome(order.task).await));
    }
    assert!(house.clock.now().duration_since(back) <= SignedDuration::from_secs(31));
    let log = house.gateway.heartbeats(3).await;
    let seconds = house.clock.now().duration_since(back).as_secs();
    let beats = log.heartbeats.len() - before.heartbeats.len();
    assert!(beats as i64 <= seconds / 5 + 1, "signs of life are not saved up: {beats}");
    for order in [&half, &last] {
        assert_eq!(log.results_of(order.task).len(), 1, "told once");
    }
    let leases = &log.heartbeats.last().expect("some").leases;
    let mut held: Vec<Uuid> = leases.iter().map(|lease| lease.allocation_id).collect();
    held.dedup();
    assert_eq!(held, [tenant, half.allocation]);
    assert_eq!(world(&house), machine);
    agent.stopped().await;
}

/// The same for a tenant who has the whole machine: its account and its keys.
#[tokio::test(start_paused = true)]
async fn r26_an_account_and_its_keys_outlive_an_hour_alone() {
    let mut house = House::new();
    house.machine.speed = 1.0;
    let agent = house.start();
    let tenant = done(&house, user()).await;
    // So that the agent has written down that it was heard.
    house.gateway.heartbeats(2).await;
    house.gateway.set_mood(Mood::Away);
    let everything = files(house.path());
    pass(60).await;
    assert_eq!(files(house.path()), everything);
    house.gateway.set_mood(Mood::Well);
    let log = house.gateway.heartbeats(1).await;
    let last = log.heartbeats.last().expect("one");
    assert!(last.guests.iter().any(|guest| guest.allocation_id == tenant), "{last:?}");
    agent.stopped().await;
}
