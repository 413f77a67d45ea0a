//! The one workflow that Temporal knows. What a run does is decided by its step, which is an activity; here it is only
//! waited: for a word, or until its time is over. What is written here is replayed, so it changes only together with the
//! recorded histories.

#![expect(missing_docs, reason = "the macros add constants that have none")]

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spine::workflow::embedded::Embedded;
use temporalio_macros::{activities, workflow, workflow_methods};
use temporalio_sdk::activities::{ActivityContext, ActivityError};
use temporalio_sdk::{
    ActivityOptions, ContinueAsNewOptions, SyncWorkflowContext, WorkflowContext,
    WorkflowContextView, WorkflowResult,
};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// A step that is not heard of for so long is tried again elsewhere. By then the lease of who had it is over.
const STEP_MAX: Duration = Duration::from_secs(30);
/// After so many steps the history begins anew.
const STEPS_MAX: u32 = 500;

/// How long a run rests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rest {
    /// In milliseconds; none when it is over.
    pub(super) millis: Option<u64>,
}

/// What workers do.
pub struct Steps {
    pub(super) runs: Embedded,
    /// Where the database's connections are at home.
    pub(super) home: Handle,
}

#[activities]
impl Steps {
    /// Steps a run as far as it gets.
    #[activity(name = "berth.step")]
    pub async fn step(
        self: Arc<Self>,
        _ctx: ActivityContext,
        run: String,
    ) -> Result<Rest, ActivityError> {
        let runs = self.runs.clone();
        let stepping = self.home.spawn(async move { runs.step_run(&run).await });
        // A worker that is given up gives up what it does.
        let rest = AbortOnDropHandle::new(stepping).await??;
        let millis = |rest: Duration| u64::try_from(rest.as_millis()).unwrap_or(u64::MAX);
        Ok(Rest { millis: rest.map(millis) })
    }
}

/// A run, as Temporal sees it.
#[workflow]
pub struct Story {
    run: String,
    /// How often it was told that something has happened.
    told: u64,
}

#[workflow_methods]
impl Story {
    #[init]
    fn new(_ctx: &WorkflowContextView, run: String) -> Self {
        Story { run, told: 0 }
    }

    /// Steps the run, and waits, until it is over.
    #[run(name = "berth.run")]
    pub async fn run(ctx: &mut WorkflowContext<Self>) -> WorkflowResult<()> {
        let run = ctx.state(|story| story.run.clone());
        for _ in 0..STEPS_MAX {
            let told = ctx.state(|story| story.told);
            let options = ActivityOptions::start_to_close_timeout(STEP_MAX);
            let rest = ctx.execute_activity(Steps::step, run.clone(), options).await?;
            let Some(millis) = rest.millis else {
                return Ok(());
            };
            temporalio_sdk::workflows::select! {
                _ = ctx.timer(Duration::from_millis(millis)) => {}
                _ = ctx.wait_condition(|story: &Self| story.told != told) => {}
            }
        }
        ctx.continue_as_new(run, ContinueAsNewOptions::default())?;
        Ok(())
    }

    /// Something has happened to the run.
    #[signal(name = "poke")]
    pub fn poke(&mut self, _ctx: &mut SyncWorkflowContext<Self>) {
        self.told += 1;
    }
}
