//! The three-way audit: what the database says is compared with what agents report and with what is charged for. A
//! disagreement becomes a finding, with who sees to it and what they do; nothing is mended silently.
//! Doors: GET /admin/findings, POST /admin/findings/look, a timer.

use domain::policy::Permission;
use lifecycle::Code as _;
use store::findings::{self, Place, Row, Terms};
use wire::Coded;
use wire::http::Page;
use wire::http::findings::{Finding, FindingKind, FindingOwner, Look};

use crate::audit_log::{Action, Deed};
use crate::idempotency::{Answer, Begun, Key, begin, finish};
use crate::page::Paging;
use crate::policies::Policies;
use crate::{Caller, Ctx, Error};

/// How many heartbeats must have come since a step before what they say is held against it.
const GRACE_HEARTBEATS: u32 = 2;

/// For how long a step and a report may pass each other.
pub fn grace_seconds(policies: &Policies) -> f64 {
    f64::from(policies.node_heartbeat_seconds.saturating_mul(GRACE_HEARTBEATS))
}

fn terms(ctx: &Ctx) -> Terms {
    Terms { now: ctx.clock.now(), grace_seconds: grace_seconds(&ctx.policies()) }
}

/// Compares, and writes down what does not agree; says how much that is.
///
/// # Errors
/// When the store fails.
pub async fn sweep(ctx: &Ctx) -> Result<u64, Error> {
    let mut tx = ctx.store.begin().await?;
    let open = findings::observe(&mut tx, terms(ctx)).await?;
    tx.commit().await?;
    measure(&open);
    Ok(u64::try_from(count(&open)).unwrap_or_default())
}

/// Compares now, for an operator who does not want to wait for the timer.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator.
pub async fn look(ctx: &Ctx, caller: &Caller, key: Option<&Key>) -> Result<Answer<Look>, Error> {
    caller.needs(Permission::FleetManage)?;
    let mut tx = match begin(ctx, key).await? {
        Begun::Known(answer) => return Ok(answer),
        Begun::Fresh(tx) => tx,
    };
    let open = findings::observe(&mut tx, terms(ctx)).await?;
    measure(&open);
    let look = Look { clean: open.is_empty(), open: count(&open) };
    let deed = Deed::new(caller, Action::FleetAudit, "fleet", "all");
    finish(tx, &deed, key, 200, look).await
}

fn count(open: &[(String, i64)]) -> i64 {
    open.iter().map(|(_, count)| count).sum()
}

/// Every kind has its number, also when it is none.
fn measure(open: &[(String, i64)]) {
    for kind in FindingKind::ALL {
        let found = open.iter().find(|(name, _)| name == kind.code());
        let found = found.map_or(0, |(_, count)| *count);
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        metrics::gauge!("berth_findings", "kind" => kind.code()).set(f64::from(found));
    }
}

/// What does not agree, the oldest first; with `all`, what has come to agree again behind it.
///
/// # Errors
/// [`Error::Forbidden`] for who is no operator, [`Error::Invalid`] for a limit or a cursor that is none.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    all: bool,
    limit: Option<u16>,
    cursor: Option<&str>,
) -> Result<Page<Finding>, Error> {
    caller.needs(Permission::FleetRead)?;
    let paging =
        Paging::<Place>::read(ctx, &("admin/findings", caller.user_id, all), limit, cursor)?;
    let rows = findings::list(&ctx.store, all, paging.after(), paging.rows()).await?;
    let place =
        |finding: &Finding| (finding.closed_at.is_some(), finding.first_seen_at, finding.id);
    Ok(paging.page(ctx, rows.into_iter().filter_map(shown).collect(), place))
}

/// A kind that this binary does not know is one of a newer binary, which shows it.
fn shown(row: Row) -> Option<Finding> {
    let kind = FindingKind::parse(&row.seen.kind)?;
    let until = row.closed_at.unwrap_or(row.last_seen_at);
    Some(Finding {
        id: row.id,
        kind: Coded(kind),
        detail: row.seen.detail,
        owner: Coded(owner(kind)),
        advice: advice(kind).to_owned(),
        node_id: row.seen.node_id,
        node: row.node,
        allocation_id: row.seen.allocation_id,
        first_seen_at: row.first_seen_at,
        last_seen_at: row.last_seen_at,
        age_seconds: until.duration_since(row.first_seen_at).as_secs(),
        closed_at: row.closed_at,
    })
}

/// Who sees to a finding.
pub const fn owner(kind: FindingKind) -> FindingOwner {
    match kind {
        FindingKind::UnknownAllocation
        | FindingKind::GuestOfEnded
        | FindingKind::GuestWithoutClaim
        | FindingKind::ClaimWithoutGuest
        | FindingKind::SlotOfAnother
        | FindingKind::UnknownSlot
        | FindingKind::GpusDiffer => FindingOwner::Operator,
        FindingKind::LeaseWithoutClaim | FindingKind::TaskOver => FindingOwner::NodeAgent,
        FindingKind::UsageOfNobody | FindingKind::UsageMissing => FindingOwner::Billing,
    }
}

/// What they do.
pub const fn advice(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::UnknownAllocation => {
            "If the database was restored from a backup, find out whose it is before anything is removed; then end it on the machine."
        }
        FindingKind::GuestOfEnded => {
            "End the guest on the machine; a claim that was set aside is cleared after that."
        }
        FindingKind::GuestWithoutClaim => "Drain the node, and end the guest on the machine.",
        FindingKind::LeaseWithoutClaim => {
            "Nothing: the agent drops it when it is told that the allocation is over. If it stays, restart the agent."
        }
        FindingKind::ClaimWithoutGuest => {
            "Look at the machine. If the guest is gone for good, have the allocation released, by force if need be. The claim stays until its clean-up is proven."
        }
        FindingKind::SlotOfAnother => {
            "Drain the node at once, and end the guest that does not belong there; tell its tenant."
        }
        FindingKind::UnknownSlot | FindingKind::GpusDiffer => {
            "Look at the machine: a GPU is missing, or was added. Retire the node and add it as it is."
        }
        FindingKind::TaskOver => {
            "Nothing: newer work stops it, and its result does not count. If it stays, restart the agent."
        }
        FindingKind::UsageOfNobody => {
            "Close the usage record, and give back what was charged since."
        }
        FindingKind::UsageMissing => "Open a usage record from the moment it became active.",
    }
}
