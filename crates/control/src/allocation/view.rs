//! An allocation as somebody sees it: what it is, what it is doing in a sentence, and what they may do with it.

use domain::ids::AllocationId;
use domain::machines::allocation::Status;
use domain::policy::{Permission, ProjectRole};
use jiff::Timestamp;
use lifecycle::Code as _;
use serde::Serialize;
use store::Tx;
use store::views::allocations::{self, Row};
use uuid::Uuid;
use wire::Coded;
use wire::http::Page;
use wire::http::allocations::{Action, ActionWord, Allocation};
use wire::http::catalogue::Shape;

use super::reason::{OurReason, Reason, word};
use super::restart;
use crate::page::Paging;
use crate::{Caller, Ctx, Error};

/// Who looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Viewer {
    /// The user.
    pub user_id: Uuid,
    /// Their role in the project; none when they are no member.
    pub role: Option<ProjectRole>,
    /// Whether they run the platform.
    pub operator: bool,
}

impl Viewer {
    /// A caller with this role in the project.
    pub const fn of(caller: &Caller, role: Option<ProjectRole>) -> Viewer {
        Viewer { user_id: caller.user_id, role, operator: caller.operator }
    }
}

/// What a list is to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of one project only.
    pub project_id: Option<Uuid>,
    /// Those in one status only.
    pub status: Option<Status>,
    /// The members of one group only.
    pub group_id: Option<Uuid>,
}

impl Filter {
    /// What makes a list another one: its name, who asks, and the filter.
    fn named(self, list: &'static str, caller: &Caller) -> impl Serialize {
        let status = self.status.map(|status| status.code());
        (list, caller.user_id, self.project_id, status, self.group_id)
    }

    fn stored(self) -> allocations::Filter {
        allocations::Filter { project: self.project_id, status: self.status, group: self.group_id }
    }
}

/// One allocation of the caller's projects.
///
/// # Errors
/// [`Error::NotFound`] when there is none, or it is somebody else's: nobody learns which.
pub async fn show(ctx: &Ctx, caller: &Caller, id: AllocationId) -> Result<Allocation, Error> {
    caller.needs(Permission::AllocationRead)?;
    let row = allocations::find_for(&ctx.store, id, caller.user_id).await?;
    let row = row.ok_or(Error::NotFound("allocation"))?;
    let viewer = Viewer::of(caller, row.role);
    Ok(shown(row, viewer))
}

/// The allocations of the caller's projects, or of one of them, newest first.
///
/// # Errors
/// [`Error::NotFound`] for a project that is not theirs, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    filter: &Filter,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Allocation>, Error> {
    caller.needs(Permission::AllocationRead)?;
    if let Some(project) = filter.project_id {
        caller.in_project(ctx, project, Permission::AllocationRead).await?;
    }
    let paging = Paging::read(ctx, &filter.named("allocations", caller), limit, cursor)?;
    let (rows, before) = (paging.rows(), paging.after());
    let rows =
        allocations::list_for(&ctx.store, caller.user_id, filter.stored(), rows, before).await?;
    let shown = |row: Row| {
        let viewer = Viewer::of(caller, row.role);
        shown(row, viewer)
    };
    Ok(paging.page(ctx, rows.into_iter().map(shown).collect(), |allocation| allocation.id))
}

/// All allocations, newest first, for operators.
///
/// # Errors
/// [`Error::Forbidden`] for anybody else, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn admin_list(
    ctx: &Ctx,
    caller: &Caller,
    filter: &Filter,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Allocation>, Error> {
    caller.needs(Permission::FleetRead)?;
    let paging = Paging::read(ctx, &filter.named("admin/allocations", caller), limit, cursor)?;
    let (rows, before) = (paging.rows(), paging.after());
    let rows = allocations::list_all(&ctx.store, filter.stored(), rows, before).await?;
    let viewer = Viewer::of(caller, None);
    let items = rows.into_iter().map(|row| shown(row, viewer)).collect();
    Ok(paging.page(ctx, items, |allocation: &Allocation| allocation.id))
}

/// The allocation as this transaction leaves it, for the answer of who changed it.
///
/// # Errors
/// [`Error::NotFound`] when there is none.
pub async fn in_transaction(
    tx: &mut Tx,
    id: AllocationId,
    viewer: Viewer,
) -> Result<Allocation, Error> {
    let row = allocations::find_in(tx, id).await?;
    Ok(shown(row.ok_or(Error::NotFound("allocation"))?, viewer))
}

