//! A group as somebody sees it: what it is, what it is doing in a sentence, its members, and what they may do with it.

use domain::derived::allocation_group::Status;
use domain::ids::AllocationGroupId;
use domain::machines::allocation::Status as Member;
use domain::policy::Permission;
use lifecycle::Code as _;
use store::Tx;
use store::views::allocation_groups::{self, Row};
use uuid::Uuid;
use wire::Coded;
use wire::http::Page;
use wire::http::allocation_groups::{AllocationGroup, GroupAction, GroupActionWord, GroupMember};
use wire::http::allocations::Allocation;

use crate::allocation::view::{Viewer, shown as shown_allocation};
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// What a list is to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of one project only.
    pub project_id: Option<Uuid>,
    /// Those in one status only.
    pub status: Option<Status>,
}

/// One group of the caller's projects.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn show(
    ctx: &Ctx,
    caller: &Caller,
    id: AllocationGroupId,
) -> Result<AllocationGroup, Error> {
    caller.needs(Permission::AllocationRead)?;
    let row = allocation_groups::find_for(&ctx.store, id, caller.user_id).await?;
    let row = row.ok_or(Error::NotFound("allocation group"))?;
    let viewer = Viewer::of(caller, row.role);
    Ok(shown(row, viewer))
}

/// The groups of the caller's projects, or of one of them, newest first.
///
/// # Errors
/// [`Error::NotFound`] for a project that is not theirs, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    filter: &Filter,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<AllocationGroup>, Error> {
    caller.needs(Permission::AllocationRead)?;
    if let Some(project) = filter.project_id {
        caller.in_project(ctx, project, Permission::AllocationRead).await?;
    }
    let status = filter.status.map(|status| status.code());
    let of = ("allocation-groups", caller.user_id, filter.project_id, status);
    let paging = Paging::read(ctx, &of, limit, cursor)?;
    let (rows, before) = (paging.rows(), paging.after());
    let stored = allocation_groups::Filter { project: filter.project_id, status: filter.status };
    let rows =
        allocation_groups::list_for(&ctx.store, caller.user_id, stored, rows, before).await?;
    let shown = |row: Row| {
        let viewer = Viewer::of(caller, row.role);
        shown(row, viewer)
    };
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |group| group.id))
}

/// All groups, newest first, for operators.
///
/// # Errors
/// [`Error::Forbidden`] for anybody else, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn admin_list(
    ctx: &Ctx,
    caller: &Caller,
    filter: &Filter,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<AllocationGroup>, Error> {
    caller.needs(Permission::FleetRead)?;
    let status = filter.status.map(|status| status.code());
    let of = ("admin/allocation-groups", caller.user_id, filter.project_id, status);
    let paging = Paging::read(ctx, &of, limit, cursor)?;
    let (rows, before) = (paging.rows(), paging.after());
    let stored = allocation_groups::Filter { project: filter.project_id, status: filter.status };
    let rows = allocation_groups::list_all(&ctx.store, stored, rows, before).await?;
    let viewer = Viewer::of(caller, None);
    let items = rows.into_iter().map(|row| shown(row, viewer)).collect();
    Ok(paging.page(ctx, items, |group: &AllocationGroup| group.id))
}

/// The group as this transaction leaves it, for the answer of who changed it.
///
/// # Errors
/// [`Error::NotFound`] when there is none.
pub async fn in_transaction(
    tx: &mut Tx,
    id: AllocationGroupId,
    viewer: Viewer,
) -> Result<AllocationGroup, Error> {
    let row = allocation_groups::find_in(tx, id).await?;
    Ok(shown(row.ok_or(Error::NotFound("allocation group"))?, viewer))
}

pub(super) fn shown(row: Row, viewer: Viewer) -> AllocationGroup {
    let allowed_actions = allowed_actions(&row, viewer);
    let status_text = status_text(&row);
    let steps: i64 = row.members.iter().map(|member| member.allocation.seq).sum();
    let member = |member: allocation_groups::Member| {
        of_allocation(member.required, shown_allocation(member.allocation, viewer))
    };
    AllocationGroup {
        id: row.id,
        name: row.name.unwrap_or_else(|| format!("group-{}", row.id.simple())),
        project_id: row.project_id,
        owner_id: row.owner_id,
        status: row.status.into(),
        status_at: row.status_at,
        status_text,
        created_at: row.created_at,
        release_requested_at: row.release_requested_at,
        ended_at: row.ended_at,
        members: row.members.into_iter().map(member).collect(),
        version: row.seq + steps,
        allowed_actions,
    }
}

