//! What each kind of task consists of: its phases in order, and what it has to show in the end.

use jiff::Timestamp;
use lifecycle::Code as _;
use tokio::sync::SemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use wire::Coded;
use wire::node::{CleanupProof, FailureReason, Phase, PhaseStatus, TaskKind, TaskOutcome, Work};

use crate::Error;
use crate::clock::Clock;
use crate::drivers::{Done, Driver, Failure, Job};
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

/// So often a machine is told to reboot before the task is given up: a machine that comes back as it was has not
/// rebooted, and one that is told for ever never serves anybody.
pub const REBOOTS_MAX: u32 = 3;

/// What an execution needs.
pub(crate) struct Tools<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) driver: &'a dyn Driver,
    pub(crate) clock: &'a Clock,
    pub(crate) reports: &'a Reports,
    /// Set when newer work has come.
    pub(crate) cancel: &'a CancellationToken,
}

/// Does what is left of a task, and writes down how it ended. A task that was suspected to kill the agent gives its turn
/// back once it has survived a phase.
pub(crate) async fn execute(
    tools: &Tools<'_>,
    mut entry: Entry,
    mut turn: Option<SemaphorePermit<'_>>,
) -> Result<TaskOutcome, Error> {
    let job = Job {
        allocation: entry.accepted.allocation,
        work: entry.accepted.work.clone(),
        places: entry.leases.clone(),
        boot: entry.boot,
    };
    let task = entry.accepted.task;
    let mut last = None;
    for phase in phases(job.work.kind()).iter().copied() {
        if entry.has_done(phase) {
            continue;
        }
        if let Some(span) = last.take() {
            written(tools, task, span).await?;
            turn.take();
        }
        let started_at = started_at(&entry, phase, tools.clock.now());
        tools.reports.push(phase, PhaseStatus::Running, started_at);
        let place = traced(&entry, phase);
        let performed = match (tools.cancel.is_cancelled(), phase) {
            (true, _) => Err(Failure::Stopped),
            (false, Phase::Rebooted) => reboot(tools, &entry, &job).instrument(place).await?,
            (false, phase) => {
                tools.driver.perform(&job, phase, tools.cancel).instrument(place).await
            }
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

/// A phase's place in the trace of its task.
fn traced(entry: &Entry, phase: Phase) -> tracing::Span {
    if trace::current().is_none() {
        return tracing::Span::none();
    }
    let (task, phase) = (entry.accepted.task, phase.code());
    tracing::trace_span!(target: trace::TARGET, "phase", otel.name = format!("phase: {phase}"), task_id = %task, phase)
}

/// When a phase began. A reboot began before the machine went down.
fn started_at(entry: &Entry, phase: Phase, now: Timestamp) -> Timestamp {
    match entry.reboots {
        Some((_, since)) if phase == Phase::Rebooted => since,
        Some(_) | None => now,
    }
}

/// Reboots the machine, as often as it may be told to. Whoever comes back from it is another agent, which finds another
/// boot than the one that the journal names: that, and nothing else, is the proof.
async fn reboot(
    tools: &Tools<'_>,
    entry: &Entry,
    job: &Job,
) -> Result<Result<Done, Failure>, Error> {
    if has_new_boot(tools.driver, job) == Ok(true) {
        return Ok(Ok(Done::default()));
    }
    let task = entry.accepted.task;
    let (asked, since) = entry.reboots.unwrap_or((0, tools.clock.now()));
    if asked >= REBOOTS_MAX {
        let message = format!("told to reboot {asked} times, the machine is in the same boot");
        return Ok(Err(Failure::because(FailureReason::RebootFailed, message)));
    }
    tools.journal.ask_reboot(task, asked + 1, since).await?;
    // The control plane is told before the machine goes, or at least was called.
    tools.reports.said().await;
    let performed = tools.driver.perform(job, Phase::Rebooted, tools.cancel).await;
    Ok(performed.and_then(|done| match has_new_boot(tools.driver, job)? {
        true => Ok(done),
        false => Err(Failure::because(FailureReason::RebootFailed, "the machine did not go down")),
    }))
}

fn has_new_boot(driver: &dyn Driver, job: &Job) -> Result<bool, Failure> {
    let now = driver.boot_id(job.allocation, &job.work)?;
    Ok(job.boot.is_some() && now.is_some() && now != job.boot)
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
        Work::SliceRestart(_) | Work::NodeReboot(_) => restarted(driver, job),
    }
}

/// A restart is proven by another boot than the one it was to end, at its end.
fn restarted(driver: &dyn Driver, job: &Job) -> TaskOutcome {
    let boot_id = driver.boot_id(job.allocation, &job.work).ok().flatten();
    match (job.boot, boot_id) {
        (Some(boot_id_before), Some(boot_id)) if boot_id != boot_id_before => {
            TaskOutcome::Restarted { boot_id_before, boot_id }
        }
        (before, now) => {
            let reason = if now.is_none() {
                FailureReason::GuestMissing
            } else {
                FailureReason::RebootFailed
            };
            let message = format!("it began in boot {before:?}, and ended in boot {now:?}");
            TaskOutcome::Failed { reason: Coded(reason), phase: None, message }
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
