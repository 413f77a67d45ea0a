//! Allocation groups: their status is the fold of their members, stored in the member's own transaction.
//! Lock order is group, then allocation, then claims; [`lock`] comes before anything about a member.

use domain::derived::allocation_group::{MemberView, derive};
use domain::derived::crossing;
use domain::ids::{AllocationGroupId, EventId};
use domain::machines::allocation::Status as Member;
use domain::machines::{Allocation, AllocationGroup};
use lifecycle::{Code, Machine, Outcome, Source};
use sqlx::Row as _;
use uuid::Uuid;

use crate::lifecycle::{Actor, Birth, Report, born, stored, write};
use crate::{Error, Tx};

type Status = <AllocationGroup as Machine>::Status;

/// Adds a group; its members name it when they are inserted, in the same transaction.
///
/// # Errors
/// When the database fails.
pub async fn insert(
    tx: &mut Tx,
    id: AllocationGroupId,
    project_id: Uuid,
    birth: &Birth,
) -> Result<(), Error> {
    sqlx::query("INSERT INTO allocation_groups (id, project_id) VALUES ($1, $2)")
        .bind(id.uuid())
        .bind(project_id)
        .execute(tx.connection())
        .await?;
    born::<AllocationGroup>(tx, id, birth).await?;
    Ok(())
}

/// Keeps the group's fold from changing until the transaction ends.
///
/// # Errors
/// [`Error::Conflict`] when the lock was lost to another transaction.
pub async fn lock(tx: &mut Tx, id: AllocationGroupId) -> Result<(), Error> {
    stored::lock::<AllocationGroup>(tx, id.uuid()).await?;
    Ok(())
}

/// Notes that release of the whole group was asked for, and lets its status follow. The members are asked one by one,
/// each in its own transaction. Answers `None` when the group has ended, or the fold stays as it was.
///
/// # Errors
/// When the database fails.
pub async fn request_release(
    tx: &mut Tx,
    id: AllocationGroupId,
    cause: &str,
) -> Result<Option<Outcome<Status>>, Error> {
    let Some(group) = stored::lock::<AllocationGroup>(tx, id.uuid()).await? else {
        return Ok(None);
    };
    match group.status {
        Status::Released | Status::Failed => return Ok(None),
        Status::Requested
        | Status::Provisioning
        | Status::Active
        | Status::Degraded
        | Status::Releasing
        | Status::ReleaseFailed => {}
    }
    sqlx::query(
        "UPDATE allocation_groups SET release_requested_at = clock_timestamp()
          WHERE id = $1 AND release_requested_at IS NULL",
    )
    .bind(id.uuid())
    .execute(tx.connection())
    .await?;
    refold(tx, id, cause).await
}

/// Computes the group's status from its members, in a statement that sees them as they are now, and writes it if it
/// differs. The caller holds the group's lock.
///
/// # Errors
/// When the database fails, or a member is in a status nobody knows.
pub async fn refold(
    tx: &mut Tx,
    id: AllocationGroupId,
    cause: &str,
) -> Result<Option<Outcome<Status>>, Error> {
    let (stored, folded) = fold(tx, id).await?;
    let Some(event) = crossing::<AllocationGroup>(stored, folded) else {
        return Ok(None);
    };
    let actor = Actor::new(Source::Derived, "members");
    let report = Report::new(event, EventId(tx.new_id()), actor).because(cause);
    Ok(Some(write::<AllocationGroup>(tx, id.uuid(), &report).await?))
}

/// The group's status as it is stored, and as its members say it should be. They differ only if something is broken.
///
/// # Errors
/// When the database fails, or a status is one nobody knows.
pub async fn fold(tx: &mut Tx, id: AllocationGroupId) -> Result<(Status, Status), Error> {
    let rows = sqlx::query(
        "SELECT allocation_groups.status, release_requested_at IS NOT NULL, member.id, member.status, member.required
           FROM allocation_groups
           LEFT JOIN (SELECT id, group_id, status, required FROM allocations) AS member
             ON member.group_id = allocation_groups.id
          WHERE allocation_groups.id = $1",
    )
    .bind(id.uuid())
    .fetch_all(tx.connection())
    .await?;
    let unborn = || Error::Unborn { machine: AllocationGroup::NAME, id: id.uuid() };
    let first = rows.first().ok_or_else(unborn)?;
    let stored: Status = parse(AllocationGroup::NAME, id.uuid(), first.try_get(0)?)?;
    let release_requested: bool = first.try_get(1)?;
    let mut members = Vec::new();
    for row in &rows {
        let Some(member) = row.try_get::<Option<Uuid>, _>(2)? else {
            continue;
        };
        let status: Member = parse(Allocation::NAME, member, row.try_get(3)?)?;
        members.push(MemberView { status, required: row.try_get(4)? });
    }
    Ok((stored, derive(release_requested, &members)))
}

fn parse<S: Code>(machine: &'static str, id: Uuid, text: &str) -> Result<S, Error> {
    S::parse(text).ok_or_else(|| Error::UnknownStatus { machine, id, status: text.to_owned() })
}
