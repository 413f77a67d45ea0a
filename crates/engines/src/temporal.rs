//! Workflows on Temporal. A run rests in Postgres, with what it was told; Temporal brings it to a worker when something has
//! happened or its time is over, waits for it in between, and shows it to operators. Its database may be deleted at any time:
//! a run that is due is started there again, and goes on from where it rests.

pub mod story;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, stream};
use spine::Wake;
use spine::workflow::Driver;
use spine::workflow::embedded::Embedded;
use store::Ring;
use store::workflow_runs::driven::Due;
use temporalio_client::{
    Client, ClientOptions, Connection, ConnectionOptions, WorkflowIdConflictPolicy,
    WorkflowIdReusePolicy, WorkflowStartOptions,
};
use temporalio_common::MemoValues;
use tokio_util::sync::CancellationToken;

use story::Story;

/// How many runs are told of in one breath.
const ROOM: usize = 64;
/// How many of them at once.
const AT_ONCE: usize = 16;
/// When Temporal is told again of a run that it was told of and that is still due.
const QUIET: Duration = Duration::from_secs(10);
/// What was missed by every wake-up is found after this time at the latest.
const SWEEP: Duration = Duration::from_secs(1);
/// How long an outage is waited out before the next attempt.
const BROKEN: Duration = Duration::from_secs(1);
/// How long Temporal may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// How to reach Temporal, and what Berth is called there.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where its front end is, as a URL.
    pub address: String,
    /// The namespace, which must be there.
    pub namespace: String,
    /// The task queue: installations that share a namespace differ in it.
    pub queue: String,
    /// What workflow ids begin with, where the id of a run alone would not do.
    pub prefix: String,
}

/// Temporal, as an engine. It is connected to when it runs, and again whenever that breaks.
#[derive(Clone)]
pub struct Temporal {
    options: Arc<Options>,
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

impl Temporal {
    /// Does not connect yet: nothing depends on Temporal's being there.
    pub fn new(options: Options) -> Temporal {
        Temporal { options: Arc::new(options) }
    }

    /// A client of its own.
    ///
    /// # Errors
    /// When Temporal can't be reached, or the address is none.
    pub async fn connect(&self) -> Result<Client, spine::Error> {
        let fault = |source: Fault| spine::Error::Engine { engine: "Temporal", source };
        let address = self.options.address.parse::<url::Url>();
        let address = address.map_err(|error| fault(Box::new(error)))?;
        let options = ConnectionOptions::new(address)
            .identity(format!("berth-{}", std::process::id()))
            .connect_timeout(ANSWER_MAX)
            .build();
        let connection =
            Connection::connect(options).await.map_err(|error| fault(Box::new(error)))?;
        let options = ClientOptions::new(self.options.namespace.clone()).build();
        Client::new(connection, options).map_err(|error| fault(Box::new(error)))
    }

    /// Whether it can be used now: it answers, and has the namespace. For whoever checks a configuration.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn reach(&self) -> Result<(), spine::Error> {
        let fault = |source: Fault| spine::Error::Engine { engine: "Temporal", source };
        let client = self.connect().await?;
        let counted = client.count_workflows("", Default::default());
        let counted = tokio::time::timeout(ANSWER_MAX, counted).await;
        let counted = counted.map_err(|late| fault(Box::new(late)))?;
        counted.map_err(|error| fault(Box::new(error)))?;
        Ok(())
    }

    /// The id that a run has in Temporal.
    pub fn workflow_id(&self, run: &str) -> String {
        format!("{}{run}", self.options.prefix)
    }

    /// Tells Temporal that a run is due: the workflow is started if it is not there, and woken if it is.
    async fn poke(&self, client: &Client, due: &Due) -> Result<(), Fault> {
        let mut memo = MemoValues::new();
        memo.insert("workflow", due.workflow.clone());
        memo.insert("entity_id", due.entity_id.to_string());
        memo.insert("run", due.id.clone());
        // Whether a run is over is known in Postgres: one that is due is not.
        let options =
            WorkflowStartOptions::new(self.options.queue.clone(), self.workflow_id(&due.id))
                .id_reuse_policy(WorkflowIdReusePolicy::AllowDuplicate)
                .id_conflict_policy(WorkflowIdConflictPolicy::UseExisting)
                .static_summary(format!("{} of {}", due.workflow, due.entity_id))
                .memo(memo)
                .build();
        let poked =
            client.signal_with_start_workflow(Story::run, due.id.clone(), Story::poke, (), options);
        tokio::time::timeout(ANSWER_MAX, poked).await??;
        Ok(())
    }

    /// Tells Temporal of what is due, as soon as it is, until that fails.
    async fn tell(&self, client: &Client, runs: &Embedded, wake: &Wake) -> Result<(), Fault> {
        let bell = wake.on(Ring::Workflows);
        loop {
            let due = runs.announce(ROOM, QUIET).await?;
            let full = due.len() == ROOM;
            let mut untold = Vec::new();
            let mut fault = None;
            let mut poked = stream::iter(due)
                .map(|due| async move { (self.poke(client, &due).await, due.id) })
                .buffer_unordered(AT_ONCE);
            while let Some((told, id)) = poked.next().await {
                if let Err(error) = told {
                    fault = Some(error);
                    untold.push(id);
                }
            }
            if let Some(fault) = fault {
                runs.unannounce(&untold).await?;
                return Err(fault);
            }
            if !full {
                let _ = tokio::time::timeout(SWEEP, bell.notified()).await;
            }
        }
    }

    /// Connects, works and tells, until stopped. What breaks is begun again.
    async fn keep_on(&self, runs: Embedded, wake: Wake, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let fault: Fault = match self.connect().await {
                Ok(client) => {
                    metrics::gauge!("berth_temporal_connected").set(1.0);
                    let work = worker::run(&client, &self.options.queue, &runs, stop);
                    let tell = self.tell(&client, &runs, &wake);
                    tokio::select! {
                        ended = work => match ended {
                            Ok(()) if stop.is_cancelled() => return,
                            Ok(()) => "the worker ended by itself".into(),
                            Err(fault) => fault,
                        },
                        Err(fault) = tell => fault,
                    }
                }
                Err(error) => Box::new(error),
            };
            metrics::gauge!("berth_temporal_connected").set(0.0);
            tracing::warn!(%fault, "Temporal can't be used now: runs wait until it can");
            let _ = tokio::time::timeout(BROKEN, stop.cancelled()).await;
        }
    }
}

impl Driver for Temporal {
    fn run(&self, runs: Embedded, wake: Wake, stop: CancellationToken) -> BoxFuture<'static, ()> {
        let temporal = self.clone();
        async move { temporal.keep_on(runs, wake, &stop).await }.boxed()
    }
}
