//! R16: Temporal is down at the start, in the middle of a step, and when a run ends; or it has forgotten everything. Who starts
//! and tells runs does not notice, and every run goes on from where it rests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance::bed::{Bed, PATIENCE, workflow};
use conformance::workflow_conformance::{finished, noted, start, state, tell};
use engines::temporal::Temporal;
use engines::temporal::story::Story;
use serde_json::json;
use spine::Wake;
use spine::workflow::embedded::Embedded;
use spine::workflow::{Definition, Driver as _, Happened};
use temporalio_client::{WorkflowDescribeOptions, WorkflowExecutionStatus};
use testkit::TemporalServer;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::bed::{moment, temporal_options};

const QUEUE: &str = "outages";

/// A process whose runs Temporal brings.
struct Process {
    runs: Embedded,
    _parts: JoinSet<()>,
}

impl Process {
    fn start(bed: &Bed, url: String, definitions: Vec<Definition>) -> Process {
        let wake = Wake::new();
        let store = bed.store.clone().ringing(wake.bell());
        let runs = Embedded::new(store, bed.clock.clone(), definitions);
        let mut parts = JoinSet::new();
        let driver = Temporal::new(temporal_options(url, QUEUE));
        parts.spawn(driver.run(runs.clone(), wake, CancellationToken::new()));
        Process { runs, _parts: parts }
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = async {
        while !holds().await {
            moment().await;
        }
    };
    timeout(2 * PATIENCE, held).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// A workflow that stands still at one word until it is let go on, and counts its steps.
struct Gated {
    reached: Arc<Notify>,
    go_on: Arc<Notify>,
    steps: Arc<AtomicUsize>,
}

impl Gated {
    fn at(word: Happened, bed: &Bed) -> (Gated, Vec<Definition>) {
        let gated = Gated { reached: Arc::default(), go_on: Arc::default(), steps: Arc::default() };
        let (here, gate) = (Arc::clone(&gated.reached), Arc::clone(&gated.go_on));
        let (steps, clock) = (Arc::clone(&gated.steps), bed.clock.clone());
        let definitions = workflow(move |run, happened| {
            let (here, gate, clock) = (Arc::clone(&here), Arc::clone(&gate), clock.clone());
            let (steps, stands) = (Arc::clone(&steps), happened == word);
            async move {
                steps.fetch_add(1, Ordering::SeqCst);
                if stands {
                    here.notify_one();
                    gate.notified().await;
                }
                Ok(noted(&clock, &run, &happened))
            }
        });
        (gated, definitions)
    }
}

#[tokio::test]
async fn r16_runs_that_are_begun_while_it_is_down_go_on_when_it_is_there() {
    let bed = Bed::new().await;
    let mut server = TemporalServer::start().await;
    server.kill();
    let (_, definitions) = Gated::at(Happened::TimeOut, &bed);
    let process = Process::start(&bed, server.url(), definitions);
    assert!(start(&process.runs, "a").await, "nobody needs Temporal for that");
    assert!(tell(&process.runs, "a", finished(1)).await);
    let _server = server.restart(false).await;
    until("it goes on", async || state(&bed, "a").await.0 == json!(["started", 1])).await;
    bed.end().await;
}

#[tokio::test]
async fn r16_a_run_in_the_middle_of_a_step_goes_on_also_when_everything_is_forgotten() {
    let bed = Bed::new().await;
    let mut server = TemporalServer::start().await;
    for (id, forget) in [("a", false), ("b", true)] {
        let (gated, definitions) = Gated::at(Happened::Started, &bed);
        let process = Process::start(&bed, server.url(), definitions);
        start(&process.runs, id).await;
        timeout(2 * PATIENCE, gated.reached.notified()).await.expect("the step begins");
        server.kill();
        gated.go_on.notify_one();
        until("the step is saved", async || state(&bed, id).await.0 == json!(["started"])).await;
        assert!(tell(&process.runs, id, finished(1)).await, "it is down, and nobody notices");
        server = server.restart(forget).await;
        until("it goes on", async || state(&bed, id).await.0 == json!(["started", 1])).await;
        assert_eq!(gated.steps.load(Ordering::SeqCst), 2, "no step was taken twice");
    }
    bed.end().await;
}

#[tokio::test]
async fn r16_a_run_that_ends_while_it_is_down_has_ended_there_too_when_it_is_back() {
    let bed = Bed::new().await;
    let mut server = TemporalServer::start().await;
    let (gated, definitions) = Gated::at(Happened::Cancelled, &bed);
    let process = Process::start(&bed, server.url(), definitions);
    start(&process.runs, "a").await;
    tell(&process.runs, "a", Happened::Cancelled).await;
    timeout(2 * PATIENCE, gated.reached.notified()).await.expect("the last step begins");
    server.kill();
    gated.go_on.notify_one();
    until("it is over", async || state(&bed, "a").await.1).await;
    let server = server.restart(false).await;
    let temporal = Temporal::new(temporal_options(server.url(), QUEUE));
    // It listens a while before it serves.
    let connecting = async {
        loop {
            if let Ok(client) = temporal.connect().await {
                return client;
            }
            tokio::task::yield_now().await;
        }
    };
    let client = timeout(2 * PATIENCE, connecting).await.expect("it connects");
    let run = client.get_workflow_handle::<Story>(temporal.workflow_id("a"));
    until("it is closed there", async || {
        let described = run.describe(WorkflowDescribeOptions::default()).await;
        described.is_ok_and(|told| told.status() == WorkflowExecutionStatus::Completed)
    })
    .await;
    assert_eq!(gated.steps.load(Ordering::SeqCst), 2, "no step was taken twice");
    bed.end().await;
}
