//! Release of a group, in order of time: `request` notes the wish → `step` asks each member that is left, each in its own
//! transaction → the members' own releases → the group follows them. A wish that was noted is passed on, whatever dies.
//! Doors: POST …/release, the workflow `group_release`, and the sweep `forgotten_group_releases`.

use domain::ids::{AllocationGroupId, AllocationId, EventId, OperationId};
use domain::machines::allocation::Event;
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::Source;
use serde::{Deserialize, Serialize};
use spine::workflow::{Happened, NewRun, Next, Run, Stepped};
use store::lifecycle::{Actor, Report};
use store::{allocation_groups, allocations};
use uuid::Uuid;
use wire::http::allocation_groups::AllocationGroup;

use super::view;
use crate::allocation::provision::reported;
use crate::allocation::view::Viewer;
use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::ids::derived;
use crate::{Caller, Ctx, Error, run_state};

/// What the workflow is called.
pub const WORKFLOW: &str = "group_release";

/// Somebody gives a whole group back. Asked again while it is being released, it is the same release; after it has failed,
/// only the members that are left are asked again. A group that has ended stays as it is, and members that outlived it are
/// asked all the same.
///
/// # Errors
/// [`Error::NotFound`] when it is not theirs, [`Error::Conflict`] when nothing of it is left.
pub async fn request(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationGroupId,
    key: Option<&Key>,
) -> Result<Answer<AllocationGroup>, Error> {
    let role = caller.on_group(ctx, id, Permission::AllocationRelease).await?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let followed = allocation_groups::request_release(&mut tx, id, &caller.cause()).await?;
    if followed.is_some_and(|outcome| outcome.is_retryable()) {
        return Err(store::Error::Conflict.into());
    }
    let noted = allocation_groups::note_release(&mut tx, id, caller.user_id).await?;
    let viewer = Viewer::of(caller, Some(role));
    let shown = view::in_transaction(&mut tx, id, viewer).await?;
    let deed = Deed::new(caller, Action::GroupRelease, "allocation_group", id)
        .in_project(shown.project_id);
    if noted.is_none() && shown.ended_at.is_some() {
        deed.write(&mut tx, "refused").await?;
        tx.commit().await?;
        let status = shown.status;
        return Err(Error::Conflict(format!("it is {status}: there is nothing left to release")));
    }
    let answer = finish(tx, &deed, key, 202, shown).await?;
    if let Some(release) = noted
        && let Err(error) = ctx.workflows.start(run_of(id, release, "")?).await
    {
        // What was answered stays true: the sweep passes it on.
        tracing::warn!(group_id = %id, error = %error, "the release of a group waits for the sweep");
    }
    Ok(answer)
}

/// What a run keeps: which wish it is about.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct State {
    release: Uuid,
}

fn run_of(id: AllocationGroupId, release: Uuid, again: &str) -> Result<NewRun, Error> {
    Ok(NewRun {
        id: format!("group-release-{release}{again}"),
        workflow: WORKFLOW,
        entity_id: id.uuid(),
        state: run_state::write(&State { release })?,
    })
}

/// The one step of the workflow: every member that is left is asked, each in its own short transaction. Done twice, it asks
/// once, because what it says is named after the wish and the member.
///
/// # Errors
/// What is to be tried again.
pub async fn step(ctx: &Ctx, run: &Run, _happened: &Happened) -> Result<Stepped, Error> {
    let State { release } = run_state::read(run)?;
    let id = AllocationGroupId(run.entity_id);
    let mut tx = ctx.store.begin().await?;
    let pending = allocation_groups::pending_release(&mut tx, id).await?;
    tx.rollback().await?;
    // A newer wish has a run of its own.
    let Some(pending) = pending.filter(|pending| pending.release == release) else {
        return Ok(Next::Done.into());
    };
    for member in &pending.members {
        ask(ctx, id, (release, pending.by), *member).await?;
    }
    let mut tx = ctx.store.begin().await?;
    allocation_groups::passed_on(&mut tx, id, release).await?;
    Ok(Next::Done.within(tx))
}

/// One member is asked. What it answers is its own affair: it may have been given back or have failed meanwhile.
async fn ask(
    ctx: &Ctx,
    group: AllocationGroupId,
    (release, by): (Uuid, Uuid),
    member: AllocationId,
) -> Result<(), Error> {
    let named =
        |label: &str| derived(&format!("group-release-{release}"), &format!("{label} {member}"));
    let actor = Actor::new(Source::User, format!("user {by}"));
    let report = Report::new(Event::ReleaseRequested, EventId(named("requested")), actor)
        .about(OperationId(named("operation")))
        .because(format!("release of group {group}"));
    let mut tx = ctx.store.begin().await?;
    let outcome = reported(allocations::report(&mut tx, member, &report).await?)?;
    tx.commit().await?;
    tracing::debug!(group_id = %group, allocation_id = %member, applied = outcome.is_applied(), "asked");
    Ok(())
}

/// Releases that were noted, and that nobody passes on: whoever was to do it has died.
///
/// # Errors
/// When the store fails.
pub async fn take_up(ctx: &Ctx, before: Timestamp) -> Result<u64, Error> {
    let mut tx = ctx.store.begin().await?;
    let forgotten = allocation_groups::forgotten_releases(&mut tx, before).await?;
    tx.rollback().await?;
    let mut taken_up = 0;
    for (group, release, runs) in forgotten {
        tracing::warn!(group_id = %group, "nobody passed its release on: taken up again");
        let again = format!("-again-{runs}");
        taken_up += u64::from(ctx.workflows.start(run_of(group, release, &again)?).await?);
    }
    Ok(taken_up)
}
