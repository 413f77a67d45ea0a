//! Histories that Temporal has recorded are replayed on the workflow as it is now: a run that was begun under an older binary
//! goes on under this one. `BERTH_RECORD_HISTORIES=1 cargo xtask test -p engines -E 'test(recorded_today)'` writes them anew,
//! which is right only for a history that no installation can have.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conformance::bed::{Bed, Engine as _, PATIENCE, workflow};
use conformance::workflow_conformance::{finished, start, state, tell};
use engines::temporal::Temporal;
use engines::temporal::story::Story;
use serde_json::Value;
use spine::Wake;
use spine::workflow::embedded::Embedded;
use spine::workflow::{Definition, Driver as _, Happened, Next, StepError};
use temporalio_client::{WorkflowDescribeOptions, WorkflowFetchHistoryOptions, WorkflowHistory};
use temporalio_macros::{workflow, workflow_methods};
use temporalio_sdk::workflow_replayer::{
    WorkflowReplayError, WorkflowReplayFailure, WorkflowReplayer, WorkflowReplayerOptions,
};
use temporalio_sdk::{WorkflowContext, WorkflowContextView, WorkflowResult};
use testkit::TemporalServer;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::bed::{moment, temporal_options};

/// Set, histories are written anew.
const RECORD_VARIABLE: &str = "BERTH_RECORD_HISTORIES";

fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories")
}

/// Every history that is kept, by name.
fn kept() -> Vec<(String, WorkflowHistory)> {
    let files = std::fs::read_dir(place()).expect("there are histories");
    let mut paths: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).expect("it can be read");
        (name, WorkflowHistory::from_json(&bytes).expect("it is a history"))
    };
    paths.into_iter().map(read).collect()
}

async fn replay(
    options: WorkflowReplayerOptions,
    history: WorkflowHistory,
) -> Result<(), WorkflowReplayError> {
    let replayer = WorkflowReplayer::new(options)?;
    LocalSet::new().run_until(replayer.replay_workflow(history)).await
}

async fn goes_on(name: &str, history: WorkflowHistory) {
    let options = WorkflowReplayerOptions::new().register_workflow::<Story>();
    let replayed = replay(options.expect("it is known").build(), history).await;
    replayed.unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[tokio::test]
async fn every_history_that_was_recorded_can_be_gone_on_with() {
    let kept = kept();
    assert!(kept.len() >= 3, "too few histories: {}", kept.len());
    for (name, history) in kept {
        goes_on(&name, history).await;
    }
}

/// Somebody has changed the order of things in the workflow.
#[workflow]
struct Changed;

#[workflow_methods]
impl Changed {
    #[init]
    fn new(_ctx: &WorkflowContextView, _run: String) -> Self {
        Changed
    }

    #[run(name = "berth.run")]
    async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<()> {
        ctx.timer(Duration::from_secs(1)).await;
        Ok(())
    }
}

#[tokio::test]
async fn a_workflow_that_was_changed_does_not_pass_for_the_same() {
    for (name, history) in kept() {
        let options = WorkflowReplayerOptions::new().register_workflow::<Changed>();
        let replayed = replay(options.expect("it is known").build(), history).await;
        assert!(
            matches!(
                replayed,
                Err(WorkflowReplayError::Replay(WorkflowReplayFailure::Nondeterminism { .. }))
            ),
            "{name}: {replayed:?}"
        );
    }
}

/// Ends when it is called off; rests as long as its state says; its first step fails once.
fn recorded(bed: &Bed) -> Vec<Definition> {
    let (clock, failed) = (bed.clock.clone(), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    workflow(move |run, happened| {
        let (clock, failed) = (clock.clone(), Arc::clone(&failed));
        async move {
            if run.id == "fails" && !failed.swap(true, std::sync::atomic::Ordering::SeqCst) {
                return Err(StepError::new("not yet"));
            }
            if happened == Happened::Cancelled || happened == Happened::TimeOut {
                return Ok(Next::Done);
            }
            let rest = if run.id == "waits" { 1 } else { 3_600 };
            let until = clock.after(Duration::from_secs(rest));
            Ok(Next::Wait { state: Value::Null, until, waits_for: "a word" })
        }
    })
}

/// Leads a run to its end, and fetches what Temporal has written of it.
async fn led(bed: &Bed, runs: &Embedded, temporal: &Temporal, id: &str) -> Vec<u8> {
    let client = temporal.connect().await.expect("it connects");
    start(runs, id).await;
    if id != "waits" {
        for task in 0..4 {
            tell(runs, id, finished(task)).await;
            moment().await;
        }
        runs.workflows().tell(id, Happened::Cancelled).await.expect("it is told");
    }
    let run = client.get_workflow_handle::<Story>(temporal.workflow_id(id));
    let closed = async {
        while !state(bed, id).await.1 {
            moment().await;
        }
        let described = async || run.describe(WorkflowDescribeOptions::default()).await;
        while described().await.expect("it is known").close_time().is_none() {
            moment().await;
        }
    };
    timeout(2 * PATIENCE, closed).await.expect("it ends, and is closed");
    let history = run.fetch_history(WorkflowFetchHistoryOptions::default());
    history.to_json().await.expect("it is told")
}

#[tokio::test]
async fn what_is_recorded_today_can_be_gone_on_with() {
    let bed = Bed::new().await;
    let server = TemporalServer::start().await;
    let wake = Wake::new();
    let store = bed.store.clone().ringing(wake.bell());
    let runs = Embedded::new(store, bed.clock.clone(), recorded(&bed));
    let temporal = Temporal::new(temporal_options(server.url(), "berth"));
    let mut parts = JoinSet::new();
    parts.spawn(temporal.run(runs.clone(), wake, CancellationToken::new()));
    for id in ["waits", "hears", "fails"] {
        let bytes = led(&bed, &runs, &temporal, id).await;
        if std::env::var_os(RECORD_VARIABLE).is_some() {
            let value: Value = serde_json::from_slice(&bytes).expect("it is JSON");
            let text = serde_json::to_string_pretty(&value).expect("it is JSON");
            std::fs::write(place().join(format!("{id}.json")), text + "\n").expect("it is written");
        }
        goes_on(id, WorkflowHistory::from_json(&bytes).expect("it is a history")).await;
    }
    bed.end().await;
}
