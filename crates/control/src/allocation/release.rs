//! Release, in order of time: `request` or `force` → `begin` → the node cleans up → `complete`, or it is given up and a
//! proof that comes later still counts. Doors: POST …/release and …/force-release, the workflow `release`, started by
//! `provisioning.releasing.requested`; the bus when that message is exhausted.

use std::time::Duration;

use domain::ids::{AllocationId, EventId, OperationId};
use domain::machines::REASON;
use domain::machines::allocation::{Event, Status};
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::{Outcome, Source, Value};
use serde::{Deserialize, Serialize};
use spine::workflow::{Happened, NewRun, Next, Run, Stepped};
use store::allocations::{self, Held};
use store::claims;
use store::lifecycle::{Actor, Report};
use store::{Company, Tx, node_tasks, workflow_runs};
use uuid::Uuid;
use wire::bus::Subject;
use wire::http::allocations::{Allocation, ForceRelease};
use wire::node::CleanupProof;

use super::cleanup::{self, Cleaning};
use super::provision::{self, reported};
use super::view::{self, Viewer};
use super::{receipt, restart};
use crate::audit_log::{Action, Deed};
use crate::doors::subscriptions;
use crate::idempotency::{Answer, Begun, Key, begin_in, finish};
use crate::ids::{derived, new_event};
use crate::node::task;
use crate::{Caller, Ctx, Error, run_state};

/// What the workflow is called.
pub const WORKFLOW: &str = "release";
/// How long a proof is still waited for after giving up.
const LATE_PROOF_SECONDS: u64 = 3_600;
/// What is told when no worker could take a release.
const NO_WORKER: &str = "no_worker";

/// Somebody gives their machine back. Asked again while it is being released, it is the same release; after it has failed,
/// a new one.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs, [`Error::Conflict`] when it has ended.
pub async fn request(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationId,
    key: Option<&Key>,
) -> Result<Answer<Allocation>, Error> {
    let (role, relation) = caller.on_allocation(ctx, id, Permission::AllocationRelease).await?;
    let viewer = Viewer::of(caller, Some(role));
    let deed = Deed::new(caller, Action::AllocationRelease, "allocation", id);
    let asked = Asked { actor: caller.actor(), reason: None, deed };
    // Members of a group meet at its row.
    if !relation.grouped {
        let company = Company::Same { doing: ("allocations", "release"), about: id.uuid() };
        let asked_together = ask(ctx, id, asked.clone(), (viewer, key, company)).await;
        if !asked_together.as_ref().is_err_and(Error::is_company) {
            return asked_together;
        }
    }
    ask(ctx, id, asked, (viewer, key, Company::Alone)).await
}

/// An operator takes a machine back.
///
/// # Errors
/// [`Error::NotFound`] when there is no such allocation, [`Error::Conflict`] when it has ended.
pub async fn force(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationId,
    because: &ForceRelease,
    key: Option<&Key>,
) -> Result<Answer<Allocation>, Error> {
    caller.needs(Permission::AllocationForceRelease)?;
    let reason = crate::audit_log::because(&because.reason)?;
    let viewer = Viewer::of(caller, None);
    let deed = Deed::new(caller, Action::AllocationForceRelease, "allocation", id).because(reason);
    let asked = Asked { actor: caller.operator_actor(), reason: Some("force_released"), deed };
    ask(ctx, id, asked, (viewer, key, Company::Alone)).await
}

/// Who asks, and why.
#[derive(Clone)]
struct Asked<'a> {
    actor: Actor,
    reason: Option<&'static str>,
    deed: Deed<'a>,
}

async fn ask(
    ctx: &Ctx,
    id: AllocationId,
    asked: Asked<'_>,
    (viewer, key, company): (Viewer, Option<&Key>, Company),
) -> Result<Answer<Allocation>, Error> {
    let mut tx = match begin_in(ctx, key, company).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let (request, operation) = (new_event(&tx), OperationId(tx.new_id()));
    let mut report = Report::new(Event::ReleaseRequested, request, asked.actor)
        .about(operation)
        .because(asked.deed.caller.cause())
        .heard(subscriptions::provisioner(Subject::ReleasingRequested));
    if let Some(reason) = asked.reason {
        report = report.with(REASON, Value::Text(reason.into()));
    }
    let outcome = reported(allocations::report(&mut tx, id, &report).await?)?;
    if outcome.is_applied() {
        overtake(&mut tx, id).await?;
        ctx.workflows.start_in(&mut tx, &run_of(id, request, operation)?).await?;
    }
    match outcome {
        Outcome::Applied { .. } | Outcome::Duplicate(_) => {
            let shown = view::in_transaction(&mut tx, id, viewer).await?;
            let deed = asked.deed.in_project(shown.project_id);
            finish(tx, &deed, key, 202, shown).await
        }
        Outcome::Refused(refusal) => {
            // The refusal stays on record; a key without an answer is free again.
            asked.deed.write(&mut tx, "refused").await?;
            tx.commit().await?;
            match refusal.status {
                None => Err(Error::NotFound("allocation")),
                Some(status) => {
                    Err(Error::Conflict(format!("it is {status}: there is nothing to release")))
                }
            }
        }
    }
}