/// A row as this viewer sees it.
pub(crate) fn shown(row: Row, viewer: Viewer) -> Allocation {
    let status_text = status_text(&row);
    let shape = if row.whole { Shape::Baremetal } else { Shape::GpuSlice };
    // How to reach it is of use while there is something to reach.
    let reachable = match row.status {
        Status::Active | Status::Restarting | Status::RestartFailed => true,
        Status::Requested
        | Status::Provisioning
        | Status::Releasing
        | Status::ReleaseFailed
        | Status::Released
        | Status::Failed => false,
    };
    let access = row.access.filter(|_| reachable);
    let holds = row.node.is_some();
    Allocation {
        id: row.id,
        name: row.name.unwrap_or_else(|| format!("{}-{}", row.sku, row.id.simple())),
        project_id: row.project_id,
        owner_id: row.owner_id,
        group_id: row.group_id,
        status: row.status.into(),
        status_at: row.status_at,
        status_reason: row.reason.as_deref().map(|reason| word(reason).to_owned()),
        status_text,
        sku: row.sku,
        shape: shape.into(),
        gpus: row.gpus,
        region: row.region,
        image: row.image,
        node: row.node,
        slots: row.slots,
        access: access.and_then(|access| serde_json::from_value(access).ok()),
        price_micros_per_gpu_second: row.price_micros_per_gpu_second,
        currency: row.currency,
        created_at: row.created_at,
        active_at: row.active_at,
        release_requested_at: row.release_requested_at,
        ended_at: row.ended_at,
        seq: row.seq,
        allowed_actions: allowed_actions(
            row.status,
            (row.owner_id == Some(viewer.user_id), holds),
            viewer,
        ),
    }
}

/// What somebody, who may be its owner, may do with an allocation in this status, which may hold something.
fn allowed_actions(
    status: Status,
    (owner, holds): (bool, bool),
    viewer: Viewer,
) -> Vec<ActionWord> {
    let (restartable, releasable) = match status {
        Status::Active | Status::RestartFailed => (true, true),
        Status::Requested | Status::Provisioning | Status::Restarting | Status::ReleaseFailed => {
            (false, true)
        }
        Status::Releasing | Status::Released | Status::Failed => (false, false),
    };
    let member = viewer.role.is_some_and(|role| Permission::AllocationRelease.allows(role));
    let mut actions = Vec::new();
    if restartable && (restart::is_theirs(viewer.role, owner) || viewer.operator) {
        actions.push(Coded(Action::Restart));
    }
    if releasable && member {
        actions.push(Coded(Action::Release));
    }
    if releasable && viewer.operator {
        actions.push(Coded(Action::ForceRelease));
    }
    if status == Status::ReleaseFailed && viewer.operator {
        actions.push(Coded(Action::Abandon));
    }
    if status == Status::Failed && holds && viewer.operator {
        actions.push(Coded(Action::Clean));
    }
    actions
}

/// What is happening, what happens to money and data, and what comes next; and that its machine is silent, if it is.
fn status_text(row: &Row) -> String {
    let told = told(row);
    match row.node_silent_since {
        Some(since) if row.ended_at.is_none() => {
            format!("{told} Its machine has not been heard of since {}.", moment(since))
        }
        Some(_) | None => told,
    }
}

fn told(row: &Row) -> String {
    let reason = row.reason.as_deref().map(Reason::read);
    match row.status {
        Status::Requested => "Capacity is reserved for you, and work on it begins in a moment. You are not charged before it is ready.".to_owned(),
        Status::Provisioning => "The machine is being prepared; the timeline shows each step. You are not charged before it is ready.".to_owned(),
        Status::Active => "Ready to use. You are charged for its GPUs until you release it; then the machine and its local disk are erased.".to_owned(),
        Status::Restarting => "The machine restarts: SSH and terminals are disconnected, attached storage stays attached, and it stays yours. Billing continues.".to_owned(),
        Status::RestartFailed => format!(
            "The restart did not succeed. {} It is still yours and nothing on it was erased; you are not charged while it is like this. Restart it again, or release it.",
            reason.unwrap_or(Reason::Other).sentence()
        ),
        Status::Releasing => releasing(row, reason),
        Status::ReleaseFailed => format!(
            "We could not finish cleaning this machine. {} {} Your data is not visible to anyone else: the machine stays locked until cleaning succeeds. Try again, or leave it to us.",
            reason.unwrap_or(Reason::Other).sentence(),
            not_charged(row),
        ),
        Status::Released => released(row, reason),
        Status::Failed => format!(
            "It could not be prepared. {} You were not charged, and what was begun is cleaned up before anybody else gets this capacity. Ask for another one.",
            reason.unwrap_or(Reason::Other).sentence()
        ),
    }
}

fn releasing(row: &Row, reason: Option<Reason>) -> String {
    let who = if reason == Some(Reason::Ours(OurReason::ForceReleased)) {
        "An operator took this machine back."
    } else {
        "It was given back."
    };
    format!(
        "{who} The machine and its local disk are being erased and can't be recovered. {} When the clean-up is proven you get a receipt.",
        not_charged(row)
    )
}

