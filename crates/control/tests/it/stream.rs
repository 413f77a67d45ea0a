//! The stream of an allocation loses nothing and tells nothing twice: whoever writes at the same time, and however often
//! its reader comes back.

use std::collections::BTreeSet;

use control::Ctx;
use control::allocation::stream::{Cursor, Next, Told, next};
use control::node::task;
use domain::ids::{AllocationId, NodeTaskId};
use domain::machines::allocation::Status;
use testkit::{Act, House, new_id};
use uuid::Uuid;
use wire::http::timeline::EventKind;
use wire::node::{Phase, PhaseBatch, PhaseReport, PhaseStatus};

/// Reads until nothing is left, coming back anew after every single event. Answers whether it is over.
async fn drain(
    ctx: &Ctx,
    id: AllocationId,
    last: &mut Option<String>,
    told: &mut Vec<Told>,
) -> bool {
    loop {
        let mut cursor = match last.as_deref() {
            None => Cursor::start(id),
            Some(text) => Cursor::read(ctx, id, text).expect("it was given"),
        };
        match next(ctx, &mut cursor).await.expect("an answer") {
            Next::Events(events) => {
                // The first is taken, and the connection lost.
                let first = events.into_iter().next().expect("at least one");
                *last = Some(first.id.clone());
                told.push(first);
            }
            Next::Nothing => return false,
            Next::Over(_) => return true,
        }
    }
}

/// Nothing lost, nothing doubled, and each in its order.
async fn is_the_log(house: &House, id: Uuid, told: &[Told]) {
    let written = house.happenings(id).await;
    assert_eq!(told.len(), written.len(), "{told:#?} {written:#?}");
    let ids: BTreeSet<&str> = told.iter().map(|told| told.id.as_str()).collect();
    assert_eq!(ids.len(), told.len(), "every event has an id of its own");
    let of = |kind: EventKind| told.iter().filter(move |told| told.event.kind.0 == kind);
    let states: Vec<&str> = of(EventKind::State).map(|told| told.event.item.as_str()).collect();
    let expected: Vec<String> = (1..=states.len()).map(|seq| format!("state:{seq}")).collect();
    assert_eq!(states, expected);
    for (kind, word) in
        [(EventKind::State, "state "), (EventKind::Task, "task "), (EventKind::Phase, "phase ")]
    {
        let rows = written.iter().filter(|row| row.starts_with(word)).count();
        assert_eq!(of(kind).count(), rows, "{kind}");
    }
}

#[tokio::test]
async fn a_reader_who_comes_back_after_every_event_is_told_the_log_and_nothing_else() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await;
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    let allocation = AllocationId(id);
    let (mut last, mut told) = (None, Vec::new());
    assert!(!drain(&house.ctx, allocation, &mut last, &mut told).await);
    assert_eq!(told.len(), 1, "it was asked for");
    house.settle().await;
    drain(&house.ctx, allocation, &mut last, &mut told).await;
    house.first_node().will(&[Act::LeaveResidue]);
    house.release(id).await.expect("theirs");
    house.settle().await;
    drain(&house.ctx, allocation, &mut last, &mut told).await;
    let residue =
        told.iter().find(|told| told.event.reason.as_deref() == Some("cleanup_incomplete"));
    assert!(residue.is_some(), "a clean-up that left something has failed: {told:#?}");
    house.pass(std::time::Duration::from_secs(10)).await;
    assert!(drain(&house.ctx, allocation, &mut last, &mut told).await, "it is over");
    assert_eq!(house.status(id).await, Status::Released);
    is_the_log(&house, id, &told).await;
    // Who begins anew is told the same.
    let mut again = Vec::new();
    assert!(drain(&house.ctx, allocation, &mut None, &mut again).await);
    is_the_log(&house, id, &again).await;
    house.close().await;
}

#[tokio::test]
async fn what_is_written_while_somebody_reads_is_told_once() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0]).await.will(&[Act::FallSilent]);
    let id = house.create("h100.slice", 1).await.expect("it fits").id;
    house.settle().await;
    let node = house.first_node();
    let held = node.held().remove(0);
    // Phases in batches that overlap, out of order and at the same time, while somebody reads all along.
    let report = |seq: i32| PhaseReport {
        seq,
        phase: Phase::ImagePrepared.into(),
        status: PhaseStatus::Running.into(),
        at: house.ctx.clock.now(),
    };
    let tell = async |from: i32| {
        for batch in 0..10 {
            let first = from + (9 - batch) * 7;
            let phases = (first..first + 12).map(report).collect();
            let batch = PhaseBatch { dispatch: held.dispatch, phases };
            let told = task::phases(&house.ctx, &node.identity, NodeTaskId(held.task_id), &batch);
            told.await.expect("heard");
        }
    };
    let read = async {
        let (mut last, mut told) = (None, Vec::new());
        for _ in 0..60 {
            drain(&house.ctx, AllocationId(id), &mut last, &mut told).await;
        }
        (last, told)
    };
    let ((), (), (), (mut last, mut told)) = tokio::join!(tell(1), tell(3), tell(40), read);
    house.release(id).await.expect("theirs");
    house.settle().await;
    assert!(drain(&house.ctx, AllocationId(id), &mut last, &mut told).await, "it is over");
    assert!(told.len() > 80, "{}", told.len());
    is_the_log(&house, id, &told).await;
    house.close().await;
}

#[tokio::test]
async fn a_cursor_is_good_for_the_stream_that_gave_it_and_for_no_other() {
    let mut house = House::open().await;
    house.node("h100.slice", &[0, 0]).await;
    let id = AllocationId(house.active("h100.slice", 1).await.id);
    let mut cursor = Cursor::start(id);
    let Next::Events(events) = next(&house.ctx, &mut cursor).await.expect("an answer") else {
        panic!("something has happened");
    };
    for told in &events {
        let read = Cursor::read(&house.ctx, id, &told.id).expect("it was given");
        assert_eq!(read.write(&house.ctx), told.id);
    }
    let given = &events[events.len() - 1].id;
    assert_eq!(Cursor::read(&house.ctx, AllocationId(new_id()), given), None, "another's");
    let (text, signature) = given.split_once('.').expect("two parts");
    let shorter = format!("{}.{signature}", &text[..text.len() - 4]);
    for garbage in ["", ".", "7", "a.b", text, &shorter, &format!("{given}x")] {
        assert_eq!(Cursor::read(&house.ctx, id, garbage), None, "{garbage}");
    }
    house.close().await;
}