/// A release overtakes whatever may still be under way: its runs are told that nobody wants what they do.
///
/// # Errors
/// When the database fails.
pub(crate) async fn overtake(tx: &mut Tx, id: AllocationId) -> Result<(), Error> {
    const OVERTAKEN: &[&str] = &[provision::WORKFLOW, restart::WORKFLOW];
    let word = serde_json::to_value(Happened::Cancelled)
        .map_err(|error| Error::Broken(error.to_string()))?;
    Ok(workflow_runs::tell_all_in(tx, id.uuid(), OVERTAKEN, &word).await?)
}

/// What the workflow keeps between its steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    operation: Uuid,
    at: At,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "snake_case")]
enum At {
    /// Not begun.
    Start,
    /// The node cleans up.
    Cleaning { cleanup: cleanup::State },
    /// This task has brought the proof, while another run's was still under way.
    Proven { task: Uuid },
    /// Given up; this task may still bring the proof.
    GivenUp { task: Uuid, until: Timestamp },
}

/// The run that a request starts, named after it: however often it is started, it is one.
///
/// # Errors
/// Never; serde's signature.
pub(crate) fn run_of(
    id: AllocationId,
    request: EventId,
    operation: OperationId,
) -> Result<NewRun, Error> {
    let state = start_state(operation)?;
    let name = format!("release-{request}");
    Ok(NewRun { id: name, workflow: WORKFLOW, entity_id: id.uuid(), state })
}

/// What a run is started with.
///
/// # Errors
/// Never for this type; serde's signature.
pub fn start_state(operation: OperationId) -> Result<serde_json::Value, Error> {
    run_state::write(&State { operation: operation.uuid(), at: At::Start })
}

/// One step of the workflow: one short transaction.
///
/// # Errors
/// What is to be tried again.
pub async fn step(ctx: &Ctx, run: &Run, happened: &Happened) -> Result<Stepped, Error> {
    let state: State = run_state::read(run)?;
    let mut tx = ctx.store.begin_in(run.company).await?;
    trace::note("allocation_id", run.entity_id);
    let story = Story { ctx, run, id: AllocationId(run.entity_id), state };
    let next = match story.state.at.clone() {
        At::Start => story.begin(&mut tx).await?,
        At::Cleaning { cleanup } => story.clean(&mut tx, cleanup, happened).await?,
        At::Proven { task } => {
            let proof = cleanup::proof_of(&task::load(&mut tx, task).await?)?;
            story.complete(&mut tx, Some(task), proof).await?
        }
        At::GivenUp { task, until } => story.late(&mut tx, (task, until), happened).await?,
    };
    Ok(next.within(tx))
}

/// One run about one allocation.
struct Story<'a> {
    ctx: &'a Ctx,
    run: &'a Run,
    id: AllocationId,
    state: State,
}

