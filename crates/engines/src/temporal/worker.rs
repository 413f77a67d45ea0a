//! A worker of Temporal's, on a thread of its own: what it runs can't be passed from thread to thread.

use std::time::Duration;

use spine::workflow::embedded::Embedded;
use temporalio_client::Client;
use temporalio_sdk::{Runtime, Worker, WorkerOptions};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use super::Fault;
use super::story::{Steps, Story};

/// For so long a workflow is kept for the worker that had it last: that long nothing happens when it has died.
const STICKY: Duration = Duration::from_secs(2);
/// How long steps that are under way may still take after the stop.
const GRACE: Duration = Duration::from_secs(5);

/// Works until stopped, or until it can't.
pub(super) async fn run(
    client: &Client,
    queue: &str,
    runs: &Embedded,
    stop: &CancellationToken,
) -> Result<(), Fault> {
    // Also when whoever waits for this gives up.
    let stop = stop.child_token();
    let _end = stop.clone().drop_guard();
    let home = Handle::current();
    let options = WorkerOptions::new(queue.to_owned())
        .register_workflow::<Story>()?
        .register_activities(Steps { runs: runs.clone(), home: home.clone() })
        .sticky_queue_schedule_to_start_timeout(STICKY)
        .graceful_shutdown_period(GRACE)
        .build();
    let (ended, end) = oneshot::channel();
    let client = client.clone();
    std::thread::Builder::new().name("temporal".to_owned()).spawn(move || {
        let worked = LocalSet::new();
        let answer = home.block_on(worked.run_until(work(client, options, stop)));
        let _ = ended.send(answer);
    })?;
    end.await.unwrap_or_else(|_| Err("the worker's thread is gone".into()))
}

async fn work(
    client: Client,
    options: WorkerOptions,
    stop: CancellationToken,
) -> Result<(), Fault> {
    let runtime = Runtime::from_current_tokio(Default::default())?;
    let mut worker = Worker::new(&runtime, client, options)?;
    let shut_down = worker.shutdown_handle();
    let running = worker.run();
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        () = stop.cancelled() => shut_down(),
    }
    // A server that is gone answers nothing: it is not waited for.
    match tokio::time::timeout(2 * GRACE, running).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Ok(()),
    }
}
