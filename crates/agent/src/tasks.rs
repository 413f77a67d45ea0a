//! What each kind of task consists of: its phases in order, and what it has to show in the end.

use tokio_util::sync::CancellationToken;
use wire::Coded;
use wire::node::{CleanupProof, FailureReason, Phase, PhaseStatus, TaskKind, TaskOutcome, Work};

use crate::Error;
use crate::clock::Clock;
use crate::drivers::{Driver, Failure, Job};
use crate::engine::Reports;
use crate::journal::{Ending, Entry, Journal, Span};

const SLICE_PROVISION: &[Phase] = &[
    Phase::ImagePrepared,
    Phase::SeedGenerated,
    Phase::DomainDefined,
    Phase::VmStarted,
    Phase::SshReachable,
    Phase::DriverProbe,
];
const USER_PROVISION: &[Phase] =
    &[Phase::UserCreated, Phase::KeysInstalled, Phase::SshReachable, Phase::DriverProbe];
const SLICE_RELEASE: &[Phase] = &[
    Phase::AccessRevoked,
    Phase::ShutDown,
    Phase::Destroyed,
    Phase::Undefined,
    Phase::Wiped,
    Phase::LeasesReleased,
];
const USER_DEPROVISION: &[Phase] =
    &[Phase::AccessRevoked, Phase::ShutDown, Phase::Wiped, Phase::LeasesReleased];

const SLICE_RESTART: &[Phase] = &[
    Phase::ShutDown,
    Phase::VmStarted,
    Phase::SshReachable,
    Phase::DriverProbe,
    Phase::MountsReconciled,
    Phase::RuntimesReconciled,
];
const NODE_REBOOT: &[Phase] = &[
    Phase::Acknowledged,
    Phase::Rebooted,
    Phase::SshReachable,
    Phase::DriverProbe,
    Phase::MountsReconciled,
    Phase::RuntimesReconciled,
];

/// The phases of a kind, in order.
pub const fn phases(kind: TaskKind) -> &'static [Phase] {
    match kind {
        TaskKind::SliceProvision => SLICE_PROVISION,
        TaskKind::UserProvision => USER_PROVISION,
        TaskKind::SliceRestart => SLICE_RESTART,
        TaskKind::SliceRelease => SLICE_RELEASE,
        TaskKind::UserDeprovision => USER_DEPROVISION,
        TaskKind::NodeReboot => NODE_REBOOT,
    }
}

/// What an execution needs.
pub(crate) struct Tools<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) clock: &'a Clock,
    pub(crate) reports: &'a Reports,
    /// Set when newer work has come.
    pub(crate) cancel: &'a CancellationToken,
}

/// Does what is left of a task, and writes down how it ended.
pub(crate) async fn execute(tools: &Tools<'_>, mut entry: Entry) -> Result<TaskOutcome, Error> {
    let job = Job {
        allocation: entry.accepted.allocation,
        work: entry.accepted.work.clone(),
        places: entry.leases.clone(),
    };
    let task = entry.accepted.task;
    let mut last = None;
    for phase in phases(job.work.kind()).iter().copied() {
        if entry.has_done(phase) {
            continue;
        }
        if let Some(span) = last.take() {
            written(tools, task, span).await?;
        }
        let started_at = tools.clock.now();
        tools.reports.push(phase, PhaseStatus::Running, started_at);
        let performed = match tools.cancel.is_cancelled() {
            true => Err(Failure::Stopped),
            false => tools.driver.perform(&job, phase, tools.cancel).await,
        };
        let span = |hard_stopped| Span {
            phase: Coded(phase),
            started_at,
            ended_at: tools.clock.now(),
            hard_stopped,
        };
        match performed {
            Ok(done) => {
                let span = span(done.hard_stopped);
                entry.done.push(span);
                last = Some(span);
            }
            Err(failure) => return fail(tools, &entry, span(false), failure).await,
        }
    }
    let outcome = success(tools.driver, &job, &entry);
    // The last phase and the end are one write.
    let ending = Ending { last, failed: None, outcome: outcome.clone() };
    tools.journal.finish(task, ending).await?;
    if let Some(span) = last {
        tools.reports.push(span.phase.0, PhaseStatus::Succeeded, span.ended_at);
    }
    Ok(outcome)
}

/// A phase counts as done once it is on disk, and only then is anybody told.
async fn written(tools: &Tools<'_>, task: uuid::Uuid, span: Span) -> Result<(), Error> {
    tools.journal.phase_done(task, span).await?;
    tools.reports.push(span.phase.0, PhaseStatus::Succeeded, span.ended_at);
    Ok(())
}

async fn fail(
    tools: &Tools<'_>,
    entry: &Entry,
    span: Span,
    failure: Failure,
) -> Result<TaskOutcome, Error> {
    let task = entry.accepted.task;
    let failed = |reason: FailureReason, message: &str| TaskOutcome::Failed {
        reason: Coded(reason),
        phase: Some(span.phase),
        message: crate::sentence(message),
    };
    let outcome = match failure {
        Failure::Stopped => {
            let outcome = failed(FailureReason::Interrupted, "newer work for the allocation came");
            tools.journal.supersede(task, outcome.clone(), Some(span)).await?;
            tools.reports.push(span.phase.0, PhaseStatus::Failed, span.ended_at);
            return Ok(outcome);
        }
        Failure::Residue { message } => {
            tracing::warn!(%task, message, "a clean-up is not complete");
            TaskOutcome::Cleaned { proof: proof(entry) }
        }
        Failure::Failed { reason, message } => failed(reason, &message),
    };
    let ending = Ending { last: None, failed: Some(span), outcome: outcome.clone() };
    tools.journal.finish(task, ending).await?;
    tools.reports.push(span.phase.0, PhaseStatus::Failed, span.ended_at);
    Ok(outcome)
}

fn success(driver: &dyn Driver, job: &Job, entry: &Entry) -> TaskOutcome {
    match &job.work {
        Work::SliceProvision(_) | Work::UserProvision(_) => {
            TaskOutcome::Provisioned { access: driver.access(job) }
        }
        Work::SliceRelease(_) | Work::UserDeprovision(_) => {
            TaskOutcome::Cleaned { proof: proof(entry) }
        }
        Work::SliceRestart(_) | Work::NodeReboot(_) => {
            let boot_id = driver.machine().boot_id;
            TaskOutcome::Restarted { boot_id_before: boot_id, boot_id }
        }
    }
}

/// What the phases that are done prove.
fn proof(entry: &Entry) -> CleanupProof {
    let gone = match entry.accepted.work.kind() {
        TaskKind::SliceProvision | TaskKind::SliceRestart | TaskKind::SliceRelease => {
            Phase::Undefined
        }
        TaskKind::UserProvision | TaskKind::NodeReboot | TaskKind::UserDeprovision => {
            Phase::ShutDown
        }
    };
    CleanupProof {
        released: entry.has_done(gone),
        hard_stopped: entry.done.iter().any(|span| span.hard_stopped),
        wiped: entry.has_done(Phase::Wiped),
        leases_released: entry.has_done(Phase::LeasesReleased),
    }
}
