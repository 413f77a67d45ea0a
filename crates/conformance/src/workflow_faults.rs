//! What every workflow engine does when something breaks: a step that fails is tried again with the same word, for ever; a run
//! whose engine died is taken over; who comes back too late changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use domain::ids::{AllocationId, EventId, OperationId};
use domain::machines::allocation::Event;
use lifecycle::Source;
use serde_json::json;
use spine::workflow::{Happened, Next, StepError};
use store::lifecycle::{Actor, Report};
use store::{Store, Tx, allocations};
use testkit::new_id;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::bed::{Bed, Engine, MakeEngine, PATIENCE, workflow, working};
use crate::workflow_conformance::{finished, noted, settle, start, state, tell};

/// Makes every case a test of one engine: `conformance::workflow_faults!(postgres by make);`
#[macro_export]
macro_rules! workflow_faults {
    ($engine:ident by $make:path) => {
        $crate::held_to!($engine by $make: workflow_faults:
            a_step_that_fails_is_tried_again_with_the_same_word_further_and_further_apart,
            an_engine_survives_a_step_that_panics,
            a_run_whose_engine_died_is_taken_over_when_its_lease_is_over,
            who_comes_back_after_the_lease_changes_nothing,
            what_a_step_did_and_that_it_was_done_are_one,
        );
    };
}

/// See its name.
pub async fn a_step_that_fails_is_tried_again_with_the_same_word_further_and_further_apart(
    make: MakeEngine,
) {
    let bed = Bed::new().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let (count, clock) = (Arc::clone(&tries), bed.clock.clone());
    let engine = make(
        &bed,
        workflow(move |run, happened| {
            let fails = happened == Happened::Started && count.fetch_add(1, Ordering::SeqCst) < 20;
            let clock = clock.clone();
            async move {
                if fails {
                    return Err(StepError::new("not yet"));
                }
                Ok(noted(&clock, &run, &happened))
            }
        }),
    );
    start(&*engine, "a").await;
    engine.step().await.expect("the engine steps");
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    let run = store::workflow_runs::find(&bed.store, "a").await.expect("it is answered");
    let run = run.expect("there is such a run");
    assert_eq!((run.reason.as_deref(), run.attempts), (Some("not yet"), 1));
    for tried in 1..20 {
        bed.clock.advance(Duration::from_secs(30));
        engine.step().await.expect("the engine steps");
        assert_eq!(tries.load(Ordering::SeqCst), tried + 1, "once in thirty seconds, for ever");
    }
    // A word that comes meanwhile is heard after the one that failed.
    tell(&*engine, "a", finished(1)).await;
    settle(&*engine).await;
    assert_eq!(state(&bed, "a").await, (json!(["started", 1]), false));
    let run = store::workflow_runs::find(&bed.store, "a").await.expect("it is answered");
    let run = run.expect("there is such a run");
    assert_eq!((run.reason, run.attempts, run.waits_for.as_deref()), (None, 0, Some("a word")));
    bed.end().await;
}

/// See its name.
pub async fn an_engine_survives_a_step_that_panics(make: MakeEngine) {
    let bed = Bed::new().await;
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let engine = make(
        &bed,
        workflow(move |_, _| {
            let tried = count.fetch_add(1, Ordering::SeqCst);
            // Before there is anything to await, and after.
            assert!(tried != 0, "on purpose");
            async move {
                assert!(tried != 1, "on purpose");
                Ok(Next::Done)
            }
        }),
    );
    start(&*engine, "a").await;
    for _ in 0..3 {
        settle(&*engine).await;
        bed.clock.advance(Duration::from_secs(1));
    }
    assert_eq!((tries.load(Ordering::SeqCst), state(&bed, "a").await.1), (3, true));
    bed.end().await;
}

/// See its name.
pub async fn a_run_whose_engine_died_is_taken_over_when_its_lease_is_over(make: MakeEngine) {
    let bed = Bed::new().await;
    let heir = heir_of_the_dead(&bed, make).await;
    bed.clock.advance(heir.lease());
    settle(&*heir).await;
    assert_eq!(state(&bed, "a").await, (json!(["started", 1]), false));
    bed.end().await;
}

