//! The engine: takes tasks, does each at most once, one at a time for an allocation and the newest first, and says how
//! they ended until the control plane has heard it.

mod delivery;
mod ticket;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::Code as _;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use uuid::Uuid;
use wire::Coded;
use wire::node::{FailureReason, PhaseStatus, SignedTask, TaskOutcome, Work};

use crate::Error;
use crate::client::Gateway;
use crate::clock::{Clock, Dice, pause};
use crate::drivers::Driver;
use crate::journal::{Beginning, Ending, Entry, Journal, Span, Standing};
use crate::tasks::{self, Tools};
use crate::verify::{Accepted, Refusal, Verifier};
pub(crate) use ticket::Reports;
use ticket::{Board, Ticket};

/// So many allocations are worked on at once.
const ROOM: usize = 16;
/// So many refusals are told at once; a flood of bad tasks must not fill the memory.
const REFUSALS_MAX: usize = 256;
/// So many agents may die in one phase of a task before it is given up. The last attempt is made by one such task at a
/// time, so that others who died with it are not taken for the one who did it.
const DEATHS_MAX: u32 = 3;
/// A suspect that has lived this long does not keep the others waiting.
const SUSPENSE: Duration = Duration::from_secs(60);

/// What the engine is made of.
pub(crate) struct Parts {
    pub(crate) journal: Arc<Journal>,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) gateway: Arc<dyn Gateway>,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) clock: Clock,
    pub(crate) dice: Arc<Dice>,
    /// Set when the agent ends.
    pub(crate) halt: CancellationToken,
}

/// The engine of one agent.
pub(crate) struct Engine {
    parts: Parts,
    board: Mutex<Board>,
    room: Semaphore,
    refusing: Semaphore,
    refused: AtomicU64,
    /// Held by the one task that may show whether it kills the agent.
    suspects: Semaphore,
}

/// What is left of a task's life.
enum Life {
    Fresh(Accepted),
    Begun(Box<Entry>),
    Ended(TaskOutcome),
}

/// The end of a task's work.
enum End {
    /// It has an outcome, which is written down.
    Outcome(TaskOutcome),
    /// It was not begun.
    Refused(Refusal),
}

type Lives = JoinSet<Result<(), Error>>;

impl Engine {
    /// An engine at rest.
    pub(crate) fn new(parts: Parts) -> Engine {
        Engine {
            parts,
            board: Mutex::default(),
            room: Semaphore::new(ROOM),
            refusing: Semaphore::new(REFUSALS_MAX),
            refused: AtomicU64::new(0),
            suspects: Semaphore::new(1),
        }
    }

    /// What the agent has in its books.
    pub(crate) fn journal(&self) -> &Journal {
        &self.parts.journal
    }

    /// Goes on where the journal ends, and takes tasks until the agent ends. What runs then is left as it is: the next
    /// run goes on with it.
    pub(crate) async fn run(
        self: Arc<Self>,
        mut inbox: mpsc::Receiver<SignedTask>,
    ) -> Result<(), Error> {
        let mut lives = Lives::new();
        self.resume(&mut lives);
        let ended = loop {
            tokio::select! {
                biased;
                () = self.parts.halt.cancelled() => break Ok(()),
                Some(life) = lives.join_next() => match life {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => break Err(error),
                    Err(panic) => break Err(Error::Panicked(panic)),
                },
                Some(signed) = inbox.recv() => Self::take(&self, &signed, &mut lives),
                else => break Ok(()),
            }
        };
        lives.shutdown().await;
        self.parts.journal.settle().await;
        ended
    }

    /// The tasks the agent is working on.
    pub(crate) fn running(&self) -> Vec<Uuid> {
        self.board().running()
    }