fn of_allocation(required: bool, allocation: Allocation) -> GroupMember {
    GroupMember {
        id: allocation.id,
        name: allocation.name,
        required,
        status: allocation.status,
        status_at: allocation.status_at,
        status_reason: allocation.status_reason,
        status_text: allocation.status_text,
        sku: allocation.sku,
        gpus: allocation.gpus,
        region: allocation.region,
        node: allocation.node,
        slots: allocation.slots,
        access: allocation.access,
        price_micros_per_gpu_second: allocation.price_micros_per_gpu_second,
        currency: allocation.currency,
    }
}

/// Whether a member is still to be asked when its group is released.
const fn is_left(status: Member) -> bool {
    match status {
        Member::Requested
        | Member::Provisioning
        | Member::Active
        | Member::Restarting
        | Member::RestartFailed
        | Member::ReleaseFailed => true,
        Member::Releasing | Member::Released | Member::Failed => false,
    }
}

/// What somebody may do with a group: release what is left of it, unless that was asked for a moment ago.
fn allowed_actions(row: &Row, viewer: Viewer) -> Vec<GroupActionWord> {
    let member = viewer.role.is_some_and(|role| Permission::AllocationRelease.allows(role));
    let left = row.members.iter().any(|member| is_left(member.allocation.status));
    if member && left && !row.release_pending {
        vec![Coded(GroupAction::Release)]
    } else {
        Vec::new()
    }
}

/// What is happening, what it means for the members, and what comes next.
fn status_text(row: &Row) -> String {
    let all = row.members.len();
    let counting = |wanted: fn(Member) -> bool| {
        row.members.iter().filter(|m| wanted(m.allocation.status)).count()
    };
    let usable = counting(|status| matches!(status, Member::Active | Member::Restarting));
    let ended = counting(|status| matches!(status, Member::Released | Member::Failed));
    let failed = counting(|status| status == Member::ReleaseFailed);
    let lost = counting(|status| matches!(status, Member::RestartFailed | Member::Failed));
    match row.status {
        Status::Requested => format!(
            "Capacity for all {all} members is reserved for you, and work on them begins in a moment. You are charged for a member from when it is ready."
        ),
        Status::Provisioning => format!(
            "{usable} of {all} members are ready; the others are being prepared. You are charged for each that is ready."
        ),
        Status::Active => format!(
            "Every required member can be used: {usable} of {all}. You are charged for each of them."
        ),
        Status::Degraded => format!(
            "{usable} of {all} members can be used; {lost} of them failed. Restart what failed, or release the group; you are charged for each member that is not given back."
        ),
        Status::Releasing => format!(
            "The members are being given back: {ended} of {all} are gone. You are not charged for a member from when it was given back."
        ),
        Status::ReleaseFailed => format!(
            "The clean-up of {failed} of {all} members did not succeed. You are not charged for them. Release the group again to try once more; members that are gone are left alone."
        ),
        Status::Released => {
            format!("All {all} members are gone. You are not charged for any of them any more.")
        }
        Status::Failed => {
            let left = all - ended;
            if left == 0 {
                "No required member could be prepared. You are not charged for what never worked."
                    .to_owned()
            } else {
                format!(
                    "No required member could be prepared; {left} optional ones are still there and are charged. Release the group to give them back."
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::derived::allocation_group::Status;
    use domain::policy::ProjectRole;
    use jiff::Timestamp;
    use lifecycle::Code as _;
    use store::views::allocation_groups::Row;
    use uuid::Uuid;

    use super::{Viewer, shown};

    #[test]
    fn every_status_is_a_sentence_about_money_and_an_empty_group_offers_nothing() {
        let at = Timestamp::from_second(1_763_236_800).expect("it is a moment");
        for status in Status::ALL {
            let row = Row {
                id: Uuid::nil(),
                name: None,
                project_id: Uuid::nil(),
                owner_id: None,
                status: *status,
                status_at: at,
                created_at: at,
                release_requested_at: None,
                ended_at: None,
                seq: 3,
                release_pending: false,
                role: None,
                members: Vec::new(),
            };
            let viewer =
                Viewer { user_id: Uuid::nil(), role: Some(ProjectRole::Admin), operator: true };
            let shown = shown(row, viewer);
            assert!(shown.status_text.contains("charged") && shown.status_text.ends_with('.'));
            assert!(shown.allowed_actions.is_empty(), "{status}: there is nothing to release");
            assert_eq!(shown.version, 3);
        }
    }
}
