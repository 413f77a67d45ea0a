//! What the journal keeps through torn lines, damage and compaction.

use agent::Error;
use agent::journal::{Beginning, COMPACT_BYTES, Ending, Journal, Place, Standing};
use agent::verify::Accepted;
use uuid::Uuid;
use wire::Coded;
use wire::node::{Access, CleanupProof, FailureReason, TaskOutcome};

use crate::crashes::succeeded;
use crate::house::{House, Order, id, provision, release};

const COMPLETE: CleanupProof =
    CleanupProof { released: true, hard_stopped: false, wiped: true, leases_released: true };

fn accepted(house: &House, order: &Order) -> Accepted {
    Accepted::read(&house.sign(order).envelope).expect("it is one")
}

async fn open(house: &House, bytes: u64) -> Result<Journal, Error> {
    Journal::open(house.path(), house.clock.clone(), bytes).await
}

async fn begin(journal: &Journal, house: &House, order: &Order) -> Beginning {
    journal.begin(&accepted(house, order), None).await.expect("it can be written")
}

async fn finish(journal: &Journal, task: Uuid, outcome: TaskOutcome) {
    let ending = Ending { last: None, failed: None, outcome };
    journal.finish(task, ending).await.expect("it can be written");
}

fn length(house: &House) -> u64 {
    std::fs::metadata(house.path().join("journal")).expect("there is one").len()
}