/// A process that knows it is alone need not wait for the lease of the one before it.
pub async fn what_a_dead_process_had_in_hand_is_taken_over_at_once_by_one_that_is_alone(
    make: MakeEngine,
) {
    let bed = Bed::new().await;
    let heir = heir_of_the_dead(&bed, make).await;
    let freed = store::workflow_runs::free_leases(&bed.store).await.expect("they are freed");
    assert_eq!(freed, 1);
    settle(&*heir).await;
    assert_eq!(state(&bed, "a").await, (json!(["started", 1]), false));
    bed.end().await;
}

/// An engine beside one that died in the middle of the run's first step. The run is still the dead one's.
async fn heir_of_the_dead(bed: &Bed, make: MakeEngine) -> Arc<dyn Engine> {
    let (reached, clock) = (Arc::new(Notify::new()), bed.clock.clone());
    let here = Arc::clone(&reached);
    let stuck = make(
        bed,
        workflow(move |_, _| {
            here.notify_one();
            std::future::pending()
        }),
    );
    start(&*stuck, "a").await;
    tokio::select! {
        _ = stuck.step() => panic!("nobody ends that"),
        () = reached.notified() => {}
    }
    stuck.kill().await;
    let heir = make(
        bed,
        workflow(move |run, happened| {
            let next = noted(&clock, &run, &happened);
            async { Ok(next) }
        }),
    );
    tell(&*heir, "a", finished(1)).await;
    let stepped = heir.step().await.expect("the engine steps");
    assert_eq!(stepped, 0, "for all anybody knows it is at it");
    heir
}

/// See its name. Neither in the run, nor in what the step is about: its work is undone with the word that it was done.
pub async fn who_comes_back_after_the_lease_changes_nothing(make: MakeEngine) {
    let bed = Bed::new().await;
    let allocation = bed.history(0).await;
    let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (here, gate, store) = (Arc::clone(&reached), Arc::clone(&go_on), bed.store.clone());
    let slow = make(
        &bed,
        working(move |_, _| {
            let (here, gate) = (Arc::clone(&here), Arc::clone(&gate));
            let store = store.clone();
            async move {
                here.notify_one();
                gate.notified().await;
                Ok(Next::Done.within(restarting(&store, allocation).await))
            }
        }),
    );
    let clock = bed.clock.clone();
    let heir = make(
        &bed,
        workflow(move |run, happened| {
            let next = noted(&clock, &run, &happened);
            async { Ok(next) }
        }),
    );
    start(&*slow, "a").await;
    let overtakes = async {
        reached.notified().await;
        bed.clock.advance(heir.lease());
        settle(&*heir).await;
        go_on.notify_one();
    };
    let both = async { tokio::join!(slow.step(), overtakes) };
    let (stepped, ()) = timeout(PATIENCE, both).await.expect("nobody waits for anybody");
    stepped.expect("the engine steps");
    assert_eq!(state(&bed, "a").await, (json!(["started"]), false), "the heir's word stands");
    assert_eq!(bed.database.status_of(allocation).await, "active", "what it did is undone");
    bed.end().await;
}

/// See its name.
pub async fn what_a_step_did_and_that_it_was_done_are_one(make: MakeEngine) {
    let bed = Bed::new().await;
    let allocation = bed.history(0).await;
    let store = bed.store.clone();
    let engine = make(
        &bed,
        working(move |_, _| {
            let store = store.clone();
            async move { Ok(Next::Done.within(restarting(&store, allocation).await)) }
        }),
    );
    start(&*engine, "a").await;
    settle(&*engine).await;
    assert!(state(&bed, "a").await.1, "it is over");
    assert_eq!(bed.database.status_of(allocation).await, "restarting");
    let together = bed.database.written_together("a", allocation).await;
    assert!(together, "one transaction wrote both");
    bed.end().await;
}

/// A transaction in which an allocation is restarted, and that is not committed.
async fn restarting(store: &Store, id: AllocationId) -> Tx {
    let mut tx = store.begin().await.expect("it begins");
    let (event_id, actor) = (EventId(new_id()), Actor::new(Source::User, "somebody"));
    let report = Report::new(Event::RestartRequested, event_id, actor);
    let report = report.about(OperationId(new_id()));
    let outcome = allocations::report(&mut tx, id, &report).await.expect("it is answered");
    assert!(outcome.is_applied(), "{outcome:?}");
    tx
}
