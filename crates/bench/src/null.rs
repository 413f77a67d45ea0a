//! Agents that do nothing at all: they enrol, connect over real mTLS, say that they are there, believe only what is signed for them, and
//! answer a task as soon as they have it. They keep no books, so that what is measured is the control plane alone.

use std::sync::Arc;
use std::time::Duration;

use agent::verify::Verifier;
use agent::{Clock, Config, Gateway, HttpGateway, SimulatedConfig};
use anyhow::Context as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::Coded;
use wire::node::{
    Access, CleanupProof, Heartbeat, PROTOCOL, Phase, PhaseReport, PhaseStatus, SignedTask,
    TaskOutcome, TaskResult, Work,
};

use crate::fleet::CUDA;
use crate::product::{new_id, pause};

const BEAT: Duration = Duration::from_secs(10);
/// How long it rests before it tells again what was not heard.
const AGAIN: Duration = Duration::from_millis(500);

/// Answers until `stop`; and `tells` when it had each task in its hands, as the first of its phases.
pub(crate) async fn answer(
    config: Config,
    machine: SimulatedConfig,
    tells: bool,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let identity = agent::enrol(&config, stop).await?.context("it was stopped")?;
    let gateway = Arc::new(HttpGateway::new(&identity)?);
    let verifier = Verifier::new(identity.node_id, identity.verifying_keys()?);
    let heartbeat = Heartbeat {
        protocol: PROTOCOL,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: new_id(),
        gpus: machine.gpus,
        images: vec![CUDA.to_owned()],
        guests: Vec::new(),
        leases: Vec::new(),
        running: Vec::new(),
        refused: 0,
    };
    let (beats, waits) = (Arc::clone(&gateway), Arc::clone(&gateway));
    let alive = async move {
        loop {
            let _ = beats.heartbeat(&heartbeat).await;
            pause(BEAT).await;
        }
    };
    let works = async move {
        let mut answering = JoinSet::new();
        loop {
            let tasks = waits.wait().await.unwrap_or_default();
            for (id, mut result) in tasks.iter().filter_map(|task| done(&verifier, task)) {
                if tells {
                    result.phases.push(in_hand());
                }
                let gateway = Arc::clone(&waits);
                answering.spawn(async move {
                    // What is not heard would be told again by any agent.
                    while gateway.result(id, &result).await.is_err() {
                        pause(AGAIN).await;
                    }
                });
            }
            while answering.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        () = alive => Ok(()),
        () = works => Ok(()),
    }
}

/// It has the task, now.
fn in_hand() -> PhaseReport {
    let (phase, status) = (Coded(Phase::Acknowledged), Coded(PhaseStatus::Running));
    PhaseReport { seq: 1, phase, status, at: Clock::system().now() }
}

/// What is said of a task that was done at once.
fn done(verifier: &Verifier, task: &SignedTask) -> Option<(Uuid, TaskResult)> {
    let accepted = verifier.verify(task, Clock::system().now()).ok()?;
    let outcome = match accepted.work {
        Work::SliceProvision(_) | Work::UserProvision(_) => TaskOutcome::Provisioned {
            access: Access { host: "localhost".to_owned(), port: 22, user: "tenant".to_owned() },
        },
        Work::SliceRelease(_) | Work::UserDeprovision(_) => TaskOutcome::Cleaned {
            proof: CleanupProof {
                released: true,
                hard_stopped: false,
                wiped: true,
                leases_released: true,
            },
        },
        Work::SliceRestart(_) | Work::NodeReboot(_) => {
            TaskOutcome::Restarted { boot_id_before: Uuid::nil(), boot_id: Uuid::max() }
        }
    };
    Some((task.task_id, TaskResult { dispatch: task.dispatch, outcome, phases: Vec::new() }))
}
