//! The whole spine: a commit is followed by everything that follows from it, at once when bells ring, soon when they do not.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::json;
use spine::bus::{HandleError, Subscription};
use spine::timer::Timer;
use spine::workflow::embedded::Embedded;
use spine::workflow::{Definition, NewRun, Next, Step, Workflows};
use spine::{Clock, Duties, Spine, Wake};
use store::{Bell, Store};
use testkit::{Database, new_id};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::bus::Subject;

use conformance::bed::{PATIENCE, handle};

/// A spine in which the birth of an allocation starts a workflow, which says that it ran.
fn assembled(database: &Database, bell: fn(&Wake) -> Bell) -> (Spine, UnboundedReceiver<Uuid>) {
    let (wake, clock) = (Wake::new(), Clock::system());
    let store: Store = database.store.clone().ringing(bell(&wake));
    let (told, heard) = mpsc::unbounded_channel();
    let workflows = Arc::new(Embedded::undefined(store.clone(), clock.clone()));
    let engine = Arc::clone(&workflows);
    let starts = handle(move |message| {
        let run = NewRun {
            id: format!("w-{}", message.fact.event_id),
            workflow: "w",
            entity_id: message.fact.id,
            state: json!(null),
        };
        let engine = Arc::clone(&engine);
        async move {
            let started = engine.start(run).await;
            started.map(drop).map_err(|error| HandleError { reason: error.to_string() })
        }
    });
    let step: Step = Arc::new(move |run, _| {
        told.send(run.entity_id).expect("somebody listens");
        async { Ok(Next::Done.into()) }.boxed()
    });
    assert!(workflows.define(vec![Definition { name: "w", step }]));
    let subscriptions = vec![Subscription {
        consumer: "starter",
        subjects: &[Subject::ProvisioningRequested],
        handle: starts,
        exhausted: None,
        attempts_max: 3,
        at_once: 64,
    }];
    let timers = vec![Timer::new("three", Duration::from_secs(1), || async { Ok::<_, String>(3) })];
    let (broker, driver, duties) = (None, None, Duties::ALL);
    let spine =
        Spine { store, clock, wake, subscriptions, workflows, broker, driver, duties, timers };
    (spine, heard)
}

/// Two births at a time, and what follows from them. Answers how long that took, in the middle.
async fn follow(spine: &Spine, heard: &mut UnboundedReceiver<Uuid>, rounds: usize) -> Duration {
    let mut took = Vec::new();
    for _ in 0..rounds {
        let begin = spine.clock.now();
        let mut own = [born(spine).await, born(spine).await];
        let mut ran = [Uuid::nil(); 2];
        for next in &mut ran {
            let id = timeout(PATIENCE, heard.recv()).await.expect("a workflow runs");
            *next = id.expect("somebody tells");
        }
        took.push(spine.clock.now().duration_since(begin).unsigned_abs());
        own.sort_unstable();
        ran.sort_unstable();
        assert_eq!(ran, own);
    }
    took.sort_unstable();
    took[rounds / 2]
}

/// A birth through the spine's own store, so that its bell rings.
async fn born(spine: &Spine) -> Uuid {
    use domain::ids::{AllocationId, EventId, OperationId};
    let id = AllocationId(new_id());
    let allocation = store::allocations::NewAllocation {
        id,
        project_id: new_id(),
        member_of: None,
        provision: OperationId(new_id()),
        sku: "h100".to_owned(),
        gpus: 1,
        terms: store::allocations::Terms::default(),
    };
    let birth =
        store::lifecycle::Birth::new(EventId(new_id()), testkit::actor(lifecycle::Source::Worker));
    let mut tx = spine.store.begin().await.expect("it begins");
    store::allocations::insert(&mut tx, &allocation, birth).await.expect("it is written");
    tx.commit().await.expect("it commits");
    id.uuid()
}

/// Runs a spine while something follows from commits.
async fn run(bell: fn(&Wake) -> Bell, rounds: usize) -> Duration {
    let database = Database::new().await;
    let (spine, mut heard) = assembled(&database, bell);
    let stop = CancellationToken::new();
    let follows = async {
        let took = follow(&spine, &mut heard, rounds).await;
        stop.cancel();
        took
    };
    let (ran, took) = tokio::join!(spine.run(stop.clone()), follows);
    ran.expect("it was stopped");
    drop(spine);
    database.remove().await;
    took
}

#[tokio::test]
async fn what_follows_from_a_commit_follows_at_once() {
    let took = run(Wake::bell, 5).await;
    // One bell that does not ring costs a sweep, which is a second.
    assert!(took < Duration::from_millis(500), "{took:?}");
}

#[tokio::test]
async fn what_follows_from_a_commit_follows_although_no_bell_rings() {
    run(|_| Bell::silent(), 1).await;
}

#[tokio::test]
async fn a_spine_that_nobody_runs_can_be_stepped() {
    let database = Database::new().await;
    let (spine, mut heard) = assembled(&database, |_| Bell::silent());
    let id = born(&spine).await;
    assert_eq!(spine.step_all().await.expect("it steps"), 3, "a fact, a message, a run");
    assert_eq!(heard.try_recv(), Ok(id));
    assert_eq!(spine.step_all().await.expect("it steps"), 0);
    assert_eq!(spine.step_timers().await.expect("they run"), 3);
    drop(spine);
    database.remove().await;
}