    /// How many tasks were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resume(self: &Arc<Self>, lives: &mut Lives) {
        for entry in self.parts.journal.open_entries() {
            let ticket = Ticket::known(&entry);
            let task = ticket.task;
            match &entry.standing {
                Standing::Begun => {
                    tracing::info!(%task, done = entry.done.len(), "going on with a task");
                    let prior = self.board().enter(&ticket);
                    lives.spawn(Arc::clone(self).live(ticket, prior, Life::Begun(Box::new(entry))));
                }
                Standing::Finished(outcome) | Standing::Superseded(outcome) => {
                    self.board().hang(&ticket);
                    let life = Life::Ended(outcome.clone());
                    lives.spawn(Arc::clone(self).live(ticket, None, life));
                }
            }
        }
    }

    fn take(self: &Arc<Self>, signed: &SignedTask, lives: &mut Lives) {
        match self.parts.verifier.verify(signed, self.parts.clock.now()) {
            Ok(accepted) => self.admit(accepted, lives),
            Err(refusal) => {
                self.count(signed.task_id, &refusal);
                // What was begun is not undone by a bad copy: its own end is the only truth about it.
                if self.board().find(signed.task_id).is_some() {
                    return;
                }
                match self.parts.journal.find(signed.task_id) {
                    Some(entry) => self.repeat(entry, signed.dispatch, lives),
                    None => self.refuse((signed.task_id, signed.dispatch), refusal, lives),
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, accepted: Accepted, lives: &mut Lives) {
        let Accepted { task, dispatch, allocation, fence, .. } = accepted;
        let mut board = self.board();
        if let Some(ticket) = board.find(task) {
            if ticket.reports.adopt(dispatch) {
                let journal = Arc::clone(&self.parts.journal);
                lives.spawn(async move { journal.redispatch(task, dispatch).await });
            }
            return;
        }
        if let Some(entry) = self.parts.journal.find(task) {
            drop(board);
            return self.repeat(entry, dispatch, lives);
        }
        // What was begun and has stopped since is in the journal, which is asked when this one begins.
        if board.newest(allocation).is_some_and(|newest| fence < newest.fence) {
            drop(board);
            let refusal = stale(fence);
            self.count(task, &refusal);
            return self.refuse((task, dispatch), refusal, lives);
        }
        let ticket = Ticket::fresh(&accepted);
        let prior = board.enter(&ticket);
        drop(board);
        if let Some(prior) = &prior {
            tracing::info!(%task, older = %prior.task, "newer work stops older");
            prior.cancel.cancel();
        }
        let span = traced(&accepted);
        let life = Arc::clone(self).live(ticket, prior, Life::Fresh(accepted));
        lives.spawn(life.instrument(span));
    }

    /// Says again how a task ended, to a new dispatch.
    fn repeat(self: &Arc<Self>, mut entry: Entry, dispatch: i64, lives: &mut Lives) {
        let Some(outcome) = entry.outcome().cloned() else { return };
        entry.accepted.dispatch = dispatch;
        let ticket = Ticket::known(&entry);
        self.board().hang(&ticket);
        let engine = Arc::clone(self);
        lives.spawn(async move {
            engine.parts.journal.redispatch(ticket.task, dispatch).await?;
            engine.live(ticket, None, Life::Ended(outcome)).await
        });
    }

    /// A task from here to the moment when the control plane knows how it ended.
    async fn live(
        self: Arc<Self>,
        ticket: Arc<Ticket>,
        prior: Option<Arc<Ticket>>,
        life: Life,
    ) -> Result<(), Error> {
        if let Some(prior) = prior {
            prior.stopped.cancelled().await;
        }
        let end = match life {
            Life::Fresh(accepted) => self.begin(&ticket, accepted).await?,
            Life::Begun(entry) => End::Outcome(self.go_on(&ticket, *entry).await?),
            Life::Ended(outcome) => End::Outcome(outcome),
        };
        self.board().leave(&ticket);
        ticket.stopped.cancel();
        match end {
            End::Outcome(outcome) => self.deliver(&ticket, outcome).await,
            End::Refused(refusal) => {
                self.count(ticket.task, &refusal);
                self.deliver(&ticket, failure(refusal)).await
            }
        }
    }

    async fn begin(&self, ticket: &Ticket, mut accepted: Accepted) -> Result<End, Error> {
        let room = tokio::select! {
            biased;
            () = ticket.cancel.cancelled() => None,
            room = self.room.acquire() => room.ok(),
        };
        let Some(_room) = room else {
            return Ok(End::Refused(stale(accepted.fence)));
        };
        if let Err(refusal) = accepted.in_time(self.parts.clock.now()) {
            return Ok(End::Refused(refusal));
        }
        let kind = accepted.work.kind();
        let task = accepted.task;
        accepted.dispatch = ticket.reports.dispatch();
        let boot = self.boot_of(&accepted);
        match self.parts.journal.begin(&accepted, boot).await? {
            Beginning::Stale(_) => Ok(End::Refused(stale(accepted.fence))),
            Beginning::Over => {
                let message = "the control plane has said that the allocation is over";
                Ok(End::Refused(Refusal::new(FailureReason::StaleFence, message)))
            }
            Beginning::Conflict(place, lease) => {
                let outcome = TaskOutcome::Failed {
                    reason: Coded(FailureReason::LeaseConflict),
                    phase: None,
                    message: format!("allocation {} has {place}", lease.allocation),
                };
                let ending = Ending { last: None, failed: None, outcome: outcome.clone() };
                self.parts.journal.finish(task, ending).await?;
                Ok(End::Outcome(outcome))
            }
            Beginning::Begun(entry) => {
                tracing::info!(%task, allocation = %ticket.allocation, %kind, "a task begins");
                Ok(End::Outcome(self.work(ticket, *entry, None).await?))
            }
        }
    }

    /// The boot that a restart is to end. What can't be found out now fails in the first phase.
    fn boot_of(&self, accepted: &Accepted) -> Option<Uuid> {
        match &accepted.work {
            Work::SliceRestart(_) | Work::NodeReboot(_) => {
                let boot = self.parts.driver.boot_id(accepted.allocation, &accepted.work);
                boot.ok().flatten()
            }
            Work::SliceProvision(_)
            | Work::SliceRelease(_)
            | Work::UserProvision(_)
            | Work::UserDeprovision(_) => None,
        }
    }

    /// Goes on with a task of an earlier run of the agent, unless too many agents have died of it.
    async fn go_on(&self, ticket: &Ticket, entry: Entry) -> Result<TaskOutcome, Error> {
        let deaths = entry.deaths();
        if deaths >= DEATHS_MAX {
            return self.give_up(ticket, &entry).await;
        }
        let _room = self.room.acquire().await.ok();
        let turn = match deaths + 1 == DEATHS_MAX {
            true => tokio::select! {
                biased;
                turn = self.suspects.acquire() => turn.ok(),
                _ = pause(SUSPENSE, &ticket.cancel) => None,
            },
            false => None,
        };
        self.parts.journal.resume(ticket.task, deaths).await?;
        self.work(ticket, entry, turn).await
    }

    /// Ends a task that the agent does not survive. What it left is the next clean-up's.
    async fn give_up(&self, ticket: &Ticket, entry: &Entry) -> Result<TaskOutcome, Error> {
        let (task, deaths) = (ticket.task, entry.deaths());
        let kind = entry.accepted.work.kind();
        let phase = tasks::phases(kind).iter().copied().find(|phase| !entry.has_done(*phase));
        tracing::error!(%task, %kind, ?phase, deaths, "a task is given up: agents die of it");
        let outcome = TaskOutcome::Failed {
            reason: Coded(FailureReason::AgentDied),
            phase: phase.map(Coded),
            message: format!("the agent died {deaths} times in this phase, and has given it up"),
        };
        let now = self.parts.clock.now();
        let span = |phase| Span {
            phase: Coded(phase),
            started_at: now,
            ended_at: now,
            hard_stopped: false,
        };
        let failed = phase.map(span);
        let ending = Ending { last: None, failed, outcome: outcome.clone() };
        self.parts.journal.finish(task, ending).await?;
        for status in [PhaseStatus::Running, PhaseStatus::Failed] {
            phase.inspect(|phase| ticket.reports.push(*phase, status, now));
        }
        Ok(outcome)
    }

    async fn work(
        &self,
        ticket: &Ticket,
        entry: Entry,
        turn: Option<SemaphorePermit<'_>>,
    ) -> Result<TaskOutcome, Error> {
        let tools = Tools {
            journal: &self.parts.journal,
            driver: &*self.parts.driver,
            clock: &self.parts.clock,
            reports: &ticket.reports,
            cancel: &ticket.cancel,
        };
        let kind = entry.accepted.work.kind();
        // The reporter runs beside the work, and ends with it: what it has not said goes with the result.
        let outcome = tokio::select! {
            biased;
            outcome = Box::pin(tasks::execute(&tools, entry, turn)) => outcome?,
            never = self.report(ticket) => match never {},
        };
        tracing::info!(task = %ticket.task, %kind, outcome = word(&outcome), "a task has ended");
        Ok(outcome)
    }

    fn count(&self, task: Uuid, refusal: &Refusal) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let Refusal { reason, message } = refusal;
        tracing::warn!(%task, %reason, message, "a task is refused");
    }
}

/// A task's place in the trace of the request that it is for.
fn traced(accepted: &Accepted) -> tracing::Span {
    if accepted.traceparent.is_none() {
        return tracing::Span::none();
    }
    let Accepted { task, dispatch, allocation, .. } = accepted;
    let kind = accepted.work.kind().code();
    let span = tracing::trace_span!(
        target: trace::TARGET, "agent", otel.name = format!("agent: {kind}"), otel.kind = "consumer",
        task_id = %task, allocation_id = %allocation, dispatch,
    );
    trace::follow(&span, accepted.traceparent.as_deref());
    span
}

fn stale(fence: i64) -> Refusal {
    let message = format!("newer work was begun for the allocation than fence {fence}");
    Refusal::new(FailureReason::StaleFence, message)
}

fn failure(refusal: Refusal) -> TaskOutcome {
    TaskOutcome::Failed {
        reason: Coded(refusal.reason),
        phase: None,
        message: crate::sentence(&refusal.message),
    }
}

/// An outcome in a word, for the log.
fn word(outcome: &TaskOutcome) -> &'static str {
    match outcome {
        TaskOutcome::Provisioned { .. } => "provisioned",
        TaskOutcome::Restarted { .. } => "restarted",
        TaskOutcome::Cleaned { proof } if proof.is_complete() => "cleaned",
        TaskOutcome::Cleaned { .. } => "cleaned in part",
        TaskOutcome::Failed { reason, .. } => reason.0.code(),
    }
}
