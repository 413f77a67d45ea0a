//! Why a group is as it is: which members it waits for, what each of them is at, who takes the next step and by when, and
//! what the caller may do. What is said of a member is what its own explanation says.

use domain::derived::allocation_group::Status;
use domain::ids::AllocationGroupId;
use domain::machines::AllocationGroup as Machine;
use domain::machines::allocation::Status as Member;
use domain::policy::Permission;
use jiff::Timestamp;
use lifecycle::{Code as _, Machine as _};
use store::views::allocation_groups::{self, Row};
use store::workflow_runs;
use uuid::Uuid;
use wire::http::allocation_groups::GroupAction;
use wire::http::explain::{
    GroupExplanation, GroupMayDo, MemberExplained, NextStep, Owner, StepTaken,
};

use super::view::shown;
use crate::allocation::explain::{may_do, run, standing};
use crate::allocation::timeline::Reader;
use crate::allocation::timeline::words::shortened;
use crate::allocation::view::{Viewer, shown as shown_allocation};
use crate::{Caller, Ctx, Error};

/// How many of the last steps are shown.
const STEPS_MAX: usize = 10;
/// How many members are named in a sentence.
const NAMES_MAX: usize = 4;

/// Why a group of the caller's projects is as it is.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn for_tenant(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationGroupId,
) -> Result<GroupExplanation, Error> {
    caller.needs(Permission::AllocationRead)?;
    let row = allocation_groups::find_for(&ctx.store, id, caller.user_id).await?;
    made(ctx, caller, Reader::Tenant, row).await
}

/// Why any group is as it is, with the workflow that is at it, for operators.
///
/// # Errors
/// [`Error::Forbidden`] for anybody else, [`Error::NotFound`] when there is none.
pub async fn for_operator(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationGroupId,
) -> Result<GroupExplanation, Error> {
    caller.needs(Permission::FleetRead)?;
    let row = allocation_groups::find(&ctx.store, id).await?;
    made(ctx, caller, Reader::Operator, row).await
}

async fn made(
    ctx: &Ctx,
    caller: &Caller,
    reader: Reader,
    row: Option<Row>,
) -> Result<GroupExplanation, Error> {
    let row = row.ok_or(Error::NotFound("allocation group"))?;
    let viewer = Viewer::of(caller, row.role);
    let members = members(ctx, reader, &row, viewer).await?;
    let next_step = next_step(&row, &members);
    let steps = steps(ctx, reader, row.id).await?;
    let runs = match reader {
        Reader::Tenant => Vec::new(),
        Reader::Operator => workflow_runs::open_about(&ctx.store, row.id).await?,
    };
    let shown = shown(row, viewer);
    let may_do = shown.allowed_actions.iter().map(|action| GroupMayDo {
        action: *action,
        sentence: sentence_of_action(action.0).to_owned(),
        command: Some(command_of(action.0, shown.id)),
    });
    Ok(GroupExplanation {
        group_id: shown.id,
        name: shown.name,
        status: shown.status,
        since: shown.status_at,
        doing: shown.status_text,
        next_step,
        may_do: may_do.collect(),
        members,
        steps,
        runs: runs.into_iter().map(run).collect(),
    })
}

async fn members(
    ctx: &Ctx,
    reader: Reader,
    row: &Row,
    viewer: Viewer,
) -> Result<Vec<MemberExplained>, Error> {
    let mut explained = Vec::with_capacity(row.members.len());
    for member in &row.members {
        let (waits_for, next_step) = standing(ctx, &member.allocation, reader).await?;
        let shown = shown_allocation(member.allocation.clone(), viewer);
        explained.push(MemberExplained {
            allocation_id: shown.id,
            required: member.required,
            holds_up: holds_up(row.status, member.allocation.status, member.required),
            status: shown.status,
            since: shown.status_at,
            may_do: may_do(&shown, reader),
            reason: shown.status_reason,
            doing: shown.status_text,
            name: shown.name,
            waits_for,
            next_step,
        });
    }
    Ok(explained)
}