impl Story<'_> {
    fn operation(&self) -> OperationId {
        OperationId(self.state.operation)
    }

    fn cleaning(&self) -> Cleaning {
        Cleaning { run: self.run.id.clone(), allocation: self.id, operation: self.operation() }
    }

    fn report(&self, event: Event, label: &str) -> Report<Event> {
        let actor = Actor::new(Source::Worker, self.run.id.as_str());
        Report::new(event, EventId(derived(&self.run.id, label)), actor).about(self.operation())
    }

    fn wait(mut self, at: At, until: Timestamp) -> Result<Next, Error> {
        let waits_for = match &at {
            At::Cleaning { cleanup } => cleanup.waits_for(),
            At::Proven { .. } => "another clean-up of it to end",
            At::Start | At::GivenUp { .. } => "the node to clean up",
        };
        self.state.at = at;
        Ok(Next::Wait { state: run_state::write(&self.state)?, until, waits_for })
    }

    /// What was under way is called off, and the node is told to clean up after it.
    async fn begin(self, tx: &mut Tx) -> Result<Next, Error> {
        if !self.is_ours(allocations::hold(tx, self.id).await?.as_ref()) {
            return Ok(Next::Done);
        }
        for live in node_tasks::live_of(tx, self.id).await? {
            if live.operation != self.operation() {
                task::cancel(tx, &self.run.id, &live, "released").await?;
            }
        }
        match self.cleaning().begin(self.ctx, tx).await? {
            Some((cleanup, until)) => self.wait(At::Cleaning { cleanup }, until),
            None => self.complete(tx, None, None).await,
        }
    }

    async fn clean(
        self,
        tx: &mut Tx,
        state: cleanup::State,
        happened: &Happened,
    ) -> Result<Next, Error> {
        let task = state.task();
        match self.cleaning().step(self.ctx, tx, state, happened).await? {
            cleanup::Next::Wait(cleanup, until) => self.wait(At::Cleaning { cleanup }, until),
            cleanup::Next::Proven(proof) => self.complete(tx, task, proof).await,
            cleanup::Next::GivenUp { reason, open } => self.give_up(tx, reason, open).await,
        }
    }

    /// Nothing was left behind: it is over, what it held is anybody's, and the tenant has it in writing.
    /// A second run of the same release may still have something under way: then it is asked again, because whoever goes
    /// last must not be the one who has given up.
    async fn complete(
        self,
        tx: &mut Tx,
        task: Option<Uuid>,
        proof: Option<CleanupProof>,
    ) -> Result<Next, Error> {
        let report = self.report(Event::ReleaseCompleted, "completed");
        let outcome = reported(allocations::report(tx, self.id, &report).await?)?;
        if outcome.landed_on(Status::Released) {
            let claims = claims::lock_live(tx, self.id).await?;
            receipt::write(self.ctx, tx, self.id, (self.operation(), proof, &claims)).await?;
            self.cleaning().free(tx).await?;
        } else if self.is_ours(allocations::hold(tx, self.id).await?.as_ref()) {
            let at = task.map_or(At::Start, |task| At::Proven { task });
            let until = self.ctx.clock.after(self.ctx.policies().retry_after(1));
            return self.wait(at, until);
        }
        Ok(Next::Done)
    }

    /// Whether the allocation is still being released by this release.
    fn is_ours(&self, held: Option<&Held>) -> bool {
        held.is_some_and(|held| {
            held.operation == self.operation() && held.status == Status::Releasing
        })
    }

    async fn give_up(self, tx: &mut Tx, reason: String, open: Option<Uuid>) -> Result<Next, Error> {
        let report = self
            .report(Event::ReleaseExhausted, "exhausted")
            .with(REASON, Value::Text(reason.clone().into()));
        let outcome = reported(allocations::report(tx, self.id, &report).await?)?;
        if outcome.landed_on(Status::ReleaseFailed) {
            self.cleaning().get_stuck(tx, &reason).await?;
        }
        match open {
            Some(task) => {
                let until = self.ctx.clock.after(Duration::from_secs(LATE_PROOF_SECONDS));
                self.wait(At::GivenUp { task, until }, until)
            }
            None => Ok(Next::Done),
        }
    }

    /// After giving up: a proof still counts, anything else is no news.
    async fn late(
        self,
        tx: &mut Tx,
        (task, until): (Uuid, Timestamp),
        happened: &Happened,
    ) -> Result<Next, Error> {
        match happened {
            Happened::TaskFinished { task_id } if *task_id == task => {
                let task = task::load(tx, task).await?;
                let complete = task.cleanup_complete == Some(true);
                let proof = if complete { cleanup::proof_of(&task)? } else { None };
                if complete { self.complete(tx, None, proof).await } else { Ok(Next::Done) }
            }
            Happened::TimeOut | Happened::Cancelled => Ok(Next::Done),
            Happened::Started | Happened::TaskFinished { .. } => {
                self.wait(At::GivenUp { task, until }, until)
            }
        }
    }
}

/// A release that no worker could take.
/// Door: the bus, when `provisioning.releasing.requested` is exhausted.
///
/// # Errors
/// When the database fails.
pub async fn exhausted(ctx: &Ctx, id: AllocationId, operation: OperationId) -> Result<(), Error> {
    let mut tx = ctx.store.begin().await?;
    let run = format!("exhausted-{operation}");
    let event = EventId(derived(&run, "exhausted"));
    let report = Report::new(Event::ReleaseExhausted, event, Actor::new(Source::Worker, "bus"))
        .about(operation)
        .with(REASON, Value::Text(NO_WORKER.into()));
    let outcome = reported(allocations::report(&mut tx, id, &report).await?)?;
    if outcome.landed_on(Status::ReleaseFailed) {
        // Nobody has begun to clean: without this the claims would stand as if the tenant still had them.
        let cleaning = Cleaning { run, allocation: id, operation };
        cleaning.begin_stuck(&mut tx, NO_WORKER).await?;
    }
    tx.commit().await?;
    if outcome.is_applied() {
        tracing::warn!(allocation_id = %id, "no worker could take the release: it has failed");
    }
    Ok(())
}