#[tokio::test(start_paused = true)]
async fn a_torn_last_line_is_dropped_and_everything_before_it_kept() {
    let house = House::new();
    let order = Order::new(id(), 4, provision(&[0]));
    let journal = open(&house, COMPACT_BYTES).await.expect("it opens");
    assert!(matches!(begin(&journal, &house, &order).await, Beginning::Begun(_)));
    let whole = length(&house);
    finish(&journal, order.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
    drop(journal);
    let path = house.path().join("journal");
    let bytes = std::fs::read(&path).expect("it can be read");
    for end in [bytes.len() - 1, whole as usize + 1, whole as usize + 20] {
        std::fs::write(&path, &bytes[..end]).expect("it can be written");
        let journal = open(&house, COMPACT_BYTES).await.expect("it opens");
        let entry = journal.find(order.task).expect("it was begun");
        assert_eq!(entry.standing, Standing::Begun);
        assert_eq!(length(&house), whole);
        // What is written next stands on a line of its own.
        finish(&journal, order.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
        drop(journal);
        let journal = open(&house, COMPACT_BYTES).await.expect("it opens");
        assert!(journal.find(order.task).expect("it was begun").outcome().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_line_before_the_last_is_not_passed_over() {
    let house = House::new();
    let order = Order::new(id(), 4, provision(&[0]));
    let journal = open(&house, COMPACT_BYTES).await.expect("it opens");
    begin(&journal, &house, &order).await;
    finish(&journal, order.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
    drop(journal);
    let path = house.path().join("journal");
    let mut bytes = std::fs::read(&path).expect("it can be read");
    bytes[40] ^= 1;
    std::fs::write(&path, &bytes).expect("it can be written");
    let opened = open(&house, COMPACT_BYTES).await;
    assert!(matches!(opened, Err(Error::Journal { line: 1, .. })), "{opened:?}");
}

#[tokio::test(start_paused = true)]
async fn compaction_keeps_fences_leases_and_what_is_not_over() {
    let house = House::new();
    let journal = open(&house, 4096).await.expect("it opens");
    let held = Order::new(id(), 7, provision(&[7]));
    begin(&journal, &house, &held).await;
    let tenant = Order::new(id(), 2, provision(&[6]));
    begin(&journal, &house, &tenant).await;
    let access = Access { host: "localhost".to_owned(), port: 22, user: "berth".to_owned() };
    finish(&journal, tenant.task, TaskOutcome::Provisioned { access }).await;
    journal.acknowledge(tenant.task).await.expect("it can be written");
    let gone = Order::new(id(), 9, release(&[0]));
    begin(&journal, &house, &gone).await;
    finish(&journal, gone.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
    journal.acknowledge(gone.task).await.expect("it can be written");
    tokio::time::advance(std::time::Duration::from_secs(3600)).await;
    for _ in 0..40 {
        let order = Order::new(id(), 1, release(&[1]));
        begin(&journal, &house, &order).await;
        finish(&journal, order.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
        journal.acknowledge(order.task).await.expect("it can be written");
        tokio::time::advance(std::time::Duration::from_secs(3600)).await;
    }
    drop(journal);
    assert!(length(&house) < 16_384, "{}", length(&house));
    let journal = open(&house, 4096).await.expect("it opens");
    assert!(journal.find(gone.task).is_none(), "it was compacted away");
    assert_eq!(journal.mark(gone.allocation).map(|mark| mark.fence), Some(9));
    let older = Order { fence: 8, ..Order::new(gone.allocation, 8, provision(&[0])) };
    assert!(matches!(begin(&journal, &house, &older).await, Beginning::Stale(_)));
    // Its own task, signed anew for another dispatch, is known to have been begun.
    let same = gone.dispatched(5);
    assert!(matches!(begin(&journal, &house, &same).await, Beginning::Stale(_)));
    let entry = journal.find(held.task).expect("it is not over");
    assert_eq!((entry.standing, entry.leases), (Standing::Begun, vec![Place::Slot(7)]));
    let places: Vec<Place> = journal.leases().into_iter().map(|(place, _)| place).collect();
    assert_eq!(places, [Place::Slot(6), Place::Slot(7)]);
    assert!(journal.find(tenant.task).is_none(), "its task is over, its lease is not");
}

#[tokio::test(start_paused = true)]
async fn compaction_does_not_bring_back_a_lease_that_was_returned() {
    let house = House::new();
    let journal = open(&house, 1024).await.expect("it opens");
    let (low, high) = (id(), id());
    let access = Access { host: "localhost".to_owned(), port: 22, user: "berth".to_owned() };
    let come = Order { task: high, ..Order::new(id(), 1, provision(&[2])) };
    let go = Order { task: low, ..Order::new(come.allocation, 2, release(&[2])) };
    begin(&journal, &house, &come).await;
    finish(&journal, come.task, TaskOutcome::Provisioned { access }).await;
    begin(&journal, &house, &go).await;
    finish(&journal, go.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
    assert_eq!(journal.leases(), []);
    // Enough to have the journal rewritten after that.
    for _ in 0..12 {
        let other = Order::new(id(), 1, release(&[5]));
        begin(&journal, &house, &other).await;
        finish(&journal, other.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
    }
    assert_eq!(journal.leases(), []);
    drop(journal);
    let journal = open(&house, 1024).await.expect("it opens");
    assert_eq!(journal.leases(), []);
}

#[tokio::test(start_paused = true)]
async fn a_replay_within_its_time_is_known_even_after_compaction() {
    let house = House::new();
    let journal = open(&house, 1024).await.expect("it opens");
    let first = Order::new(id(), 1, release(&[0]));
    let second = Order::new(first.allocation, 1, release(&[0]));
    for order in [&first, &second] {
        begin(&journal, &house, order).await;
        finish(&journal, order.task, TaskOutcome::Cleaned { proof: COMPLETE }).await;
        journal.acknowledge(order.task).await.expect("it can be written");
    }
    drop(journal);
    let journal = open(&house, 1024).await.expect("it opens");
    assert!(journal.find(first.task).is_some());
    assert!(journal.find(second.task).is_some());
}

#[tokio::test(start_paused = true)]
async fn leases_are_taken_by_work_and_returned_by_a_complete_clean_up_alone() {
    let house = House::new();
    let journal = open(&house, COMPACT_BYTES).await.expect("it opens");
    let tenant = Order::new(id(), 1, provision(&[2, 3]));
    begin(&journal, &house, &tenant).await;
    let rival = Order::new(id(), 1, provision(&[3, 4]));
    let conflict = begin(&journal, &house, &rival).await;
    let Beginning::Conflict(place, lease) = conflict else { panic!("{conflict:?}") };
    assert_eq!((place, lease.allocation), (Place::Slot(3), tenant.allocation));
    // A whole machine is in conflict with any slot of it.
    let whole = Order::new(id(), 1, crate::house::user());
    assert!(matches!(begin(&journal, &house, &whole).await, Beginning::Conflict(..)));

    let reason = Coded(FailureReason::CleanupIncomplete);
    let failed = TaskOutcome::Failed { reason, phase: None, message: String::new() };
    for (fence, outcome, left) in [
        (2, failed, 2),
        (3, TaskOutcome::Cleaned { proof: CleanupProof { wiped: false, ..COMPLETE } }, 2),
        (4, TaskOutcome::Cleaned { proof: COMPLETE }, 0),
    ] {
        let order = Order::new(tenant.allocation, fence, release(&[2, 3]));
        begin(&journal, &house, &order).await;
        finish(&journal, order.task, outcome).await;
        assert_eq!(journal.leases().len(), left, "{fence}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_does_not_touch_a_slot_that_is_somebody_elses_by_now() {
    let house = House::new();
    let agent = house.start();
    let former = Order::new(id(), 1, provision(&[0]));
    let freed = Order::new(former.allocation, 2, release(&[0]));
    let tenant = Order::new(id(), 1, provision(&[0]));
    let late = Order::new(former.allocation, 3, release(&[0]));
    for order in [&former, &freed, &tenant, &late] {
        house.push(order);
        assert!(succeeded(&house.gateway.outcome(order.task).await));
    }
    assert_eq!((house.guests(), house.residue()), (1, 1));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_with_a_tiny_journal_does_its_work_all_the_same() {
    let mut house = House::new();
    house.journal_bytes = 512;
    let stale = Order::new(id(), 5, release(&[0]));
    for round in 0..5 {
        let agent = house.start();
        let allocation = if round == 0 { stale.allocation } else { id() };
        let come = Order::new(allocation, 1, provision(&[0]));
        let go = Order::new(allocation, 5, release(&[0]));
        for order in [&come, &go] {
            house.push(order);
            assert!(succeeded(&house.gateway.outcome(order.task).await));
        }
        agent.stopped().await;
    }
    let agent = house.start();
    let older = Order::new(stale.allocation, 4, provision(&[0]));
    house.push(&older);
    assert!(!succeeded(&house.gateway.outcome(older.task).await));
    assert_eq!(house.guests(), 0);
    agent.stopped().await;
}

/// A line as an agent wrote it before restarts were known.
#[tokio::test(start_paused = true)]
async fn a_beginning_without_a_boot_is_still_read() {
    let house = House::new();
    let order = Order::new(id(), 1, provision(&[0]));
    let record = serde_json::json!({
        "record": "began", "task": order.task, "dispatch": 1, "allocation": order.allocation,
        "operation": order.operation, "fence": 1, "kind": "slice.vm_provision",
        "leases": [{"slot": 0}], "envelope": house.sign(&order).envelope,
    });
    let json = record.to_string();
    let sum = &wire::seal::sha256_hex(json.as_bytes())[..16];
    std::fs::write(house.path().join("journal"), format!("{sum} {json}\n")).expect("written");
    let journal = open(&house, COMPACT_BYTES).await.expect("it opens");
    let entry = journal.find(order.task).expect("it was begun");
    assert_eq!((entry.boot, entry.deaths()), (None, 1));
    drop(journal);
    let agent = house.start();
    assert!(succeeded(&house.gateway.outcome(order.task).await));
    agent.stopped().await;
}

#[tokio::test(start_paused = true)]
async fn the_boot_a_restart_began_in_and_its_deaths_outlive_a_rewritten_journal() {
    let house = House::new();
    let journal = open(&house, 1).await.expect("it opens");
    let order = Order::new(id(), 1, crate::house::reboot());
    let (boot, since) = (Some(id()), house.clock.now());
    let begun = journal.begin(&accepted(&house, &order), boot).await.expect("it is written");
    assert!(matches!(begun, Beginning::Begun(_)));
    journal.ask_reboot(order.task, 2, since).await.expect("it is written");
    for (deaths, rests) in [(1, false), (2, true)] {
        journal.resume(order.task, deaths).await.expect("it is written");
        if rests {
            journal.rest().await.expect("it is written");
        }
        let known = journal.find(order.task).expect("it was begun");
        assert_eq!((known.boot, known.reboots), (boot, Some((2, since))));
        assert_eq!(known.deaths(), 2);
    }
    drop(journal);
    let journal = open(&house, 1).await.expect("it opens");
    let known = journal.find(order.task).expect("it was begun");
    assert_eq!((known.boot, known.reboots, known.deaths()), (boot, Some((2, since)), 2));
    assert!(!journal.close(order.allocation).await.expect("it is asked"), "it is under way");
}