/// Whether a group in this status is in no better one because of a member in that.
const fn holds_up(group: Status, member: Member, required: bool) -> bool {
    match group {
        Status::Requested | Status::Provisioning => {
            required && matches!(member, Member::Requested | Member::Provisioning)
        }
        Status::Degraded => required && !matches!(member, Member::Active | Member::Restarting),
        Status::Releasing | Status::ReleaseFailed => {
            !matches!(member, Member::Released | Member::Failed)
        }
        Status::Active | Status::Released | Status::Failed => false,
    }
}

/// The next step of a group is the one of its members that is due first.
fn next_step(row: &Row, members: &[MemberExplained]) -> Option<NextStep> {
    let step = |owner: Owner, then: &str| {
        Some(NextStep { owner: owner.into(), by: None, overdue: false, then: then.to_owned() })
    };
    if row.release_pending {
        return step(Owner::Berth, "Each member that is left is asked to go.");
    }
    match row.status {
        Status::Released | Status::Failed => return None,
        Status::Active => {
            let then = "Nothing is to be done: it stays like this until somebody wants otherwise.";
            return step(Owner::Nobody, then);
        }
        Status::Requested
        | Status::Provisioning
        | Status::Degraded
        | Status::Releasing
        | Status::ReleaseFailed => {}
    }
    let holding: Vec<&MemberExplained> = members.iter().filter(|each| each.holds_up).collect();
    let due = |each: &&&MemberExplained| {
        each.next_step.as_ref().and_then(|step| step.by).unwrap_or(Timestamp::MAX)
    };
    let moving = holding.iter().filter(|each| each.next_step.is_some()).min_by_key(due);
    match moving.and_then(|each| Some((each, each.next_step.as_ref()?))) {
        Some((first, next)) => {
            let due = match holding.len() {
                1 => String::new(),
                _ => format!("; {} is due first", first.name),
            };
            let then = format!("It waits for {}{due}. {}", names(&holding), next.then);
            Some(NextStep { then, ..next.clone() })
        }
        None => step(
            Owner::You,
            "A required member is gone for good, and nothing takes its place: use what is left, or release the group.",
        ),
    }
}

fn names(members: &[&MemberExplained]) -> String {
    let named: Vec<&str> =
        members.iter().take(NAMES_MAX).map(|member| member.name.as_str()).collect();
    match members.len().saturating_sub(NAMES_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

const fn sentence_of_action(action: GroupAction) -> &'static str {
    match action {
        GroupAction::Release => {
            "Give back every member that is left: billing stops, and everything on them is erased."
        }
    }
}

fn command_of(action: GroupAction, id: Uuid) -> String {
    match action {
        GroupAction::Release => format!("berth group release {id}"),
    }
}

async fn steps(ctx: &Ctx, reader: Reader, id: Uuid) -> Result<Vec<StepTaken>, Error> {
    let steps = ctx.store.transitions(Machine::NAME, id).await?;
    let step = |step: &store::log::Transition| {
        let status = Status::parse(&step.to);
        StepTaken {
            seq: step.seq,
            name: status.map_or("other", |status| status.code()).to_owned(),
            at: Timestamp::from_microsecond(step.occurred_at_micros).unwrap_or_default(),
            summary: status.map_or("It changed.", sentence_of_step).to_owned(),
            reason: None,
            actor: (reader == Reader::Operator).then(|| shortened(&step.actor)),
        }
    };
    Ok(steps.iter().rev().take(STEPS_MAX).map(step).collect())
}

const fn sentence_of_step(status: Status) -> &'static str {
    match status {
        Status::Requested => "The group was asked for; the capacity of all members was reserved.",
        Status::Provisioning => "Work on its members began.",
        Status::Active => "Every required member could be used.",
        Status::Degraded => "A required member was lost.",
        Status::Releasing => "Its members were on their way out.",
        Status::ReleaseFailed => "The clean-up of a member was given up.",
        Status::Released => "Every member was gone.",
        Status::Failed => "No required member could be prepared.",
    }
}