fn released(row: &Row, reason: Option<Reason>) -> String {
    match reason {
        Some(Reason::Ours(OurReason::Abandoned)) => format!(
            "Released by an operator who sees to the machine by hand; nobody else gets it until it is cleared. {}",
            not_charged(row)
        ),
        // What stands there from a release that had given up says nothing about the proof that came after all.
        None | Some(Reason::Node(_) | Reason::Ours(_) | Reason::Other) => format!(
            "Released: the machine and its local disk were erased, and the receipt proves it. {}",
            not_charged(row)
        ),
    }
}

/// Since when nobody pays for it.
fn not_charged(row: &Row) -> String {
    match (row.active_at, row.release_requested_at) {
        (None, _) => "It was never ready, so you were not charged.".to_owned(),
        (Some(_), None) => "You are not being charged.".to_owned(),
        (Some(_), Some(since)) => format!("You are not being charged since {}.", moment(since)),
    }
}

fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use domain::machines::allocation::Status;
    use domain::policy::ProjectRole;
    use jiff::Timestamp;
    use lifecycle::Code as _;
    use store::views::allocations::Row;
    use uuid::Uuid;
    use wire::http::allocations::Action;

    use super::{Viewer, allowed_actions, shown};

    fn row(status: Status, reason: Option<&str>) -> Row {
        let at = Timestamp::from_second(1_763_236_800).expect("it is a moment");
        Row {
            id: Uuid::nil(),
            name: None,
            project_id: Uuid::nil(),
            owner_id: None,
            status,
            status_at: at,
            reason: reason.map(str::to_owned),
            sku: "h100.slice".to_owned(),
            whole: false,
            gpus: 1,
            region: "eu-1".to_owned(),
            image: "i".to_owned(),
            access: None,
            price_micros_per_gpu_second: 831,
            currency: "USD".to_owned(),
            created_at: at,
            active_at: Some(at),
            release_requested_at: Some(at),
            ended_at: None,
            seq: 3,
            node: None,
            node_silent_since: None,
            group_id: None,
            slots: vec![],
            role: None,
        }
    }

    #[test]
    fn every_status_speaks_of_money_and_repeats_nobody() {
        for status in Status::ALL {
            for reason in [None, Some("node_lost"), Some("ssh_not_ready"), Some("<b>canary</b>")] {
                let shown = shown(row(*status, reason), Viewer::default());
                let text = &shown.status_text;
                assert!(text.contains("charged") || text.contains("Billing"), "{status}: {text}");
                assert!(text.ends_with('.') && !text.contains("canary"), "{status}: {text}");
                let word = reason.map(|reason| if reason.contains('<') { "other" } else { reason });
                assert_eq!(shown.status_reason.as_deref(), word);
            }
        }
        let failed = shown(row(Status::ReleaseFailed, Some("timeout")), Viewer::default());
        assert!(
            failed.status_text.contains("since 2025-11-15 20:00 UTC"),
            "{}",
            failed.status_text
        );
    }

    #[test]
    fn members_release_operators_force_and_nobody_releases_what_is_leaving() {
        let actions = |status, role, operator| {
            let viewer = Viewer { user_id: Uuid::nil(), role, operator };
            let actions = allowed_actions(status, (false, true), viewer);
            actions.iter().map(|action| action.0.code()).collect::<Vec<_>>().join(" ")
        };
        for status in Status::ALL {
            let ended = matches!(status, Status::Releasing | Status::Released | Status::Failed);
            let release = if ended { "" } else { "release" };
            let restart = matches!(status, Status::Active | Status::RestartFailed);
            let force = match (restart, ended) {
                (true, _) => "restart force_release",
                (false, true) => "",
                (false, false) => "force_release",
            };
            assert_eq!(actions(*status, Some(ProjectRole::Viewer), false), "");
            assert_eq!(actions(*status, Some(ProjectRole::Member), false), release);
            let beside = match status {
                Status::ReleaseFailed => "force_release abandon",
                Status::Failed => "clean",
                Status::Requested
                | Status::Provisioning
                | Status::Active
                | Status::Restarting
                | Status::RestartFailed
                | Status::Releasing
                | Status::Released => force,
            };
            assert_eq!(actions(*status, None, true), beside);
        }
    }

    #[test]
    fn owners_and_admins_are_offered_a_restart_and_other_members_are_not() {
        let offered = |role, owner| {
            let viewer = Viewer { user_id: Uuid::nil(), role: Some(role), operator: false };
            let actions = allowed_actions(Status::RestartFailed, (owner, true), viewer);
            actions.iter().any(|action| action.0 == Action::Restart)
        };
        assert!(offered(ProjectRole::Member, true) && offered(ProjectRole::Admin, false));
        assert!(!offered(ProjectRole::Member, false) && !offered(ProjectRole::Viewer, true));
        let failed =
            shown(row(Status::RestartFailed, Some("node_did_not_return")), Viewer::default());
        assert!(
            failed.status_text.contains("Restart it again, or release it"),
            "{}",
            failed.status_text
        );
    }
}
